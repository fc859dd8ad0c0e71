"""Something computed of each record by itself, though many run at a time."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from privada.clipping.dependence import Dependence
from privada.clipping.labels import NOBODY
from privada.clipping.reads import without_reads
from privada.core.silence import pass_on_signals, settings_kept
from privada.data.batch import Batch
from privada.data.padding import find_padding
from privada.data.records import Indices

# How many records run at a time: so few that dummy examples in as large a batch have labels of
# their own beside those of a smaller one.
CHUNK = 248
_MULTIPLE = 8

Compute = Callable[[Batch], Tensor]


def keeps_apart(compute: Compute, example: Batch, most: int) -> bool:
    """Return whether what is computed of a record follows from it alone, in batches up to `most`.

    Dummy examples are followed number by number, in a small batch and in one of that size, as
    for training. Where a value is read, or no rule knows, it is not known.
    """
    sizes = example.size, most
    batches = [example.at(torch.arange(size) * example.size // size) for size in sizes]
    found: list[Tensor] = []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), (seen := Dependence()):
            for batch, first in zip(batches, (1, 1 + example.size), strict=True):
                for values in tree_leaves((batch.inputs, batch.targets)):
                    seen.own(values, first)
                with without_reads():
                    found.append(compute(batch))
        for size, first, each in zip(sizes, (1, 1 + example.size), found, strict=True):
            labels = seen.labels(each)
            if labels is None:
                continue
            own = torch.arange(first, first + size, dtype=torch.uint8)
            own = own.view(-1, *[1] * (labels.ndim - 1))
            if bool(((labels != NOBODY) & (labels != own)).any()):
                return False
    except Exception:  # it reads values, or cannot be followed
        return False
    return True


class RecordByRecord:
    """Computes something of records, of which each follows from its own record, to the last bit.

    Args:
        compute: a function of a batch that returns a row for each example.
        example: dummy examples, of the records' shapes and types.
        shape: that of a row. A record with a row of another shape fails.
        factors: what decides about the rounding, first dimension the example; by default the same.
        most: how many records may run at a time, at most `CHUNK`.
        expected: about how many records there are, if that is public.
        exact: whether records run one at a time where no filling up was found with which a record
            does not change the bits of others.

    Guarantee: where dummy examples show that records may touch each other, each runs by itself.
    Batches are filled up as those of training are, so that no record changes the bits of others.
    A record that fails, or that makes code raise, changes nothing of the others.

    Edge cases: to be used where nothing that records cause gets out (`core.silence`).
    """

    def __init__(
        self,
        compute: Compute,
        example: Batch,
        shape: tuple[int, ...] = (),
        *,
        factors: Callable[[Batch], Iterable[Tensor]] | None = None,
        most: int = CHUNK,
        expected: float | None = None,
        exact: bool = False,
    ) -> None:
        self._compute, self._shape = compute, shape
        room = most
        if expected is not None:
            room = min(most, (int(expected) // _MULTIPLE + 1) * _MULTIPLE)
        factors = (lambda batch: [compute(batch)]) if factors is None else factors
        self.together = room > 1 and keeps_apart(compute, example, room)
        self._padding = find_padding(example, factors, room if self.together else 1, expected)
        if exact and not self._padding.invariant:
            self.together, self._padding = False, find_padding(example, factors, 1)

    def of(self, batch: Batch) -> tuple[Tensor | None, Indices]:
        """Return what is computed of the records that do not fail, and their places.

        None stands for no record.
        """
        found = self._of(batch)
        if found is not None:
            return found, np.arange(batch.size)
        singles = [self._of(one) for one in batch.chunks(1)]
        fine = [place for place, one in enumerate(singles) if one is not None]
        if not fine:
            return None, np.zeros(0, dtype=np.int64)
        # as if those that fail had never been there
        found = self._of(batch.at(torch.tensor(fine)))
        if found is None:
            found = torch.cat([one for one in singles if one is not None])
        return found, np.array(fine, dtype=np.int64)

    def _of(self, batch: Batch) -> Tensor | None:
        try:
            with settings_kept():
                chunks = batch.chunks(self._padding.most)
                parts = [self._compute(self._padding.fill(part))[: part.size] for part in chunks]
            found = torch.cat(parts)
            return found if found.shape == (batch.size, *self._shape) else None
        except BaseException as error:  # whatever a record makes code raise tells of it
            pass_on_signals(error)
            return None
