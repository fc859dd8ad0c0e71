"""Excel workbooks: the first sheet, whose first row has the names of the columns."""

import importlib
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privada.core.errors import DataError
from privada.tables.cells import text_of
from privada.tables.formats.building import (
    Layout,
    Part,
    Types,
    cell_type,
    is_number,
    kept_names,
    missing_texts,
    no_record,
    number_names,
    part_of,
    refuse_twice,
    undamaged,
)
from privada.tables.text_column import parser, text_column

if TYPE_CHECKING:
    from privada.tables.schema import Schema

_ROWS = 1 << 14


@contextmanager
def _sheet(path: Path) -> Iterator[tuple[list[str], Iterator[list[str | None]]]]:
    """Open a workbook: give its header, and its rows as text."""
    try:
        openpyxl: Any = importlib.import_module("openpyxl")
    except ImportError:
        openpyxl = None
    if openpyxl is None:
        raise DataError(
            f"Cannot read {str(path)!r}: Excel files need openpyxl. Install it with "
            "pip install 'privada[excel]', or save the table as CSV."
        )
    with undamaged(path, "an Excel workbook (.xlsx)"), path.open("rb") as file:
        book = openpyxl.load_workbook(file, read_only=True, data_only=True)
        with closing(book):
            rows = book.worksheets[0].iter_rows(values_only=True)
            header = _header(next(rows, ()), path)
            texts = ([text_of(cell) for cell in row] for row in rows)
            yield header, (_of_width(row, len(header), path) for row in texts if any(row))


def _header(cells: Any, path: Path) -> list[str]:
    names = [text_of(cell) or "" for cell in cells]
    while names and not names[-1]:
        names.pop()
    if not names or not all(names) or all(map(is_number, names)):
        raise DataError(
            f"Expected a name for each column in the first row of the first sheet of {str(path)!r},"
            " got none, only numbers, or columns without one. Put the names there."
        )
    refuse_twice(names, path)
    return names


def _of_width(row: list[str | None], width: int, path: Path) -> list[str | None]:
    if any(cell is not None for cell in row[width:]):
        raise DataError(
            f"Expected {width} cells in each row of {str(path)!r}, as in the header, got another "
            "number. Give every column a name."
        )
    return (row + [None] * width)[:width]


def chunks(path: Path, schema: "Schema | None", layout: Layout) -> Generator[Part, None, None]:
    """Yield the columns of a workbook, some rows at a time."""
    numbers, missing = number_names(schema), frozenset(missing_texts(schema))
    with _sheet(path) as (header, rows):
        kept = kept_names(header, schema)
        while chunk := list(islice(rows, _ROWS)):
            cells = dict(zip(header, map(list, zip(*chunk, strict=True)), strict=True))
            columns = {name: text_column(cells[name]) for name in kept}
            yield part_of(
                {
                    name: column.numbers(missing, parser(missing, column.mark), name)
                    if name in numbers
                    else column
                    for name, column in columns.items()
                }
            )


def types(path: Path, layout: Layout) -> Types:
    """Return the types of the cells of the first record."""
    with _sheet(path) as (header, rows):
        first = next(rows, None)
    if first is None:
        raise DataError(no_record(path))
    return {name: cell_type(cell) for name, cell in zip(header, first, strict=True)}
