"""The private records: arrays, tensors, sparse matrices or a map-style dataset, by index."""

import contextlib
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from privada.core.errors import ArgumentError, DataError
from privada.core.generators import own_generator
from privada.core.hidden_streams import HiddenStreams, generator_of, hidden_generator
from privada.core.randomness import SecureSource
from privada.core.silence import pass_on_signals, settings_kept, silenced
from privada.core.structure import Misfit, Rows, Structure, as_tensor
from privada.core.validation import integer
from privada.data.batch import Batch, csr
from privada.data.dummies import make_dummies
from privada.data.padding import Padding

Indices = NDArray[np.int64]
Transform = Callable[[Any, torch.Generator], Any]
Collate = Callable[[list[Any]], Any]


class Records(Protocol):
    """Private records, read by index."""

    @property
    def size(self) -> int:
        """The number of records."""

    @property
    def example(self) -> Batch:
        """One record of the public shapes and types."""

    def fetch(self, indices: Indices) -> Batch:
        """Return some records that are public, and raise what that raises. At least one index."""

    def read(
        self, indices: Indices, streams: HiddenStreams, padding: Padding | None = None
    ) -> tuple[Batch | None, Indices]:
        """Return the records that can be read and fit, and which of the indices they are at.

        They may be filled up with dummy examples, if a padding is given.
        What is read of a record depends on that record alone: on no other record, nor on how many
        there are. None stands for no record.
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


class Part(Subset[Any]):
    """Some records of a data set, drawn by chance: shapes are those of the whole's first record."""


class _Pairs:
    """Columns as a data set: one record at a time, and a copy of it."""

    def __init__(self, inputs: Column, targets: Column) -> None:
        self._inputs, self._targets = inputs, targets
        if isinstance(inputs, SparseColumn):
            inputs.dense = True

    def __len__(self) -> int:
        return self._inputs.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        place = np.array([index])
        return self._inputs.rows(place)[0], self._targets.rows(place)[0]


class DatasetRecords:
    """Records of a map-style data set of (input, target), each read by itself.

    `__getitem__` is asked for one record at a time, never `__getitems__`, in which records could
    meet. A record is copied at once into the place that the structure has for it; one that raises,
    or does not fit, leaves no trace.
    """

    def __init__(
        self,
        dataset: Any,
        dtype: torch.dtype,
        device: torch.device,
        transform: Transform | None = None,
        collate: Collate | None = None,
        example: Any = None,
    ) -> None:
        self._dataset, self._device = dataset, device
        self._transform, self._collate = transform, collate
        self._structure = self._look(example, dtype)
        self._was_read = False

    def _look(self, example: Any, dtype: torch.dtype) -> Structure:
        """Return the structure that all records are to have, from one record that is public."""
        source, step = self._dataset, ""
        kind: str | None = None
        while isinstance(source, Part):
            source = source.dataset
        with hidden_generator(SecureSource(), torch.device("cpu")) as streams, silenced():
            try:
                step = "cannot be read"
                record = self._item(source, 0, streams) if example is None else example
                step = "has something else"
                if self._collate is None:
                    return Structure(record, dtype)
                step = "collate does not turn into a batch of one, given in a list of one"
                found = Structure(self._collate([tree_map(_copied, record)]), dtype, batched=True)
                if not self._grows(record, found, dtype):
                    return found
            except BaseException as error:
                pass_on_signals(error)
                kind = type(error).__name__
        # outside the handler, or Python would show the record's own exception beside it
        if kind is None:
            raise ArgumentError(
                "Expected collate to give every record the same shape, got one whose result is "
                "longer for a longer record. Pad to a length that is known without the data, as "
                "pv.pad_to(length) does: records of other shapes count as zero."
            )
        which = "first item" if example is None else "example"
        raise DataError(
            "Expected records that are pairs (input, target) of tensors, arrays or numbers, in "
            f"tuples, lists or dictionaries, got a data set whose {which} {step} ({kind}). Read "
            "dataset[0], and apply transform and collate to it, to see why."
        )

    def _grows(self, record: Any, found: Structure, dtype: torch.dtype) -> bool:
        """Return whether what collate makes of a longer record, which is made up, is longer."""
        assert self._collate is not None
        try:
            other = Structure(self._collate([_longer(record)]), dtype, batched=True)
        except Exception:  # it may well refuse what is made up
            return False
        return [leaf.shape for leaf in other.leaves] != [leaf.shape for leaf in found.leaves]

    @property
    def size(self) -> int:
        """The number of records."""
        return len(self._dataset)

    @property
    def example(self) -> Batch:
        """A record of zeros."""
        return self._batch(self._structure.rows(1).first(1))

    def fetch(self, indices: Indices) -> Batch:
        """Return some public records; raise if one cannot be read or does not fit."""
        rows = self._structure.rows(indices.size)
        for place, index in enumerate(indices.tolist()):
            try:
                self._structure.put(self._dataset[index], rows, place)
            except Misfit as error:
                raise DataError(
                    f"Expected public records of one structure, that of the first, got record "
                    f"{index} with other names, types or shapes."
                ) from error
        return self._batch(rows.first(indices.size))

    def read(
        self, indices: Indices, streams: HiddenStreams, padding: Padding | None = None
    ) -> tuple[Batch | None, Indices]:
        """Return the records that can be read and fit, and which of the indices they are at."""
        rows = self._structure.rows(indices.size)
        found: list[int] = []
        for place, index in enumerate(indices.tolist()):
            try:
                self._put(index, streams, rows, len(found))
            except BaseException as error:
                pass_on_signals(error)
            else:
                found.append(place)
        streams.restart()
        if not self._was_read:  # a generator may have been made by the first who needed it
            self._was_read = True
            refuse_own_generators(self._dataset, self._transform, self._collate)
        batch = self._batch(rows.first(len(found))) if found else None
        return batch, np.array(found, dtype=np.int64)

    def _put(self, index: int, streams: HiddenStreams, rows: Rows, place: int) -> None:
        with settings_kept():
            item = self._item(self._dataset, index, streams)
            given = item if self._collate is None else self._collate([tree_map(_copied, item)])
            self._structure.put(given, rows, place)

    def _item(self, source: Any, index: int, streams: HiddenStreams) -> Any:
        seed = streams.of_record(index)
        item = source[index]
        if self._transform is None:
            return item
        return self._transform(tree_map(_copied, item), generator_of(seed))

    def _batch(self, rows: list[Tensor]) -> Batch:
        return Batch(*self._structure.batch([row.to(self._device) for row in rows]))


def readers_of(records: Records) -> tuple[Any, ...]:
    """Return what runs when records are read: a data set, a transform, a collate. Not columns."""
    if not isinstance(records, DatasetRecords):
        return ()
    return records._dataset, records._transform, records._collate


def _copied(value: Any) -> Any:
    """Return a copy, since what a data set gives may be part of what it has, and of others."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _longer(record: Any) -> Any:
    """Return a made-up record, as long again as one that is given where that has a length."""

    def doubled(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim:
            return torch.zeros((2 * len(value) + 1, *value.shape[1:]), dtype=value.dtype)
        if isinstance(value, np.ndarray) and value.ndim:
            return np.zeros((2 * len(value) + 1, *value.shape[1:]), dtype=value.dtype)
        return value

    return tree_map(doubled, record)


def pad_to(length: int, value: float = 0, target: float | None = None) -> Collate:
    """Return a `collate` that gives all records one length: shorter ones are padded, longer cut.

    Args:
        length: the length of the first dimension of every tensor or array of the input.
        value: what inputs are padded with.
        target: what targets are padded with, such as -100; None leaves targets as they are.

    Guarantee: what becomes of a record depends on that record alone. `length` is public: choose it
    without looking at the records, since the longest is somebody's.

    Edge cases: numbers have no length and stay as they are.

    Example:
        >>> import privada as pv, torch
        >>> pad = pv.pad_to(4)
        >>> pad([(torch.tensor([5, 6]), 1)])[0]
        tensor([[5, 6, 0, 0]])
    """
    return _Padding(integer("length", length), value, target)


def _is_sequence(values: Any) -> bool:
    """Return whether a value is a list of numbers, such as tokens."""
    return isinstance(values, list) and all(isinstance(each, (int, float)) for each in values)


class _Padding:
    def __init__(self, length: int, value: float, target: float | None) -> None:
        self._length, self._value, self._target = length, value, target

    def __call__(self, records: list[Any]) -> Any:
        (record,) = records
        inputs, targets = record
        return self._all(inputs, self._value), self._all(targets, self._target)

    def _all(self, values: Any, filling: float | None) -> Any:
        return tree_map(lambda each: self._padded(each, filling), values, is_leaf=_is_sequence)

    def _padded(self, values: Any, filling: float | None) -> Any:
        if _is_sequence(values):  # of nothing: whole numbers fit wherever floats do
            values = torch.tensor(values) if values else torch.zeros(0, dtype=torch.int64)
        values = as_tensor(values)
        if filling is None or values.ndim == 0:
            return values.unsqueeze(0)
        shape = (1, self._length, *values.shape[1:])
        padded = torch.full(shape, filling, dtype=values.dtype, device=values.device)
        kept = values[: self._length]
        padded[0, : len(kept)] = kept
        return padded


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


_EMPTY = "Expected at least one record, got an empty data set."


def load(
    data: Any,
    dtype: torch.dtype,
    device: torch.device,
    *,
    transform: Transform | None = None,
    collate: Collate | None = None,
    example: Any = None,
    public: bool = False,
) -> Records:
    """Return the records of whatever a user gives as `data`.

    `transform` is a function of (record, generator), `collate` one of a list of one record; both
    are called on each record by itself. `example` is a record that is public, in the place of the
    first one. `public` data may have random generators of their own.
    """
    for name, each in (("transform", transform), ("collate", collate)):
        if each is not None and not callable(each):
            raise ArgumentError(f"Expected {name} to be a function, got {name}={each!r}.")
    given = data
    if not public:
        refuse_own_generators(given, transform, collate)
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
        if inputs.size and (transform is not None or collate is not None):
            pairs = _Pairs(inputs, targets)
            records = DatasetRecords(pairs, dtype, device, transform, collate, example)
        elif example is not None:
            raise ArgumentError(
                "Expected example=None for a pair of arrays, whose shapes and types are public as "
                "they are, got an example."
            )
    elif isinstance(data, Dataset) or (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        if len(data) == 0:
            raise DataError(_EMPTY)
        records = DatasetRecords(data, dtype, device, transform, collate, example)
    else:
        raise DataError(
            f"Expected data to be a pair (inputs, targets) or a map-style dataset, got "
            f"{type(data).__name__}."
        )
    if records.size == 0:
        raise DataError(_EMPTY)
    if not public:  # once more: reading the first record may have made one
        refuse_own_generators(given, transform, collate)
    return records


def refuse_own_generators(data: Any, transform: Any, collate: Any) -> None:
    """Raise if what reads records has a random generator or an iterator of its own."""
    for name, owner in (("data", data), ("transform", transform), ("collate", collate)):
        where = own_generator(owner)
        if where is None:
            continue
        raise DataError(
            f"Expected {name} without a random generator or an iterator of its own, got one in "
            f"{where!r}. Its draws cannot be hidden, and one record more would shift those of all "
            "others. Use "
            "transform=f with f(record, generator), or torch's, numpy's or random's global "
            "functions, which Privada seeds for each record."
        )


def dummy_batch(records: Records, size: int = 3, seed: int = 0) -> Batch:
    """Return examples of the records' shapes and types that contain nothing of theirs.

    Shapes and types are those of a declared example, else of the first record, and are public.
    Another seed gives other examples.
    """
    return make_dummies(records.example, size, seed)


def check_ranges(records: Records, model: nn.Module, loss: Any, outputs: Tensor) -> None:
    """Raise if whole-number inputs or targets cannot be used with the model and the loss."""
    if not isinstance(records, ColumnRecords):
        return
    low, high = records.targets.bounds()
    kind = type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", "")
    integer = not records.targets.rows(np.zeros(1, dtype=np.int64)).is_floating_point()
    if kind in {"CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss"} and integer:
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
