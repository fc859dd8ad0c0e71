"""Dummy examples: of the shapes and types of the records, with nothing of theirs.

What is checked on dummy examples must show there. So each has a scale and an offset of its own:
examples that are all drawn from one distribution have equal statistics, and a model that mixes such
statistics looks like one that does not. Poisoned examples go further, for what ordinary numbers do
not bring to light: maxima that only large values exceed, branches that only small ones take.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from privada.core.randomness import RandomSource, SeededSource, random_words
from privada.data.batch import Batch, csr

# Values of one example that no ordinary one has; None stands for other whole numbers alone.
POISONS: tuple[float | None, ...] = (float("nan"), 1e30, -1e30, 40.0, 0.0, -999.0, None)
_SPARSE_ENTRIES = 8


def make_dummies(first: Batch, size: int = 3, seed: int = 0) -> Batch:
    """Return `size` dummy examples of the shapes and types of a batch of one.

    Floats are normal, with a scale and an offset for each example; whole numbers are 0 or 1, and a
    single one beside other inputs, which may be a length, is 1; targets are 0.

    Example:
        >>> import torch
        >>> from privada.data.batch import Batch
        >>> from privada.data.dummies import make_dummies
        >>> make_dummies(Batch(torch.ones(1, 5), torch.ones(1)), size=2).inputs.shape
        torch.Size([2, 5])
    """
    rng = SeededSource(seed, "dummy examples")
    several = isinstance(first.inputs, (tuple, list, dict)) and len(first.inputs) > 1

    def made(values: Tensor) -> Tensor:
        if values.layout == torch.sparse_csr:
            return _sparse(values, size, rng)
        shape = (size, *values.shape[1:])
        if values.is_floating_point():
            return _normal(shape, rng).to(values.device, values.dtype)
        if several and values.ndim == 1:
            return torch.ones(shape, dtype=values.dtype, device=values.device)
        if values.is_complex():
            return torch.complex(_normal(shape, rng), _normal(shape, rng)).to(values)
        return (_uniform(shape, rng) < 0.5).to(values.device, values.dtype)

    def zeros(values: Tensor) -> Tensor:
        return torch.zeros((size, *values.shape[1:]), dtype=values.dtype, device=values.device)

    return Batch(tree_map(made, first.inputs), tree_map(zeros, first.targets))


def _uniform(shape: tuple[int, ...], rng: RandomSource) -> Tensor:
    """Return numbers between 0 and 1, both excluded."""
    drawn = random_words(rng, math.prod(shape)) >> np.uint64(11)
    return torch.from_numpy((drawn + 0.5) * 2.0**-53).view(shape)


def _normal(shape: tuple[int, ...], rng: RandomSource) -> Tensor:
    """Return rows of normal numbers, each row with a scale and an offset of its own."""
    own = _uniform((2, shape[0], *[1] * (len(shape) - 1)), rng)
    normal: Tensor = torch.special.ndtri(_uniform(shape, rng))
    return normal * (0.5 + own[0]) + (own[1] - 0.5)


def places_of(size: int, seed: int) -> Tensor:
    """Return the numbers below `size` in an order that follows from a seed."""
    return torch.argsort(_uniform((size,), SeededSource(seed, "places")))


def _sparse(values: Tensor, size: int, rng: RandomSource) -> Tensor:
    columns = torch.arange(min(values.shape[1], _SPARSE_ENTRIES), device=values.device)
    filled = _normal((size, len(columns)), rng).reshape(-1).to(values.device, values.dtype)
    starts = torch.arange(size + 1, device=values.device) * len(columns)
    return csr(starts, columns.repeat(size), filled, (size, values.shape[1]))


def poisoned(batch: Batch, place: int, poison: float | None) -> Batch:
    """Return a batch with another example in one place: one value, or other whole numbers."""

    def change(values: Any) -> Any:
        values = values.clone()
        if values.is_floating_point() or values.is_complex():
            if poison is not None:
                values[place] = poison
        elif values.ndim > 1 and bool(((values == 0) | (values == 1)).all()):
            values[place] = values[place] == 0
        return values

    return Batch(tree_map(change, batch.inputs), batch.targets)
