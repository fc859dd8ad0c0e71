"""What scikit-learn did to private records before an estimator sees them."""

import inspect
import math
import sys
import warnings
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
    StackingRegressor,
)
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_selection import RFECV, SequentialFeatureSelector
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator
from sklearn.impute._iterative import IterativeImputer  # which sklearn.impute hides as experimental
from sklearn.kernel_approximation import PolynomialCountSketch, RBFSampler, SkewedChi2Sampler
from sklearn.linear_model import RANSACRegressor
from sklearn.model_selection import TunedThresholdClassifierCV
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
)
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection
from sklearn.utils import get_tags

from privada.core.errors import ArgumentError

# Their fit looks at the number of features alone.
_BY_SHAPE = (
    GaussianRandomProjection,
    PolynomialCountSketch,
    PolynomialFeatures,
    SkewedChi2Sampler,
    SparseRandomProjection,
)
# Whose last estimator, when it is fitted, gets what the others predict.
_STACKS = (StackingClassifier, StackingRegressor)
# Which look at private records themselves, without noise, beside what they fit.
_LOOKING = (
    BaseSearchCV,
    CalibratedClassifierCV,
    RFECV,
    SequentialFeatureSelector,
    TunedThresholdClassifierCV,
)
# Which choose the rows that they fit, or fill them in, by what the others are.
_BY_OTHERS = (IterativeImputer, RANSACRegressor)
_PREPARED = (
    "Each record was prepared by itself, by what is public or by queries that the ledger lists: no "
    "other statistic of private records, as of a scaler that was fitted by hand, is in it."
)
# How near to 0 and 1 a mean and a standard deviation are that were made so: float32 leaves about
# 1e-8, and those of a sample come this near once in a million columns.
_EXACT = 1e-6
# So many rows are made up to see whether a function looks at more than one.
_MADE_UP = 16
# Of fewer rows nothing is said: small designs are balanced on purpose.
_FEW = 10


def _parts(transformer: Any) -> Iterable[Any] | None:
    """Return the transformers that this one is made of, None if it is one by itself."""
    if isinstance(transformer, Pipeline):
        return [step for _, step in transformer.steps]
    if isinstance(transformer, FeatureUnion):
        return [part for _, part in transformer.transformer_list]
    if isinstance(transformer, ColumnTransformer):
        return [*(part for _, part, _ in transformer.transformers), transformer.remainder]
    return None


def _mixes(transformer: Any) -> bool:
    """Return whether one dummy row changes what a function makes of the others."""
    shape = (_MADE_UP, getattr(transformer, "n_features_in_", 1))
    plain = (0.6180339887 * np.arange(1.0, 1 + math.prod(shape)) % 1).reshape(shape)
    gaps = plain.copy()
    gaps[1] = np.nan
    return any(_moved(transformer, rows, odd) for rows in (plain, gaps) for odd in (1e6, -1e6, 0.0))


def _moved(transformer: Any, rows: NDArray[Any], odd: float) -> bool:
    changed = rows.copy()
    changed[0] = odd
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            once, again, other = (
                _dense(transformer.transform(_like_fitted(transformer, each.copy())))
                for each in (rows, rows, changed)
            )
    except Exception:  # of a function for rows of another kind, of which nothing is known
        return False
    if len(once) != len(rows) or not np.array_equal(once, again, equal_nan=True):
        return False  # it is not for rows, or draws at random
    if once.shape != other.shape:
        return True
    return not np.allclose(once[1:], other[1:], rtol=1e-9, atol=0, equal_nan=True)


def _like_fitted(transformer: Any, rows: NDArray[Any]) -> Any:
    """Return rows as a data frame if the transformer was fitted on one."""
    names = getattr(transformer, "feature_names_in_", None)
    if names is None:
        return rows
    return sys.modules["pandas"].DataFrame(rows, columns=names)  # which made that one


def _dense(rows: Any) -> NDArray[np.float64]:
    return np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows, dtype=np.float64)


def _stateless(transformer: Any) -> bool:
    """Return whether fitting it learns nothing from records, or pays for what it learns."""
    kind = type(transformer)
    if getattr(kind, "charges_what_it_learns", False) or kind in _BY_SHAPE:
        return True
    if kind is FunctionTransformer:
        return not _mixes(transformer)
    if kind is RBFSampler:
        return not isinstance(transformer.gamma, str)  # "scale" is by the variance of the records
    if kind in (OneHotEncoder, OrdinalEncoder):
        counted = transformer.min_frequency or transformer.max_categories
        return not (counted or isinstance(transformer.categories, str))
    if kind is MissingIndicator:
        return bool(transformer.features == "all")
    if kind is CountVectorizer:
        return transformer.vocabulary is not None
    try:
        return not get_tags(transformer).requires_fit
    except Exception:  # of a class that is not scikit-learn's, which says nothing of itself
        return False


def learners(transformer: Any) -> Iterator[Any]:
    """Yield the parts of a transformer that learn from the records they are fitted on, unpaid.

    Example:
        >>> from privada.scikit_learn.upstream import learners
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import Normalizer, StandardScaler
        >>> list(learners(make_pipeline(Normalizer(), StandardScaler())))
        [StandardScaler()]
    """
    if transformer is None or isinstance(transformer, (str, FrozenEstimator)):
        return
    parts = _parts(transformer)
    if parts is not None:
        for part in parts:
            yield from learners(part)
    elif not _stateless(transformer):
        yield transformer


def frozen(transformer: Any) -> Iterator[Any]:
    """Yield the parts of a transformer that are frozen, whatever they were fitted on."""
    if isinstance(transformer, FrozenEstimator):
        yield transformer.estimator
    for part in _parts(transformer) or ():
        yield from frozen(part)


def _seeded(transformer: Any) -> Iterator[Any]:
    """Yield the parts of a transformer that learn by queries whose noise is known."""
    if getattr(transformer, "noise_is_known", False):
        yield transformer
    for part in _parts(transformer) or ():
        yield from _seeded(part)


def _callers() -> Iterator[FrameType]:
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def _upstream() -> Iterator[Any]:
    """Yield the transformers that come before the estimator that is being fitted."""
    for frame in _callers():
        owner = frame.f_locals.get("self")
        if isinstance(owner, Pipeline):
            yield from (step for _, step in owner.steps[:-1])
        elif isinstance(owner, TransformedTargetRegressor):
            yield owner.transformer
        elif isinstance(owner, _STACKS) and "X_meta" in frame.f_locals:
            yield from (each for _, each in owner.estimators)  # the last gets what these predict
        elif isinstance(owner, _BY_OTHERS):
            yield owner


def charged() -> Iterator[Any]:
    """Yield what comes before the estimator that is being fitted and charges a ledger."""
    for one in _upstream():
        yield from _charging(one)


def _charging(transformer: Any) -> Iterator[Any]:
    learns = getattr(transformer, "_learns", None)
    paid = _pays(transformer) and getattr(transformer, "ledger", None) is not None
    if paid and (learns is None or learns()):
        yield transformer
    for part in _parts(transformer) or ():
        yield from _charging(part)


def _pays(estimator: Any) -> bool:
    if isinstance(estimator, Pipeline):
        return _pays(estimator.steps[-1][1])
    return bool(getattr(type(estimator), "charges_what_it_learns", False))


def _lookers() -> Iterator[Any]:
    """Yield those around the estimator that is being fitted that also look at records, unpaid."""
    for frame in _callers():
        owner = frame.f_locals.get("self")
        stack = isinstance(owner, _STACKS) and not _pays(owner.final_estimator)
        if stack or isinstance(owner, _LOOKING):
            yield owner


def refuse_repeated_rows() -> None:
    """Raise if an ensemble fits this on a sample in which rows occur several times."""
    for frame in _callers():
        if isinstance(frame.f_locals.get("self"), AdaBoostRegressor):
            raise ArgumentError(
                "Expected each record to be one row, got AdaBoostRegressor, which repeats rows: a "
                "record in k rows has k times the epsilon, and by the errors of others. Use "
                "BaggingRegressor with bootstrap=False, or the estimator alone."
            )
        ensemble = frame.f_locals.get("ensemble")
        if isinstance(ensemble, (BaggingClassifier, BaggingRegressor)) and ensemble.bootstrap:
            raise ArgumentError(
                f"Expected each record to be one row, got {type(ensemble).__name__} with "
                "bootstrap=True, which repeats rows: a record in k rows has k times the epsilon. "
                "Set bootstrap=False, and max_samples= for smaller samples."
            )


# Whatever was set: a warning would tell that one record has a huge value.
@np.errstate(all="ignore")
def fingerprint(values: NDArray[Any]) -> str | None:
    """Return in words what shows that columns were scaled by their own statistics, None if nothing.

    That is a mean of 0 with a variance of 1; or, in two columns at least, values from 0 to 1 of
    which each end is reached once.

    Guarantee: constants that were known beforehand do not lead to that, nor do columns of -1 and 1.

    Example:
        >>> import numpy as np
        >>> from privada.scikit_learn.upstream import fingerprint
        >>> x = np.random.default_rng(0).normal(50, 10, (100, 2))
        >>> fingerprint((x - 50) / 10), fingerprint((x - x.mean(0)) / x.std(0))
        (None, 'columns of mean 0 and variance 1')

    Reference: scikit-learn, StandardScaler and MinMaxScaler, whose results look like this.
    """
    if len(values) < _FEW:
        return None
    if _standardised(values):
        return "columns of mean 0 and variance 1"
    least, most = values.min(axis=0), values.max(axis=0)
    ends = np.flatnonzero((least == 0) & (np.abs(most - 1) < _EXACT))
    once = [
        place
        for place in ends
        if np.count_nonzero(values[:, place] == least[place]) == 1
        and np.count_nonzero(values[:, place] == most[place]) == 1
    ]
    return "columns that reach from 0 to 1" if len(once) > 1 else None


def _standardised(values: NDArray[Any]) -> bool:
    records = len(values)
    centred = np.abs(values.mean(axis=0, dtype=np.float64)) < _EXACT
    if not centred.any():
        return False
    some = values[:, centred].astype(np.float64)
    square = np.einsum("ij,ij->j", some, some) / records
    unit = np.abs(square - 1) < 2 * _EXACT
    unit |= np.abs(square * records / (records - 1) - 1) < 2 * _EXACT  # as pandas divides
    return bool(np.any(unit & (np.abs(some).max(axis=0) > 1 + 1e-3)))


def _names(transformers: Iterable[Any]) -> list[str]:
    return sorted({type(each).__name__ for each in transformers})


def assumptions(
    estimator: str, columns: Iterable[NDArray[Any]], *, public: bool, private: bool
) -> list[str]:
    """Return what is assumed of how the records were prepared, in words for the statement.

    Args:
        estimator: the name of the estimator that is being fitted.
        columns: its inputs and targets, as arrays of two dimensions.
        public: whether the user says that nothing was learnt from private records.
        private: whether the fit is to be private; else what was learnt is named and not refused.
    """
    found = list(_upstream())
    learnt = _names(each for one in found for each in learners(one))
    kept = _names(each for one in found for each in frozen(one))
    known = _names(each for one in found for each in _seeded(one))
    if known and private and not public:
        raise ArgumentError(
            f"Expected {estimator} without a seed to get records that were prepared without one, "
            f"got a seeded {' and '.join(known)} in a Pipeline: noise from a seed is known, and "
            "hides nothing of what was learnt. Leave out seed= there, or give it here as well."
        )
    said = [_PREPARED]
    said += [f"What {name} had learnt before it was frozen came from public data." for name in kept]
    said += [
        f"{name}, which fitted this, looked at records by itself, without noise, to score, choose "
        "or calibrate: what it chose or learnt by that counts as public, and is in no figure here."
        for name in _names(_lookers())
    ]
    shown = [each for each in map(fingerprint, columns) if each]
    if not (learnt or shown):
        return said
    what = " and ".join(learnt or shown[:1])
    if not public and private:
        raise ArgumentError(
            f"Expected {estimator} to get records that were prepared without looking at other "
            f"records, got {what}{' before or around it' if learnt else ''}: what is learnt from "
            "private records there is not in the price. Use pv.PrivateScaler, pv.PrivateImputer or "
            "pv.PrivateVectorizer, or sklearn.frozen.FrozenEstimator around what was fitted on "
            "public data. preprocessing='public' takes it as public, and the statement says so."
        )
    if not public:
        said.remove(_PREPARED)  # which is known to be wrong
    origin = "public data" if public else "these very records, unpaid: the figures leave it out"
    said.append(
        f"What {what} learnt came from {origin}."
        if learnt
        else f"The records have {what}: the statistics that made them so came from {origin}."
    )
    return said
