"""Whether several processes hold the same records in the same order: digests to compare."""

import hashlib

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from privada import data
from privada.core.hidden_streams import HiddenStreams, hidden_generator
from privada.core.randomness import SeededSource
from privada.core.silence import pass_on_signals, settings_kept, silenced
from privada.core.state import HeldState
from privada.data import Indices

# Arrays are read whole up to so many bytes, and so are the rows of larger ones that are spread
# evenly; of a data set, whose records may be costly to load, so many are.
_BYTES, _RECORDS, _ROWS = 1 << 28, 32, 4096


def records_digest(records: data.Records, units: data.Units, state: HeldState) -> str | None:
    """Return a digest of records and of the units that they belong to; None if it cannot be made.

    It is as private as the records: ranks of one run compare it, and it is never shown. A data set
    whose records differ from one reading to the next, by randomness of its own, has none.
    """
    indices = np.arange(records.size)
    if isinstance(records, data.ColumnRecords):
        one = sum(_bytes(t) for t in tree_leaves((records.example.inputs, records.example.targets)))
        most = max(1, _BYTES // max(1, one))
    else:
        most = _RECORDS
    if records.size > most:
        indices = indices[:: -(-records.size // most)]
    first = _of_rows(records, indices, state)
    if not isinstance(records, data.ColumnRecords) and first != _of_rows(records, indices, state):
        return None
    first += _of_units(units)
    return hashlib.sha256("/".join(first).encode()).hexdigest()


def _of_units(units: data.Units) -> list[str]:
    """Return digests of which rows belong to which unit; of units of a user's own, of one look."""
    parts: tuple[Indices | None, ...]
    if isinstance(units, data.GroupedUnits):
        parts = units.members()
    else:
        parts = units.rows(np.arange(units.size), SeededSource(0, "same units"))
    return [
        hashlib.sha256(np.ascontiguousarray(part).tobytes()).hexdigest()
        for part in parts
        if part is not None
    ]


def _bytes(values: torch.Tensor) -> int:
    return values.numel() * values.element_size() if values.layout == torch.strided else 64


def _of_rows(records: data.Records, indices: Indices, state: HeldState) -> list[str]:
    """Return digests of some rows; those that cannot be read say that alone."""
    digest = hashlib.blake2b(digest_size=16)
    source = SeededSource(0, "same records")  # the same numbers for data sets that draw some
    cpu = torch.device("cpu")
    with hidden_generator(source, cpu) as streams, silenced(), state.untouched():
        for start in range(0, len(indices), _ROWS):
            _add_rows(digest, records, indices[start : start + _ROWS], streams)
    return [digest.hexdigest()]


def _add_rows(
    digest: "hashlib.blake2b", records: data.Records, rows: Indices, streams: HiddenStreams
) -> None:
    try:
        with settings_kept():
            batch, found = records.read(rows, streams)
    except BaseException as error:  # whatever a record causes tells of it
        pass_on_signals(error)
        digest.update(b"not read")
        return
    digest.update(np.ascontiguousarray(found).tobytes())
    if batch is None:
        return
    dense = batch.dense()
    for values in tree_leaves((dense.inputs, dense.targets)):
        plain = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(plain.numpy().data)
