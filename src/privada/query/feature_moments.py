"""The query of feature moments: pay, add up squared features over all units, add noise."""

from collections.abc import Callable

from privada.accounting import events
from privada.core.randomness import RandomSource
from privada.core.validation import positive
from privada.core.values import Release
from privada.noise import Correlated, NoiseStream
from privada.query.account import Account, Ahead
from privada.query.executor import Executor


class FeatureMomentQuery:
    """Releases the sum over all units of x^2 / |x^2|, and how large rows are, in powers of two.

    Args:
        executor: where sums are computed.
        account: what pays.
        noise: what adds noise.
        rng: what chooses the rows of units that have more than a look takes.
        population: the public number of units that a release is averaged over.

    Guarantee: a release is a Gaussian one over all units, charged before a record is read, of a
    sum that one unit moves by at most sqrt(1 + 1/16), whatever its features are.
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

    def release(
        self, noise_multiplier: float, accepts: Callable[[int], object], ahead: Ahead | None = None
    ) -> Release:
        """Return a release: `value` has the features, `statistics` the sizes.

        `accepts` is called with the number of features before anything is charged, and may raise.

        Raises:
            ArgumentError: the records have no features, before anything is charged.
            BudgetExceeded: before any record is read.
            LedgerError: before any record is read.
        """
        event = events.gaussian(positive("noise_multiplier", noise_multiplier))
        accepts(self._executor.features())
        receipt = self._account.pay(event, ahead=ahead)
        total = self._executor.feature_sum(self._rng)
        return self._noise.release(total, receipt, self._population)
