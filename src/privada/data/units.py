"""Units of privacy: what the promise protects is a row, or all rows of one person."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privada.core.errors import ArgumentError
from privada.core.randomness import RandomSource, SeededSource, random_words
from privada.core.validation import integer, shown
from privada.data.records import Indices

# How many rows of a unit a step looks at, unless the user says otherwise.
ROWS_PER_UNIT = 8


@runtime_checkable
class Units(Protocol):
    """Which rows belong to one unit: `groups=` takes one, in the place of identifiers."""

    @property
    def size(self) -> int:
        """The number of units, which is treated as public."""

    @property
    def rows_per_unit(self) -> int:
        """The most rows of a unit that one look takes."""

    @property
    def row_count(self) -> int:
        """The number of rows of all units."""

    @property
    def grouped(self) -> bool:
        """Whether a unit may have several rows."""

    def rows(self, units: Indices, rng: RandomSource) -> tuple[Indices, NDArray[np.int64] | None]:
        """Return the rows that a look takes of some units, and the unit that each belongs to.

        A unit's rows follow each other, and its number is its place among `units`. None stands for
        one row for each unit. Private: never shown.
        """


@dataclass(frozen=True)
class RowUnits:
    """Every row is a unit of its own.

    Example:
        >>> from privada.data import RowUnits
        >>> RowUnits(100).rows_per_unit
        1
    """

    size: int
    rows_per_unit: int = 1
    grouped: bool = False

    @property
    def row_count(self) -> int:
        """As many as there are units."""
        return self.size

    def rows(self, units: Indices, rng: RandomSource) -> tuple[Indices, NDArray[np.int64] | None]:
        """Return the units themselves."""
        return units, None


class GroupedUnits:
    """Rows with one identifier are one unit: all rows of a person, a device or a hospital.

    A look at a unit takes at most `rows_per_unit` of its rows, chosen afresh each time.

    Args:
        ids: one identifier for each row: numbers or texts.
        rows_per_unit: the most rows of a unit that one look takes.

    Guarantee: which rows of a unit are taken depends on that unit's rows and on secret bits alone,
    the same number of bits for every unit.

    Example:
        >>> from privada.core.randomness import SeededSource
        >>> from privada.data import GroupedUnits
        >>> units = GroupedUnits(["ann", "bob", "ann", "ann"], rows_per_unit=2)
        >>> import numpy as np
        >>> rows, owners = units.rows(np.array([0, 1]), SeededSource(1, "rows"))
        >>> len(rows), owners.tolist()
        (3, [0, 0, 1])
    """

    grouped = True

    def __init__(self, ids: Any, rows_per_unit: int = ROWS_PER_UNIT) -> None:
        self.rows_per_unit = integer("rows_per_unit", rows_per_unit)
        numbers = _numbered(ids)
        self._order = np.argsort(numbers, kind="stable").astype(np.int64)
        counts = np.bincount(numbers)
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.row_count = len(numbers)

    @property
    def size(self) -> int:
        """The number of units."""
        return len(self._starts) - 1

    def members(self) -> tuple[Indices, Indices]:
        """Return all rows, unit by unit, and how many each unit has. Private: never shown."""
        return self._order, np.diff(self._starts)

    def rows(self, units: Indices, rng: RandomSource) -> tuple[Indices, NDArray[np.int64] | None]:
        """Return at most `rows_per_unit` rows of each unit, and the place of its unit."""
        seeds = random_words(rng, len(units))
        starts, ends = self._starts[units], self._starts[units + 1]
        parts = [
            self._chosen(int(start), int(end), int(seed >> 1))
            for start, end, seed in zip(starts, ends, seeds, strict=True)
        ]
        owners = np.repeat(np.arange(len(units)), [len(part) for part in parts])
        rows = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        return rows, owners.astype(np.int64)

    def _chosen(self, start: int, end: int, seed: int) -> Indices:
        count = end - start
        if count <= self.rows_per_unit:
            return self._order[start:end]
        keys = random_words(SeededSource(seed, "rows of a unit"), count)
        places = np.sort(np.argpartition(keys, self.rows_per_unit - 1)[: self.rows_per_unit])
        return self._order[start + places]


def _numbered(ids: Any) -> NDArray[np.int64]:
    """Return the number of each row's unit, in the order in which units first occur."""
    if isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu":
        _, first, places = np.unique(ids, return_index=True, return_inverse=True)
        order = np.empty(len(first), dtype=np.int64)
        order[np.argsort(first)] = np.arange(len(first))
        return order[places]
    values = ids.tolist() if hasattr(ids, "tolist") else ids
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise ArgumentError(
            f"Expected groups to be one identifier for each row, got {type(ids).__name__}. Give an "
            "array, a column or a list."
        )
    known: dict[Any, int] = {}
    found = []
    for value in values:
        if value is None or value != value or isinstance(value, (list, tuple, dict, set)):
            raise ArgumentError(
                "Expected groups to have one number or text for each row, got something else, or a "
                "missing one. Give every row the identifier of its unit."
            )
        found.append(known.setdefault(value, len(known)))
    return np.array(found, dtype=np.int64)


def units_of(rows: int, groups: Any, rows_per_unit: int | None) -> Units:
    """Return the units that a user asks for.

    Raises:
        ArgumentError: there is not one identifier for each row.
    """
    if groups is None:
        if rows_per_unit is not None:
            raise ArgumentError(
                "Expected rows_per_unit=None without groups, got rows_per_unit="
                f"{shown(rows_per_unit)}. Give groups, one identifier for each row."
            )
        return RowUnits(rows)
    if isinstance(groups, Units) and not isinstance(groups, type):
        if rows_per_unit not in (None, groups.rows_per_unit):
            raise ArgumentError(
                f"Expected rows_per_unit to be left out or {groups.rows_per_unit}, as the units "
                f"say, got rows_per_unit={shown(rows_per_unit)}."
            )
        if not groups.grouped:
            raise ArgumentError(
                "Expected units of several rows, whose `grouped` is True, got units whose rows "
                "would be clipped one by one. Leave groups out where every row is a unit."
            )
        made: Units = groups
    else:
        made = GroupedUnits(groups, ROWS_PER_UNIT if rows_per_unit is None else rows_per_unit)
    if made.row_count != rows:
        raise ArgumentError(
            f"Expected groups to have one identifier for each of {rows:,} rows, got "
            f"{made.row_count:,}."
        )
    return made
