"""The query for bounds: histograms of numbers over bins that do not depend on the data."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from privada.core.values import Release
from privada.data import Indices
from privada.query.histograms import Bins, HistogramQuery, chosen_of_blocks

Numbers = NDArray[np.float64]

# Bins are sign times [2^e, 2^(e+1)) for e from LEAST on, and one for what is nearer to zero.
LEAST, POWERS = -24, 64
BINS = 2 * POWERS + 1


def power_bins(values: Numbers) -> Bins:
    """Return the bin of each number, -1 for NaN; beyond the last bin counts as the last."""
    power = np.frexp(np.abs(values))[1].astype(np.int64) - 1 - LEAST
    power = np.where(np.isinf(values), POWERS, power)
    size = np.where((power < 0) | (values == 0), 0, np.clip(power, 0, POWERS - 1) + 1)
    placed = POWERS + np.where(values < 0, -size, size)
    return np.where(np.isnan(values), -1, placed)


def edges(place: int) -> tuple[float, float]:
    """Return the least and the greatest number of a bin; zero for the one in the middle."""
    size = abs(place - POWERS)
    if size == 0:
        return 0.0, 0.0
    near, far = 2.0 ** (size - 1 + LEAST), 2.0 ** (size + LEAST)
    return (near, far) if place > POWERS else (-far, -near)


def release_bounds(
    query: HistogramQuery, read: Callable[[], Iterable[Sequence[Numbers]]]
) -> Release:
    """Return a release of one histogram of `BINS` powers of two for each column.

    Args:
        query: what is paid and what is protected.
        read: yields the columns, some rows after the others, one number for each row; it is called
            after the charge. A row's numbers must follow from that row alone, and NaN is not
            counted.

    Guarantee: a unit moves the histograms by at most the square root of the number of columns.

    Raises:
        BudgetExceeded: before any value is read.
        LedgerError: before any value is read.

    Reference: Dwork and Lei (2009), Differential Privacy and Robust Statistics, Section 3, for bins
    that do not depend on the data.
    """

    def bins(rows: Indices) -> tuple[Iterator[list[Bins]], int]:
        blocks = ((len(columns[0]), columns) for columns in read())
        return (
            [power_bins(column[places]) for column in columns]
            for places, columns in chosen_of_blocks(rows, blocks)
        ), BINS

    return query.release(bins)
