"""Tables that are larger than memory: read and encoded some rows at a time."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from privada.core.errors import DataError
from privada.tables.array_files import ArrayFiles
from privada.tables.database import is_url, query_parts
from privada.tables.encoding import Encoded, encode, encode_inputs, identifiers
from privada.tables.files import Source, as_path
from privada.tables.formats import format_of
from privada.tables.formats.building import Part, no_record
from privada.tables.frames import is_frame, read_frame
from privada.tables.persons import digests, numbered
from privada.tables.reading import layout_of, refuse_query
from privada.tables.schema import Schema
from privada.tables.spooling import SpooledTable
from privada.tables.table import Table
from privada.tables.targets import Range

# Features that are encoded at a time, and rows of a frame that are.
_NUMBERS, _ROWS = 1 << 22, 1 << 16


def read_parts(
    path: Any,
    schema: Schema | None = None,
    *,
    separator: str | None = None,
    decimal: str | None = None,
    query: str | None = None,
) -> Iterator[Table]:
    """Yield a table some rows at a time, so that it need not fit into memory.

    Args:
        path: a file, a folder, a database or a frame, as for `read`.
        schema: what the columns are.
        separator, decimal, query: as for `read`.

    Returns:
        Tables that together are what `read` returns.

    Guarantee: as for `read`. How the rows are parted does not depend on what they encode to.

    Edge cases: NumPy archives, which are arrays in memory, come as one part. An error in a later
    part comes after the parts before it. Without a schema, a part of JSON lines has the keys of
    its own records.

    Example:
        >>> from pathlib import Path
        >>> from privada.tables import Classes, Number, Schema, read_parts
        >>> _ = Path("people.csv").write_text("age,sick\\n39,no\\n50,yes\\n")
        >>> schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(0, 100)})
        >>> [part.size for part in read_parts("people.csv", schema)]
        [2]
    """
    if is_frame(path):
        refuse_query(path, query)
        frame = read_frame(path, schema)
        for start in range(0, frame.size, _ROWS):
            yield frame.take(slice(start, start + _ROWS))
    elif is_url(path):
        yield from _tables(query_parts(path, query, schema), True)
    else:
        place = as_path("path", path)
        refuse_query(path, query)
        form, size = format_of(place), 0
        named = schema is not None or form.has_header
        parts = form.chunks(place, schema, layout_of(schema, separator, decimal))
        for part in _tables(parts, named):
            size += part.size
            yield part
        if not size:
            raise DataError(no_record(place))


def _tables(parts: Iterator[Part], named: bool) -> Iterator[Table]:
    for part in parts:
        if part.columns and part.size:
            yield Table.of_columns(part.columns, has_header=named)


def encode_file(
    path: Source,
    schema: Schema,
    folder: Source,
    *,
    separator: str | None = None,
    decimal: str | None = None,
) -> Encoded:
    """Return the features and targets of a file, in files of their own.

    The table is read and encoded some rows at a time; features and targets are written to new
    files in `folder` and given as arrays in them (`numpy.memmap`, and for sparse features a CSR
    matrix of such arrays), of which a `Trainer` reads what a step needs. So a table that is larger
    than memory can be trained on.

    Args:
        path: a file or a folder, as for `read`.
        schema: what the columns are, complete with its bounds.
        folder: where the files are written: it is made if need be. They are private, readable
            by this user alone, and stay until you delete them.
        separator, decimal: as for `read`.

    Returns:
        What `encode(read(path, schema), schema)` returns, bit for bit; in the place of identifiers
        of persons, their numbers in the order in which they first occur.

    Guarantee: as for `encode`.

    Edge cases: the numbers of persons are kept in memory. Files that were begun are removed if an
    error ends it.

    Example:
        >>> from pathlib import Path
        >>> from privada.tables import Classes, Number, Schema, encode_file
        >>> _ = Path("people.csv").write_text("age,sick\\n25,no\\n50,yes\\n")
        >>> schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(0, 100)})
        >>> encoded = encode_file("people.csv", schema, "features")
        >>> encoded.inputs.tolist(), encoded.targets.tolist()
        ([[-0.5], [0.0]], [0, 1])
    """
    files = ArrayFiles(folder, named=True)
    try:
        parts = read_parts(path, schema, separator=separator, decimal=decimal)
        return encode_parts(parts, schema, files)
    except BaseException:
        files.remove()
        raise


def encode_parts(
    parts: SpooledTable | Iterable[Table],
    schema: Schema,
    files: ArrayFiles | None = None,
    *,
    target: bool = True,
) -> Encoded:
    """Return the features and targets of a table that comes in parts, in memory or in files.

    The result is that of `encode`, bit for bit; in the place of identifiers of persons it has their
    numbers, in the order in which they first occur. Without a target it has 0 and 1 by turns.
    """
    arrays: _Arrays = files or _Memory(parts.size if isinstance(parts, SpooledTable) else None)
    number = isinstance(schema.target, Range)
    targets = arrays.growing("targets", np.float32 if number else np.int64, 1 if number else None)
    inputs = (_Sparse if schema.sparse else _Dense)(arrays, len(schema.features))
    persons = []
    for part in _encoded(parts, schema, target):
        inputs.append(part.inputs)
        targets.append(part.targets)
        if part.groups is not None:
            persons.append(digests(part.groups))
    groups = None if schema.person is None else numbered(persons)
    return Encoded(inputs.array(), targets.array(), schema.features, groups)


def _encoded(parts: Iterable[Table], schema: Schema, target: bool) -> Iterator[Encoded]:
    rows = max(1, _NUMBERS // max(1, len(schema.features)))
    for part in parts:
        for start in range(0, part.size, rows):
            table = part.take(slice(start, start + rows))
            if target:
                yield encode(table, schema)
                continue
            inputs, made_up = encode_inputs(table, schema), np.arange(start, start + table.size) % 2
            yield Encoded(inputs, made_up, schema.features, identifiers(table, schema))


# ---------------------------------------------------------------------- where they are put


class _Growing(Protocol):
    """An array that grows by rows."""

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows."""

    def array(self) -> NDArray[Any]:
        """Return all of them."""


class _Arrays(Protocol):
    """Where arrays are put: files, or memory."""

    def growing(self, name: str, dtype: Any, width: int | None = None) -> _Growing:
        """Return an array without rows, each of `width` numbers or of one."""


class _Memory:
    """Arrays in memory, of so many rows at most, if that is known."""

    def __init__(self, rows: int | None) -> None:
        self._rows = rows

    def growing(self, name: str, dtype: Any, width: int | None = None) -> _Growing:
        """Return an array without rows, each of `width` numbers or of one."""
        return _InMemory(dtype, () if width is None else (width,), self._rows)


class _InMemory:
    def __init__(self, dtype: Any, row: tuple[int, ...], rows: int | None) -> None:
        self._parts: list[NDArray[Any]] = []
        self._room = np.empty((rows or 0, *row), dtype)
        self._filled = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows."""
        if not self._parts and self._filled + len(rows) <= len(self._room):
            self._room[self._filled : self._filled + len(rows)] = rows
            self._filled += len(rows)
        else:
            self._parts.append(rows)

    def array(self) -> NDArray[Any]:
        """Return all rows."""
        held = self._room[: self._filled]
        if not self._parts:
            return held
        return np.concatenate([held, *self._parts]).astype(held.dtype, copy=False)


class _Dense:
    def __init__(self, arrays: _Arrays, width: int) -> None:
        self._rows = arrays.growing("inputs", np.float32, width)

    def append(self, inputs: NDArray[np.float32]) -> None:
        """Add rows."""
        self._rows.append(inputs)

    def array(self) -> NDArray[Any]:
        """Return all rows."""
        return self._rows.array()


class _Sparse:
    """A CSR matrix whose entries are put somewhere."""

    def __init__(self, arrays: _Arrays, width: int) -> None:
        self._width = width
        self._values = arrays.growing("values", np.float32)
        self._places = arrays.growing("places", np.int64)
        self._ends = arrays.growing("ends", np.int64)
        self._ends.append(np.zeros(1, np.int64))
        self._entries = self._size = 0

    def append(self, inputs: Any) -> None:
        """Add rows."""
        inputs.sum_duplicates()
        self._values.append(inputs.data)
        self._places.append(inputs.indices)
        self._ends.append(inputs.indptr[1:].astype(np.int64) + self._entries)
        self._entries += int(inputs.indptr[-1])
        self._size += inputs.shape[0]

    def array(self) -> Any:
        """Return all rows. Made of its parts, since what is given whole may be copied."""
        made: Any = scipy.sparse.csr_array((self._size, self._width), dtype=np.float32)
        made.data, made.indices = self._values.array(), self._places.array()
        made.indptr = self._ends.array()
        return made
