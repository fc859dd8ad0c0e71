"""Whose a row is, by a number in the place of an identifier: many of these take much memory."""

from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privada.core.errors import DataError
from privada.tables.cells import Cell, CellCache
from privada.tables.spooling import SpooledTable, parts_of
from privada.tables.table import Table
from privada.tables.text_column import engine

# Bytes of what stands for an identifier: enough that no two have the same.
_BYTES = 16


def check_identifiers(table: Table, column: str, missing: Collection[str]) -> None:
    """Raise if a row has no identifier."""
    absent = frozenset(missing)
    if any(text is None or text in absent for text in table.coded(column)[1]):
        raise DataError(
            f"Expected an identifier in every row of column {column!r}, got a missing one. "
            "Give each row the identifier of its person, or remove rows without one."
        )


def digests(identifiers: NDArray[Any]) -> NDArray[np.bytes_]:
    """Return a digest of each identifier, the same for the same."""
    known: CellCache[bytes] = CellCache(_digest)
    return np.frombuffer(b"".join(map(known.__getitem__, identifiers)), f"S{_BYTES}")


def _digest(cell: Cell) -> bytes:
    text = "" if cell is None else cell  # which no identifier is: a missing one is refused
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_BYTES).digest()


def numbered(parts: Iterable[NDArray[np.bytes_]]) -> NDArray[np.int64]:
    """Return digests as numbers, in the order in which they first occur."""
    arrow, held = engine(), b"".join(part.tobytes() for part in parts)
    kind, size = arrow.binary(_BYTES), len(held) // _BYTES
    cells = arrow.FixedSizeBinaryArray.from_buffers(kind, size, [None, arrow.py_buffer(held)])
    numbers: NDArray[np.int64] = cells.dictionary_encode().indices.to_numpy().astype(np.int64)
    return numbers


def person_numbers(
    table: Table | SpooledTable, column: str, missing: Collection[str]
) -> NDArray[np.int64]:
    """Return the number of each row's person; a missing identifier is refused."""
    found = []
    for part in parts_of(table, [column]):
        check_identifiers(part, column, missing)
        found.append(digests(part.texts(column)))
    return numbered(found)
