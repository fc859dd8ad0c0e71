"""Sums of products of features, of which no unit adds more than one of unit length."""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from privada.core.symmetric import folded
from privada.core.validation import positive
from privada.core.values import ClippedSum

# Rows shorter than the root of this count as zero: their direction would be lost to rounding.
_LEAST_SIZE = 1e-200
# What directions are shortened by, so that rounding never makes one longer than 1.
_SHORTER = 1 - 2.0**-40
# How many rows are multiplied at a time.
_ROWS = 4096


def feature_product_sum(
    parts: Iterable[tuple[Tensor, Tensor]], features: int, size_weight: float
) -> ClippedSum:
    """Return sum_i w_i (x_i x_i^T / |x_i|^2, size_weight min(|x_i|^2, m) / m) over rows x_i.

    The first part is symmetric. Its upper triangle comes row by row as one vector, what is off the
    diagonal times sqrt(2), so that the norm of this vector is the Frobenius norm of the matrix. The
    second part is one more coordinate, by which the scale of the first is known.

    Args:
        parts: rows and their weights w, some at a time. The weights of a unit's rows add up to at
            most 1.
        features: the number m of features of a row.
        size_weight: how much the last coordinate counts.

    Guarantee: the term of a row has a norm of at most sqrt(1 + size_weight^2), whatever the row:
    the product of a vector of length 1 with itself has norm 1. So has the average over the rows of
    a unit, and adding or removing a unit moves the sum by no more.

    Edge cases: a row that is not finite, or that is zero, counts as zero in both parts.

    Reference: Dwork, Talwar, Thakurta and Zhang (2014), Analyze Gauss, Algorithm 1, for products of
    rows of unit length.
    """
    positive("size_weight", size_weight)
    total = torch.zeros((features, features), dtype=torch.float64)
    size = torch.zeros((), dtype=torch.float64)
    for rows, weights in _chunks(parts):
        some = rows.double()
        squares = some.square().sum(dim=1)
        # the sum of squares of a finite row in float64 may not be finite; it counts as zero as well
        fine = torch.isfinite(squares) & (squares > _LEAST_SIZE)
        some = torch.where(fine[:, None], some, 0.0)
        squares = torch.where(fine, squares, 1.0)
        directions = some * (weights.double() / squares).sqrt()[:, None] * _SHORTER
        total += directions.T @ directions
        size += torch.where(fine, weights * squares.clamp(max=features), 0.0).sum()
    vector = torch.cat([folded(total), (size * size_weight * _SHORTER / features).reshape(1)])
    return ClippedSum(vector, math.sqrt(1 + size_weight**2))


def _chunks(parts: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    for rows, weights in parts:
        for start in range(0, len(rows), _ROWS):
            yield rows[start : start + _ROWS], weights[start : start + _ROWS]
