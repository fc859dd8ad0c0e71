"""Frames of pandas, Polars and PyArrow, by what they declare of their columns."""

from typing import TYPE_CHECKING, Any

import numpy as np

from privada.core.errors import DataError
from privada.tables.cells import CellError, text_of, translate
from privada.tables.formats.arrow_files import columns_of, type_of
from privada.tables.formats.building import Columns, Types, kept_names, refuse_twice
from privada.tables.table import Table, as_column
from privada.tables.text_column import text_column

if TYPE_CHECKING:
    from privada.tables.schema import Schema

_PLACE = "the frame"


def is_frame(source: Any) -> bool:
    """Return whether something is a frame, eager or lazy, or a `Table`."""
    return isinstance(source, Table) or hasattr(source, "collect_schema") or _has_columns(source)


def _has_columns(source: Any) -> bool:
    return (
        hasattr(source, "columns") and hasattr(source, "shape") and hasattr(source, "dtypes")
    ) or (hasattr(source, "column_names") and hasattr(source, "num_rows"))


def read_frame(source: Any, schema: "Schema | None") -> Table:
    """Return a frame as a table, of the columns that a schema uses."""
    if isinstance(source, Table):
        return _kept(source, schema)
    frame = _eager(source)
    if hasattr(frame, "column_names"):
        names = list(frame.column_names)
        refuse_twice(names, _PLACE)
        return _not_empty(columns_of(frame, kept_names(names, schema), schema))
    labels = {str(label): label for label in frame.columns}
    refuse_twice(map(str, frame.columns), _PLACE)
    kept = kept_names(labels, schema)
    return _not_empty({name: _pandas_column(name, frame[labels[name]]) for name in kept})


def frame_types(source: Any) -> Types:
    """Return the types that a frame declares."""
    if isinstance(source, Table):
        return {name: _kept_type(column) for name, column in source.columns.items()}
    frame = _eager(source)
    if hasattr(frame, "column_names"):
        return {field.name: type_of(field.type) for field in frame.schema}
    return {str(label): _pandas_type(dtype) for label, dtype in frame.dtypes.items()}


def _eager(source: Any) -> Any:
    """Return a frame of pandas, or a table of PyArrow."""
    frame = source.collect() if hasattr(source, "collect") else source
    return frame.to_arrow() if hasattr(frame, "to_arrow") else frame


def _kept(table: Table, schema: "Schema | None") -> Table:
    if schema is None:
        return table
    schema.check(table.names, target=False, has_header=table.has_header)
    kept = {name: held for name, held in table.columns.items() if name not in schema.ignored}
    return Table.of_columns(kept, has_header=table.has_header)


def _not_empty(columns: Columns) -> Table:
    table = Table.of_columns(columns)
    if not table.size:
        raise DataError(f"Expected at least one record in {_PLACE}, got none.")
    return table


def _pandas_column(name: str, values: Any) -> Any:
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "biuf":
        return as_column(name, values.to_numpy())
    cells = np.array(values, dtype=object)
    cells[np.asarray(values.isna(), dtype=bool)] = None
    texts = translate(cells, text_of, object, name).tolist()
    try:
        return text_column(texts)
    except (UnicodeError, CellError):
        return np.fromiter(texts, object, len(texts))  # halves of surrogate pairs are no UTF-8


def _pandas_type(dtype: Any) -> str:
    kind = getattr(dtype, "kind", "O")
    return "number" if kind in "iuf" else "date" if kind == "M" else "text"


def _kept_type(column: Any) -> str | int:
    if column.ndim == 2:
        return int(column.shape[1])
    return "text" if column.dtype == object else "number"
