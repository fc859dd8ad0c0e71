"""Whether two sets of records are parts of one thing that overlap; records are not looked at."""

from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from privada.core.errors import ArgumentError


def as_pair(data: Any) -> Any:
    """Return the two tensors of a TensorDataset, and anything else as it is."""
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return tuple(data.tensors)
    return data


def refuse_overlap(train: Any, scored: Any) -> None:
    """Raise if both are parts of one thing and overlap there; records are not looked at."""
    (one, rows), (other, others) = _base(train), _base(scored)
    overlap = False
    if _alike(one, other):
        overlap = rows is None or others is None or not set(rows).isdisjoint(others)
    elif rows is others is None and all(isinstance(each, tuple | list) for each in (one, other)):
        overlap = any(_share_memory(a, b) for a, b in zip(one, other, strict=False))
    if overlap:
        raise ArgumentError(
            "Expected validation records that are not trained on, got some that are in the "
            "training data as well. Give a share such as validation=0.2, or row numbers, and "
            "Privada takes them out of the training data."
        )


def _base(data: Any) -> tuple[Any, list[int] | None]:
    """Return what a subset is of, through subsets of subsets, and which rows; None for all."""
    rows: list[int] | None = None
    while isinstance(data, Subset):
        rows = [data.indices[i] for i in (range(len(data.indices)) if rows is None else rows)]
        data = data.dataset
    return as_pair(data), None if rows is None else [int(row) for row in rows]


def _alike(one: Any, other: Any) -> bool:
    """Return whether both are the same thing: one object, or pairs of the same two."""
    pairs = isinstance(one, tuple | list) and isinstance(other, tuple | list)
    if one is other or not pairs or len(one) != len(other):
        return one is other
    return all(a is b for a, b in zip(one, other, strict=True))


def _share_memory(one: Any, other: Any) -> bool:
    if one is other:
        return True
    arrays = []
    for each in (one, other):
        if scipy.sparse.issparse(each):
            each = getattr(each, "data", None)
        if isinstance(each, Tensor):
            each = each.detach().cpu().numpy() if each.layout == torch.strided else None
        if not isinstance(each, np.ndarray) or each.dtype == object:
            return False
        arrays.append(each)
    return bool(np.shares_memory(arrays[0], arrays[1]))
