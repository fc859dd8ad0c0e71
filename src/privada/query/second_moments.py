"""The query of second moments: pay, add up bounded squares over all units, add noise."""

from privada.core.validation import positive
from privada.core.values import Release
from privada.query.account import Ahead
from privada.query.all_units import QueryOfAllUnits
from privada.query.executor import Executor


class SecondMomentQuery(QueryOfAllUnits[Executor]):
    """Releases sum_i min(g_ij^2, bound) over all units, coordinate by coordinate.

    The gradients are those at the model's current parameters, averaged over the rows of a unit.

    Guarantee: each release is a Gaussian one over all units, charged before a record is read, of a
    sum that one unit moves by at most sqrt(d) bound for d parameters.

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Algorithm 3.
    """

    def release(self, bound: float, noise_multiplier: float, ahead: Ahead | None = None) -> Release:
        """Return a release, whose `gradient` is the average over the population.

        Raises:
            BudgetExceeded: before any record is read.
            LedgerError: before any record is read.
        """
        positive("bound", bound)
        return self._release(
            noise_multiplier, lambda: self._executor.squared_sum(bound, self._rng), ahead
        )
