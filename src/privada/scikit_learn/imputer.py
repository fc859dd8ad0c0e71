"""PrivateImputer: missing values filled in by public constants or by charged medians."""

import math
import os
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import OneToOneFeatureMixin

from privada.accounting import Ledger
from privada.accounting.calibration import noise_multiplier as calibrated
from privada.core.errors import ArgumentError, DataError
from privada.core.validation import one_of
from privada.query.histograms import HistogramQuery, statistics_units
from privada.query.medians import BINS, release_medians
from privada.scikit_learn.charged_transformer import ChargedTransformer
from privada.scikit_learn.inputs import Bounds, Numbers, bounds_of_features, one_each

# A median is found if all counts together stand so far out of their noise.
_OUTSTANDING = 8.0


class PrivateImputer(OneToOneFeatureMixin, ChargedTransformer):  # type: ignore[misc]
    """Fills in missing values, by public constants or by medians of a charged query.

    Args:
        strategy: "constant", or "median" to estimate the median of each feature.
        fill_value: the constant, a number or one for each feature, known without the data.
        bounds: (low, high), numbers or one for each feature, known without the data: a median is
            looked for between them.
        epsilon, delta, ledger, seed, unit: as for `PrivateScaler`, for the query.

    Attributes:
        statistics_: what a missing value of each feature becomes.

    Guarantee: with a constant, each record is filled in by itself, and fitting learns nothing. For
    medians one Gaussian release of a histogram for each feature is charged, on the ledger before
    any value is counted; each record is in at most one bin of each. With `fit(X, groups=...)`, each
    person is, by one row that is chosen at random, and the charge is for all rows of a person. What
    is read before the charge is as for `PrivateScaler`.

    Edge cases: a median is the middle of one of 64 bins between the bounds, and the middle of the
    bounds where most values are missing and the others do not stand out of the noise; fewer records
    than would stand out are refused before the charge. Values beyond the bounds count as the bound.
    All features are kept, those without a single value too.

    Example:
        >>> import numpy as np, privada as pv
        >>> pv.PrivateImputer(fill_value=-1).fit_transform([[1.0, np.nan], [np.nan, 4.0]])
        array([[ 1., -1.],
               [-1.,  4.]])
        >>> ledger = pv.Ledger(None, pv.Budget(2.0, 1e-6))
        >>> ages = np.where(np.arange(9000) % 9 == 0, np.nan, 40.0)[:, None]
        >>> imputer = pv.PrivateImputer("median", bounds=(0, 128), epsilon=1.0, ledger=ledger)
        >>> imputer.fit(ages).statistics_
        array([41.])

    Reference: Dwork and Roth (2014), The Algorithmic Foundations of Differential Privacy, Section
    3.3 and Theorem A.1, for noisy histograms.
    """

    def __init__(
        self,
        strategy: str = "constant",
        *,
        fill_value: Any = 0.0,
        bounds: Bounds = None,
        epsilon: float | None = None,
        delta: float | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        seed: int | None = None,
        unit: str = "record",
    ) -> None:
        super().__init__(epsilon=epsilon, delta=delta, ledger=ledger, seed=seed, unit=unit)
        self.strategy, self.fill_value, self.bounds = strategy, fill_value, bounds

    def _learns(self) -> bool:
        return self.strategy != "constant"

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Take the constants, or estimate the medians at a charge.

        With `groups`, one identifier for each row, the charge protects all rows of a person.
        """
        one_of("strategy", self.strategy, ("constant", "median"))
        values = self._numbers(X, fitting=True)
        features = values.shape[1]
        if not self._learns():
            self.statistics_ = self._constants(features)
            return self
        if self.bounds is None:
            raise ArgumentError(
                "Expected bounds=(low, high) between which to look for medians, got bounds=None. "
                "Give bounds that are known without the data, or strategy='constant'."
            )
        low, high = bounds_of_features(self.bounds, features)
        units = statistics_units(len(values), groups)
        with self._query(values, units, "strategy='constant'") as (ledger, budget, run):
            query = HistogramQuery(
                units,
                ledger,
                calibrated(epsilon=budget.epsilon, delta=budget.delta, sampling_rate=1.0, steps=1),
                run=run,
                stream="medians",
                unit=self.unit,
                seed=self.seed,
            )
            _refuse_few(query, features)
            release = release_medians(query, values, low, high)
        counts = release.value.numpy().reshape(features, BINS)
        self.statistics_ = low + (high - low) * _medians(counts, release.noise_std)
        return self

    def _constants(self, features: int) -> Numbers:
        form = f"Expected fill_value to be a finite number, or one for each of {features} features"
        try:
            given = np.asarray(self.fill_value, dtype=np.float64)
        except (TypeError, ValueError):
            given = np.array(np.nan)
        if not np.isfinite(given).all():
            raise ArgumentError(f"{form}, got fill_value={self.fill_value!r}.")
        return one_each(f"{form}, got one", given, features)

    def _transformed(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.where(np.isnan(values), self.statistics_, values)


def _refuse_few(query: HistogramQuery, features: int) -> None:
    fewest = math.floor(_lost(query.noise_multiplier * math.sqrt(features))) + 1
    if query.units.size < fewest:
        raise DataError(
            f"Expected at least {fewest} {query.counted} to find medians of {features} columns in "
            f"the noise, got {query.units.size}. Give a larger epsilon, or strategy='constant'. "
            "The query was not charged."
        )


def _lost(noise_std: float) -> float:
    """Return up to how many records together do not stand out of the noise of all bins."""
    return _OUTSTANDING * noise_std * math.sqrt(BINS)


def _medians(counts: Numbers, noise_std: float) -> Numbers:
    """Return where, from 0 to 1, the median of each histogram is; the middle if it is lost."""
    total = counts.sum(axis=1)
    until = np.cumsum(counts, axis=1)
    first = np.argmax(until >= total[:, None] / 2, axis=1)
    found = total > _lost(noise_std)
    return np.where(found, (first + 0.5) / BINS, 0.5)
