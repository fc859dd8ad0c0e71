"""What the queries over all units share: pay, add up over all of them, add noise."""

from collections.abc import Callable
from typing import Generic, TypeVar

from privada.accounting import events
from privada.core.randomness import RandomSource
from privada.core.validation import positive
from privada.core.values import ClippedSum, Release
from privada.noise import Correlated, NoiseStream
from privada.query.account import Account, Ahead

Computes = TypeVar("Computes")


class QueryOfAllUnits(Generic[Computes]):
    """Releases a sum over all units, which a subclass names.

    Args:
        executor: where sums are computed.
        account: what pays.
        noise: what adds noise.
        rng: what chooses the rows of units that have more than a look takes.
        population: the public number of units that a release is averaged over.

    Guarantee: each release is a Gaussian one over all units, charged before a record is read.
    """

    def __init__(
        self,
        *,
        executor: Computes,
        account: Account,
        noise: NoiseStream,
        rng: RandomSource,
        population: float,
    ) -> None:
        self._executor, self._account = executor, account
        # which all units are in, so that it has nothing to do with noise of steps in turns
        self._noise = noise.independent() if isinstance(noise, Correlated) else noise
        self._rng, self._population = rng, positive("population", population)

    def _release(
        self, noise_multiplier: float, total: Callable[[], ClippedSum], ahead: Ahead | None
    ) -> Release:
        """Return a release of a sum that is computed when it has been paid for.

        Raises:
            BudgetExceeded: before any record is read.
            LedgerError: before any record is read.
        """
        event = events.gaussian(positive("noise_multiplier", noise_multiplier))
        receipt = self._account.pay(event, ahead=ahead)
        return self._noise.release(total(), receipt, self._population)
