"""Reading tables from files: CSV, JSON lines, NumPy archives, Parquet, text and folders of it."""

from typing import TYPE_CHECKING

from privada.core.errors import DataError
from privada.tables.files import Source, as_path
from privada.tables.formats import format_of
from privada.tables.formats.building import Types, no_record
from privada.tables.table import Table

if TYPE_CHECKING:
    from privada.tables.schema import Schema


def read(path: Source, schema: "Schema | None" = None) -> Table:
    """Return the table in a file, or in a folder of text.

    CSV files (`.csv`, or `.tsv` with tabs) are UTF-8 and begin with the names of the columns. JSON
    lines (`.jsonl`, `.ndjson`) have an object on each line; a key that is not there is a missing
    value. Text (`.txt`) has a document on each line and one column, `text`. These may be
    compressed (`.gz`, `.bz2`, `.xz`). NumPy archives (`.npz`) have arrays of one length; a
    two-dimensional one is a column of kind "matrix", and so are the parts `data`, `indices`,
    `indptr` and `shape` of a sparse one. Parquet files need pyarrow. A folder is a table of its
    `.txt` files, a document each, in the column `text`; where they are in subfolders, the column
    `label` has the subfolder's name. Other files in it are left alone.

    With a schema, names are checked before any row is read, columns to ignore are left out, and
    columns of numbers are read as numbers. Without one, cells of text files stay text. The target
    may be absent, as it is where a model is used.

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
    place = as_path("path", path)
    form = format_of(place)
    named = schema is not None or form.has_header
    table = Table.of_columns(form.read(place, schema), has_header=named)
    if not table.size:
        raise DataError(no_record(place))
    return table


def column_types(path: Source) -> Types:
    """Return for each column "number", "text" or "words", or the width of a matrix.

    Types are what a file declares. CSV and JSON lines declare none: there a column has the type of
    its cell in the first record, which is "words" if it has at least five. No other value is looked
    at.

    Example:
        >>> from pathlib import Path
        >>> from privada.tables import column_types
        >>> _ = Path("people.csv").write_text("age,job\\n39,clerk\\n50,nurse\\n")
        >>> column_types("people.csv")
        {'age': 'number', 'job': 'text'}
    """
    place = as_path("path", path)
    return format_of(place).types(place)
