"""Bounds of numbers: what they may be, and how values are clipped to them and mapped to [-1, 1]."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privada.core.errors import ArgumentError
from privada.core.validation import one_of, real

Numbers = NDArray[np.float64]

SCALES = ("linear", "log")
BOUNDS = ("given", "estimate", "estimated", "default")
# Where nothing is known of a column: it is clipped to plus and minus this, on the log scale, on
# which it takes a long way to get lost.
DEFAULT_BOUND = 2.0**20


def on_scale(values: Any, scale: str) -> Any:
    """Return values on their scale: the log scale is sign(x) log(1 + |x|)."""
    return np.sign(values) * np.log1p(np.abs(values)) if scale == "log" else values


def check_bounds(low: float | None, high: float | None, bounds: str, scale: str) -> None:
    """Raise unless bounds are given, or none are where they are to be estimated."""
    one_of("scale", scale, SCALES)
    if one_of("bounds", bounds, BOUNDS) == "estimate":
        if low is not None or high is not None:
            raise ArgumentError(
                f'Expected no low and high with bounds = "estimate", got low={low!r}, '
                f"high={high!r}. Remove these, or the line with bounds."
            )
        return
    remedy = (
        "Give bounds that are known without looking at the private table, or write "
        'bounds = "estimate" for a query that is charged.'
    )
    bottom, top = real("low", low, remedy), real("high", high, remedy)
    # on the log scale, bounds that differ may round to one number
    if not on_scale(bottom, scale) < on_scale(top, scale) or top - bottom > 1e308:
        raise ArgumentError(
            f"Expected low < high, by more than rounding and less than 1e308, got low={low!r}, "
            f"high={high!r}. {remedy}"
        )


def to_unit_interval(values: Any, low: float | None, high: float | None, scale: str) -> Numbers:
    """Return values clipped to the bounds and mapped to [-1, 1]."""
    if low is None or high is None:
        raise ArgumentError(
            'Expected bounds, got bounds="estimate" that no query has estimated yet. Call '
            "estimate_bounds first, or give low and high."
        )
    bottom, top = on_scale(low, scale), on_scale(high, scale)
    mapped = (on_scale(np.clip(values, low, high), scale) - bottom) / (top - bottom) * 2 - 1
    return np.asarray(np.clip(mapped, -1, 1), dtype=np.float64)


def from_unit_interval(values: Any, low: float | None, high: float | None, scale: str) -> Numbers:
    """Return the numbers that values in [-1, 1] stand for; beyond these, the bounds."""
    if low is None or high is None:
        raise ArgumentError('Expected bounds to restore by, got bounds="estimate".')
    bottom, top = on_scale(low, scale), on_scale(high, scale)
    shares = (np.clip(np.asarray(values, dtype=np.float64), -1, 1) + 1) / 2
    stretched = bottom + shares * (top - bottom)
    if scale == "log":
        stretched = np.sign(stretched) * np.expm1(np.abs(stretched))
    return np.asarray(np.clip(stretched, low, high))
