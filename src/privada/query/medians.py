"""The query for medians: histograms over equal bins between public bounds."""

import numpy as np
from numpy.typing import NDArray

from privada.core.values import Release
from privada.data import Indices
from privada.query.histograms import Bins, HistogramQuery

Numbers = NDArray[np.float64]

# How many bins there are between the bounds.
BINS = 64


def release_medians(
    query: HistogramQuery, values: NDArray[np.floating], low: Numbers, high: Numbers
) -> Release:
    """Return a release of one histogram of `BINS` equal bins for each column.

    Args:
        query: what is paid and what is protected.
        values: a row for each record and a column for each histogram. NaN is not counted.
        low, high: the public bounds of each column; values beyond count as the bound.

    Guarantee: a unit moves the histograms by at most the square root of the number of columns.

    Raises:
        BudgetExceeded: before any value is counted.
        LedgerError: before any value is counted.

    Reference: Dwork and Roth (2014), The Algorithmic Foundations of Differential Privacy, Section
    3.3 and Theorem A.1, for noisy histograms.
    """

    def bins(rows: Indices) -> tuple[list[list[Bins]], int]:
        places = (np.clip(values[rows], low, high) - low) / (high - low) * BINS
        found = np.where(np.isnan(places), -1, np.minimum(places, BINS - 1)).astype(np.int64)
        return [list(found.T)], BINS

    return query.release(bins)
