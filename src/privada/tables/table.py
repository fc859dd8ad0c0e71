"""A table: columns of numbers, text or matrices, all of one length."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from privada.core.errors import ArgumentError, DataError
from privada.tables.cells import (
    LARGEST_WHOLE,
    MISSING,
    POINT,
    Cell,
    CellCache,
    CellError,
    number_of,
    text_of,
    translate,
)
from privada.tables.text_column import TextColumn, release_memory

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of one length, as they were read: nothing is inferred from their values.

    Args:
        columns: for each name, a sequence of numbers, text or both, with None for what is missing;
            or a matrix with a row for each record, dense or SciPy sparse.

    Numbers are kept as float64 with NaN for what is missing, all else as text. How a column is kept
    never shows: `numbers` and `texts` give the same for a cell whatever the other cells are. So 1,
    1.0 and, from a file, "1" are one value.

    Guarantee: none; the values are private. `repr` shows none of them, nor do errors. Of a table
    that was read from JSON lines without a schema they show no names either: a name may be the key
    of one record.

    Edge cases: whole numbers beyond 2^53 are kept as text, exactly. Booleans are the text "true"
    and "false". Space around text is removed. Columns of different lengths are refused.

    Example:
        >>> from privada.tables import Table
        >>> table = Table({"age": [39, None, 50], "job": ["clerk", "?", "nurse"]})
        >>> table
        Table(3 rows; age, job)
        >>> table.numbers("age")
        array([39., nan, 50.])
        >>> table.texts("age").tolist()
        ['39', None, '50']
    """

    columns: Mapping[str, Any]
    has_header: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kept = {name: as_column(name, values) for name, values in self.columns.items()}
        _check_lengths(kept)
        object.__setattr__(self, "columns", kept)
        object.__setattr__(self, "has_header", True)

    @classmethod
    def of_columns(cls, columns: Mapping[str, Any], *, has_header: bool = True) -> "Table":
        """Return a table of columns that are as `as_column` makes them.

        Without a header the names are those that records have, and are not shown.
        """
        _check_lengths(columns)
        table = object.__new__(cls)
        object.__setattr__(table, "columns", dict(columns))
        object.__setattr__(table, "has_header", has_header)
        return table

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.columns)

    @property
    def size(self) -> int:
        """The number of rows."""
        return int(next(iter(self.columns.values())).shape[0])

    def __repr__(self) -> str:
        names = f"; {', '.join(self.names)}" if self.has_header else ""
        return f"Table({self.size:,} rows{names})"

    def numbers(
        self, name: str, missing: Collection[str] = MISSING, *, lenient: bool = False
    ) -> Numbers:
        """Return a column as numbers, NaN for what is missing.

        A cell that is no number raises, or counts as missing when `lenient`.
        """
        values: Any = self._vector(name)
        if isinstance(values, TextColumn):
            return values.numbers(missing, _parsed(missing, lenient, values.mark), name)
        if values.dtype != object:
            infinite = np.isinf(values)
            if lenient:
                return np.where(infinite, np.nan, values)
            refuse_infinite(name, infinite)
            return np.asarray(values, np.float64)
        meaning = CellCache(_parsed(missing, lenient, POINT))
        return translate(values, meaning.__getitem__, np.float64, name)

    def texts(self, name: str) -> NDArray[Any]:
        """Return a column as text, None for what was no value at all."""
        values = self._vector(name)
        if isinstance(values, TextColumn):
            return values.texts()
        return values if values.dtype == object else _text_column(name, values)

    def coded(self, name: str) -> tuple[NDArray[np.int64], list[Cell]]:
        """Return the different texts of a column, and for each row the place of its text.

        So that what a cell means is found once for each different one.
        """
        values = self._vector(name)
        if isinstance(values, TextColumn):
            return values.coded
        if values.dtype != object:
            found, codes = np.unique(values, return_inverse=True)
            return codes, _text_column(name, found).tolist()
        places: dict[Cell, int] = {}
        codes = np.fromiter(
            (places.setdefault(text, len(places)) for text in values), np.int64, len(values)
        )
        return codes, list(places)

    def matrix(self, name: str) -> Any:
        """Return a column that is a matrix, dense or sparse."""
        values = self._column(name)
        if values.ndim != 2:
            raise DataError(
                f"Expected column {name!r} to be a matrix, got one value for each row. Matrices "
                'come from .npz files; give the column kind = "number".'
            )
        return values

    def take(self, rows: Any) -> "Table":
        """Return some rows, by number or by a mask."""
        taken = {name: values[rows] for name, values in self.columns.items()}
        return Table.of_columns(taken, has_header=self.has_header)

    def _column(self, name: str) -> Any:
        if name not in self.columns:
            found = f"columns {', '.join(map(repr, self.names))}" if self.has_header else "none"
            raise DataError(f"Expected a column {name!r}, got {found}. Check the name.")
        return self.columns[name]

    def _vector(self, name: str) -> Any:
        values = self._column(name)
        if values.ndim != 1:
            raise DataError(
                f"Expected column {name!r} to have one value for each row, got a matrix. Give the "
                'column kind = "matrix" or "ignore".'
            )
        return values


def _check_lengths(columns: Mapping[str, Any]) -> None:
    lengths = {name: int(values.shape[0]) for name, values in columns.items()}
    if not lengths:
        raise DataError("Expected at least one column, got none.")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} has {length:,}" for name, length in lengths.items())
        raise DataError(
            f"Expected columns of one length, got several: {listed}. Keep what is not a column in "
            'another file, or give it kind = "ignore".'
        )


def _parsed(missing: Collection[str], lenient: bool, mark: str) -> Callable[[Cell], float]:
    """Return what turns a cell into a number."""
    known = frozenset(missing)

    def parsed(cell: Cell) -> float:
        try:
            return number_of(cell, known, mark)
        except CellError:
            if lenient:
                return float("nan")
            raise

    return parsed


def refuse_infinite(name: str, infinite: NDArray[np.bool_]) -> None:
    """Raise if any row is infinite."""
    if infinite.any():
        raise DataError(
            f"Expected finite numbers in column {name!r}, got an infinite one. Correct it, or "
            "leave it empty."
        )


def is_sparse(values: Any) -> bool:
    """Return whether values are a SciPy sparse matrix."""
    return bool(scipy.sparse.issparse(values))


def as_column(name: str, values: Any) -> Any:
    """Return a column as float64, as text, or as a matrix."""
    if isinstance(values, TextColumn):
        return values
    if is_sparse(values):
        return values.tocsr()
    array = values if isinstance(values, np.ndarray) else _as_array(values)
    if array.ndim == 2 and array.dtype.kind in "biuf":
        return array
    if array.ndim != 1:
        raise DataError(
            f"Expected column {name!r} to have one value, or one row of numbers, for each record, "
            f"got an array of shape {array.shape} and type {array.dtype}. Reshape it to two "
            "dimensions."
        )
    if array.dtype.kind == "f":
        return array.astype(np.float64, copy=False)
    if array.dtype.kind in "iu" and _exact(array):
        return array.astype(np.float64)
    if array.dtype.kind in "biuUO":
        return _text_column(name, array)
    if array.dtype.kind == "S":
        return _text_column(name, np.char.decode(array, "utf-8", "replace"))
    raise DataError(
        f"Expected column {name!r} to be numbers or text, got an array of type {array.dtype}. "
        "Convert it."
    )


def joined_columns(parts: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Return the columns of several parts as one, with None where a part lacks one."""
    names = dict.fromkeys(name for _, part in parts for name in part)

    def taken(name: str) -> list[Any]:  # so that no column is held twice for long
        return [part.pop(name, None) for _, part in parts]

    found = {}
    for name in names:
        found[name] = _joined(
            name,
            [
                np.full(size, None, dtype=object) if held is None else held
                for (size, _), held in zip(parts, taken(name), strict=True)
            ],
        )
        release_memory()
    return found


def joined(parts: Sequence[Table]) -> Table:
    """Return the parts of a table as one."""
    columns = joined_columns([(part.size, dict(part.columns)) for part in parts])
    return Table.of_columns(columns, has_header=all(part.has_header for part in parts))


def _joined(name: str, parts: list[Any]) -> Any:
    """Return the parts of a column as one, kept in one way."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, TextColumn) for part in parts):
        return TextColumn.joined(parts)
    if not all(isinstance(part, np.ndarray) and part.dtype == np.float64 for part in parts):
        parts = [
            _text_column(name, part) if part.dtype != object else _texts(part) for part in parts
        ]
    return np.concatenate(parts)


def _texts(part: Any) -> NDArray[Any]:
    return part.texts() if isinstance(part, TextColumn) else part


def _as_array(values: Any) -> NDArray[Any]:
    """Return a sequence as an array of its values, of whatever types."""
    if hasattr(values, "__array__"):
        return np.asarray(values)
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ArgumentError(
            f"Expected columns to be sequences of values, got {type(values).__name__}."
        )
    return np.fromiter(values, object, len(values))


def _exact(array: NDArray[Any]) -> bool:
    return not array.size or bool(array.max() <= LARGEST_WHOLE and array.min() >= -LARGEST_WHOLE)


def _text_column(name: str, array: NDArray[Any]) -> NDArray[Any]:
    return translate(array.tolist(), text_of, object, name)
