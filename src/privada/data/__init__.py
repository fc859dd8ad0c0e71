"""The private records, and which of them belong to one unit of privacy."""

from privada.data.records import (
    Collate,
    Column,
    ColumnRecords,
    DatasetRecords,
    DenseColumn,
    Indices,
    Part,
    Records,
    SparseColumn,
    Transform,
    check_ranges,
    dummy_batch,
    load,
    pad_to,
    readers_of,
)
from privada.data.units import GroupedUnits, RowUnits, Units, units_of

__all__ = [
    "Collate",
    "Column",
    "ColumnRecords",
    "DatasetRecords",
    "DenseColumn",
    "GroupedUnits",
    "Indices",
    "Part",
    "Records",
    "RowUnits",
    "SparseColumn",
    "Transform",
    "Units",
    "check_ranges",
    "dummy_batch",
    "load",
    "pad_to",
    "readers_of",
    "units_of",
]
