"""The private records: arrays, tensors, sparse matrices or a map-style dataset, by index."""

import contextlib
import warnings
from typing import Any, Protocol

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from privada.clipping import Batch
from privada.clipping.batch import csr
from privada.clipping.dummies import dummy_batch
from privada.core.errors import DataError

Indices = NDArray[np.int64]


class Records(Protocol):
    """Private records, read by index."""

    @property
    def size(self) -> int:
        """The number of records."""

    def fetch(self, indices: Indices) -> Batch:
        """Return some records. At least one index."""


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

    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest value."""
        if self._values.numel() == 0:
            return 0.0, 0.0
        return float(self._values.min()), float(self._values.max())


class SparseColumn:
    """Rows of a SciPy sparse matrix, as CSR or made dense a batch at a time."""

    def __init__(self, values: Any, dtype: torch.dtype, device: torch.device) -> None:
        self._values = values.tocsr()
        self._values.sum_duplicates()
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
        return bool(np.isfinite(self._values.data).all())

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

    def fetch(self, indices: Indices) -> Batch:
        """Return some records."""
        return Batch(self.inputs.rows(indices), self.targets.rows(indices))

    def make_dense(self) -> None:
        """Give sparse inputs as ordinary tensors from now on."""
        if isinstance(self.inputs, SparseColumn):
            self.inputs.dense = True


class DatasetRecords:
    """Records of a map-style torch dataset of (input, target)."""

    def __init__(self, dataset: Any, dtype: torch.dtype, device: torch.device) -> None:
        self._dataset, self._dtype, self._device = dataset, dtype, device

    @property
    def size(self) -> int:
        """The number of records."""
        return len(self._dataset)

    def fetch(self, indices: Indices) -> Batch:
        """Return some records, collated as a DataLoader would."""
        places = indices.tolist()
        many = getattr(self._dataset, "__getitems__", None)
        items = many(places) if many else [self._dataset[i] for i in places]
        inputs, targets = default_collate(items)
        return Batch(*tree_map(self._convert, (inputs, targets)))

    def _convert(self, values: Tensor) -> Tensor:
        return _as_model_type(values, self._dtype, self._device)


def _as_model_type(values: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return floats in the model's type, whole numbers as int64."""
    if values.is_floating_point():
        return values.to(device, dtype)
    if values.is_complex():
        return values.to(device)
    return values.to(device, torch.int64)


def _column(name: str, values: Any, dtype: torch.dtype, device: torch.device) -> Column:
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
    try:
        with warnings.catch_warnings():
            # of an array that must not be written, such as a file in memory: it is only read
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.as_tensor(
                np.ascontiguousarray(values)
                if hasattr(values, "dtype") and not isinstance(values, Tensor)
                else values
            )
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"Expected {name} to be numbers in an array, a tensor or a sparse matrix, got "
            f"{type(values).__name__} that cannot be converted. Encode text and categories as "
            "numbers first."
        ) from error
    if tensor.ndim == 0:
        raise DataError(f"Expected {name} to have one row per record, got a single number.")
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise DataError(_not_finite(name))
    return DenseColumn(_as_model_type(tensor.detach(), dtype, device))


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


def load(data: Any, dtype: torch.dtype, device: torch.device) -> Records:
    """Return the records of whatever a user gives as `data`."""
    if isinstance(data, DataLoader):
        raise DataError(
            "Expected a dataset, got a DataLoader: its shuffling is not the sampling that is "
            "accounted for. Pass loader.dataset and batch_size; Privada draws the batches."
        )
    if isinstance(data, IterableDataset):
        raise DataError(
            "Expected a map-style dataset, got an IterableDataset, from which no private sample "
            "can be drawn. Give it __len__ and __getitem__, or load it into arrays."
        )
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = tuple(data.tensors)
    if isinstance(data, (tuple, list)):
        if len(data) != 2:
            raise DataError(f"Expected data to be a pair (inputs, targets), got {len(data)} parts.")
        inputs = _column("inputs", data[0], dtype, device)
        targets = _column("targets", data[1], dtype, device)
        if inputs.size != targets.size:
            raise DataError(
                f"Expected as many targets as inputs, got {inputs.size} inputs and "
                f"{targets.size} targets."
            )
        records: Records = ColumnRecords(inputs, targets)
    elif isinstance(data, Dataset) or (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        records = DatasetRecords(data, dtype, device)
    else:
        raise DataError(
            f"Expected data to be a pair (inputs, targets) or a map-style dataset, got "
            f"{type(data).__name__}."
        )
    if records.size == 0:
        raise DataError("Expected at least one record, got an empty data set.")
    return records


def made_up(records: Records, size: int = 3, seed: int = 0) -> Batch:
    """Return examples of the records' shapes and types that contain nothing of theirs.

    Shapes and types are taken from the first record and are public. Another seed gives others.
    """
    try:
        first = records.fetch(np.zeros(1, dtype=np.int64))
    except Exception as error:
        raise DataError(
            "Expected a dataset whose items are pairs (input, target) of numbers, got one whose "
            f"first item cannot be read so ({type(error).__name__}). Return tensors, arrays or "
            "numbers from __getitem__."
        ) from error
    return dummy_batch(first, size, seed)


def check_ranges(records: Records, model: nn.Module, loss: Any, outputs: Tensor) -> None:
    """Raise if whole-number inputs or targets cannot be used with the model and the loss."""
    if not isinstance(records, ColumnRecords):
        return
    low, high = records.targets.bounds()
    kind = type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", "")
    whole = not records.targets.rows(np.zeros(1, dtype=np.int64)).is_floating_point()
    if kind in {"CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss"} and whole:
        ignored = getattr(loss, "ignore_index", -100)
        classes = outputs.shape[1] if outputs.ndim > 1 else outputs.shape[0]
        if (low < 0 and low != ignored) or high >= classes:
            raise DataError(
                f"Expected labels from 0 to {classes - 1}, as many classes as the model has "
                "outputs, got labels outside that range. Number the classes from 0, or give the "
                "model one output for each."
            )
    if kind in {"BCELoss", "BCEWithLogitsLoss"} and (low < 0 or high > 1):
        raise DataError(
            f"Expected targets between 0 and 1 for {kind}, got targets outside that range."
        )
    example = records.inputs.rows(np.zeros(1, dtype=np.int64))
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    if not example.is_floating_point() and tables:
        low, high = records.inputs.bounds()
        largest = max(table.num_embeddings for table in tables)
        if low < 0 or high >= largest:
            raise DataError(
                f"Expected token numbers from 0 to {largest - 1}, the size of the model's "
                "embedding, got numbers outside that range. Map unknown tokens to one number."
            )


def usable(records: Records, indices: Indices) -> list[Batch]:
    """Return the records one by one, without those that cannot be read."""
    batches = []
    for index in indices:
        try:
            batches.append(records.fetch(np.array([index])))
        except Exception:
            continue
    return batches
