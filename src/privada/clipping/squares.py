"""Sums of squared gradients, coordinate by coordinate."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from privada.core.tensors import Parameters
from privada.core.validation import positive
from privada.core.values import ClippedSum


def squared_sum(parameters: Parameters, rows: Iterable[Tensor], bound: float) -> ClippedSum:
    """Return sum_i min(g_ij^2, bound) for each coordinate j, over gradients that come as rows.

    Guarantee: each of the d coordinates of a record's part is between 0 and `bound`, so adding,
    removing or replacing a record moves the sum by at most bound sqrt(d). The sum is in float64,
    in which rounding over millions of records does not show.

    Edge cases: a gradient that is not finite counts as zero.

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Algorithm 3, line 5.
    """
    positive("bound", bound)
    total = torch.zeros(parameters.size, dtype=torch.float64, device=parameters.device)
    for some in rows:
        finite = torch.isfinite(some).all(dim=1, keepdim=True)
        squares = torch.where(finite, some, 0.0).double().square_().clamp_(max=bound)
        total += squares.sum(dim=0)
    return ClippedSum(total, bound * math.sqrt(parameters.size))
