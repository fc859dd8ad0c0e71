"""Records of a map-style data set, read one by one, with a transform and a collate."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import Subset

from privada.core.errors import ArgumentError, DataError
from privada.core.generators import own_generator
from privada.core.hidden_streams import HiddenStreams, generator_of, hidden_generator
from privada.core.randomness import SecureSource
from privada.core.silence import pass_on_signals, settings_kept, silenced
from privada.core.structure import Misfit, Rows, Structure, as_pair, as_tensor, target_of
from privada.core.validation import integer
from privada.data.batch import Batch
from privada.data.columns import Column, SparseColumn
from privada.data.lengths import without_length
from privada.data.padding import Padding
from privada.data.records import Collate, Indices, Transform


class Part(Subset[Any]):
    """Some records of a data set, drawn by chance: shapes are those of the whole's first record."""


class Pairs:
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

    A record may also be one dictionary that has the target under "labels" or "label"; `names` has
    the names of its inputs, and that of its target. `__getitem__` is asked for one record at a
    time, never `__getitems__`, in which records could meet. A record is copied at once into the
    place that the structure has for it; one that raises, or does not fit, leaves no trace.
    """

    def __init__(
        self,
        dataset: Any,
        dtype: torch.dtype,
        device: torch.device,
        transform: Transform | None = None,
        collate: Collate | None = None,
        example: Any = None,
        public: bool = False,
    ) -> None:
        self._dataset, self._device, self._public = dataset, device, public
        self._transform, self._collate = transform, collate
        self.names: tuple[tuple[str, ...], str] | None = None
        self._structure = self._look(example, dtype)
        self._was_read = False

    def _look(self, example: Any, dtype: torch.dtype) -> Structure:
        """Return the structure that all records are to have, from one record that is public."""
        source, step = self._dataset, ""
        kind: str | None = None
        unknown: list[str] = []
        while isinstance(source, Part):
            source = source.dataset
        with hidden_generator(SecureSource(), torch.device("cpu")) as streams, silenced():
            try:
                step = "cannot be read"
                record = self._item(source, 0, streams) if example is None else example
                step = "has something else"
                if self._collate is None:
                    self.names = _names(record)
                    found = Structure(record, dtype)
                    if example is not None or self._public:
                        return found
                    unknown = without_length(None if self._transform else source, record)
                    if not unknown:
                        return found
                else:
                    step = "collate does not turn into a batch of one, given in a list of one"
                    batch = self._collate([tree_map(_copied, record)])
                    self.names = _names(batch)
                    found = Structure(batch, dtype, batched=True)
                    fixed = getattr(self._collate, "fixed_lengths", False)
                    if fixed or not self._grows(record, found, dtype):
                        return found
            except BaseException as error:
                pass_on_signals(error)
                kind = type(error).__name__
        # outside the handler, or Python would show the record's own exception beside it
        if kind is None and self._collate is None:
            raise ArgumentError(
                f"Expected sequences of a length that is known, got {', '.join(unknown)}, whose "
                "type allows any. A record of another length than the first would count as zero, "
                "and nothing may say so. Give collate=pv.pad_to(length), with a length that is "
                "chosen without the records, or example=, a made-up record of the length that all "
                "have."
            )
        if kind is None:
            raise ArgumentError(
                "Expected collate to give every record the same shape, got one whose result is "
                "longer for a longer record. Pad to a length that is known without the data, as "
                "pv.pad_to(length) does: records of other shapes count as zero."
            )
        which = "first item" if example is None else "example"
        raise DataError(
            "Expected records that are pairs (input, target) of tensors, arrays or numbers, in "
            'tuples, lists or dictionaries, or dictionaries with "labels" among their entries, '
            f"got a data set whose {which} {step} ({kind}). Read "
            "dataset[0], and apply transform and collate to it, to see why."
        )

    def _grows(self, record: Any, found: Structure, dtype: torch.dtype) -> bool:
        """Return whether what collate makes of another record, which is made up, is longer or not.

        That is a longer one, or of rows of a Hugging Face data set a shorter one: their collators
        pad to a length, and leave the cutting to the tokenizer.
        """
        assert self._collate is not None
        try:
            other = Structure(self._collate([_of_other_length(record)]), dtype, batched=True)
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
                item = self._dataset[index]
                given = item if self._collate is None else self._collate([item])
                self._structure.put(given, rows, place)
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


def _copied(value: Any) -> Any:
    """Return a copy, since what a data set gives may be part of what it has, and of others."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _of_other_length(record: Any) -> Any:
    """Return a dummy record of other lengths than one that is given, where that has lengths."""

    row = isinstance(record, Mapping)  # where lists are sequences

    def other(value: Any) -> int:
        return len(value) - 1 if row and len(value) > 1 else 2 * len(value) + 1

    def changed(value: Any) -> Any:
        if row and _is_sequence(value):
            return [0] * other(value)
        if isinstance(value, Tensor) and value.ndim:
            return torch.zeros((other(value), *value.shape[1:]), dtype=value.dtype)
        if isinstance(value, np.ndarray) and value.ndim:
            return np.zeros((other(value), *value.shape[1:]), dtype=value.dtype)
        return value

    return tree_map(changed, record, is_leaf=_is_sequence if row else None)


def _names(record: Any) -> tuple[tuple[str, ...], str] | None:
    """Return the names of the inputs and of the target of a record that is one dictionary."""
    target = target_of(record)
    if target is None:
        return None
    return tuple(name for name in record if name != target), target


def pad_to(length: int, value: float = 0, target: float | None = None) -> Collate:
    """Return a `collate` that gives all records one length: shorter ones are padded, longer cut.

    Args:
        length: the length of the first dimension of every tensor or array of the input.
        value: what inputs are padded with.
        target: what targets are padded with, such as -100; None leaves targets as they are. A
            record that is one dictionary has its target under "labels" or "label".

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
        inputs, targets = as_pair(record)
        inputs, targets = self._all(inputs, self._value), self._all(targets, self._target)
        name = target_of(record)
        return (inputs, targets) if name is None else {**inputs, name: targets}

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
