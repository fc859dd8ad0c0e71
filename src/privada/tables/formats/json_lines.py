"""JSON lines: an object on each line, whose keys are the names of the columns.

PyArrow parses a block in which each key has one type of value. Where it cannot, or would round or
guess, the block is parsed a line at a time by Python's json module, whose result is what counts.
"""

import json
from collections.abc import Generator, Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from privada.core.errors import DataError
from privada.tables.cells import LARGEST_WHOLE, CellCache, CellError, number_of, text_of, translate
from privada.tables.files import decoded_line, lines, opened, reading, refuse_nul
from privada.tables.formats.building import (
    BLOCK,
    Columns,
    Layout,
    Part,
    Types,
    cell_type,
    missing_texts,
    no_record,
    number_names,
)
from privada.tables.text_column import TextColumn, engine, parser, text_column

if TYPE_CHECKING:
    from privada.tables.schema import Schema


def _json_record(line: str, path: Path) -> dict[str, Any]:
    """Return the object of a line, its values as text."""
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


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield whole lines, many at a time."""
    held = file.read(3).removeprefix(b"\xef\xbb\xbf")
    while block := file.read(BLOCK):
        held += block
        end = held.rfind(b"\n") + 1
        if end:
            yield held[:end]
            held = held[end:]
    if held:
        yield held


def _parsed(block: bytes) -> Part | None:
    """Return what PyArrow finds in a block, None where it may not be right."""
    kept = [line for line in (each.strip() for each in block.split(b"\n")) if line]
    if not all(line[:1] == b"{" and line[-1:] == b"}" for line in kept) or not kept:
        return None
    arrow, reader = engine(), engine("pyarrow.json")
    how = reader.ReadOptions(block_size=len(block) + 1)
    try:
        found = reader.read_json(arrow.BufferReader(block), how)
        stamps = [each for each in found.schema if arrow.types.is_timestamp(each.type)]
        if stamps:  # it takes text that looks like a time for one
            declared = arrow.schema([(each.name, arrow.string()) for each in stamps])
            options = reader.ParseOptions(explicit_schema=declared)
            found = reader.read_json(arrow.BufferReader(block), how, options)
    except (arrow.ArrowException, ValueError):
        return None
    if found.num_rows != len(kept):
        return None
    columns = {name: _column(found.column(name)) for name in found.column_names}
    if any(column is None for column in columns.values()):
        return None
    return Part(len(kept), columns)


def _column(cells: Any) -> Any:
    """Return the cells that PyArrow found as a column, None if some may be rounded or nested."""
    arrow = engine()
    kinds = arrow.types
    if kinds.is_integer(cells.type) or kinds.is_floating(cells.type):
        numbers = cells.cast(arrow.float64(), safe=False).to_numpy()
        absent = cells.is_null().to_numpy()
        exact = bool((np.abs(numbers[~absent]) < LARGEST_WHOLE).all())
        return numbers if exact else None
    if kinds.is_boolean(cells.type) or kinds.is_null(cells.type) or kinds.is_string(cells.type):
        return text_column(cells)
    return None


def _one_by_one(block: bytes, path: Path) -> Part:
    """Return what the json module finds in a block."""
    found = [
        _json_record(decoded_line(line, path), path) for line in BytesIO(block) if line.strip()
    ]
    names = dict.fromkeys(name for record in found for name in record)
    columns = {
        name: np.fromiter((record.get(name) for record in found), object, len(found))
        for name in names
    }
    return Part(len(found), columns)


def _as_numbers(column: Any, missing: frozenset[str], name: str) -> Any:
    """Return a column as numbers, however it was parsed."""
    if isinstance(column, TextColumn):
        return column.numbers(missing, parser(missing, column.mark), name)
    if column.dtype != object:
        return column
    meaning = CellCache(lambda cell: number_of(cell, missing))
    return translate(column, meaning.__getitem__, np.float64, name)


def chunks(path: Path, schema: "Schema | None", layout: Layout) -> Generator[Part, None, None]:
    """Yield the columns of a file of JSON lines, some rows at a time."""
    numbers, missing = number_names(schema), frozenset(missing_texts(schema))
    with reading(path), closing(opened(path)) as file:
        for block in _blocks(file):
            decoded_line(block, path)
            refuse_nul(block, path)
            if not block.strip():
                continue
            part = _parsed(block) or _one_by_one(block, path)
            columns = part.columns if schema is None else _of_schema(part, schema, path)
            yield Part(
                part.size,
                {
                    name: _as_numbers(column, missing, name) if name in numbers else column
                    for name, column in columns.items()
                },
            )


def _of_schema(part: Part, schema: "Schema", path: Path) -> Columns:
    """Return the columns that a schema uses; a key that no record has is missing in each."""
    columns = part.columns
    if not {*columns} <= {*schema.columns, schema.target.column}:
        # without its name, which one record alone may have
        raise DataError(
            f"Expected every key in {str(path)!r} to be in the schema, got some that are not. Add "
            'them under [columns] with a kind; kind = "ignore" leaves one out.'
        )
    nothing = np.full(part.size, None, dtype=object)
    listed = [name for name in schema.columns if name not in schema.ignored]
    if schema.target.column in columns:
        listed.append(schema.target.column)
    return {name: columns.get(name, nothing) for name in listed}


def types(path: Path, layout: Layout) -> Types:
    """Return the types of the values of the first record."""
    with closing(lines(path)) as source:
        record = next((_json_record(line, path) for line in source if line.strip()), None)
    if record is None:
        raise DataError(no_record(path))
    return {name: cell_type(cell) for name, cell in record.items()}
