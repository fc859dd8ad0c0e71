"""Inputs of estimators and transformers: checked without quoting a record, within public bounds."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from privada.core.errors import ArgumentError, DataError

Numbers = NDArray[np.float64]
Bounds = tuple[Any, Any] | None


def bounds_of_features(bounds: Any, features: int, of: str = "bounds") -> tuple[Numbers, Numbers]:
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
    low, high = (one_each(f"{form}, got a bound", bound, features) for bound in pair)
    with np.errstate(all="ignore"):
        usable = np.isfinite(2 * (high - low)) & (low < high)
    if not np.all(usable):
        raise ArgumentError(f"{form}, got {of}={bounds!r}.")
    return low, high


def one_each(words: str, values: Numbers, features: int) -> Numbers:
    """Return a number for each feature, or say what was given instead."""
    if values.shape not in ((), (1,), (features,)):
        raise ArgumentError(f"{words} of shape {values.shape}.")
    return np.broadcast_to(values, (features,))


def to_unit_interval(values: Any, low: Any, high: Any) -> Numbers:
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


def without_quoting(convert: Callable[[], Any]) -> Any:
    """Return what a conversion to numbers gives; its error does not quote a cell."""
    try:
        return convert()
    except ValueError as error:
        said = next((words for sign, words in _QUOTING.items() if sign in str(error)), None)
        if said is None:
            raise
    raise DataError(said)


def validated(estimator: Any, *given: Any, **how: Any) -> Any:
    """Return inputs, and targets, as scikit-learn checks them."""
    return without_quoting(lambda: validate_data(estimator, *given, **how))
