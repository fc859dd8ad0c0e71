"""What the readers of all formats share: columns, a part of the rows at a time, and their types."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from privada.core.errors import DataError, PrivadaError
from privada.core.validation import one_of
from privada.tables.cells import COMMA, EITHER, MISSING, POINT, CellError, number_of
from privada.tables.files import reading

if TYPE_CHECKING:
    from privada.tables.schema import Schema

# Bytes that are read and parsed at a time.
BLOCK = 1 << 23
# A cell of so many words is text, and not one of some values.
WORDS = 5

# Columns by name, as a `Table` keeps them.
Columns = dict[str, Any]
# For each column "number", "text", "words", "date" or "unknown", or the width of a matrix.
Types = dict[str, str | int]

SEPARATORS = (",", ";", "\t", "|")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?", re.ASCII | re.DOTALL)


class Part(NamedTuple):
    """Some rows of a table, one after the other: how many, and their columns. Private."""

    size: int
    columns: Columns


def part_of(columns: Columns) -> Part:
    """Return columns, of which there is one at least, as a part."""
    return Part(int(next(iter(columns.values())).shape[0]), columns)


@dataclass(frozen=True)
class Layout:
    """How a text file is written, where its name and its header do not say.

    Args:
        separator: what stands between cells.
        decimal: what parts a number's fraction from its whole: "." or ",".
    """

    separator: str | None = None
    decimal: str | None = None

    def __post_init__(self) -> None:
        if self.separator is not None:
            one_of("separator", self.separator, SEPARATORS)
        if self.decimal is not None:
            one_of("decimal", self.decimal, (POINT, COMMA))

    def mark(self, separator: str) -> str:
        """Return the decimal mark of a file with some separator."""
        if self.decimal is not None:
            return self.decimal
        return EITHER if separator == ";" else POINT


def number_names(schema: "Schema | None") -> frozenset[str]:
    """Return the columns that are read as numbers."""
    return frozenset() if schema is None else schema.number_columns


def missing_texts(schema: "Schema | None") -> Iterable[str]:
    """Return the texts that stand for a missing value."""
    return MISSING if schema is None else schema.missing


def kept_names(names: Iterable[str], schema: "Schema | None") -> list[str]:
    """Return the columns that a schema uses, having checked that it knows them all."""
    listed = list(names)
    if schema is None:
        return listed
    schema.check(listed, target=False)
    return [name for name in listed if name not in schema.ignored]


def refuse_twice(names: Iterable[str], path: object) -> None:
    """Raise if two columns have one name."""
    listed = list(names)
    if len(set(listed)) < len(listed):
        raise DataError(
            f"Expected different names for the columns of {str(path)!r}, got one twice. Rename one."
        )


def no_record(path: object) -> str:
    """Return what is said of a file without records."""
    return f"Expected at least one record in {str(path)!r}, got none."


def is_number(cell: str | None, mark: str = POINT) -> bool:
    """Return whether a cell is a number."""
    try:
        number_of(cell, (), mark)
    except CellError:
        return False
    return cell is not None


def is_date(cell: str) -> bool:
    """Return whether a cell is a date, or a date and a time, as ISO 8601 writes it."""
    with suppress(ValueError):
        return _DATE.fullmatch(cell) is not None and datetime.fromisoformat(cell) is not None
    return False


def cell_type(cell: str | None, mark: str = POINT) -> str:
    """Return the type of a cell: "number", "date", "text" or, of several words, "words".

    A missing cell is "unknown": it does not say what the others are.
    """
    text = (cell or "").strip()
    if text in MISSING:
        return "unknown"
    if is_number(text, mark):
        return "number"
    if is_date(text):
        return "date"
    return "words" if len(text.split()) >= WORDS else "text"


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
