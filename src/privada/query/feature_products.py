"""The query of products of features: pay, add up directions of all units, add noise."""

from typing import Protocol

from privada.core.randomness import RandomSource
from privada.core.validation import positive
from privada.core.values import ClippedSum, Release
from privada.query.account import Ahead
from privada.query.all_units import QueryOfAllUnits


class _Executor(Protocol):
    def feature_products(self, size_weight: float, rng: RandomSource) -> ClippedSum: ...


class FeatureProductQuery(QueryOfAllUnits[_Executor]):
    """Releases sum_i x_i x_i^T / |x_i|^2 over all units, and how long the rows x_i are.

    The rows are the inputs of a linear model, with a 1 at the end where it has a bias. Of a unit
    with several rows it is the average over those that are looked at.

    Guarantee: each release is a Gaussian one over all units, charged before a record is read, of a
    sum that one unit moves by at most sqrt(1 + size_weight^2), whatever its rows are.

    Reference: Dwork, Talwar, Thakurta and Zhang (2014), Analyze Gauss: Optimal Bounds for
    Privacy-Preserving Principal Component Analysis, Algorithm 1.
    """

    def release(
        self, size_weight: float, noise_multiplier: float, ahead: Ahead | None = None
    ) -> Release:
        """Return a release, whose `gradient` is the average over the population.

        Raises:
            BudgetExceeded: before any record is read.
            LedgerError: before any record is read.
        """
        positive("size_weight", size_weight)
        return self._release(
            noise_multiplier,
            lambda: self._executor.feature_products(size_weight, self._rng),
            ahead,
        )
