"""Which private records candidates are trained on, and which they are scored on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from privada.core.errors import ArgumentError, DataError
from privada.core.public_examples import Public
from privada.core.randomness import RandomSource, SeededSource, random_words, uniforms
from privada.core.validation import probability
from privada.data import Part, units_of
from privada.participation import Participation
from privada.selection.overlap import as_pair, refuse_overlap

Mask = NDArray[np.bool_]
Groups = NDArray[np.int64]
# Records are too few for coins if a part would be left empty more often than this.
_EMPTY = 1e-6


@dataclass(frozen=True)
class Split:
    """Training records, and those that candidates are scored on.

    `population` and `scored_population` are their numbers of units, as far as they are public.
    `mask` says which rows were set apart for scores, where they were. With persons as units,
    `train_groups` and `scored_groups` say whose each row is, and `rows_per_unit` how many rows of a
    person a look takes.
    """

    train: Any
    scored: Any
    population: int
    scored_population: int
    public: bool
    words: str
    mask: Mask | None = None
    train_groups: Groups | None = None
    scored_groups: Groups | None = None
    rows_per_unit: int | None = None

    @property
    def grouped(self) -> bool:
        """Whether a unit is a person, with all their rows."""
        return self.train_groups is not None


@dataclass(frozen=True)
class _Whole:
    """The records before they are split, and whose they are: `groups` numbers the units."""

    data: Any
    rows: int
    units: int
    groups: Groups | None
    rows_per_unit: int | None
    unit: str

    @classmethod
    def of(cls, data: Any, groups: Any, rows_per_unit: int | None, unit: str) -> "_Whole":
        rows = _size(data)
        units = units_of(rows, groups, rows_per_unit)
        if groups is None:
            return cls(data, rows, units.size, None, None, unit)
        # all rows of all units: of so many none is left out
        everything = units_of(rows, groups, max(1, rows))
        places, owners = everything.rows(np.arange(units.size), SeededSource(0, "none is drawn"))
        numbers = np.empty(rows, dtype=np.int64)
        assert owners is not None
        numbers[places] = owners
        return cls(data, rows, units.size, numbers, units.rows_per_unit, unit)

    def parts(self, mask: Mask, words: str, numbers: tuple[int, int] | None = None) -> Split:
        """Return both parts; `numbers` are the public ones of their units, else those they have."""
        train, scored = np.flatnonzero(~mask), np.flatnonzero(mask)
        of = None if self.groups is None else (self.groups[train], self.groups[scored])
        if numbers is None:
            numbers = (
                (len(train), len(scored))
                if of is None
                else (len(np.unique(of[0])), len(np.unique(of[1])))
            )
        return Split(
            train=take(self.data, train),
            scored=take(self.data, scored),
            population=numbers[0],
            scored_population=numbers[1],
            public=False,
            words=words,
            mask=mask,
            train_groups=None if of is None else of[0],
            scored_groups=None if of is None else of[1],
            rows_per_unit=self.rows_per_unit,
        )

    def has_whole_units(self, mask: Mask) -> bool:
        """Return whether all rows of each unit are on one side."""
        if self.groups is None:
            return True
        apart = np.bincount(self.groups, weights=mask, minlength=self.units)
        return bool(np.isin(apart / np.bincount(self.groups, minlength=self.units), (0, 1)).all())


def split(
    data: Any,
    validation: Any,
    participation: Participation,
    draw_bits: Callable[[], RandomSource],
    mask: Mask | None,
    *,
    groups: Any = None,
    rows_per_unit: int | None = None,
    unit: str = "record",
    population: int | None = None,
) -> Split:
    """Return the training and the scored records; see `select` for `validation`.

    A share is drawn by a coin for each unit, so that nobody's part depends on who else is there;
    with participation of a fixed count, where the number of units is fixed, by a random order.
    `mask` is what an earlier call drew. `population` is the public number of units where some were
    left out of `data`, so that the number there is private; validation is then a share.

    Guarantee: all rows of a unit are in one part.
    """
    data, validation = as_pair(data), as_pair(validation)
    whole = _Whole.of(data, groups, rows_per_unit, unit)
    if isinstance(validation, Public):
        return _scored_on_public(whole, as_pair(validation.data))
    if isinstance(validation, float):
        share = probability("validation", validation)
        return _by_share(whole, share, participation, draw_bits, mask, population)
    if population is not None:
        raise ArgumentError(
            "Expected validation to be a share where population is given, got records or rows. "
            "Give a share such as validation=0.2."
        )
    rows = _rows(validation, whole.rows)
    if rows is not None:
        return _by_rows(whole, rows, mask)
    if whole.groups is not None:
        raise ArgumentError(
            "Expected validation to be a share, row numbers or pv.Public where groups are given, "
            "got records apart, of which it is not known whose they are. Put all records and "
            "groups together, and name the rows to score on."
        )
    refuse_overlap(data, validation)
    words = (
        "The records that scores are of were given apart, and share none with the training ones."
    )
    return Split(data, validation, whole.rows, _size(validation), False, words)


def _scored_on_public(whole: _Whole, scored: Any) -> Split:
    refuse_overlap(whole.data, scored)
    return Split(
        train=whole.data,
        scored=scored,
        population=whole.units,
        scored_population=_size(scored),
        public=True,
        words="Scores are of records that were declared public.",
        train_groups=whole.groups,
        rows_per_unit=whole.rows_per_unit,
    )


def _by_share(
    whole: _Whole,
    share: float,
    participation: Participation,
    draw_bits: Callable[[], RandomSource],
    mask: Mask | None,
    population: int | None,
) -> Split:
    """Return parts drawn by chance, or those that an earlier call drew."""
    units, fixed = population or whole.units, participation.fixed_count
    if population is not None and fixed:
        raise ArgumentError(
            "Expected Poisson sampling where population is given, got a fixed number of records "
            "in a step. Leave population out or change sampling."
        )
    counted = "records" if whole.groups is None else f"{whole.unit}s"
    expected = max(1, round(share * units))
    if units < 2 or expected >= units:
        raise ArgumentError(
            f"Expected enough {counted} for both parts, got {units} {counted} and "
            f"validation={share}."
        )
    # refused from public figures: an error by chance would tell of who is there
    if not fixed and share**units + (1 - share) ** units > _EMPTY:
        raise ArgumentError(
            f"Expected enough {counted} that coins leave no part empty, got {units} {counted} and "
            f"validation={share}. Use a share nearer to 1/2 or more records, or name the "
            "rows."
        )
    if mask is None:
        drawn = _drawn(whole.units, share, participation, draw_bits())
        mask = drawn if whole.groups is None else drawn[whole.groups]
    _check_drawn_before(whole, mask)
    if mask.all() or not mask.any():
        raise ArgumentError(
            f"Expected {counted} in both parts, but validation={share} of {units} {counted} "
            "left one empty. Use a larger share or more records, or name the rows."
        )
    words = _share_in_words(whole, share, fixed)
    return whole.parts(mask, words, None if fixed else (units - expected, expected))


def _share_in_words(whole: _Whole, share: float, fixed: bool) -> str:
    if whole.groups is None:
        one, all_of_them, own = "record", "records", "its"
    else:
        one, all_of_them, own = f"{whole.unit}, with all their rows,", f"{whole.unit}s", "their"
    how = (
        f"A random {share:g} of the {all_of_them} was set apart for scores"
        if fixed
        else f"Each {one} was set apart for scores by {own} own coin, with chance {share:g}"
    )
    nobody = "record" if whole.groups is None else whole.unit
    return f"{how}; no {nobody} is both trained on and scored."


def _check_drawn_before(whole: _Whole, mask: Mask) -> None:
    """Raise if parts that an earlier call drew are not of these records, or split a unit."""
    if len(mask) != whole.rows:
        raise ArgumentError(f"Expected the same {len(mask)} records as before, got {whole.rows}.")
    if not whole.has_whole_units(mask):
        raise ArgumentError(
            "Expected the same groups as before, got others, by which rows of one "
            f"{whole.unit} would be trained on and scored. Call select with the groups that the "
            "search was begun with."
        )


def _by_rows(whole: _Whole, rows: NDArray[np.int64], mask: Mask | None) -> Split:
    chosen = np.zeros(whole.rows, dtype=bool)
    chosen[rows] = True
    if mask is not None and not np.array_equal(mask, chosen):
        raise ArgumentError("Expected validation to name the same rows as before.")
    if not whole.has_whole_units(chosen):
        raise ArgumentError(
            f"Expected validation to name all rows of a {whole.unit} or none, got rows by which a "
            f"{whole.unit} would be both trained on and scored. Name whole {whole.unit}s, or give "
            "a share such as validation=0.2."
        )
    words = "The rows that scores are of were named; all others were trained on."
    return whole.parts(chosen, words)


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
