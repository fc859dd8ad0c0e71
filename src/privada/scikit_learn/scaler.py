"""PrivateScaler: features mapped to [-1, 1] by public bounds or by a charged query."""

import os
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import OneToOneFeatureMixin

from privada.accounting import Ledger
from privada.query.histograms import statistics_units
from privada.scikit_learn.charged_transformer import ChargedTransformer
from privada.scikit_learn.inputs import Bounds, bounds_of_features, to_unit_interval
from privada.tables import Classes, Number, Schema, Table, estimate_bounds


class PrivateScaler(OneToOneFeatureMixin, ChargedTransformer):  # type: ignore[misc]
    """Maps each feature from its bounds to [-1, 1], by public bounds or by a charged query.

    Args:
        bounds: (low, high), numbers or one for each feature, known without the data. Then nothing
            is learnt or charged. None estimates them.
        epsilon, delta: what the query costs by itself; the ledger counts it with all else that is
            charged to it. By default delta is that of the ledger's budget, or the largest power of
            ten not above n^-1.1.
        ledger: the `Ledger`, or the path or URL of one there is, that the query is charged to. Give
            the estimator the same one.
        outside: the share of records that may be beyond each estimated bound.
        seed: makes the query reproducible, and not private. An estimator behind it in a Pipeline
            then needs a seed too.
        unit: what `fit(X, groups=...)` protects all rows of, in the ledger's words; with "record",
            a person. Give the estimator the same one.

    Attributes:
        low_, high_: the bounds of each feature.

    Guarantee: with bounds, each record is mapped by itself, and fitting learns nothing. Without,
    the charge of `pv.tables.estimate_bounds` is on the ledger before any value is counted, and the
    bounds are what it releases, with noise. What is read before the charge is whether all values
    are numbers and whether these rows were fitted before, which an error alone would tell. With
    `fit(X, groups=...)` one row of each person, chosen at random, is counted, and the charge is for
    all rows of a person.

    Edge cases: values beyond the bounds become -1 or 1, missing ones stay missing. Estimated bounds
    are powers of two, and may be up to twice as wide as the values; a feature whose values do not
    stand out of the noise gets the default of `pv.tables.estimate_bounds`. A table with too few
    records for so many features is refused before the charge.

    Example:
        >>> import numpy as np, privada as pv
        >>> pv.PrivateScaler(bounds=([0, 0], [100, 1])).fit_transform([[25.0, 0.5], [120.0, 1.0]])
        array([[-0.5,  0. ],
               [ 1. ,  1. ]])
        >>> ledger = pv.Ledger(None, pv.Budget(2.0, 1e-6))
        >>> ages = np.arange(40_000.0)[:, None] % 50 + 20
        >>> scaler = pv.PrivateScaler(epsilon=0.5, delta=1e-6, ledger=ledger).fit(ages)
        >>> scaler.low_, scaler.high_, [charge.purpose for charge in ledger.charges()]
        (array([16.]), array([128.]), ['statistics'])

    Reference: Karwa and Vadhan (2018), Finite Sample Differentially Private Confidence Intervals,
    Algorithm 1, for ranges from noisy histograms.
    """

    def __init__(
        self,
        bounds: Bounds = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        outside: float = 0.005,
        seed: int | None = None,
        unit: str = "record",
    ) -> None:
        super().__init__(epsilon=epsilon, delta=delta, ledger=ledger, seed=seed, unit=unit)
        self.bounds, self.outside = bounds, outside

    def _learns(self) -> bool:
        return self.bounds is None

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Take the bounds, or estimate them at a charge.

        With `groups`, one identifier for each row, the charge protects all rows of a person.
        """
        values = self._numbers(X, fitting=True)
        if not self._learns():
            self.low_, self.high_ = bounds_of_features(self.bounds, values.shape[1])
            return self
        units = statistics_units(len(values), groups)
        with self._query(values, units, "bounds=(low, high)") as (ledger, budget, run):
            names = [str(name) or "unnamed" for name in self.get_feature_names_out()]
            if len(set(names)) < len(names):
                names = [f"x{place}" for place in range(len(names))]
            target = max(names, key=len) + "'"  # which no feature is called, and nobody reads
            asked = Schema(
                Classes(target, ["0", "1"]), {name: Number(bounds="estimate") for name in names}
            )
            columns = dict(zip(names, values.T, strict=True))
            found = estimate_bounds(
                Table({**columns, target: np.zeros(len(values))}),
                asked,
                ledger=ledger,
                budget=budget,
                run=run,
                outside=self.outside,
                seed=self.seed,
                groups=groups,
                unit=self.unit,
            ).columns
        pairs = [(found[name].low, found[name].high) for name in names]  # type: ignore[union-attr]
        self.low_, self.high_ = np.array(pairs, dtype=np.float64).T
        return self

    def _transformed(self, values: NDArray[Any]) -> NDArray[Any]:
        return to_unit_interval(values, self.low_, self.high_)
