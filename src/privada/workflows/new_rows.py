"""Rows to predict from, as people have them: files, frames, tables and plain values."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from privada import tables
from privada.core.errors import ArgumentError, DataError
from privada.tables.cells import ColumnError
from privada.tables.database import is_url
from privada.tables.files import as_path
from privada.tables.formats import format_of
from privada.tables.reading import layout_of
from privada.tables.schema_file import close_match

# Rows that are encoded at a time, and numbers of dense features among them.
_ROWS, _NUMBERS = 1 << 16, 1 << 24
# Names of columns in an error.
_NAMES = 20
_SCALARS = (str, bytes, bool, int, float, np.generic)
_REMEDY = (
    "Give the path of a file, a pandas or Polars frame, a tables.Table, a dict of columns, or a "
    "dict for each row."
)


def batches(
    source: Any, schema: tables.Schema, keep: Collection[str] = ()
) -> Iterator[tuple[int, tables.Table]]:
    """Yield some rows at a time, each with the number of rows before it.

    They have the columns that the schema makes features of, and those to keep, which are texts
    unless the schema needs them otherwise. Other columns are left out. A file need not fit into
    memory, but for a NumPy archive.
    """
    size = _ROWS if schema.sparse else max(1, min(_ROWS, _NUMBERS // len(schema.features)))
    done = 0
    for part in _parts(source, schema, keep):
        for start in range(0, part.size, size):
            yield done + start, part.take(slice(start, start + size))
        done += part.size
    if not done:
        raise DataError("Expected at least one row to predict from, got none.")


def encode(table: tables.Table, schema: tables.Schema, before: int = 0) -> Any:
    """Return the features of rows; an error says the column, and which row is the first wrong one.

    The number of a row may be said, other than in training: these rows are the caller's, and no
    promise hides which of them a public schema does not fit. What is in it is never said.
    """
    try:
        return tables.encode_inputs(table, schema)
    except DataError as error:
        row = _first_wrong(table, schema)
        words = str(error)
        if isinstance(error, ColumnError):  # whose remedy is for training
            words = f"{error.fault} Correct it, or leave the cell empty."
    where = "" if row is None else f" The first such row is row {before + row + 1:,}."
    # said outside the handler, where no traceback leads to the cell
    raise DataError(f"{words}{where}")


def _first_wrong(table: tables.Table, schema: tables.Schema) -> int | None:
    """Return the first row that cannot be encoded, None if it is the rows together."""
    low, high = 0, table.size
    while high - low > 1:
        middle = (low + high) // 2
        if _encodes(table.take(slice(low, middle)), schema):
            low = middle
        else:
            high = middle
    return None if _encodes(table.take(slice(low, high)), schema) else low


def _encodes(table: tables.Table, schema: tables.Schema) -> bool:
    try:
        tables.encode_inputs(table, schema)
    except DataError:
        return False
    return True


def used_columns(schema: tables.Schema) -> dict[str, Any]:
    """Return the columns that features are made of, with their kinds."""
    return {name: kind for name, kind in schema.columns.items() if name not in schema.unused}


def _parts(source: Any, schema: tables.Schema, keep: Collection[str]) -> Iterator[tables.Table]:
    """Yield the rows of a source, with the columns that are needed or kept."""
    wanted = list(dict.fromkeys([*used_columns(schema), *keep]))
    if is_url(source):
        raise ArgumentError(
            "Expected a query for a database to predict from, got none. Give --query, or read it "
            "first: tables.read(url, query=...)."
        )
    if isinstance(source, (str, os.PathLike)):
        yield from _of_file(as_path("the table", source), schema, wanted, keep)
    elif isinstance(source, tables.Table):
        _check_names(source.names, schema, keep, source.has_header)
        yield _only(source, wanted)
    else:
        yield tables.Table(_columns(source, schema, wanted, keep))


def _only(table: tables.Table, names: Sequence[str]) -> tables.Table:
    kept = {name: table.columns[name] for name in names}
    return tables.Table.of_columns(kept, has_header=table.has_header)


def _with_missing(table: tables.Table, names: Sequence[str]) -> tables.Table:
    """Return some columns, without a value where the table has none: keys that no record has."""
    nothing = np.full(table.size, None, dtype=object)
    kept = {name: table.columns.get(name, nothing) for name in names}
    return tables.Table.of_columns(kept, has_header=table.has_header)


def _check_names(
    names: Collection[str], schema: tables.Schema, keep: Collection[str], shown: bool = True
) -> None:
    """Raise unless the columns that are needed, and those to keep, are there."""
    absent = [name for name in used_columns(schema) if name not in names]
    if absent:
        listed = ", ".join(map(repr, absent[:5])) + (", ..." if len(absent) > 5 else "")
        got = _listed(names) if shown else "other ones"
        question = close_match(absent[0], names) if shown else ""
        raise DataError(
            f"Expected the column{'s' if len(absent) > 1 else ''} {listed}, which the model "
            f"predicts from, got {got}.{question} Add what is absent; where a value is not known, "
            "leave the cell empty."
        )
    unknown = [name for name in keep if name not in names]
    if unknown:
        has = f" It has {_listed(names)}." if shown else ""
        raise ArgumentError(
            f"Expected columns to keep that the table has, got {unknown[0]!r}.{has}"
        )


def _listed(names: Collection[str]) -> str:
    first = ", ".join(map(repr, list(names)[:_NAMES]))
    return f"columns {first}{', ...' if len(names) > _NAMES else ''}" if names else "no column"


# ---------------------------------------------------------------------- files


def _of_file(
    path: Path, schema: tables.Schema, wanted: Sequence[str], keep: Collection[str]
) -> Iterator[tables.Table]:
    form = format_of(path)
    if not form.has_header:  # which keys there are shows at the end, so it is read twice
        keys = {name for part in tables.read_parts(path) for name in part.names}
        _check_names(keys, schema, keep, shown=False)
        for part in tables.read_parts(path):
            yield _with_missing(part, wanted)
        return
    names = tables.column_types(path, separator=schema.separator, decimal=schema.decimal)
    _check_names(names, schema, keep)
    plan, done = _reading_schema(schema, names, keep), 0
    with suppress(DataError):
        for part in _read(path, plan):
            yield _only(part, wanted)
            done += part.size
        return
    # read as text, of which `encode` says in which row a cell is that is no number
    for part in _read(path, _as_text(plan)):
        yield _only(part.take(slice(min(done, part.size), None)), wanted)
        done -= min(done, part.size)


def _read(path: Path, plan: tables.Schema) -> Iterator[tables.Table]:
    for part in format_of(path).chunks(path, plan, layout_of(plan, None, None)):
        if part.size and part.columns:
            yield tables.Table.of_columns(part.columns)


def _as_text(plan: tables.Schema) -> tables.Schema:
    columns = {
        name: tables.Hashed() if isinstance(kind, tables.Number) else kind
        for name, kind in plan.columns.items()
    }
    return replace(plan, columns=columns)


def _reading_schema(
    schema: tables.Schema, names: Collection[str], keep: Collection[str]
) -> tables.Schema:
    """Return a schema by which a file is read: the columns that are needed, as they are needed.

    The target has another name than any column: it is not read.
    """
    columns: dict[str, Any] = {
        name: tables.Hashed() if isinstance(kind, tables.Text) else kind
        for name, kind in used_columns(schema).items()
    }
    for name in names:
        columns.setdefault(name, tables.Hashed() if name in keep else tables.Ignore())
    unread = max(columns, key=len) + "'"
    return replace(schema, target=tables.Range(unread, 0, 1), columns=columns)


# ---------------------------------------------------------------------- values in memory


def _columns(
    source: Any, schema: tables.Schema, wanted: Sequence[str], keep: Collection[str]
) -> dict[str, Any]:
    if getattr(source, "ndim", 0) == 1 and hasattr(source, "to_dict"):
        source = source.to_dict()  # a row of a frame
    if isinstance(source, Mapping):
        values = {str(name): value for name, value in source.items()}
        single = [value is None or isinstance(value, _SCALARS) for value in values.values()]
        if any(isinstance(value, Mapping) for value in values.values()):
            # whose keys may be identifiers
            raise ArgumentError(f"Expected rows to predict from, got a dict of dicts. {_REMEDY}")
        if all(single) and values:
            return _columns([source], schema, wanted, keep)
        _check_names(values, schema, keep)
        return {name: _sequence(name, values[name]) for name in wanted}
    if isinstance(source, Sequence) and not isinstance(source, (str, bytes)):
        return _columns_of_rows(source, schema, wanted, keep)
    if hasattr(source, "collect") and hasattr(source, "collect_schema"):
        source = source.collect()  # a lazy frame of Polars
    if not (hasattr(source, "columns") and hasattr(source, "__getitem__")):
        raise ArgumentError(
            f"Expected rows to predict from, got {type(source).__name__}. {_REMEDY}"
        )
    labels = list(source.columns)
    names = [str(label) for label in labels]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(
            f"Expected columns of different names, got {twice[0]!r} more than once. Rename one."
        )
    _check_names(names, schema, keep)
    by_name = dict(zip(names, labels, strict=True))
    return {name: _cells(source[by_name[name]]) for name in wanted}


def _sequence(name: str, values: Any) -> Any:
    if values is None or isinstance(values, _SCALARS):
        raise ArgumentError(
            f"Expected all values of a dict to be columns, or all to be one row's, got a single "
            f"value of {name!r} beside columns. {_REMEDY}"
        )
    return _cells(values)


def _columns_of_rows(
    rows: Sequence[Any], schema: tables.Schema, wanted: Sequence[str], keep: Collection[str]
) -> dict[str, Any]:
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        got = "an empty list" if not rows else "a list of something else"
        raise ArgumentError(f"Expected a dict for each row, got {got}. {_REMEDY}")
    named = [{str(name): value for name, value in row.items()} for row in rows]
    for row in named:  # a key may be that of one row alone
        _check_names(row, schema, keep, shown=False)
    kinds = schema.columns
    return {
        name: _stacked(name, [row[name] for row in named])
        if isinstance(kinds.get(name), tables.Matrix)
        else [row[name] for row in named]
        for name in wanted
    }


def _stacked(name: str, rows: list[Any]) -> Any:
    try:
        return np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        pass
    raise DataError(f"Expected as many numbers in each row of column {name!r}, got something else.")


def _cells(values: Any) -> Any:
    """Return a column of a frame, with None for what is missing in it."""
    dtype: Any = getattr(values, "dtype", None)
    if hasattr(values, "isna"):  # pandas
        if isinstance(dtype, np.dtype) and dtype.kind in "iuf":
            return values.to_numpy()
        cells = np.array(values, dtype=object)
        cells[np.asarray(values.isna(), dtype=bool)] = None
        return cells
    if hasattr(values, "is_null"):  # Polars
        return values.to_numpy() if dtype.is_numeric() else values.to_list()
    return values
