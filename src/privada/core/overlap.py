"""Whether records that were declared public are the private ones: by identity and by content.

The check is there for mistakes: the private file given as the public one. It looks at private
values before any charge, as other checks of a set-up do, so it is made to tell as little as it can:
it says yes or no, and yes only if more than half of a table is in the other one, beyond chance.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from privada.core.errors import DataError

# With fewer different rows in common, an answer would tell too much of each.
_FEWEST = 20
# More than this share of the rows that should be new must be missing.
_SHARE = 0.5
# And chance alone does that with a probability below this.
_CHANCE = 1e-6
# How many rows are hashed at a time.
_CHUNK = 4096
# Bytes of a digest.
_BYTES = 16

Counted = tuple[NDArray[np.bytes_], NDArray[np.int64]]


def row_digest(row: bytes) -> bytes:
    """Return what stands for a row: as many bytes for each, and no two rows have the same."""
    return blake2b(row, digest_size=_BYTES).digest()


def are_shared(public: Iterable[bytes], private: Iterable[bytes]) -> bool:
    """Return whether rows are the same, or most of one side are from the other, beyond chance.

    Rows are given by their digests. How many rows of an independent table would be found by chance
    is estimated from how many rows of a table have a twin in it (Good, 1953), so that tables with
    few different rows are not taken for copies of each other.
    """
    ours, theirs = _counted(public), _counted(private)
    if all(np.array_equal(mine, other) for mine, other in zip(ours, theirs, strict=True)):
        return True
    return _taken_from(ours, theirs) or _taken_from(theirs, ours)


def _counted(rows: Iterable[bytes]) -> Counted:
    """Return the different digests, and how often each is there."""
    held = bytearray()
    for row in rows:
        held += row
    return np.unique(np.frombuffer(held, f"S{_BYTES}"), return_counts=True)


def _taken_from(some: Counted, source: Counted) -> bool:
    found = np.isin(some[0], source[0], assume_unique=True)
    if np.count_nonzero(found) < _FEWEST:
        return False
    rows, new = int(some[1].sum()), int(some[1][~found].sum())
    single = np.count_nonzero(source[1] == 1) / int(source[1].sum())
    if new >= (1 - _SHARE) * single * rows:
        return False
    return bool(binom.cdf(new, rows, single) < _CHANCE)


def refuse_private(public: Any, private: Any) -> None:
    """Raise if public examples are the private records, share memory with them, or are copies.

    Datasets are compared by identity, and subsets of one dataset by their indices; arrays, tensors
    and sparse matrices by where they are in memory, and by content; data sets of Hugging Face by
    the content of the columns that both have.
    """
    if public is private or _same_places(public, private) or _same_content(public, private):
        raise DataError(
            "Expected public examples that are other records than the private ones, got examples "
            "that are these, or share too many with them. Give examples that are public, and "
            "leave them out of the private records."
        )


def _pair(data: Any) -> tuple[Any, Any] | None:
    """Return inputs and targets in memory, None for what is read item by item."""
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return data.tensors[0], data.tensors[1]
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return data[0], data[1]
    return None


def _same_places(public: Any, private: Any) -> bool:
    """Return whether two sets of records have one in common by where it is."""
    base, places = _indices(public)
    other, others = _indices(private)
    if base is other and (places is None or others is None or not places.isdisjoint(others)):
        return True
    ours, theirs = _pair(public), _pair(private)
    if ours is None or theirs is None:
        return False
    few, many = sorted((_addresses(ours[0]), _addresses(theirs[0])), key=len)
    return any(place in many for place in few)


def _indices(data: Any) -> tuple[Any, set[int] | None]:
    """Return the dataset that records are of, and which ones, None for all."""
    places: list[int] | None = None
    while isinstance(data, Subset):
        chosen = [int(place) for place in data.indices]
        places = chosen if places is None else [chosen[place] for place in places]
        data = data.dataset
    return data, None if places is None else set(places)


def _addresses(values: Any) -> range:
    """Return where each row is in memory."""
    if isinstance(values, Tensor) and values.layout == torch.strided and values.ndim:
        start, step, count = (
            values.data_ptr(),
            values.stride(0) * values.element_size(),
            len(values),
        )
    elif isinstance(values, np.ndarray) and values.ndim and values.size:
        start, step, count = values.ctypes.data, values.strides[0], len(values)
    else:
        return range(0)
    return range(0) if step == 0 or start == 0 else range(start, start + step * count, step)


def _same_content(public: Any, private: Any) -> bool:
    names = [name for name in _columns(public) if name in _columns(private)]
    if names:
        return are_shared(_table_digests(public, names), _table_digests(private, names))
    ours, theirs = _pair(public), _pair(private)
    if ours is None or theirs is None:
        return False
    try:
        return are_shared(_digests(*ours), _digests(*theirs))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False  # what is no array is refused elsewhere, in better words


def _columns(data: Any) -> list[str]:
    """Return the columns of a Hugging Face data set that hold numbers, texts or lists of them."""
    types = getattr(data, "features", None)
    if not isinstance(types, Mapping) or not hasattr(data, "with_format"):
        return []
    return [name for name, kind in types.items() if _is_plain(kind) and hasattr(data, "__len__")]


def _is_plain(kind: Any) -> bool:
    inner = getattr(kind, "feature", None)
    if inner is not None:
        return _is_plain(inner)
    return type(kind).__name__ in ("Value", "ClassLabel")  # an image would have to be decoded


def _table_digests(data: Any, names: list[str]) -> Iterator[bytes]:
    """Yield a hash of each row, as it is stored: no transform of the user's runs."""
    stored = data.with_format(None)
    for start in range(0, len(stored), _CHUNK):
        columns = stored[start : start + _CHUNK]
        for row in zip(*(columns[name] for name in names), strict=True):
            yield row_digest(repr(row).encode())


def _digests(inputs: Any, targets: Any) -> Iterator[bytes]:
    """Yield a hash of each record, the same for float32 and float64."""
    rows = inputs.shape[0] if hasattr(inputs, "shape") else len(inputs)
    inputs = inputs.tocsr() if _is_sparse(inputs) else inputs
    for start in range(0, rows, _CHUNK):
        parts = [_rows(side[start : start + _CHUNK]) for side in (inputs, targets)]
        for row, target in zip(*parts, strict=True):
            yield row_digest(row.tobytes() + target.tobytes())


def _is_sparse(values: Any) -> bool:
    return bool(scipy.sparse.issparse(values))


def _rows(some: Any) -> Any:
    some = some.toarray() if _is_sparse(some) else some
    if isinstance(some, Tensor):
        some = some.detach().cpu()
    with np.errstate(all="ignore"):  # a warning would tell that a record has a huge value
        values = np.asarray(some, dtype=np.float32) + np.float32(0)  # which makes -0 into 0
    return np.ascontiguousarray(values.reshape(len(values), -1))
