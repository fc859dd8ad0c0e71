"""Sums of the squared features of rows, each row's scaled to a norm of one."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from privada.core.values import ClippedSum
from privada.preconditioning.feature_moments import GREATEST_POWER, LEAST_POWER, SIZE_WEIGHT

SIZES = GREATEST_POWER - LEAST_POWER + 1
_SENSITIVITY = math.sqrt(1 + SIZE_WEIGHT**2) * (1 + 1e-9)


def feature_sum(
    width: int, parts: Iterable[tuple[Tensor, Tensor | None]], device: torch.device
) -> ClippedSum:
    """Return the sum over units of x^2 / |x^2| and, as extra coordinates, of how large rows are.

    Each part has rows of `width` features, dense or sparse, and the number of the unit that each
    row is of; None if each is a unit by itself. A unit counts as the average over its rows. The
    extra coordinates count rows by log2 |x^2|, rounded, at a weight of 1/4.

    Guarantee: a unit's part has a norm of at most sqrt(1 + 1/16), whatever its features are, since
    that of each of its rows has. All rows of a unit are in one part. The sum is in float64; the
    sensitivity is larger than that bound by one part in 10^9, for rounding.

    Edge cases: a row that is not finite counts as zero, and so does one of zeros.
    """
    total = torch.zeros(width + SIZES, dtype=torch.float64, device=device)
    for rows, units in parts:
        shares = torch.ones(rows.shape[0], dtype=torch.float64, device=device)
        if units is not None:
            _, own, counts = torch.unique(units, return_inverse=True, return_counts=True)
            shares = 1.0 / counts.to(device)[own.to(device)].double()
        _add(total, width, rows, shares)
    return ClippedSum(total, _SENSITIVITY, extra=SIZES)


def _add(total: Tensor, width: int, rows: Tensor, shares: Tensor) -> None:
    """Add the squares and the sizes of some rows, each at its share."""
    if rows.layout == torch.sparse_csr:
        starts, columns = rows.crow_indices(), rows.col_indices()
        where = torch.stack([torch.repeat_interleave(starts.diff()), columns])
        # a cell that is given twice is one feature, whose sum is squared
        cells = torch.sparse_coo_tensor(
            where, rows.values(), rows.shape, check_invariants=False
        ).coalesce()
        values, (places, columns) = cells.values().double().abs(), cells.indices()
        largest = torch.zeros_like(shares).scatter_reduce_(0, places, values, "amax")
        squares = (values / _or_one(largest)[places]).square_()
        norms = torch.zeros_like(shares).index_add_(0, places, squares.square()).sqrt_()
    else:
        values = rows.double().abs()
        largest = values.amax(dim=1)
        squares = (values / _or_one(largest)[:, None]).square_()
        norms = squares.square().sum(dim=1).sqrt_()
    counted = torch.isfinite(largest) & torch.isfinite(norms) & (largest > 0)
    weights = torch.where(counted, shares / _or_one(norms), 0.0)
    if rows.layout == torch.sparse_csr:
        parts = torch.where(counted[places], squares * weights[places], 0.0)
        total[:width].index_add_(0, columns, parts)
    else:
        total[:width] += torch.where(counted[:, None], squares * weights[:, None], 0.0).sum(dim=0)
    powers = (2 * _or_one(largest).log2() + _or_one(norms).log2()).round()
    powers = torch.where(counted, powers, 0.0).clamp_(LEAST_POWER, GREATEST_POWER).long()
    counts = torch.where(counted, SIZE_WEIGHT * shares, 0.0)
    total[width:].index_add_(0, powers - LEAST_POWER, counts)


def _or_one(values: Tensor) -> Tensor:
    """Return values to divide by: what is zero or not finite becomes one."""
    return torch.where(torch.isfinite(values) & (values > 0), values, 1.0)
