"""CSV and TSV files: a header with the names of the columns, and rows of one width."""

import csv
from collections.abc import Generator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from privada.core.errors import DataError
from privada.tables.files import ending, lines
from privada.tables.formats.building import (
    CHUNK,
    Columns,
    Types,
    arrays,
    builders,
    cell_type,
    is_number,
    kept_names,
    no_record,
)

if TYPE_CHECKING:
    from privada.tables.schema import Schema


def _csv_rows(path: Path) -> Generator[list[str], None, None]:
    """Yield the header and the rows, all of one width."""
    delimiter = "\t" if ending(path) == ".tsv" else ","
    with closing(lines(path)) as source:
        found = csv.reader(source, delimiter=delimiter, strict=True, skipinitialspace=True)
        try:
            header = next(found, None)
            if not header:
                raise DataError(
                    f"Expected a header with the names of the columns in {str(path)!r}, got "
                    f"{'an empty file' if header is None else 'an empty line'}."
                )
            yield _checked_header(header, path, delimiter)
            for row in found:
                if len(row) == len(header):
                    yield row
                elif row:
                    raise DataError(
                        f"Expected {len(header)} cells in each line of {str(path)!r}, as in the "
                        "header, got another number. Quote cells that contain separators."
                    )
        except csv.Error:
            raise DataError(
                f"Expected cells and quotation marks as CSV has them in {str(path)!r}, got "
                "something else. Check that quotation marks are closed, and doubled within a cell, "
                f"and that no cell has more than {csv.field_size_limit():,} characters."
            ) from None


def _checked_header(header: list[str], path: Path, delimiter: str) -> list[str]:
    names = [name.strip() for name in header]
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|" if mark != delimiter):
        raise DataError(
            f"Expected columns separated by {delimiter!r} in {str(path)!r}, got one column with "
            "another separator in its name. Save the file with commas, or with tabs as .tsv."
        )
    if all(map(is_number, names)):
        raise DataError(
            f"Expected a header with the names of the columns in {str(path)!r}, got only numbers "
            "in the first line. Put a line with the names above."
        )
    for number, name in enumerate(names, 1):
        if not name:
            raise DataError(
                f"Expected a name for each column of {str(path)!r}, got none for column {number}."
            )
        if name in names[: number - 1]:
            raise DataError(
                f"Expected different names for the columns of {str(path)!r}, got {name!r} for "
                f"columns {names.index(name) + 1} and {number}. Rename one."
            )
    return names


def read(path: Path, schema: "Schema | None") -> Columns:
    """Return the columns of a CSV or TSV file."""
    with closing(_csv_rows(path)) as rows:
        header, build = next(rows), builders(schema)
        if schema is not None and {*schema.columns, schema.target.column}.isdisjoint(header):
            # a file without a header has a record in its place, and its cells for names
            raise DataError(
                f"Expected a header in {str(path)!r} with the columns that the schema lists, got "
                "none of them. Put a line with the names above the records, or give the schema of "
                "this file."
            )
        kept = set(kept_names(header, schema))
        columns = {name: build(name) for name in header if name in kept}
        places = [columns.get(name) for name in header]
        while chunk := list(islice(rows, CHUNK)):
            for column, cells in zip(places, zip(*chunk, strict=True), strict=True):
                if column is not None:
                    column.add(cells)
    return arrays(columns, path)


def types(path: Path) -> Types:
    """Return the types of the cells of the first record."""
    with closing(_csv_rows(path)) as rows:
        header, first = next(rows), next(rows, None)
    if first is None:
        raise DataError(no_record(path))
    return {name: cell_type(cell) for name, cell in zip(header, first, strict=True)}
