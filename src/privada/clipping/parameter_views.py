"""Parts of the flat vector of parameters, and the weights that a geometry puts on them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

# Scales up to these, and their inverses, have squares that fit their type.
_SCALES = {torch.float32: 1e18, torch.float64: 1e150}


@dataclass(frozen=True)
class ParameterView:
    """A strided part of the flat vector of parameters: a parameter, or a view of one."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, flat: Tensor) -> Tensor:
        """Return this part of a flat vector, sharing its memory."""
        return flat.as_strided(self.shape, self.stride, flat.storage_offset() + self.offset)

    def transposed(self) -> "ParameterView":
        """Return a matrix's transpose."""
        return ParameterView(self.offset, self.shape[::-1], self.stride[::-1])

    def matrix(self) -> "ParameterView":
        """Return the piece with all but its first dimension joined."""
        if len(self.shape) == 2:
            return self
        rows, width = self.shape[0], math.prod(self.shape[1:])
        return ParameterView(self.offset, (rows, width), (self.stride[0], self.stride[-1]))

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return math.prod(self.shape)

    @property
    def last(self) -> int:
        """The greatest place in the flat vector that the piece reaches."""
        return self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))


@dataclass(frozen=True)
class ViewWeights:
    """The scales of a piece, and their inverses as factors where they are an outer product.

    `largest` is the largest of the squared inverse scales. What is made of all scales is kept, so
    only what is used again and again should be asked for.
    """

    scales: Tensor
    largest: float
    rows: Tensor | None = None
    columns: Tensor | None = None

    @cached_property
    def squares(self) -> Tensor:
        """The squared inverse scales."""
        return self.scales.pow(-2)

    @cached_property
    def inverse(self) -> Tensor:
        """The inverse scales."""
        return self.scales.reciprocal()

    @cached_property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Factors of rows and columns whose products are not below the inverse scales."""
        least = self.scales.amin(dim=1)
        return 1 / least, (least[:, None] / self.scales).amax(dim=0)

    @cached_property
    def least(self) -> float:
        """The smallest of the factors."""
        factors = self.columns if self.rows is None else self.rows
        return math.sqrt(self.least_square) if factors is None else float(factors.min())

    @cached_property
    def least_square(self) -> float:
        """The smallest of the squared inverse scales, zero for none."""
        return float(self.scales.max().pow(-2)) if self.scales.numel() else 0.0

    @property
    def separable(self) -> bool:
        """Whether the weights are constant along the rows or along the columns of a matrix."""
        return self.rows is not None or self.columns is not None


class Weights:
    """The scales of a geometry, by piece.

    `fits` says whether their squares, and those of their inverses, are all normal numbers.
    """

    def __init__(self, scale: Tensor) -> None:
        self._scale = scale.contiguous()
        least, largest = map(float, torch.aminmax(scale)) if scale.numel() else (1.0, 1.0)
        self.fits = 1 / _SCALES[scale.dtype] <= least <= largest <= _SCALES[scale.dtype]
        self._pieces: dict[ParameterView, ViewWeights] = {}

    def of(self, piece: ParameterView) -> ViewWeights:
        """Return the weights of a piece, looked at once for structure."""
        if piece not in self._pieces:
            self._pieces[piece] = self._look_at(piece)
        return self._pieces[piece]

    def _look_at(self, piece: ParameterView) -> ViewWeights:
        scales = piece.of(self._scale)
        largest = float(scales.min().pow(-2)) if scales.numel() else 0.0
        if len(piece.shape) != 2 or not scales.numel():
            return ViewWeights(scales, largest)
        if bool((scales == scales[:1]).all()):
            return ViewWeights(scales, largest, columns=1 / scales[0])
        if bool((scales == scales[:, :1]).all()):
            return ViewWeights(scales, largest, rows=1 / scales[:, 0])
        return ViewWeights(scales, largest)


def weights_of(weights: Weights | None, piece: ParameterView) -> ViewWeights | None:
    """Return the weights of a piece, None for none."""
    return None if weights is None else weights.of(piece)


def apart(pieces: Sequence[ParameterView]) -> bool:
    """Return whether no two pieces overlap, as far as their first and last places tell."""
    ordered = sorted(pieces, key=lambda piece: piece.offset)
    return all(a.last < b.offset for a, b in pairwise(ordered))
