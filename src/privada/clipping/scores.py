"""Sums of bounded scores, one number for each record."""

from collections.abc import Iterable

import torch
from torch import Tensor

from privada.core.validation import positive
from privada.core.values import ClippedSum


def bounded_sum(scores: Iterable[Tensor], bound: float, device: torch.device) -> ClippedSum:
    """Return the sum of scores, each brought between 0 and `bound`.

    Guarantee: adding, removing or replacing a record moves the sum by at most `bound`. It is in
    float64, in which rounding over millions of records does not show.

    Edge cases: a score that is not a number counts as zero; no scores at all sum to zero.
    """
    total = torch.zeros(1, dtype=torch.float64, device=device)
    for some in scores:
        total += some.double().nan_to_num(nan=0.0).clamp(0.0, bound).sum()
    return ClippedSum(total, positive("bound", bound))
