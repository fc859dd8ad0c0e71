"""Parquet files, which pyarrow reads."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privada.core.errors import DataError
from privada.tables.formats.building import Columns, Types, kept_names, undamaged
from privada.tables.table import as_column

if TYPE_CHECKING:
    from privada.tables.schema import Schema


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
    with undamaged(path, "a Parquet file"), path.open("rb") as file:
        yield arrow, parquet.ParquetFile(file)


def read(path: Path, schema: "Schema | None") -> Columns:
    """Return the columns of a Parquet file."""
    with _parquet(path) as (arrow, file):
        names = file.schema_arrow.names
        if len(set(names)) < len(names):
            raise DataError(
                f"Expected different names for the columns of {str(path)!r}, got one twice. Rename "
                "one."
            )
        kept = kept_names(names, schema)
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


def types(path: Path) -> Types:
    """Return the types that the file declares."""
    with _parquet(path) as (arrow, file):
        return {field.name: _arrow_type(arrow, field.type) for field in file.schema_arrow}


def _arrow_type(arrow: Any, kind: Any) -> str:
    kinds = arrow.types
    number = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind)
    return "number" if number else "text"
