"""Parquet, Feather and Arrow files, which PyArrow reads and whose columns have declared types."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privada.core.errors import DataError
from privada.tables.cells import LARGEST_WHOLE
from privada.tables.formats.building import (
    Columns,
    Layout,
    Part,
    Types,
    kept_names,
    missing_texts,
    number_names,
    part_of,
    refuse_twice,
    undamaged,
)
from privada.tables.text_column import TextColumn, compact, engine, parser, text_column

if TYPE_CHECKING:
    from privada.tables.schema import Schema

# Rows that are read at a time.
_ROWS = 1 << 16


def column_of(cells: Any, name: str) -> Any:
    """Return cells that PyArrow has as a column: numbers, or text that is the same for each."""
    arrow = engine()
    kinds, kind = arrow.types, cells.type
    if kinds.is_floating(kind):
        return cells.cast(arrow.float64()).to_numpy(zero_copy_only=False)
    if kinds.is_integer(kind):
        limits = engine("pyarrow.compute").min_max(cells).as_py()
        exact = limits["min"] is None or (
            limits["min"] >= -LARGEST_WHOLE and limits["max"] <= LARGEST_WHOLE
        )
        if exact:
            return cells.cast(arrow.float64()).to_numpy(zero_copy_only=False)
    try:
        return text_column(cells)
    except arrow.ArrowException:
        pass
    raise DataError(
        f"Expected column {name!r} to be numbers or text, got the type {kind}. Convert it, or "
        'give it kind = "ignore".'
    )


def columns_of(table: Any, names: list[str], schema: "Schema | None") -> Columns:
    """Return some columns of a table that PyArrow has."""
    numbers, missing = number_names(schema), frozenset(missing_texts(schema))
    found = {name: column_of(table.column(name), name) for name in names}
    for name, column in found.items():
        if isinstance(column, TextColumn):
            number = name in numbers
            parsed = parser(missing, column.mark)
            found[name] = column.numbers(missing, parsed, name) if number else compact(column)
    return found


def type_of(kind: Any) -> str:
    """Return the type of a column that declares one."""
    kinds = engine().types
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind):
        return "number"
    return "date" if kinds.is_date(kind) or kinds.is_timestamp(kind) else "text"


@contextmanager
def _parquet(path: Path) -> Iterator[tuple[Any, Callable[[list[str]], Iterator[Any]]]]:
    """Open a Parquet file: give its schema, and what yields some columns."""
    with undamaged(path, "a Parquet file"), path.open("rb") as file:
        held = engine("pyarrow.parquet").ParquetFile(file)
        yield held.schema_arrow, lambda names: held.iter_batches(_ROWS, columns=names)


@contextmanager
def _arrow(path: Path) -> Iterator[tuple[Any, Callable[[list[str]], Iterator[Any]]]]:
    """Open a Feather file or an Arrow file or stream: give its schema, and what yields columns."""
    arrow, ipc = engine(), engine("pyarrow.ipc")
    with undamaged(path, "a Feather or Arrow file"), path.open("rb"):  # which says what is amiss
        file = arrow.memory_map(str(path))
        if file.read(6) == b"ARROW1":
            held = ipc.open_file(file)
            batches = (held.get_batch(place) for place in range(held.num_record_batches))
        else:
            file.seek(0)
            held = ipc.open_stream(file)
            batches = iter(held)
        yield held.schema, lambda names: (batch.select(names) for batch in batches)


class ArrowFormat:
    """A format that PyArrow reads, by what opens a file."""

    def __init__(self, opened: Callable[[Path], Any]) -> None:
        self._opened = opened

    def chunks(
        self, path: Path, schema: "Schema | None", layout: Layout
    ) -> Generator[Part, None, None]:
        """Yield the columns of a file, some rows at a time."""
        with self._opened(path) as (declared, batches):
            refuse_twice(declared.names, path)
            names = kept_names(declared.names, schema)
            for batch in batches(names):
                if batch.num_rows:
                    yield part_of(columns_of(batch, names, schema))

    def types(self, path: Path, layout: Layout) -> Types:
        """Return the types that the file declares."""
        with self._opened(path) as (declared, _):
            return {field.name: type_of(field.type) for field in declared}


PARQUET = ArrowFormat(_parquet)
ARROW = ArrowFormat(_arrow)
