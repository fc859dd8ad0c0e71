"""The query of feature moments: pay, add up squared features over all units, add noise."""

from collections.abc import Callable

from privada.core.values import Release
from privada.query.account import Ahead
from privada.query.all_units import QueryOfAllUnits
from privada.query.executor import Executor


class FeatureMomentQuery(QueryOfAllUnits[Executor]):
    """Releases the sum over all units of x^2 / |x^2|, and how large rows are, in powers of two.

    Guarantee: a release is a Gaussian one over all units, charged before a record is read, of a
    sum that one unit moves by at most sqrt(1 + 1/16), whatever its features are.
    """

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
        accepts(self._executor.features())
        return self._release(noise_multiplier, lambda: self._executor.feature_sum(self._rng), ahead)
