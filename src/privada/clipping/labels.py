"""Labels of numbers: which example each depends on, and how labels combine."""

from collections.abc import Sequence

import torch
from torch import Tensor

NOBODY, SEVERAL = 0, 255

Labels = Tensor | None


def labels_of_rows(rows: int, first: int, count: int) -> Tensor:
    """Return the labels of examples, from the first on; after `count` of them they repeat."""
    return (first + torch.arange(rows) % count).to(torch.uint8)


def join(first: Labels, second: Labels) -> Labels:
    """Return the labels of what depends on both, with broadcasting."""
    if first is None or second is None:
        return second if first is None else first
    other = torch.where((second == NOBODY) | (first == second), first, SEVERAL)
    return torch.where(first == NOBODY, second, other)


def join_over(labels: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the labels of what depends on all numbers along dimensions, which stay as ones."""
    dims = sorted({d % labels.ndim for d in dims}) if labels.ndim else []
    if not dims:
        return labels
    if labels.numel() == 0:
        shape = [1 if d in dims else n for d, n in enumerate(labels.shape)]
        return labels.new_zeros(shape)
    high = labels.amax(dims, keepdim=True)
    low = torch.where(labels == NOBODY, SEVERAL, labels).amin(dims, keepdim=True)
    return torch.where((high == NOBODY) | (low == high), high, SEVERAL)


def join_all(labels: Labels) -> Labels:
    """Return the label of what depends on all numbers, without dimensions."""
    if labels is None:
        return None
    return join_over(labels, range(labels.ndim)).reshape(())
