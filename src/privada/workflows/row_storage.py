"""Where the rows of a run and their features are kept: in memory, or on disk if they are many."""

from collections.abc import Iterable
from pathlib import Path

from privada import tables
from privada.core.memory import available_memory
from privada.tables.array_files import ArrayFiles
from privada.tables.encoding import Encoded
from privada.tables.schema import most_filled
from privada.tables.streaming import encode_parts

# Rows that take more than this share of the memory that there is go to disk as they are read.
_ROWS_SHARE = 0.25
# Features do if they, twice, and the rows take more than this share: at one moment there are
# those of the dry run and those that are trained on.
_SHARE = 0.5
# The bytes of a feature, and of one that is kept sparse, with its place.
_DENSE, _SPARSE = 4, 12


class RowStorage:
    """Decides what is kept on disk, in files without a name that are gone with the process.

    Args:
        folder: where the files are.
        stream: whether rows and features are kept there; None if they would take too much memory.

    Guarantee: what is trained on is the same, bit for bit. Only this user can read the files while
    they are there, through this process.
    """

    def __init__(self, folder: Path, stream: bool | None) -> None:
        self._folder, self._stream = folder, stream
        self._room = available_memory()
        self._files: ArrayFiles | None = None
        self._last: tuple[tables.SpooledTable, tables.Schema, Encoded] | None = None

    def spool(self, parts: Iterable[tables.Table], *, in_memory: bool) -> tables.SpooledTable:
        """Keep a table; `in_memory` says that it is there already, as a frame is."""
        most = None if self._room is None else int(self._room * _ROWS_SHARE)
        if self._stream is not None or in_memory:
            most = 0 if self._stream else None
        return tables.SpooledTable(parts, folder=self._folder, most_bytes=most)

    def encode(
        self, table: tables.SpooledTable, schema: tables.Schema, *, target: bool = True
    ) -> Encoded:
        """Return features and targets, or features alone. What was returned before is gone then.

        On disk, there is room for them whatever bounds are found later, or an error says that there
        is not.
        """
        if target and self._last is not None and self._last[:2] == (table, schema):
            return self._last[2]
        self._last = None
        files = self._files_for(table, schema)
        if files is not None and not schema.sparse:
            width = len(schema.features)
            files.reserve({"inputs": table.size * width * _DENSE, "targets": table.size * 8})
        found = encode_parts(table, schema, files, target=target)
        if files is not None and schema.sparse:
            entries = found.inputs.nnz + table.size * _filled(schema)
            files.reserve({"values": entries * 4, "places": entries * 8})
        if target:
            self._last = table, schema, found
        return found

    def _files_for(self, table: tables.SpooledTable, schema: tables.Schema) -> ArrayFiles | None:
        """Return where features are kept, None for memory."""
        stream = self._stream
        if self._files is not None:
            return self._files
        if stream is None and self._room is not None:
            held = 0 if table.on_disk else table.bytes
            stream = held + 2 * _bytes(table, schema) > _SHARE * self._room
        self._files = ArrayFiles(self._folder) if stream else None
        return self._files


def _filled(schema: tables.Schema) -> int:
    """Return how many features of a row can differ from zero, without words."""
    kinds = schema.columns.items()
    return sum(most_filled(kind, name) for name, kind in kinds if name not in schema.unused)


def _bytes(table: tables.SpooledTable, schema: tables.Schema) -> int:
    """Return about how many bytes the features take."""
    if not schema.sparse:
        return table.size * len(schema.features) * _DENSE
    words = any(isinstance(kind, tables.Text) for kind in schema.columns.values())
    return table.size * _filled(schema) * _SPARSE + (3 * table.bytes if words else 0)
