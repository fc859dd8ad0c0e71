"""The query of second moments: pay, add up bounded squares over all units, add noise."""

from privada.accounting import events
from privada.core.randomness import RandomSource
from privada.core.validation import positive
from privada.core.values import Release
from privada.noise import Correlated, NoiseStream
from privada.query.account import Account, Ahead
from privada.query.executor import Executor


class SecondMomentQuery:
    """Releases sum_i min(g_ij^2, bound) over all units, coordinate by coordinate.

    The gradients are those at the model's current parameters, averaged over the rows of a unit.

    Args:
        executor: where sums are computed.
        account: what pays.
        noise: what adds noise.
        rng: what chooses the rows of units that have more than a look takes.
        population: the public number of units that a release is averaged over.

    Guarantee: each release is a Gaussian one over all units, charged before a record is read, of a
    sum that one unit moves by at most sqrt(d) bound for d parameters.

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Algorithm 3.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        account: Account,
        noise: NoiseStream,
        rng: RandomSource,
        population: float,
    ) -> None:
        self._executor, self._account = executor, account
        # which all units are in, so that it has nothing to do with noise of steps in turns
        self._noise = noise.independent() if isinstance(noise, Correlated) else noise
        self._rng, self._population = rng, positive("population", population)

    def release(self, bound: float, noise_multiplier: float, ahead: Ahead | None = None) -> Release:
        """Return a release, whose `gradient` is the average over the population.

        Raises:
            BudgetExceeded: before any record is read.
            LedgerError: before any record is read.
        """
        positive("bound", bound)
        event = events.gaussian(positive("noise_multiplier", noise_multiplier))
        receipt = self._account.pay(event, ahead=ahead)
        total = self._executor.squared_sum(bound, self._rng)
        return self._noise.release(total, receipt, self._population)
