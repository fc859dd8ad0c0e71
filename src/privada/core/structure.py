"""What every record looks like: nesting, names, shapes and types. All of it is public."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Misfit(Exception):
    """A record does not have the structure. It is private that one does not."""


@dataclass(frozen=True)
class Leaf:
    """One tensor of a record."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def parts(self, record: Any) -> Iterator[Any]:
        """Yield the value itself."""
        yield record

    def build(self, values: Iterator[Tensor]) -> Any:
        """Return the next value."""
        return next(values)

    def check(self, shape: tuple[int, ...], kind: str) -> None:
        """Raise unless a value has the shape, and a kind of type that the leaf's can hold.

        Whole numbers may stand where floats are expected. What is converted into what follows from
        the types alone.
        """
        if shape != self.shape or kind not in self.kinds:
            raise Misfit

    @cached_property
    def kinds(self) -> str:
        """The kinds of types that it can hold: whole numbers, floats, complex numbers."""
        return "ifc" if self.dtype.is_complex else "if" if self.dtype.is_floating_point else "i"


@dataclass(frozen=True)
class Entries:
    """A dictionary: entries by name. Others that a record has besides are left out."""

    names: tuple[Any, ...]
    below: tuple[Any, ...]

    def parts(self, record: Any) -> Iterator[Any]:
        """Yield the values in the order of the names."""
        if not isinstance(record, Mapping):
            raise Misfit
        for name, part in zip(self.names, self.below, strict=True):
            if name not in record:
                raise Misfit
            yield from part.parts(record[name])

    def build(self, values: Iterator[Tensor]) -> Any:
        """Return a dictionary of the next values."""
        return {name: part.build(values) for name, part in zip(self.names, self.below, strict=True)}


@dataclass(frozen=True)
class Places:
    """A tuple or list: entries by place. `named` is the type of a named tuple."""

    below: tuple[Any, ...]
    named: type | None = None

    def parts(self, record: Any) -> Iterator[Any]:
        """Yield the values in order."""
        if not isinstance(record, (tuple, list)) or len(record) != len(self.below):
            raise Misfit
        for part, value in zip(self.below, record, strict=True):
            yield from part.parts(value)

    def build(self, values: Iterator[Tensor]) -> Any:
        """Return a list of the next values, as a DataLoader does, or the named tuple."""
        made = [part.build(values) for part in self.below]
        return made if self.named is None else self.named(*made)


class Structure:
    """The structure of one record of numbers, to which all others are held one by one.

    Args:
        record: a pair (input, target) of tensors, arrays and numbers in tuples, lists and
            dictionaries; or one dictionary that has the target under "labels" or "label".
        dtype: what floats are converted to; whole numbers become int64.
        batched: whether records come as batches of one.

    Guarantee: how a record is read depends on the structure and on that record alone.

    Example:
        >>> import torch
        >>> from privada.core.structure import Structure
        >>> structure = Structure(({"age": 31, "values": [0.5, 0.5]}, 1), torch.float32)
        >>> rows = structure.rows(2)
        >>> structure.put(({"age": 40, "values": [1, 0.0], "name": "?"}, 0), rows, 0)
        >>> inputs, targets = structure.batch(rows.first(1))
        >>> inputs
        {'age': tensor([40]), 'values': [tensor([1.]), tensor([0.])]}
    """

    def __init__(self, record: Any, dtype: torch.dtype, batched: bool = False) -> None:
        self._batched = batched
        self.leaves: list[Leaf] = []
        self._root = self._of(as_pair(record), dtype)
        if not isinstance(self._root, Places) or len(self._root.below) != 2:
            raise TypeError("a record is not a pair (input, target)")
        if not list(_leaves(self._root.below[0])):
            raise TypeError("the input has no numbers")

    def _of(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, Mapping):
            return Entries(tuple(value), tuple(self._of(value[name], dtype) for name in value))
        if isinstance(value, (tuple, list)):
            named = type(value) if hasattr(value, "_fields") else None
            return Places(tuple(self._of(each, dtype) for each in value), named)
        tensor = _only_one(value) if self._batched else as_tensor(value)
        leaf = Leaf(tensor.shape, _batch_type(tensor.dtype, dtype), tensor.device)
        self.leaves.append(leaf)
        return leaf

    def rows(self, count: int) -> "Rows":
        """Return room for so many records."""
        return Rows(self.leaves, count)

    def put(self, record: Any, rows: "Rows", place: int) -> None:
        """Copy a record into the rows at a place; raise if it does not fit."""
        values = self._root.parts(as_pair(record))
        if self._batched:
            values = (_only_one(value) for value in values)
        rows.put(values, place)

    def batch(self, rows: list[Tensor]) -> tuple[Any, Any]:
        """Return inputs and targets, nested as the structure is."""
        inputs, targets = self._root.build(iter(rows))
        return inputs, targets


class Rows:
    """Room for some records: a tensor for each leaf, and a record in each row."""

    def __init__(self, leaves: list[Leaf], count: int) -> None:
        self._tensors = [
            torch.zeros((count, *leaf.shape), dtype=leaf.dtype, device=leaf.device)
            for leaf in leaves
        ]
        # what is in main memory is filled through numpy, which takes a fraction of the time
        views = [t.numpy() if t.device.type == "cpu" else None for t in self._tensors]
        self._places = list(zip(leaves, self._tensors, views, strict=True))

    def put(self, values: Iterator[Any], place: int) -> None:
        """Copy the values of one record at once, since they may be overwritten."""
        for (leaf, tensor, view), value in zip(self._places, values, strict=True):
            kind = type(value)
            if kind in _NUMBERS and view is not None:
                leaf.check((), _NUMBERS[kind])
                view[place] = value
                continue
            found = as_tensor(value)
            leaf.check(found.shape, _kind(found.dtype))
            if view is not None and found.dtype in _OF_NUMPY and found.device.type == "cpu":
                view[place] = found.numpy(force=True)
            else:
                tensor[place] = found

    def first(self, count: int) -> list[Tensor]:
        """Return the first rows of each tensor."""
        return [tensor[:count] for tensor in self._tensors]


_NUMBERS: dict[type, str] = {bool: "i", int: "i", float: "f"}
_OF_NUMPY = {
    torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip


def target_of(record: Any) -> str | None:
    """Return the name of the target of a record that is one dictionary; None of other records."""
    if not isinstance(record, Mapping):
        return None
    return next((name for name in _TARGETS if name in record), None)


def as_pair(record: Any) -> Any:
    """Return a record that is one dictionary as a pair (input, target), its lists as arrays.

    So are the rows of a Hugging Face data set, which gives sequences as lists.
    """
    target = target_of(record)
    if target is None:
        return record
    inputs = {name: _array(value) for name, value in record.items() if name != target}
    return inputs, _array(record[target])


# The names of the target in a record that is one dictionary, the likelier first.
_TARGETS = ("labels", "label")


def _array(values: Any) -> Any:
    """Return a list of numbers, or of such lists of one length, as an array."""
    if not isinstance(values, list) or not values:
        return values
    try:
        found = np.asarray(values)
    except ValueError:  # lists of different lengths
        return values
    return found if found.dtype.kind in "biufc" else values


def _kind(dtype: torch.dtype) -> str:
    return "f" if dtype.is_floating_point else "c" if dtype.is_complex else "i"


def _only_one(value: Any) -> Tensor:
    """Return the only example of a batch of one."""
    tensor = as_tensor(value)
    if tensor.ndim == 0 or tensor.shape[0] != 1:
        raise Misfit
    return tensor[0]


def _leaves(part: Any) -> Iterator[Leaf]:
    if isinstance(part, Leaf):
        yield part
        return
    for each in part.below:
        yield from _leaves(each)


def _batch_type(found: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    if found.is_floating_point:
        return dtype
    return found if found.is_complex else torch.int64


def as_tensor(value: Any) -> Tensor:
    """Return a number, an array or a tensor as an ordinary tensor."""
    if isinstance(value, Tensor):
        plain: Tensor = value.detach() if value.requires_grad else value
        if type(plain) is not Tensor:
            plain = plain.detach().as_subclass(Tensor)
        return plain if plain.layout == torch.strided else plain.to_dense()
    if isinstance(value, np.ndarray):
        # a reversed view, as of an image that was flipped, has strides that torch does not have
        return torch.from_numpy(np.ascontiguousarray(value)).reshape(value.shape)
    if isinstance(value, (bool, int, float, complex, np.generic)):
        return torch.as_tensor(value)
    raise Misfit
