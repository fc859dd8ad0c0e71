"""Records in columns: arrays, tensors, data frames and sparse matrices."""

import contextlib
import warnings
from typing import Any, Protocol

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from privada.core.errors import DataError
from privada.core.hidden_streams import HiddenStreams
from privada.data.batch import Batch, csr
from privada.data.padding import Padding
from privada.data.records import Indices

# Numbers that are checked at a time.
_CHECKED = 1 << 22


class ComputedRows(np.ndarray[Any, np.dtype[np.float32]]):
    """Inputs that were computed of records, each of its own.

    A row that is not finite is of a record on which that failed. It is not refused as others are,
    since that would tell of the record: its gradient is not finite, and counts as zero.
    """


class Column(Protocol):
    """One side of a pair: the inputs or the targets of all records."""

    def rows(self, indices: Indices) -> Tensor:
        """Return some rows."""

    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest value."""

    @property
    def size(self) -> int:
        """The number of rows."""


class DenseColumn:
    """Rows of a tensor."""

    def __init__(self, values: Tensor) -> None:
        self._values = values

    @property
    def size(self) -> int:
        """The number of rows."""
        return int(self._values.shape[0])

    def rows(self, indices: Indices) -> Tensor:
        """Return some rows."""
        return self._values[torch.from_numpy(indices).to(self._values.device)]

    def filled(self, indices: Indices, padding: Padding, dummy: Tensor) -> Tensor:
        """Return some rows, filled up with dummy ones."""
        places = torch.from_numpy(indices).to(self._values.device)
        return padding.rows(self._values, places, dummy)

    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest value."""
        if self._values.numel() == 0:
            return 0.0, 0.0
        return float(self._values.min()), float(self._values.max())


class SparseColumn:
    """Rows of a SciPy sparse matrix, as CSR or made dense a batch at a time."""

    def __init__(self, values: Any, dtype: torch.dtype, device: torch.device) -> None:
        rows = values.tocsr()
        if not rows.has_canonical_format:
            # which sorts in place, and what tocsr returns may be the caller's own
            rows = rows.copy() if rows is values else rows
            rows.sum_duplicates()
        self._values = rows
        self._dtype, self._device = dtype, device
        self.dense = False

    @property
    def size(self) -> int:
        """The number of rows."""
        return int(self._values.shape[0])

    def rows(self, indices: Indices) -> Tensor:
        """Return some rows."""
        rows = self._values[indices]
        if self.dense:
            return torch.from_numpy(rows.toarray()).to(self._device, self._dtype)
        starts, columns = (
            torch.from_numpy(part.astype(np.int64)).to(self._device)
            for part in (rows.indptr, rows.indices)
        )
        values = torch.from_numpy(rows.data).to(self._device, self._dtype)
        return csr(starts, columns, values, rows.shape)

    def finite(self) -> bool:
        """Return whether every value is finite."""
        data = self._values.data  # some at a time: they may be those of a file
        starts = range(0, len(data), _CHECKED)
        return all(bool(np.isfinite(data[start : start + _CHECKED]).all()) for start in starts)

    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest value."""
        data = self._values.data
        return (float(min(data.min(), 0)), float(max(data.max(), 0))) if data.size else (0.0, 0.0)


class ColumnRecords:
    """Records given as a pair of arrays, tensors or sparse matrices."""

    def __init__(self, inputs: Column, targets: Column) -> None:
        self.inputs, self.targets = inputs, targets

    @property
    def size(self) -> int:
        """The number of records."""
        return self.inputs.size

    @property
    def example(self) -> Batch:
        """The first record."""
        return self.fetch(np.zeros(1, dtype=np.int64))

    def fetch(self, indices: Indices) -> Batch:
        """Return some records."""
        return Batch(self.inputs.rows(indices), self.targets.rows(indices))

    def read(
        self, indices: Indices, streams: HiddenStreams, padding: Padding | None = None
    ) -> tuple[Batch | None, Indices]:
        """Return all the records asked for: rows of arrays have one shape and one type."""
        return self._read(indices, padding), np.arange(indices.size)

    def _read(self, indices: Indices, padding: Padding | None) -> Batch | None:
        if not indices.size:
            return None
        inputs, targets = self.inputs, self.targets
        if padding is None or not isinstance(inputs, DenseColumn):
            return self.fetch(indices)
        assert isinstance(targets, DenseColumn)
        return Batch(
            inputs.filled(indices, padding, padding.dummy.inputs),
            targets.filled(indices, padding, padding.dummy.targets),
            dummies=padding.size(indices.size) - indices.size,
        )

    def make_dense(self) -> None:
        """Give sparse inputs as ordinary tensors from now on."""
        if isinstance(self.inputs, SparseColumn):
            self.inputs.dense = True


def _as_model_type(values: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return floats in the model's type, whole numbers as int64."""
    if values.is_floating_point():
        return values.to(device, dtype)
    if values.is_complex():
        return values.to(device)
    return values.to(device, torch.int64)


def column_of(name: str, values: Any, dtype: torch.dtype, device: torch.device) -> Column:
    """Return inputs or targets as a column, in the type of the model."""
    if scipy.sparse.issparse(values):
        if name == "targets":
            raise DataError(
                "Expected dense targets, got a sparse matrix. Use targets.toarray().ravel()."
            )
        column = SparseColumn(values, dtype, device)
        if not column.finite():
            raise DataError(_not_finite(name))
        return column
    if hasattr(values, "to_numpy"):
        values = _of_frame(name, values)
    tensor: Tensor | None = None
    with (
        contextlib.suppress(TypeError, ValueError, RuntimeError, OverflowError),
        warnings.catch_warnings(),
    ):
        # of an array that must not be written, such as a file in memory: it is only read
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.as_tensor(
            np.ascontiguousarray(values)
            if hasattr(values, "dtype") and not isinstance(values, Tensor)
            else values
        )
    if tensor is None:  # said outside the handler: what torch says may quote a record
        raise DataError(
            f"Expected {name} to be numbers in an array, a tensor or a sparse matrix, got "
            f"{type(values).__name__} that cannot be converted. Encode text and categories as "
            "numbers first, and give all rows one length."
        )
    if tensor.ndim == 0:
        raise DataError(f"Expected {name} to have one row per record, got a single number.")
    computed = isinstance(values, ComputedRows)
    if tensor.is_floating_point() and not computed and not _finite(tensor):
        raise DataError(_not_finite(name))
    return DenseColumn(_as_model_type(tensor.detach(), dtype, device))


def _finite(tensor: Tensor) -> bool:
    """Return whether every number is finite, some rows at a time: they may be those of a file."""
    rows = max(1, _CHECKED // max(1, tensor[:1].numel()))
    starts = range(0, len(tensor), rows)
    return all(bool(torch.isfinite(tensor[start : start + rows]).all()) for start in starts)


def _of_frame(name: str, values: Any) -> NDArray[Any]:
    """Return a data frame or one column of it as an array, whatever kinds of numbers it has."""
    array = np.asarray(values)
    if array.dtype == object:  # columns of several kinds: numpy finds what they have in common
        with contextlib.suppress(TypeError, ValueError):
            array = np.array(array.tolist())
    if array.dtype.kind in "biuf":
        return array
    raise DataError(
        f"Expected {name} to be numbers in every column, got a {type(values).__name__} with "
        "others. Encode text and categories as numbers and fill in what is missing first; "
        "pv.tables.encode does both."
    )


def _not_finite(name: str) -> str:
    return (
        f"Expected finite {name}, got NaN or infinite values. Remove or fill them in before "
        "training, without looking at other records, or the look is not covered."
    )
