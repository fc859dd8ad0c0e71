"""Reading tables from files, folders, databases and frames."""

from typing import TYPE_CHECKING, Any

from privada.core.errors import ArgumentError, DataError
from privada.tables.database import is_url, query_parts, query_types
from privada.tables.files import as_path
from privada.tables.formats import format_of
from privada.tables.formats.building import Layout, Types, no_record
from privada.tables.frames import frame_types, is_frame, read_frame
from privada.tables.table import Table, joined_columns

if TYPE_CHECKING:
    from privada.tables.schema import Schema


def read(
    path: Any,
    schema: "Schema | None" = None,
    *,
    separator: str | None = None,
    decimal: str | None = None,
    query: str | None = None,
) -> Table:
    """Return the table in a file, a folder, a database or a frame.

    CSV files (`.csv`, or `.tsv` with tabs) are UTF-8 and begin with the names of the columns. JSON
    lines (`.jsonl`, `.ndjson`) have an object on each line; a key that is not there is a missing
    value. Text (`.txt`) has a document on each line and one column, `text`. These may be
    compressed (`.gz`, `.bz2`, `.xz`, `.zst`). Parquet (`.parquet`), Feather (`.feather`) and Arrow
    (`.arrow`) files declare the types of their columns. Of an Excel workbook (`.xlsx`) the first
    sheet is read, and its first row has the names. NumPy archives (`.npz`) have arrays of one
    length; a two-dimensional one is a column of kind "matrix", and so are the parts `data`,
    `indices`, `indptr` and `shape` of a sparse one. A folder of such files with the same columns
    is one table, in the order of their names. A folder of `.txt` files has a document in each, in
    the column `text`; where they are in subfolders, the column `label` has the subfolder's name,
    and other files are left alone. A database is named by a URL, such as "sqlite:///patients.db",
    "postgresql://user@host/clinic" or "duckdb:///patients.duckdb", and read by a query, which may
    only read. Frames of pandas and Polars, tables of PyArrow and a `Table` are taken as they are.

    With a schema, names are checked before any row is read, columns to ignore are left out, and
    columns of numbers are read as numbers. Without one, cells of text files stay text. The target
    may be absent, as it is where a model is used.

    Args:
        path: the file or the folder; the URL of a database; or a frame.
        schema: what the columns are.
        separator: what stands between the cells of a CSV file; by default what the schema says, or
            that of comma, semicolon, tab and bar which the header has most of.
        decimal: what parts a number's fraction from its whole, "." or ","; by default what the
            schema says, or a point, or, where semicolons separate, either of the two in each cell.
        query: which rows of a database.

    Returns:
        The table.

    Guarantee: nothing about a column is inferred from its values. Errors say files and columns of
    the header or the schema, and never what is in a cell, which keys a record has or which row it
    is.

    Edge cases: an empty file, a header without records, rows of different lengths, columns without
    a name or with one name, bytes that are not UTF-8, NUL bytes, nested JSON, arrays of different
    lengths, and damaged files raise `DataError`. Blank lines of CSV and JSON lines are skipped.

    Example:
        >>> from pathlib import Path
        >>> from privada.tables import read
        >>> _ = Path("people.csv").write_text("age,job\\n39,clerk\\n50,nurse\\n")
        >>> read("people.csv")
        Table(2 rows; age, job)
    """
    if is_frame(path):
        refuse_query(path, query)
        return read_frame(path, schema)
    if is_url(path):
        return Table.of_columns(joined_columns(list(query_parts(path, query, schema))))
    place = as_path("path", path)
    refuse_query(path, query)
    layout = layout_of(schema, separator, decimal)
    form = format_of(place)
    parts = list(form.chunks(place, schema, layout))
    if not any(part.size and part.columns for part in parts):
        raise DataError(no_record(place))
    named = schema is not None or form.has_header
    return Table.of_columns(joined_columns(parts), has_header=named)


def layout_of(schema: "Schema | None", separator: str | None, decimal: str | None) -> Layout:
    """Return how a file is written, as is said here or in the schema."""
    if schema is None:
        return Layout(separator, decimal)
    return Layout(separator or schema.separator, decimal or schema.decimal)


def refuse_query(source: Any, query: str | None) -> None:
    """Raise if a query is given for what is no database."""
    if query is not None:
        kind = "a frame" if is_frame(source) else repr(str(source))
        raise ArgumentError(
            f"Expected a query for the URL of a database only, got one for {kind}. Remove it, or "
            'give a URL such as "sqlite:///patients.db".'
        )


def column_types(
    path: Any,
    *,
    separator: str | None = None,
    decimal: str | None = None,
    query: str | None = None,
) -> Types:
    """Return for each column "number", "date", "text", "words" or "unknown", or a matrix's width.

    Types are what a file or a frame declares. CSV, JSON lines, Excel and databases but DuckDB
    declare none: there a column has the type of its cell in the first record, which is "words" if
    it has at least five, and "unknown" if it is missing. No other value is looked at.

    Args:
        path, separator, decimal, query: as for `read`.

    Returns:
        The types by name.

    Example:
        >>> from pathlib import Path
        >>> from privada.tables import column_types
        >>> _ = Path("people.csv").write_text("age,job,born\\n39,clerk,\\n50,nurse,1970-01-01\\n")
        >>> column_types("people.csv")
        {'age': 'number', 'job': 'text', 'born': 'unknown'}
    """
    if is_frame(path):
        return frame_types(path)
    if is_url(path):
        return query_types(path, query)
    place = as_path("path", path)
    return format_of(place).types(place, Layout(separator, decimal))
