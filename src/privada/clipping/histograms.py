"""Sums of histograms, in each of which a record is counted once at most."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from privada.core.values import ClippedSum


def histogram_sum(columns: Sequence[NDArray[np.int64]], bins: int) -> ClippedSum:
    """Return the histograms of some columns as one vector, `bins` entries for each.

    A column has one entry for each record: the number of its bin, from 0.

    Guarantee: adding or removing a record moves at most one entry of each histogram by 1, so the
    vector by at most the square root of the number of columns; provided that a record's bins follow
    from the record alone. Counts are in float64 and exact.

    Edge cases: a record whose bin is not in 0 .. bins - 1 is not counted.
    """
    counted = [np.bincount(c[(c >= 0) & (c < bins)], minlength=bins) for c in columns]
    total = torch.from_numpy(np.concatenate(counted).astype(np.float64))
    return ClippedSum(total, math.sqrt(len(columns)))
