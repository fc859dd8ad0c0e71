"""scikit-learn transformers that learn nothing from private records, or pay for what they learn."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
from sklearn.preprocessing import normalize
from sklearn.utils.validation import check_is_fitted, validate_data

from privada import fits
from privada.accounting import Budget, Ledger
from privada.accounting.calibration import noise_multiplier as calibrated
from privada.core.errors import ArgumentError, DataError
from privada.core.validation import integer, one_of, positive
from privada.data import Units
from privada.query.histograms import HistogramQuery, statistics_units
from privada.query.medians import BINS, release_medians
from privada.selection.planning import default_delta
from privada.tables import Classes, Number, Schema, Table, estimate_bounds

Numbers = NDArray[np.float64]
Bounds = tuple[Any, Any] | None

# A median is found if all counts together stand so far out of their noise.
_OUTSTANDING = 8.0


def limits(bounds: Any, features: int, of: str = "bounds") -> tuple[Numbers, Numbers]:
    """Return public bounds (low, high) as a number for each feature, or say what is wrong."""
    each = "" if of == "target_bounds" else f" or one for each of the {features} features"
    form = (
        f"Expected {of}=(low, high), each a number{each}, with low < high everywhere, both finite, "
        "and twice their distance finite"
    )
    try:
        pair = [np.asarray(bound, dtype=np.float64) for bound in bounds]
    except (TypeError, ValueError):
        pair = []
    if len(pair) != 2:
        raise ArgumentError(f"{form}, got {of}={bounds!r}.")
    low, high = (_each(f"{form}, got a bound", bound, features) for bound in pair)
    with np.errstate(all="ignore"):
        usable = np.isfinite(2 * (high - low)) & (low < high)
    if not np.all(usable):
        raise ArgumentError(f"{form}, got {of}={bounds!r}.")
    return low, high


def _each(words: str, values: Numbers, features: int) -> Numbers:
    if values.shape not in ((), (1,), (features,)):
        raise ArgumentError(f"{words} of shape {values.shape}.")
    return np.broadcast_to(values, (features,))


def mapped(values: Any, low: Any, high: Any) -> Numbers:
    """Return values clipped to bounds and mapped to [-1, 1]."""
    return np.asarray(2 * (np.clip(values, low, high) - low) / (high - low) - 1)


# What scikit-learn and NumPy say with values of records in it, and what is said instead.
_QUOTING = {
    "could not convert": "Expected numbers, got a column of text or of another kind. Encode it as "
    "numbers first, by a list of categories that is known without the data: pv.tables.encode does.",
    "Expected 2D array": "Expected an array of two dimensions, got one of fewer. Reshape your "
    "data: array.reshape(-1, 1) for a single feature, array.reshape(1, -1) for a single record.",
    "Complex data not supported": "Complex data not supported: expected real numbers.",
}


def unquoted(convert: Callable[[], Any]) -> Any:
    """Return what a conversion to numbers gives; its error does not quote a cell."""
    try:
        return convert()
    except ValueError as error:
        said = next((words for sign, words in _QUOTING.items() if sign in str(error)), None)
        if said is None:
            raise
    raise DataError(said)


def checked(estimator: Any, *given: Any, **how: Any) -> Any:
    """Return inputs, and targets, as scikit-learn checks them."""
    return unquoted(lambda: validate_data(estimator, *given, **how))


class _Charging(TransformerMixin, fits.Kin, BaseEstimator, ABC):  # type: ignore[misc]
    """A transformer of numbers, what it learns from records being charged before it is learnt."""

    charges_what_it_learns = True

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        seed: int | None = None,
        unit: str = "record",
    ) -> None:
        self.epsilon, self.delta, self.ledger, self.seed = epsilon, delta, ledger, seed
        self.unit = unit

    @abstractmethod
    def _learns(self) -> bool:
        """Return whether fitting asks the records."""

    @property
    def noise_is_known(self) -> bool:
        """Whether what it learns from records is not hidden, because its noise has a seed."""
        return self.seed is not None and self._learns()

    def _numbers(self, inputs: Any, *, fitting: bool) -> NDArray[Any]:
        found: NDArray[Any] = checked(
            self,
            inputs,
            reset=fitting,
            dtype=(np.float64, np.float32),
            ensure_all_finite="allow-nan",
        )
        return found

    @contextmanager
    def _query(
        self, values: NDArray[Any], units: Units, instead: str
    ) -> Iterator[tuple[Ledger, Budget, str]]:
        """Give the ledger, the budget and the name of a query to records that are noted."""
        if self.epsilon is None or self.ledger is None:
            raise ArgumentError(
                f"Expected {instead}, or epsilon= and ledger= to learn it from the records by a "
                f"charged query, got epsilon={self.epsilon!r} and ledger={self.ledger!r}."
            )
        ledger = self.ledger
        if not isinstance(ledger, Ledger):
            if not isinstance(ledger, (str, os.PathLike)) or not Path(ledger).exists():
                raise ArgumentError(
                    f"Expected ledger to be a Ledger or the path of one, got ledger={ledger!r}. "
                    "Make it first, with a budget for all that is fitted on these records: "
                    "pv.Ledger(path, pv.Budget(epsilon, delta)). Nothing was charged."
                )
            ledger = Ledger(ledger)
        usual = default_delta(units.size) if ledger.budget is None else ledger.budget.delta
        delta = usual if self.delta is None else self.delta
        budget = Budget(positive("epsilon", self.epsilon), delta)
        run = f"{type(self).__name__}-{os.urandom(4).hex()}"
        if self.seed is not None:  # not private, as what comes of it says
            integer("seed", self.seed, least=0)
            yield ledger, budget, run
            return
        seen = fits.digest(values)
        with fits.counted(seen, self._kin(), ledger, shared=True):
            yield ledger, budget, run

    def transform(self, X: Any) -> NDArray[Any]:
        """Return the records, each changed by itself and by what is public alone."""
        check_is_fitted(self)
        values = self._numbers(X, fitting=False)
        found = self._transformed(values).astype(values.dtype, copy=False)
        fits.transformed(values, found)
        return found

    @abstractmethod
    def _transformed(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the records, each changed by itself."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.non_deterministic = self._learns() and self.seed is None
        return tags


class PrivateScaler(OneToOneFeatureMixin, _Charging):  # type: ignore[misc]
    """Maps each feature from its bounds to [-1, 1], by public bounds or by a charged query.

    Args:
        bounds: (low, high), numbers or one for each feature, known without the data. Then nothing
            is learnt or charged. None estimates them.
        epsilon, delta: what the query costs by itself. By default delta is that of the ledger's
            budget, or the largest power of ten not above n^-1.1.
        ledger: the `Ledger`, or the path of one that exists, that the query is charged to. Give
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
        >>> scaler.low_, scaler.high_, ledger.epsilon() <= 0.5
        (array([16.]), array([128.]), True)

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
            self.low_, self.high_ = limits(self.bounds, values.shape[1])
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
        return mapped(values, self.low_, self.high_)


class PrivateImputer(OneToOneFeatureMixin, _Charging):  # type: ignore[misc]
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
        low, high = limits(self.bounds, features)
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
        return _each(f"{form}, got one", given, features)

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


def _text(value: Any) -> str:
    """Return a text that can be hashed, whatever a record has: an exception would tell of it."""
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


class PrivateVectorizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns texts into counts of words, by hashing or by a public vocabulary.

    A row has a norm of 1: the counts of a text's words, each in a place that its hash gives, with a
    sign that it gives too, or that the vocabulary gives.

    Args:
        n_features: the number of places for hashes.
        vocabulary: words that were listed without looking at the private texts, in the order of
            the features, or a mapping from word to place. Others are left out. None hashes.
        ngram_range: the least and the greatest number of words that are counted together.
        lowercase: whether case is ignored.
        analyzer: "word", or "char" and "char_wb" for parts of words, as for scikit-learn's own.

    Guarantee: each text is turned by itself, and fitting looks at none: no vocabulary and no
    inverse document frequency comes from private texts. Nothing is charged.

    Edge cases: what is not text, such as a missing value, counts as an empty text, whose row is
    zero; half of a surrogate pair, which is no character, counts as a question mark. Different
    words may share a place; signs make them cancel out as often as add up.

    Example:
        >>> import privada as pv
        >>> words = pv.PrivateVectorizer(vocabulary=["good", "bad"])
        >>> words.fit_transform(["A good film", "Bad, bad film"]).toarray()
        array([[1., 0.],
               [0., 1.]], dtype=float32)
        >>> pv.PrivateVectorizer(n_features=1024).fit_transform(["A good film", None]).shape
        (2, 1024)

    Reference: Weinberger et al. (2009), Feature Hashing for Large Scale Multitask Learning,
    Section 2.
    """

    charges_what_it_learns = True

    def __init__(
        self,
        n_features: int = 4096,
        *,
        vocabulary: Sequence[str] | Mapping[str, int] | None = None,
        ngram_range: tuple[int, int] = (1, 1),
        lowercase: bool = True,
        analyzer: str = "word",
    ) -> None:
        self.n_features, self.vocabulary = n_features, vocabulary
        self.ngram_range, self.lowercase, self.analyzer = ngram_range, lowercase, analyzer

    def _counter(self) -> Any:
        one_of("analyzer", self.analyzer, ("word", "char", "char_wb"))
        how = {
            "ngram_range": self.ngram_range,
            "lowercase": self.lowercase,
            "analyzer": self.analyzer,
            "dtype": np.float32,
        }
        if self.vocabulary is not None:
            return CountVectorizer(vocabulary=self.vocabulary, **how)
        size = integer("n_features", self.n_features)
        return HashingVectorizer(n_features=size, norm=None, **how)

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Check the settings; neither the texts nor the groups are looked at."""
        self._counter()
        return self

    def transform(self, X: Any) -> Any:
        """Return a sparse row for each text."""
        if isinstance(X, str) or getattr(X, "ndim", 1) != 1:
            raise ArgumentError(
                f"Expected a sequence of texts, got one {type(X).__name__}. Put a single text in a "
                "list, and take one column of a table."
            )
        texts = [_text(each) for each in X]
        return normalize(self._counter().transform(texts), copy=False)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the words of the vocabulary, or the numbers of the places."""
        if self.vocabulary is not None:
            counter = self._counter()
            counter.fit([])
            return np.asarray(counter.get_feature_names_out())
        size = integer("n_features", self.n_features)
        return np.array([f"privatevectorizer{place}" for place in range(size)], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.requires_fit = False
        return tags
