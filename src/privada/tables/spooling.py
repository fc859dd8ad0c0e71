"""Tables that are kept in parts, in memory or in a file that no one else can open."""

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from typing import IO, Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from privada.core.errors import ArgumentError, DataError
from privada.tables.files import Source, as_path
from privada.tables.formats.building import Columns
from privada.tables.table import Table, is_sparse
from privada.tables.text_column import TextColumn, engine

# About how many bytes a text takes that Python keeps.
_BYTES_OF_TEXT = 100
# How the parts in a file are packed.
_PACKING = "lz4"
_MARK, _WIDTH = b"mark", b"width"


class SpooledTable:
    """A table in parts of some rows, which are kept in memory up to a size and then in a file.

    It is read once, and may then be gone through any number of times. `estimate_bounds` and
    `estimate_classes` take it in the place of a `Table`.

    Args:
        parts: tables that follow each other, as `read_parts` yields them.
        folder: where the file is. It has no name there, so that nobody else can open it, and it is
            gone with this object, or with the process, however that ends.
        most_bytes: parts are kept in memory up to about so many bytes; None for all of them.

    Guarantee: none; the rows are private. `repr` shows none of them, nor do errors.

    Edge cases: parts without rows are left out. A column that a part lacks is missing in its rows,
    as keys of JSON lines may be. Where no file can be written, or there is no room, an
    `ArgumentError` says so, and nothing is left.

    Example:
        >>> from pathlib import Path
        >>> from privada.tables import SpooledTable, read_parts
        >>> _ = Path("people.csv").write_text("age,job\\n39,clerk\\n50,nurse\\n")
        >>> people = SpooledTable(read_parts("people.csv"), folder=".", most_bytes=0)
        >>> people, [part.numbers("age").tolist() for part in people]
        (SpooledTable(2 rows; age, job), [[39.0, 50.0]])
    """

    def __init__(
        self, parts: Iterable[Table], *, folder: Source = ".", most_bytes: int | None = None
    ) -> None:
        self._folder, self._most_bytes = as_path("folder", folder), most_bytes
        self._held: list[Table] = []
        self._file: IO[bytes] | None = None
        self._places: list[tuple[int, int, tuple[str, ...]]] = []
        self._names: dict[str, None] = {}
        self.size, self.bytes, self.has_header = 0, 0, True
        for part in parts:
            if part.size:
                self._add(part)
        if not self.size:
            raise DataError("Expected at least one record in a table, got none.")

    def __repr__(self) -> str:
        names = f"; {', '.join(self.names)}" if self.has_header else ""
        return f"SpooledTable({self.size:,} rows{names})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._names)

    @property
    def on_disk(self) -> bool:
        """Whether rows are in a file."""
        return self._file is not None

    def __iter__(self) -> Iterator[Table]:
        return self.parts()

    def parts(self, names: Collection[str] | None = None) -> Iterator[Table]:
        """Yield the parts, with all columns or with some."""
        wanted = [name for name in self.names if names is None or name in names]
        for size, columns in self._kept(wanted):
            full = {name: columns.get(name) for name in wanted}
            found = {n: _nothing(size) if held is None else held for n, held in full.items()}
            yield Table.of_columns(found, has_header=self.has_header)

    def _kept(self, names: list[str]) -> Iterator[tuple[int, Columns]]:
        for part in self._held:
            yield part.size, {name: part.columns[name] for name in names if name in part.names}
        for start, length, named in self._places:
            assert self._file is not None
            self._file.seek(start)
            yield _unpacked(self._file.read(length), named, names)

    def _add(self, part: Table) -> None:
        self._names |= dict.fromkeys(part.names)
        self.has_header = self.has_header and part.has_header
        self.size += part.size
        self.bytes += sum(map(_bytes, part.columns.values()))
        if self._file is None and (self._most_bytes is None or self.bytes <= self._most_bytes):
            self._held.append(part)
            return
        self._to_disk(part)

    def _to_disk(self, part: Table) -> None:
        words = ""
        try:
            if self._file is None:
                self._file = unnamed_file(self._folder)
                held, self._held = self._held, []
                while held:
                    self._write(held.pop(0))
            self._write(part)
        except OSError as error:
            words = error.strerror or type(error).__name__
        if words:  # said outside the handler, where no traceback leads to a row
            raise no_room("rows", self._folder, words)

    def _write(self, part: Table) -> None:
        assert self._file is not None
        packed = _packed(part)
        start = self._file.seek(0, os.SEEK_END)
        self._file.write(packed)
        self._file.flush()
        self._places.append((start, len(packed), part.names))


def unnamed_file(folder: Source) -> IO[bytes]:
    """Open a new file in a folder that has no name there, and that this user alone can read."""
    return tempfile.TemporaryFile(dir=folder)


def no_room(what: str, folder: Source, reason: str) -> ArgumentError:
    """Return the error for what cannot be written to disk."""
    return ArgumentError(
        f"Cannot write {what} to {str(folder)!r}: {reason}. Make room, or give another folder: "
        "--scratch on the command line."
    )


def parts_of(
    table: "Table | SpooledTable", names: Collection[str] | None = None
) -> Iterator[Table]:
    """Yield a table, or the parts of one, with some of its columns or with all."""
    if isinstance(table, SpooledTable):
        yield from table.parts(names)
    else:
        yield table


def _nothing(size: int) -> NDArray[Any]:
    return np.full(size, None, dtype=object)


def _bytes(column: Any) -> int:
    """Return about how many bytes a column takes."""
    if is_sparse(column):
        return int(column.data.nbytes + column.indices.nbytes + column.indptr.nbytes)
    if isinstance(column, TextColumn):
        return column.nbytes
    return int(column.nbytes) + (_BYTES_OF_TEXT * len(column) if column.dtype == object else 0)


# ---------------------------------------------------------------------- parts as bytes


def _packed(part: Table) -> Any:
    """Return the columns of a part in the format of Arrow streams."""
    arrow, ipc = engine(), engine("pyarrow.ipc")
    packed = [_to_arrow(column) for column in part.columns.values()]
    fields = [
        arrow.field(str(place), cells.type, metadata=about)
        for place, (cells, about) in enumerate(packed)
    ]
    packing = _PACKING if arrow.Codec.is_available(_PACKING) else None
    sink, form = arrow.BufferOutputStream(), arrow.schema(fields)
    with ipc.new_stream(sink, form, options=ipc.IpcWriteOptions(compression=packing)) as stream:
        stream.write_batch(arrow.record_batch([cells for cells, _ in packed], schema=form))
    return sink.getvalue()


def _unpacked(packed: bytes, named: tuple[str, ...], names: list[str]) -> tuple[int, Columns]:
    """Return the number of rows of a part, and some of its columns."""
    arrow, ipc = engine(), engine("pyarrow.ipc")
    chosen = [place for place, name in enumerate(named) if name in names]
    options = ipc.IpcReadOptions(included_fields=chosen or [0])  # whose length is needed
    with ipc.open_stream(arrow.py_buffer(packed), options=options) as stream:
        batch = stream.read_next_batch()
    columns = {
        named[place]: _from_arrow(batch.column(at), batch.schema.field(at).metadata or {})
        for at, place in enumerate(chosen)
    }
    return int(batch.num_rows), columns


def _to_arrow(column: Any) -> tuple[Any, dict[bytes, bytes]]:
    """Return a column as PyArrow keeps it, and what it does not keep."""
    arrow = engine()
    if isinstance(column, TextColumn):
        return column.cells, {_MARK: column.mark.encode()}
    if is_sparse(column):
        entries = arrow.StructArray.from_arrays(
            [arrow.array(column.indices), arrow.array(column.data)], ["place", "value"]
        )
        starts = arrow.array(column.indptr.astype(np.int64))
        width = str(column.shape[1]).encode()
        return arrow.LargeListArray.from_arrays(starts, entries), {_WIDTH: width}
    if column.ndim == 2:
        cells = arrow.array(np.ascontiguousarray(column).reshape(-1))
        return arrow.FixedSizeListArray.from_arrays(cells, column.shape[1]), {}
    if column.dtype == object:  # lone halves of surrogate pairs are no UTF-8
        raw = [None if text is None else text.encode("utf-8", "surrogatepass") for text in column]
        return arrow.array(raw, arrow.large_binary()), {}
    return arrow.array(column), {}


def _from_arrow(cells: Any, about: dict[bytes, bytes]) -> Any:
    """Return what `_to_arrow` was given."""
    types = engine().types
    if _MARK in about:
        return TextColumn(cells, about[_MARK].decode())
    if _WIDTH in about:
        entries, starts = cells.values, cells.offsets.to_numpy()
        found: Any = scipy.sparse.csr_array(
            (_numbers(entries.field("value")), _numbers(entries.field("place")), starts),
            shape=(len(cells), int(about[_WIDTH])),
        )
        return found
    if types.is_fixed_size_list(cells.type):
        return _numbers(cells.flatten()).reshape(len(cells), -1)
    if types.is_large_binary(cells.type):
        raw = cells.to_pylist()
        texts = (None if text is None else text.decode("utf-8", "surrogatepass") for text in raw)
        return np.fromiter(texts, object, len(raw))
    return _numbers(cells)


def _numbers(cells: Any) -> NDArray[Any]:
    found: NDArray[Any] = cells.to_numpy(zero_copy_only=False)
    return found
