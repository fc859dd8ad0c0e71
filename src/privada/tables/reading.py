"""Reading tables from files: CSV, JSON lines, NumPy archives, Parquet, text and folders of it."""

import csv
import importlib
import json
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from privada.core.errors import DataError, PrivadaError
from privada.tables.cells import MISSING, CellCache, CellError, number_of, text_of, translate
from privada.tables.files import Source, as_path, ending, lines, reading
from privada.tables.table import Table, as_column

if TYPE_CHECKING:
    from privada.tables.schema import Schema

# Rows that are turned into columns at a time: few enough for the processor's cache.
_CHUNK = 1 << 10
# Different cells of a column whose meaning is remembered.
_REMEMBERED = 1 << 16

Columns = dict[str, Any]


class _Column:
    """A column under way: numbers if they are declared so, else text of which equal ones share."""

    def __init__(self, name: str, number: bool, missing: Collection[str]) -> None:
        self._name, self._number, self._missing = name, number, frozenset(missing)
        self._parts: list[NDArray[Any]] = []
        self._lookup = self._fresh()
        self.size = 0

    def _fresh(self) -> CellCache[Any]:
        if self._number:
            return CellCache(lambda cell: number_of(cell and cell.strip(), self._missing))
        return CellCache(lambda cell: cell and cell.strip())

    def add(self, cells: Sequence[str | None]) -> None:
        """Add the cells of some rows."""
        dtype = np.float64 if self._number else object
        meaning = self._lookup.__getitem__
        self._parts.append(translate(cells, meaning, dtype, self._name))
        self.size += len(cells)
        if len(self._lookup) > _REMEMBERED:
            self._lookup = self._fresh()

    def array(self) -> NDArray[Any]:
        """Return the whole column."""
        return np.concatenate(self._parts)


def _builder(schema: "Schema | None") -> Callable[[str], _Column]:
    numbers = frozenset() if schema is None else schema.number_columns
    missing = MISSING if schema is None else schema.missing
    return lambda name: _Column(name, name in numbers, missing)


def _kept(names: Iterable[str], schema: "Schema | None") -> list[str]:
    """Return the columns that a schema uses, having checked that it knows them all."""
    listed = list(names)
    if schema is None:
        return listed
    schema.check(listed, target=False)
    return [name for name in listed if name not in schema.ignored]


# ---------------------------------------------------------------------- CSV


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
    if all(map(_is_number, names)):
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


def _is_number(cell: str | None) -> bool:
    try:
        number_of(cell, ())
    except CellError:
        return False
    return cell is not None


def _read_csv(path: Path, schema: "Schema | None") -> Columns:
    with closing(_csv_rows(path)) as rows:
        header, build = next(rows), _builder(schema)
        if schema is not None and {*schema.columns, schema.target.column}.isdisjoint(header):
            # a file without a header has a record in its place, and its cells for names
            raise DataError(
                f"Expected a header in {str(path)!r} with the columns that the schema lists, got "
                "none of them. Put a line with the names above the records, or give the schema of "
                "this file."
            )
        kept = set(_kept(header, schema))
        columns = {name: build(name) for name in header if name in kept}
        places = [columns.get(name) for name in header]
        while chunk := list(islice(rows, _CHUNK)):
            for column, cells in zip(places, zip(*chunk, strict=True), strict=True):
                if column is not None:
                    column.add(cells)
    return _arrays(columns, path)


def _no_record(path: Path) -> str:
    return f"Expected at least one record in {str(path)!r}, got none."


def _arrays(columns: Mapping[str, _Column], path: Path) -> Columns:
    if not any(column.size for column in columns.values()):
        raise DataError(_no_record(path))
    return {name: column.array() for name, column in columns.items()}


# ---------------------------------------------------------------------- JSON lines


def _json_records(path: Path) -> Generator[dict[str, Any], None, None]:
    """Yield the objects of a file, their values as text."""
    with closing(lines(path)) as source:
        for line in source:
            if line.strip():
                yield _json_record(line, path)


def _json_record(line: str, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise DataError(
            f"Expected a JSON object on each line of {str(path)!r}, got something else. Write one "
            "object, with a name for each value, on each line."
        )
    try:
        return {name: text_of(value) for name, value in record.items()}
    except CellError:
        pass  # and said outside the handler, where no traceback leads to the value
    raise DataError(
        f"Expected text, numbers, true, false or null as the values in {str(path)!r}, got a nested "
        "one. Give each part a name of its own."
    )


def _read_json(path: Path, schema: "Schema | None") -> Columns:
    build, done = _builder(schema), 0
    skipped = frozenset() if schema is None else schema.ignored
    # a key that no record has is a missing value of each, as it is where some have it
    listed = [] if schema is None else [name for name in schema.columns if name not in skipped]
    columns = {name: build(name) for name in listed}
    with closing(_json_records(path)) as records:
        while chunk := list(islice(records, _CHUNK)):
            for name in dict.fromkeys(name for record in chunk for name in record):
                if name not in columns and name not in skipped:
                    columns[name] = build(name)
                    columns[name].add([None] * done)
            for name, column in columns.items():
                column.add([record.get(name) for record in chunk])
            done += len(chunk)
    if schema is not None and not {*columns} <= {*schema.columns, schema.target.column}:
        # without its name, which one record alone may have
        raise DataError(
            f"Expected every key in {str(path)!r} to be in the schema, got some that are not. Add "
            'them under [columns] with a kind; kind = "ignore" leaves one out.'
        )
    return _arrays(columns, path)


# ---------------------------------------------------------------------- lines of text


def _read_text(path: Path, schema: "Schema | None") -> Columns:
    _kept(["text"], schema)
    column = _Column("text", False, ())
    with closing(lines(path)) as documents:
        while chunk := list(islice(documents, _CHUNK)):
            column.add(chunk)
    return _arrays({"text": column}, path)


# ---------------------------------------------------------------------- NumPy archives

# A cell of so many words is text, and not one of some values.
_WORDS = 5
_CSR_PARTS = ("data", "indices", "indptr", "shape")
_CSR_NOTES = ("format", "_is_array")  # which SciPy adds


@contextmanager
def _undamaged(path: Path, wanted: str) -> Iterator[None]:
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


@contextmanager
def _archive(path: Path) -> Iterator[dict[str, Callable[[], Any]]]:
    """Open an archive: give what loads each of its columns."""
    with (
        _undamaged(path, "an archive of NumPy arrays, without Python objects"),
        path.open("rb") as file,
    ):
        archive: Any = np.load(file, allow_pickle=False)
        yield _loaders({name: partial(archive.__getitem__, name) for name in archive.files})


def _loaders(arrays: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """Put the parts of sparse matrices together."""
    prefixes = [name.removesuffix("indptr") for name in arrays if name.endswith("indptr")]
    whole = [p for p in prefixes if all(p + part in arrays for part in _CSR_PARTS)]
    taken = {prefix + part for prefix in whole for part in (*_CSR_PARTS, *_CSR_NOTES)}
    plain = {name: load for name, load in arrays.items() if name not in taken}
    return plain | {p.rstrip("_.") or "data": partial(_load_sparse, arrays, p) for p in whole}


def _load_sparse(arrays: dict[str, Callable[[], Any]], prefix: str) -> Any:
    data, indices, starts, shape = (arrays[prefix + part]() for part in _CSR_PARTS)
    try:
        matrix: Any = scipy.sparse.csr_array(
            (data, indices.astype(np.int64), starts.astype(np.int64)), shape=tuple(shape)
        )
        matrix.check_format()
    except (ValueError, TypeError, AttributeError):
        raise DataError(
            f"Expected the arrays {prefix}data, {prefix}indices, {prefix}indptr and {prefix}shape "
            "to be a sparse matrix in CSR form, got parts that do not fit together."
        ) from None
    return matrix


def _read_npz(path: Path, schema: "Schema | None") -> Columns:
    with _archive(path) as columns:
        return {name: as_column(name, columns[name]()) for name in _kept(columns, schema)}


# ---------------------------------------------------------------------- Parquet


@contextmanager
def _parquet(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a Parquet file: give pyarrow and the file."""
    try:
        arrow, parquet = (importlib.import_module(n) for n in ("pyarrow", "pyarrow.parquet"))
    except ImportError:
        raise DataError(
            f"Cannot read {str(path)!r}: Parquet files need pyarrow. Install it with "
            "pip install 'privada[parquet]', or save the table as CSV."
        ) from None
    with _undamaged(path, "a Parquet file"), path.open("rb") as file:
        yield arrow, parquet.ParquetFile(file)


def _read_parquet(path: Path, schema: "Schema | None") -> Columns:
    with _parquet(path) as (arrow, file):
        names = file.schema_arrow.names
        if len(set(names)) < len(names):
            raise DataError(
                f"Expected different names for the columns of {str(path)!r}, got one twice. Rename "
                "one."
            )
        kept = _kept(names, schema)
        read = file.read(columns=kept)
        return {name: _arrow_column(arrow, name, read.column(name)) for name in kept}


def _arrow_column(arrow: Any, name: str, column: Any) -> Any:
    kinds = arrow.types
    if kinds.is_integer(column.type) and not column.null_count:
        return as_column(name, column.to_numpy())
    if kinds.is_floating(column.type):
        return as_column(name, column.cast(arrow.float64()).to_numpy())
    if not kinds.is_integer(column.type) and not kinds.is_boolean(column.type):
        try:
            column = column.cast(arrow.string())
        except arrow.ArrowException:
            raise DataError(
                f"Expected column {name!r} to be numbers or text, got the type {column.type}. "
                'Convert it, or give it kind = "ignore".'
            ) from None
    cells = np.fromiter(column.to_pylist(), object, len(column))
    return as_column(name, cells)


# ---------------------------------------------------------------------- folders of text


def _documents(path: Path) -> list[Path]:
    """Return the text files of a folder, or of its subfolders, in the order of their names."""
    with reading(path):
        files = [each for each in path.iterdir() if not each.name.startswith(".")]
        inner = [each for folder in files if folder.is_dir() for each in folder.iterdir()]
    found = sorted(each for each in [*files, *inner] if ending(each) == ".txt" and each.is_file())
    if not found:
        raise DataError(
            f"Expected .txt files in the folder {str(path)!r}, or in a subfolder for each class, "
            "got none. Give the folder around the subfolders, or one of the files."
        )
    if len({each.parent == path for each in found}) > 1:
        raise DataError(
            f"Expected the .txt files of {str(path)!r} in the folder itself or in subfolders, got "
            "both. Move those without a class elsewhere."
        )
    return found


def _read_folder(path: Path, schema: "Schema | None") -> Columns:
    found = _documents(path)
    columns: dict[str, Callable[[Path], str]] = {"text": lambda each: "".join(lines(each, path))}
    if found[0].parent != path:
        columns["label"] = lambda each: each.parent.name
    made = map(_builder(schema), _kept(columns, schema))
    return {each._name: _filled(each, map(columns[each._name], found)) for each in made}


def _filled(column: _Column, cells: Iterable[str]) -> NDArray[Any]:
    column.add(list(cells))
    return column.array()


# ---------------------------------------------------------------------- all of them

_FOLDER = "/"
_KEYED = (".jsonl", ".ndjson")  # without a header, records have names of their own

_READERS: dict[str, Callable[[Path, "Schema | None"], Columns]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".txt": _read_text,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
    _FOLDER: _read_folder,
}


def _format(path: Path) -> str:
    if path.is_dir():
        return _FOLDER
    found = ending(path)
    whole = found not in (".npz", ".parquet") or path.suffix.lower() == found
    if found not in _READERS or not whole:
        raise DataError(
            f"Expected a file whose name ends in .csv, .tsv, .jsonl, .ndjson or .txt, alone or "
            f"with .gz, .bz2 or .xz, or in .npz or .parquet, or a folder of .txt files, got "
            f"{str(path)!r}."
        )
    return found


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
    found = _format(place)
    named = schema is not None or found not in _KEYED
    table = Table.of_columns(_READERS[found](place, schema), has_header=named)
    if not table.size:
        raise DataError(_no_record(place))
    return table


def column_types(path: Source) -> dict[str, str | int]:
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
    found = _format(place)
    if found == ".txt":
        with closing(lines(place)) as documents:
            next(documents, None)
        return {"text": "words"}
    if found == _FOLDER:
        alone = _documents(place)[0].parent == place
        return {"text": "words"} if alone else {"text": "words", "label": "text"}
    if found == ".npz":
        with _archive(place) as columns:
            return {name: _array_type(load()) for name, load in columns.items()}
    if found == ".parquet":
        with _parquet(place) as (arrow, file):
            return {field.name: _arrow_type(arrow, field.type) for field in file.schema_arrow}
    return {name: _cell_type(cell) for name, cell in _first_record(place, found).items()}


def _first_record(path: Path, found: str) -> dict[str, Any]:
    if found in (".jsonl", ".ndjson"):
        with closing(_json_records(path)) as records:
            record = next(records, None)
    else:
        with closing(_csv_rows(path)) as rows:
            header, first = next(rows), next(rows, None)
        record = None if first is None else dict(zip(header, first, strict=True))
    if record is None:
        raise DataError(_no_record(path))
    return record


def _cell_type(cell: str | None) -> str:
    if _is_number(cell and cell.strip()):
        return "number"
    return "words" if len((cell or "").split()) >= _WORDS else "text"


def _array_type(array: Any) -> str | int:
    if array.ndim == 2:
        return int(array.shape[1])
    return "number" if array.dtype.kind in "iuf" else "text"


def _arrow_type(arrow: Any, kind: Any) -> str:
    kinds = arrow.types
    number = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind)
    return "number" if number else "text"
