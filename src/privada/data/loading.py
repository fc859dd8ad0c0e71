"""From what a user gives to records, and what can be checked before any look."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from privada.core.errors import ArgumentError, DataError
from privada.data.batch import Batch
from privada.data.columns import ColumnRecords, column_of
from privada.data.datasets import DatasetRecords, Pairs, refuse_own_generators
from privada.data.dummies import make_dummies
from privada.data.records import Collate, Records, Transform

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
    if not public:
        refuse_own_generators(data, transform, collate)
    _refuse_loaders(data)
    given = data
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        given = tuple(data.tensors)
    rows = isinstance(given, list) and given and isinstance(given[0], Mapping)
    if isinstance(given, (tuple, list)) and not rows:
        records = _pair(given, dtype, device, transform, collate, example)
    elif isinstance(given, Dataset) or (
        hasattr(given, "__len__") and hasattr(given, "__getitem__")
    ):
        if len(given) == 0:
            raise DataError(_EMPTY)
        records = DatasetRecords(given, dtype, device, transform, collate, example, public)
    else:
        raise DataError(
            f"Expected data to be a pair (inputs, targets) or a map-style dataset, got "
            f"{type(given).__name__}."
        )
    if records.size == 0:
        raise DataError(_EMPTY)
    if not public:  # once more: reading the first record may have made one
        refuse_own_generators(data, transform, collate)
    return records


def _refuse_loaders(data: Any) -> None:
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


def _pair(
    data: Any,
    dtype: torch.dtype,
    device: torch.device,
    transform: Transform | None,
    collate: Collate | None,
    example: Any,
) -> Records:
    """Return the records of a pair (inputs, targets)."""
    if len(data) != 2:
        raise DataError(f"Expected data to be a pair (inputs, targets), got {len(data)} parts.")
    inputs = column_of("inputs", data[0], dtype, device)
    targets = column_of("targets", data[1], dtype, device)
    if inputs.size != targets.size:
        raise DataError(
            f"Expected as many targets as inputs, got {inputs.size} inputs and "
            f"{targets.size} targets."
        )
    if inputs.size and (transform is not None or collate is not None):
        pairs = Pairs(inputs, targets)
        return DatasetRecords(pairs, dtype, device, transform, collate, example)
    if example is not None:
        raise ArgumentError(
            "Expected example=None for a pair of arrays, whose shapes and types are public as "
            "they are, got an example."
        )
    return ColumnRecords(inputs, targets)


def readers_of(records: Records) -> tuple[Any, ...]:
    """Return what runs when records are read: a data set, a transform, a collate. Not columns."""
    if not isinstance(records, DatasetRecords):
        return ()
    return records._dataset, records._transform, records._collate


def dummy_batch(records: Records, size: int = 3, seed: int = 0) -> Batch:
    """Return examples of the records' shapes and types that contain nothing of theirs.

    Shapes and types are those of a declared example, else of the first record, and are public.
    Another seed gives other examples.
    """
    return make_dummies(records.example, size, seed)


def check_ranges(records: Records, model: nn.Module, loss: Any, outputs: Any) -> None:
    """Raise if whole-number inputs or targets cannot be used with the model and the loss."""
    if not isinstance(records, ColumnRecords):
        return
    low, high = records.targets.bounds()
    kind = type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", "")
    one = isinstance(outputs, Tensor)
    integer = one and not records.targets.rows(np.zeros(1, dtype=np.int64)).is_floating_point()
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
