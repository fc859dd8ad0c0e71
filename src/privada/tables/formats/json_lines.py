"""JSON lines: an object on each line, whose keys are the names of the columns."""

import json
from collections.abc import Generator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privada.core.errors import DataError
from privada.tables.cells import CellError, text_of
from privada.tables.files import lines
from privada.tables.formats.building import (
    CHUNK,
    Columns,
    Types,
    arrays,
    builders,
    cell_type,
    no_record,
)

if TYPE_CHECKING:
    from privada.tables.schema import Schema


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


def read(path: Path, schema: "Schema | None") -> Columns:
    """Return the columns of a file of JSON lines."""
    build, done = builders(schema), 0
    skipped = frozenset() if schema is None else schema.ignored
    # a key that no record has is a missing value of each, as it is where some have it
    listed = [] if schema is None else [name for name in schema.columns if name not in skipped]
    columns = {name: build(name) for name in listed}
    with closing(_json_records(path)) as records:
        while chunk := list(islice(records, CHUNK)):
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
    return arrays(columns, path)


def types(path: Path) -> Types:
    """Return the types of the values of the first record."""
    with closing(_json_records(path)) as records:
        record = next(records, None)
    if record is None:
        raise DataError(no_record(path))
    return {name: cell_type(cell) for name, cell in record.items()}
