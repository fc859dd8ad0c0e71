"""What the readers of all formats share: columns that grow row by row, and errors in words."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privada.core.errors import DataError, PrivadaError
from privada.tables.cells import MISSING, CellCache, CellError, number_of, translate
from privada.tables.files import reading

if TYPE_CHECKING:
    from privada.tables.schema import Schema

# Rows that are turned into columns at a time: few enough for the processor's cache.
CHUNK = 1 << 10
# Different cells of a column whose meaning is remembered.
_REMEMBERED = 1 << 16
# A cell of so many words is text, and not one of some values.
WORDS = 5

Columns = dict[str, Any]
# For each column "number", "text" or "words", or the width of a matrix.
Types = dict[str, str | int]


class ColumnBuilder:
    """A column under way: numbers if they are declared so, else text of which equal ones share."""

    def __init__(self, name: str, number: bool, missing: Collection[str]) -> None:
        self.name, self._number, self._missing = name, number, frozenset(missing)
        self._parts: list[NDArray[Any]] = []
        self._meaning = self._fresh()
        self.size = 0

    def _fresh(self) -> CellCache[Any]:
        if self._number:
            return CellCache(lambda cell: number_of(cell and cell.strip(), self._missing))
        return CellCache(lambda cell: cell and cell.strip())

    def add(self, cells: Sequence[str | None]) -> None:
        """Add the cells of some rows."""
        dtype = np.float64 if self._number else object
        meaning = self._meaning.__getitem__
        self._parts.append(translate(cells, meaning, dtype, self.name))
        self.size += len(cells)
        if len(self._meaning) > _REMEMBERED:
            self._meaning = self._fresh()

    def array(self) -> NDArray[Any]:
        """Return the whole column."""
        return np.concatenate(self._parts)


def builders(schema: "Schema | None") -> Callable[[str], ColumnBuilder]:
    """Return what makes a builder for a column of some name, as a schema says."""
    numbers = frozenset() if schema is None else schema.number_columns
    missing = MISSING if schema is None else schema.missing
    return lambda name: ColumnBuilder(name, name in numbers, missing)


def kept_names(names: Iterable[str], schema: "Schema | None") -> list[str]:
    """Return the columns that a schema uses, having checked that it knows them all."""
    listed = list(names)
    if schema is None:
        return listed
    schema.check(listed, target=False)
    return [name for name in listed if name not in schema.ignored]


def no_record(path: Path) -> str:
    """Return what is said of a file without records."""
    return f"Expected at least one record in {str(path)!r}, got none."


def arrays(columns: Mapping[str, ColumnBuilder], path: Path) -> Columns:
    """Return the columns that were built, of one record at least."""
    if not any(column.size for column in columns.values()):
        raise DataError(no_record(path))
    return {name: column.array() for name, column in columns.items()}


def is_number(cell: str | None) -> bool:
    """Return whether a cell is a number."""
    try:
        number_of(cell, ())
    except CellError:
        return False
    return cell is not None


def cell_type(cell: str | None) -> str:
    """Return the type of a cell: "number", "text" or, if it has several words, "words"."""
    if is_number(cell and cell.strip()):
        return "number"
    return "words" if len((cell or "").split()) >= WORDS else "text"


@contextmanager
def undamaged(path: Path, wanted: str) -> Iterator[None]:
    """Say what was wanted where a damaged file makes a library raise, which may be anything."""
    try:
        with reading(path):
            yield
    except (PrivadaError, MemoryError):
        raise
    except Exception:
        raise DataError(
            f"Expected {str(path)!r} to be {wanted}, got a file that is damaged or of another "
            "format. Write it again."
        ) from None
