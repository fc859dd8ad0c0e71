"""Features of records by a public module, computed record by record."""

import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from privada import data as private_data
from privada.clipping.calling import call
from privada.clipping.probes import in_mode, refuse_mixing_models
from privada.clipping.record_by_record import CHUNK, RecordByRecord
from privada.core.errors import ArgumentError, ModelError
from privada.core.hidden_streams import HiddenStreams, hidden_generator
from privada.core.randomness import SecureSource
from privada.core.silence import silenced
from privada.core.state import HeldState
from privada.core.validation import instance, integer
from privada.data import ComputedRows, DatasetRecords, Records
from privada.data.batch import Batch
from privada.features import cache as files

_FORMAT = 1


def extract(
    module: nn.Module,
    data: Any,
    *,
    cache: str | os.PathLike[str] | None = None,
    batch_size: int = CHUNK,
) -> tuple[Any, Any]:
    """Return the features that a public module computes of private records, for a `Trainer`.

    Args:
        module: an encoder that was made without the private records, such as `Scattering2D` or one
            that was trained on public data. It runs in evaluation mode and learns nothing.
        data: what a `Trainer` takes: a pair of inputs and targets, or a map-style data set.
        cache: a folder in which features are kept. It is made for you alone; it may be removed at
            any time. None keeps them in memory.
        batch_size: how many records run at a time, at most 248: fewer take less memory.

    Returns:
        The pair of features, a row of float32 for each record, and targets.

    Guarantee: each row follows from its own record and the module alone, as far as made-up records
    show; nothing is released, and nothing charged. A module whose made-up records influence each
    other, or that keeps something of them, is refused. One that cannot be followed, or in which a
    record's last bits depend on how many run together, runs on a record at a time. The features are
    as private as the records. Kept ones are found again by the weights of the module, what it makes
    of made-up records, and the records; files that are damaged are computed anew.

    Edge cases: a record that the module fails on has features that are NaN, and counts as zero in
    training; so does one whose features are not finite. Nothing is said of it. Batch normalisation
    uses its running statistics.

    Example:
        >>> import torch, privada as pv
        >>> images, kinds = torch.rand(100, 28, 28), torch.arange(100) % 10
        >>> data = pv.features.extract(pv.features.Scattering2D((28, 28)), (images, kinds))
        >>> data[0].shape
        (100, 3969)
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(3969, 10), torch.nn.CrossEntropyLoss(), data,
        ...     method=pv.methods.DPAdamWOSM(lr=0.01), batch_size=20, steps=2,
        ...     budget=pv.Budget(epsilon=1.0, delta=1e-3),
        ... ).fit()

    Reference: Tramer and Boneh (2021), Differentially Private Learning Needs Better Features (or
    Much More Data), arXiv 2011.11660.
    """
    instance("features", module, nn.Module, "to be a torch module")
    most = min(integer("batch_size", batch_size), CHUNK)
    folder = None if cache is None else files.private_folder(cache)
    device = next((each.device for each in _tensors(module)), torch.device("cpu"))
    floats = (each.dtype for each in _tensors(module) if each.is_floating_point())
    records = private_data.load(data, next(floats, torch.float32), device)
    with in_mode(module, False):
        example = private_data.dummy_batch(records).dense()
        shape = checked_features(module, example)
        each = RecordByRecord(
            lambda batch: _rows(module, batch), example, shape, most=most, expected=most, exact=True
        )
        if not each.together and most > 1:
            warnings.warn(
                "Records may touch each other in a batch of the module that computes features, if "
                "only by rounding, so they run one at a time: slower, but as private.",
                stacklevel=2,
            )
        state = HeldState(module, readers=private_data.readers_of(records))
        made = _Extraction(records, each, state, device, shape[0])
        return made.features(module, folder, example), made.targets(data)


def checked_features(module: nn.Module, example: Batch) -> tuple[int]:
    """Return how many features a record has; raise unless they follow from one record.

    To be called in evaluation mode.
    """
    try:
        refuse_mixing_models(module, example, modes=(False,))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = call(module, example.inputs)
            alone = call(module, example.at(torch.zeros(1, dtype=torch.int64)).inputs)
    except ModelError:
        raise
    except Exception as error:
        raise ArgumentError(
            "Expected features to be a module that accepts the shapes and types of the records, "
            f"but on made-up records it failed with: {error}"
        ) from error
    shapes = [
        tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__
        for each in (found, alone)
    ]
    if not isinstance(found, Tensor) or shapes != [
        (example.size, *found.shape[1:]),
        (1, *found.shape[1:]),
    ]:
        raise ArgumentError(
            "Expected features to be a module that returns a tensor with a row for each record, "
            f"got {shapes[0]} for {example.size} made-up records and {shapes[1]} for one. Wrap it "
            "in a module that does."
        )
    if not bool(found.isfinite().any()):
        raise ArgumentError(
            "Expected features to be a module that returns finite numbers, got none for made-up "
            "records of about unit size. Bring records to the scale that it expects in its first "
            "layer."
        )
    return (found[0].numel(),)


def _rows(module: nn.Module, batch: Batch) -> Tensor:
    """Return the features of a batch, as rows."""
    found: Tensor = call(module, batch.inputs)
    return found.flatten(1).to(torch.float32) if found.ndim > 1 else found[:, None].float()


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


class _Extraction:
    """One data set, and what runs on it."""

    def __init__(
        self,
        records: Records,
        each: RecordByRecord,
        state: HeldState,
        device: torch.device,
        width: int,
    ) -> None:
        self._records, self._each, self._state = records, each, state
        self._device, self._shape = device, (records.size, width)
        self._targets: list[Tensor] = []

    def features(self, module: nn.Module, folder: Path | None, example: Batch) -> ComputedRows:
        """Return the features, from a file if they are kept there."""
        if folder is None:
            found = np.empty(self._shape, np.float32)
            place = 0
            for part in self._parts():
                found[place : place + len(part)] = part
                place += len(part)
            return found.view(ComputedRows)
        file = folder / f"{self._key(module, example)}.features"
        rows = files.kept(file, self._shape)
        if rows is None:
            rows = files.keep(file, self._shape, self._parts())
        return rows.view(ComputedRows)

    def targets(self, given: Any) -> Any:
        """Return the targets: those that were given, or that the data set has."""
        if not isinstance(self._records, DatasetRecords):
            return given.tensors[1] if hasattr(given, "tensors") else given[1]
        if not self._targets:  # the features were kept
            for _ in self._batches():
                pass
        return torch.cat(self._targets)

    def _parts(self) -> Iterator[NDArray[np.float32]]:
        """Yield the features of some records at a time."""
        for batch, size, places in self._batches():
            part = np.full((size, self._shape[1]), np.nan, np.float32)
            if batch is not None:
                with self._hidden():
                    rows, fine = self._each.of(batch.dense())
                if rows is not None:
                    part[places[fine]] = rows.cpu().numpy()
            yield part

    def _batches(self) -> Iterator[tuple[Batch | None, int, NDArray[np.int64]]]:
        """Yield the records that can be read, with how many there are and which these are."""
        self._targets = []
        blank = self._records.example.targets
        for start in range(0, self._records.size, CHUNK):
            indices = np.arange(start, min(start + CHUNK, self._records.size))
            with self._hidden() as streams:
                batch, places = self._records.read(indices, streams)
                targets = blank.new_zeros(indices.size, *blank.shape[1:])
                if batch is not None:
                    targets[places] = batch.targets
            self._targets.append(targets)
            yield batch, indices.size, places

    @contextmanager
    def _hidden(self) -> Iterator[HiddenStreams]:
        """Let nothing out that a record causes."""
        hidden = hidden_generator(SecureSource(), self._device)
        with hidden as streams, silenced(), self._state.untouched(), torch.no_grad():
            yield streams

    def _key(self, module: nn.Module, example: Batch) -> str:
        """Return a name for the features of these records by this module."""
        digest = hashlib.blake2b(f"{_FORMAT} {type(module)} {module!r}".encode(), digest_size=32)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            made = _rows(module, example)  # by which other code of the same name is another module
        for values in [*_tensors(module), made]:
            _add(digest, values)
        for batch, _, places in self._batches():
            digest.update(places.tobytes())
            for values in [] if batch is None else tree_leaves(batch.dense().inputs):
                _add(digest, values)
        return digest.hexdigest()


def _add(digest: Any, values: Tensor) -> None:
    held = values.detach().cpu().contiguous()
    digest.update(f"{held.dtype} {tuple(held.shape)}".encode())
    digest.update(held.reshape(-1).view(torch.uint8).numpy().data)
