"""Digests of rows and columns, by which data is known again that was fitted before."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

# Cells hashed at a time, and digests of rows and columns that are kept at most, the least of them.
_CELLS, _KEPT, _COLUMNS = 1 << 18, 1 << 20, 1 << 12
# Rows are seen again if more than this share of the smaller data, and more than one, is in both: a
# few rows may be equal by chance, and one record alone must not decide what is refused.
_SHARE = 0.01
# A column tells data apart if its value changes so often from row to row, and not in one direction.
_CHANGES = 64
_KEYS = np.frombuffer(os.urandom(32), np.uint64)
_FULL = np.uint64(2**64 - 1)


@dataclass(frozen=True, eq=False, repr=False)
class Digest:
    """What data looks like from afar: sorted digests of its rows, and of its columns.

    `limit` is the greatest digest that is kept. A row's digest depends on its values and their
    places, not on other rows; a column's on its values in their order, not on its place.
    """

    rows: Hashes
    columns: frozenset[int] = frozenset()
    limit: int = int(_FULL)

    def overlaps(self, other: "Digest") -> bool:
        """Return whether the two share rows, or a whole column, by more than chance."""
        if self.columns & other.columns:
            return True
        limit = np.uint64(min(self.limit, other.limit))
        few, many = sorted(
            (
                each.rows[: np.searchsorted(each.rows, limit, side="right")]
                for each in (self, other)
            ),
            key=len,
        )
        if not len(few):
            return False
        places = np.minimum(np.searchsorted(many, few), len(many) - 1)
        return bool(np.count_nonzero(many[places] == few) > max(1, _SHARE * len(few)))

    def joined(self, other: "Digest") -> "Digest":
        """Return the digest of both together."""
        rows = np.union1d(self.rows, other.rows)
        return _kept(rows, self.columns | other.columns, min(self.limit, other.limit))


def _kept(rows: Hashes, columns: frozenset[int], limit: int = int(_FULL)) -> Digest:
    rows = rows[: np.searchsorted(rows, np.uint64(limit), side="right")]
    if len(rows) > _KEPT:
        rows = rows[:_KEPT].copy()
        limit = int(rows[-1])
    return Digest(rows, columns, limit)


def _constants(count: int, key: np.uint64) -> Hashes:
    """Return an odd number for each place, by the finaliser of SplitMix64."""
    mixed = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((mixed ^ (mixed >> np.uint64(31))) | np.uint64(1))


def _cells(values: NDArray[np.float32]) -> Hashes:
    """Return a digest of each value, zero for zero, so that sparse rows are like dense ones."""
    bits = (values + np.float32(0)).view(np.uint32).astype(np.uint64)  # which makes -0 into 0
    bits *= _KEYS[2] | np.uint64(1)
    bits ^= bits >> np.uint64(32)
    return bits


_Sums = tuple[Hashes, Hashes, NDArray[np.int64], NDArray[np.int64]]


def _dense_sums(inputs: NDArray[np.float32], across: Hashes, down: Hashes) -> _Sums:
    """Return digests of rows and columns, and how often a column rises and falls, if seldom."""
    records, features = inputs.shape
    rows, columns = np.zeros(records, np.uint64), np.zeros(features, np.uint64)
    rises, falls = np.zeros((2, features), np.int64)
    step = max(1, _CELLS // max(1, features))
    for start in range(0, records, step):
        some = inputs[start : start + step]
        cells = _cells(some)
        columns += (cells * down[start : start + step, None]).sum(axis=0, dtype=np.uint64)
        cells *= across
        rows[start : start + step] = cells.sum(axis=1, dtype=np.uint64)
        if np.minimum(rises, falls).min(initial=_CHANGES) < _CHANGES:
            moved = np.diff(some, axis=0)
            rises, falls = rises + (moved > 0).sum(axis=0), falls + (moved < 0).sum(axis=0)
    return rows, columns, rises, falls


def _sparse_sums(inputs: Any, across: Hashes, down: Hashes) -> _Sums:
    """Return the same of a CSR matrix, in which each value that is not zero rises and falls."""
    turned = inputs.tocsc()
    filled = np.diff(turned.indptr).astype(np.int64)
    return _line_sums(inputs, across), _line_sums(turned, down), filled, filled


def _line_sums(compressed: Any, constants: Hashes) -> Hashes:
    """Return the digest of each row of a CSR matrix, of each column of a CSC matrix."""
    parts = _cells(compressed.data) * constants[compressed.indices]
    until = np.concatenate([np.zeros(1, np.uint64), np.cumsum(parts, dtype=np.uint64)])
    ends = compressed.indptr
    return np.asarray(until[ends[1:]] - until[ends[:-1]])


# A warning would tell that one record has a value that float32 has no room for.
@np.errstate(all="ignore")
def digest(inputs: Any, targets: NDArray[Any] | None = None) -> Digest:
    """Return the digest of an array of two dimensions, taken as float32, or of a CSR matrix.

    Targets count as one more column: the same people are known again by them, however the inputs
    were changed.

    Guarantee: the digests are keyed by this process alone, and never leave it. Values that float32
    has no room for count as infinite; nothing is said of them.
    """
    inputs = inputs.astype(np.float32, copy=False)
    across = _constants(inputs.shape[1], _KEYS[0])
    down = _constants(inputs.shape[0], _KEYS[1])
    sums = _sparse_sums if hasattr(inputs, "tocsc") else _dense_sums
    rows, columns, rises, falls = sums(inputs, across, down)
    telling = (rises + falls >= _CHANGES) & (rises > 0) & (falls > 0)
    found = np.unique(rows)
    known = frozenset(np.unique(columns[telling])[:_COLUMNS].tolist())
    if targets is not None:
        known |= digest(targets.reshape(-1, 1)).columns
    return _kept(found[found != 0], known)  # a row of zeros says nothing
