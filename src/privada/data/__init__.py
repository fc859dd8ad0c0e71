"""The private records, and which of them belong to one unit of privacy."""

from privada.data.columns import Column, ColumnRecords, ComputedRows, DenseColumn, SparseColumn
from privada.data.datasets import DatasetRecords, Part, pad_to
from privada.data.loading import check_ranges, dummy_batch, load, readers_of
from privada.data.records import Collate, Indices, Records, Transform
from privada.data.units import GroupedUnits, RowUnits, Units, units_of

__all__ = [
    "Collate",
    "Column",
    "ColumnRecords",
    "ComputedRows",
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
