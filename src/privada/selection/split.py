"""Which private records candidates are trained on, and which they are scored on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from privada.core.errors import ArgumentError, DataError
from privada.core.public_examples import Public
from privada.core.randomness import RandomSource, random_words, uniforms
from privada.core.validation import probability
from privada.data import Part
from privada.participation import Participation

Mask = NDArray[np.bool_]
# Records are too few for coins if a part would be left empty more often than this.
_EMPTY = 1e-6


@dataclass(frozen=True)
class Split:
    """Training records, and those that candidates are scored on.

    `population` and `scored_population` are their numbers as far as they are public. `mask` says
    which records were set apart for scores, where they were.
    """

    train: Any
    scored: Any
    population: int
    scored_population: int
    public: bool
    words: str
    mask: Mask | None = None


def split(
    data: Any,
    validation: Any,
    participation: Participation,
    draw_bits: Callable[[], RandomSource],
    mask: Mask | None,
) -> Split:
    """Return the training and the scored records; see `select` for `validation`.

    A share is drawn by a coin for each record, so that nobody's part depends on who else is
    there; with participation of a fixed count, where the number of records is fixed, by a random
    order. `mask` is what an earlier call drew.
    """
    data, validation = _as_pair(data), _as_pair(validation)
    size = _size(data)
    if isinstance(validation, Public):
        words_ = "Scores are of records that were declared public."
        scored = _as_pair(validation.data)
        _refuse_overlap(data, scored)
        return Split(data, scored, size, _size(scored), True, words_)
    if isinstance(validation, float):
        share = probability("validation", validation)
        if mask is None:
            mask = _drawn(size, share, participation, draw_bits())
        expected = max(1, round(share * size))
        if size < 2 or expected >= size:
            raise ArgumentError(
                f"Expected enough records for both parts, got {size} records and "
                f"validation={validation}."
            )
        # refused from public figures: an error by chance would tell of who is there
        if not participation.fixed_count and share**size + (1 - share) ** size > _EMPTY:
            raise ArgumentError(
                f"Expected enough records that coins leave no part empty, got {size} records and "
                f"validation={validation}. Use a share nearer to 1/2 or more records, or name the "
                "rows."
            )
        if len(mask) != size:
            raise ArgumentError(f"Expected the same {len(mask)} records as before, got {size}.")
        if mask.all() or not mask.any():
            raise ArgumentError(
                f"Expected records in both parts, but validation={validation} of {size} records "
                "left one empty. Use a larger share or more records, or name the rows."
            )
        text = (
            f"Each record was set apart for scores by its own coin, with chance {share:g}; "
            "no record is both trained on and scored."
            if not participation.fixed_count
            else f"A random {share:g} of the records was set apart for scores; no record is both "
            "trained on and scored."
        )
        train, scored = take(data, np.flatnonzero(~mask)), take(data, np.flatnonzero(mask))
        if not participation.fixed_count:
            return Split(train, scored, size - expected, expected, False, text, mask)
        return Split(train, scored, _size(train), _size(scored), False, text, mask)
    rows = _rows(validation, size)
    if rows is not None:
        chosen = np.zeros(size, dtype=bool)
        chosen[rows] = True
        if mask is not None and not np.array_equal(mask, chosen):
            raise ArgumentError("Expected validation to name the same rows as before.")
        train, scored = take(data, np.flatnonzero(~chosen)), take(data, np.flatnonzero(chosen))
        text = "The rows that scores are of were named; all others were trained on."
        return Split(train, scored, _size(train), _size(scored), False, text, chosen)
    _refuse_overlap(data, validation)
    text = "The records that scores are of were given apart, and share none with the training ones."
    return Split(data, validation, size, _size(validation), False, text)


def _as_pair(data: Any) -> Any:
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return tuple(data.tensors)
    return data


def _drawn(size: int, share: float, participation: Participation, rng: RandomSource) -> Mask:
    if not participation.fixed_count:
        return np.asarray(uniforms(rng, size) < share)
    chosen = np.zeros(size, dtype=bool)
    chosen[np.argsort(random_words(rng, size))[: max(1, round(share * size))]] = True
    return chosen


def _size(data: Any) -> int:
    first = data[0] if isinstance(data, tuple | list) and len(data) == 2 else data
    try:
        return int(first.shape[0]) if hasattr(first, "shape") else len(first)
    except (TypeError, IndexError) as error:
        raise DataError(
            "Expected data to be a pair (inputs, targets) or a map-style dataset, got "
            f"{type(data).__name__}."
        ) from error


def take(data: Any, rows: NDArray[np.int64]) -> Any:
    """Return some rows of a pair of arrays, or of a dataset."""
    if isinstance(data, tuple | list) and len(data) == 2:
        return tuple(_take(column, rows) for column in data)
    return Part(data, rows.tolist())


def _take(column: Any, rows: NDArray[np.int64]) -> Any:
    if isinstance(column, Tensor):
        return column[torch.from_numpy(rows).to(column.device)]
    if scipy.sparse.issparse(column):
        matrix: Any = column
        return matrix.tocsr()[rows]
    return np.asarray(column)[rows]


def _rows(validation: Any, size: int) -> NDArray[np.int64] | None:
    """Return the row numbers that `validation` names, None if it is no list of numbers."""
    if isinstance(validation, bool | int | str) or validation is None:
        raise ArgumentError(
            f"Expected validation to be a share such as 0.2, row numbers, records or pv.Public, "
            f"got validation={validation!r}."
        )
    if isinstance(validation, tuple) and len(validation) == 2:
        if all(isinstance(part, int | np.integer) for part in validation):
            raise ArgumentError(
                f"Expected validation to be a pair (inputs, targets) or an array of row numbers, "
                f"got the pair {validation!r}. Write numpy.array({list(validation)}) for two rows."
            )
        return None
    if isinstance(validation, list) and any(hasattr(part, "__len__") for part in validation):
        return None
    if isinstance(validation, list | range):
        validation = np.asarray(validation)
    if isinstance(validation, Tensor):
        validation = validation.cpu().numpy()
    if not isinstance(validation, np.ndarray) or validation.ndim != 1:
        return None
    if validation.dtype == bool:
        validation = np.flatnonzero(validation) if len(validation) == size else validation
    if validation.dtype.kind not in "iu":
        return None
    rows = np.unique(validation)
    if not len(rows) or rows[0] < 0 or rows[-1] >= size or len(rows) == size:
        raise ArgumentError(
            f"Expected validation to name some rows from 0 to {size - 1}, and leave some to train "
            f"on, got {len(rows)} different numbers"
            + (f" from {rows[0]} to {rows[-1]}." if len(rows) else ".")
        )
    return rows.astype(np.int64)


def _refuse_overlap(train: Any, scored: Any) -> None:
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
    return _as_pair(data), None if rows is None else [int(row) for row in rows]


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
