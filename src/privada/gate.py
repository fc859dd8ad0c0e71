"""The gate: the one way from private records to a release."""

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from dp_accounting import DpEvent
from torch import Tensor

from privada import data
from privada.accounting import Budget, Ledger, Receipt, events
from privada.accounting.storage import Busy
from privada.clipping import Batch, Clipping, Engine
from privada.clipping.clips import THRESHOLD, checked
from privada.clipping.squares import squared_sum
from privada.core.errors import BudgetExceeded, LedgerError
from privada.core.randomness import Bits
from privada.core.silence import pass_on_signals, settings_kept, silenced
from privada.core.state import HeldState
from privada.core.tensors import Parameters
from privada.core.validation import positive
from privada.core.values import ClippedSum, Release
from privada.geometry import Geometry, Whitening
from privada.noise import GaussianNoise
from privada.noise.hidden import HiddenStreams, hidden_generator
from privada.sampling import Sampler

# Durable commits may take this share of a run's time; blocks of charges grow until they do.
_SHARE_OF_TIME = 0.01
_LARGEST_BLOCK = 64
# How many records are read at a time where all of them are, and what their gradients may take.
_RECORDS_AT_A_TIME, _GRADIENT_BYTES = 256, 1 << 28
# After so many queries a model is tried on other dummy examples, at the parameters of the time.
_LOOKS = frozenset(4**k for k in range(2, 30))
_IN_THE_MIDDLE = (
    "Cannot use the gate from within one of its own charges, as a signal handler would. Nothing "
    "was done; do it after the step."
)


class Gate:
    """Owns the private records, the sampler, the engine, the noise and the ledger's account.

    A method sees `query` alone. One query is: charge the ledger durably, draw the records, clip,
    add noise, release.

    Guarantee: no release without its charge; every release passes ClippedSum and noise. Charges are
    made in small blocks; what a crash leaves of a block stays charged. A copy, a pickle or a fork
    of a gate owns no part of a block and pays for itself.

    Edge cases: an empty draw releases noise alone. A record that cannot be read, that does not have
    the public structure, or on which the model fails, counts as zero, since an exception would tell
    that it is there, and the others are as if it were absent; if the model fails on a made-up
    example as well, the fault is not the data's and the exception is raised. In micro-batches such
    a record is left out of its group, and a group that fails even so, because its members do not go
    together, counts as zero. Nothing that records make code warn, log or print gets out. A model or
    a loss whose state is changed by records is an error, and its state is put back.

    Example:
        A method asks the gate that a trainer has made, and gets a release:

        >>> import privada as pv, torch
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=3,
        ...     noise_multiplier=1.0, delta=1e-3,
        ... )
        >>> release = trainer.gate.query(pv.geometry.isotropic(), noise_multiplier=1.0)
        >>> release.value.shape, release.batch_size
        (torch.Size([3]), 10.0)

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1.
    """

    def __init__(
        self,
        *,
        records: data.Records,
        engine: Engine,
        parameters: Parameters,
        sampler: Sampler,
        sampling_bits: Bits,
        model_bits: Bits,
        noise: GaussianNoise,
        ledger: Ledger,
        run: str,
        clip: float,
        batch_size: float,
        purpose: str = "training",
        upcoming: Callable[[int], Mapping[DpEvent, int]] | None = None,
        limit: Budget | None = None,
        clipping: Clipping = THRESHOLD,
        state: HeldState | None = None,
        look_again: Callable[[int], None] | None = None,
    ) -> None:
        self._state = HeldState() if state is None else state
        self._records, self._engine, self._parameters = records, engine, parameters
        self._sampler, self._noise = sampler, noise
        self._sampling_bits, self._model_bits = sampling_bits, model_bits
        self._ledger, self._run, self._purpose = ledger, run, purpose
        self._clip, self._batch_size = positive("clip", clip), positive("batch_size", batch_size)
        self._clipping = checked(clipping)
        self._terms = clipping.terms(self._batch_size)
        self._upcoming, self._limit = upcoming, limit
        self._made_up = data.made_up(records)
        self._laid_out: tuple[Geometry, Whitening] | None = None
        self._look_again, self._queries = look_again, 0
        self._disown()

    # ------------------------------------------------------------------ paying

    def _disown(self) -> None:
        """Own no reserved charges: what a copy of this gate holds is not its to use."""
        self._receipts: list[Receipt] = []
        self._lock = threading.RLock()
        self._busy = False
        self._block, self._last_commit = 1, 0.0
        _living.add(self)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_receipts"], state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._disown()

    @contextmanager
    def _account(self) -> Iterator[None]:
        """Hold the account: other threads wait, and a signal handler in the middle is refused."""
        # a handler that waited for the lock while it keeps the lock's owner from the ledger would
        # wait for ever
        if self._ledger.in_use_here():
            raise Busy(_IN_THE_MIDDLE)
        with (lock := self._lock):
            if self._busy:
                raise Busy(_IN_THE_MIDDLE)
            try:
                self._busy = True
                yield
            finally:
                self._busy = False
                forked = self._lock is not lock
                if forked:
                    self._disown()
            if forked:
                raise LedgerError(
                    "Cannot go on with a charge in the middle of which a signal handler forked: "
                    "it is the parent's. Nothing was released here; ask again."
                )

    def _pay(self, event: DpEvent) -> None:
        """Use up one reserved charge of `event`, reserving a block of them first if need be."""
        with self._account():
            held = next((each for each in self._receipts if each.covers(event)), None)
            (held or self._reserve(event)).use(event)

    def _reserve(self, event: DpEvent) -> Receipt:
        started = time.perf_counter()
        receipt = self._charge_block(event)
        now = time.perf_counter()
        self._receipts = [each for each in self._receipts if each.unused] + [receipt]
        if self._last_commit and now - started > _SHARE_OF_TIME * (now - self._last_commit):
            self._block = min(_LARGEST_BLOCK, 2 * self._block)
        elif now - started < _SHARE_OF_TIME / 4 * (now - self._last_commit):
            self._block = max(1, self._block // 2)
        self._last_commit = now
        return receipt

    def _charge_block(self, event: DpEvent) -> Receipt:
        """Charge the next block of the plan, or as much of it as the budget still allows."""
        upcoming = self._upcoming or (lambda count: {event: 1})
        size = self._block
        while True:
            block = Counter(upcoming(size))
            if block[event] == 0:  # not what was planned: pay for this one alone
                block = Counter({event: 1})
            try:
                return self._ledger.charge(
                    block,
                    run=self._run,
                    purpose=self._purpose,
                    plan=lambda: upcoming(-1),
                    limit=self._limit,
                )
            except BudgetExceeded:
                if sum(block.values()) == 1:
                    raise
                size //= 2

    def settle(self) -> None:
        """Return the charges that were reserved and not used.

        In the middle of a charge, where a signal handler may find itself, it does nothing: what is
        not used stays reserved, for the queries to come or for the next time.
        """
        with suppress(Busy), self._account():
            receipts, self._receipts = self._receipts, []
            for each in receipts:
                self._ledger.refund(each)

    # ------------------------------------------------------------------ asking

    def query(self, geometry: Geometry, noise_multiplier: float) -> Release:
        """Return a release of the clipped sum of gradients at the model's current parameters.

        Raises:
            BudgetExceeded: before any record is read.
            LedgerError: before any record is read.
        """
        whitening = self._lay_out(geometry)
        self._queries += 1
        if self._look_again is not None and self._queries in _LOOKS:
            self._look_again(self._queries)  # before the charge
        self._pay(self._sampler.event(positive("noise_multiplier", noise_multiplier)))
        indices = self._sampler.draw(self._sampling_bits)
        groups = self._clipping.deal(indices.size, self._batch_size, self._sampling_bits)
        clipped = self._clipped(indices, groups, whitening)
        release = self._noise.release(clipped, noise_multiplier, self._terms)
        return geometry.restore(release, whitening)

    def squares(self, bound: float, noise_multiplier: float, population: float) -> Release:
        """Return a release of sum_i min(g_ij^2, bound) over all records, coordinate by coordinate.

        The gradients are those at the model's current parameters; the release's `gradient` is the
        average over `population`, a public number of records.

        Raises:
            BudgetExceeded: before any record is read.
            LedgerError: before any record is read.
        """
        positive("bound", bound)
        self._pay(events.gaussian(positive("noise_multiplier", noise_multiplier)))
        with self._looking() as streams:
            total = squared_sum(self._parameters, self._all_rows(streams), bound)
        return self._noise.release(total, noise_multiplier, positive("population", population))

    @contextmanager
    def _looking(self) -> Iterator[HiddenStreams]:
        """Look at records: whatever they cause stays inside, and no state is left changed."""
        hidden = hidden_generator(self._model_bits, self._parameters.device)
        with hidden as streams, silenced(), self._state.untouched():
            yield streams

    def _all_rows(self, streams: HiddenStreams) -> Iterator[Tensor]:
        """Yield the gradients of all records as rows; one that fails is left out, as zero."""
        room = _GRADIENT_BYTES // (8 * self._parameters.size)
        count = max(1, min(_RECORDS_AT_A_TIME, room))
        for start in range(0, self._records.size, count):
            indices = np.arange(start, min(start + count, self._records.size))
            batch, _ = self._records.read(indices, streams)
            if batch is None:
                continue
            some = self._rows(batch)
            if some is None:
                singles = [self._rows(one) for one in batch.chunks(1)]
                some = [rows for one in singles if one is not None for rows in one]
            yield from some

    def _rows(self, batch: Batch) -> list[Tensor] | None:
        """Return the gradients of some records as rows, None if one of them makes it fail."""
        try:
            with settings_kept():
                return list(self._engine.rows(batch))
        except BaseException as error:
            pass_on_signals(error)
            return None

    def _lay_out(self, geometry: Geometry) -> Whitening:
        if self._laid_out is None or self._laid_out[0] is not geometry:
            self._laid_out = geometry, geometry.on(self._parameters)
        return self._laid_out[1]

    def _clipped(
        self, indices: data.Indices, groups: Tensor | None, whitening: Whitening
    ) -> ClippedSum:
        with self._looking() as streams:
            batch, found = self._records.read(indices, streams, self._engine.padding)
            if batch is not None and groups is not None:
                batch = replace(batch, groups=groups[torch.from_numpy(found)])
            return self._summed(batch, whitening, streams)

    def _summed(
        self, batch: Batch | None, whitening: Whitening, streams: HiddenStreams
    ) -> ClippedSum:
        clipped = self._attempt(batch, whitening)
        if clipped is not None:
            return clipped
        # If this fails as well, the fault is not the data's and may be told. It runs outside the
        # handler, or Python would show the first exception, of private records, beside it.
        self._engine.clipped_sum(self._made_up, whitening, self._clip)
        if batch is None:
            return self._engine.clipped_sum(None, whitening, self._clip)
        batch = self._without_failing(batch, whitening)
        streams.restart()  # as if those that fail had never been there
        clipped = self._attempt(batch, whitening)
        if clipped is not None:
            return clipped
        assert batch is not None
        if batch.groups is None:
            return self._add_up(batch.chunks(1), whitening)
        groups = sorted(set(batch.groups.tolist()))
        return self._add_up((batch.at(_places(batch, group)) for group in groups), whitening)

    def _attempt(self, batch: Batch | None, whitening: Whitening) -> ClippedSum | None:
        """Return the clipped sum of some records, None if one of them makes it fail."""
        try:
            with settings_kept():
                return self._engine.clipped_sum(batch, whitening, self._clip)
        except BaseException as error:
            pass_on_signals(error)
            return None

    def _without_failing(self, batch: Batch, whitening: Whitening) -> Batch | None:
        """Return the records on which the model does not fail, each tried by itself."""
        singles = (replace(one, groups=None) for one in batch.chunks(1))
        fine = torch.tensor([self._attempt(one, whitening) is not None for one in singles])
        return batch.at(torch.nonzero(fine).reshape(-1)) if bool(fine.any()) else None

    def _add_up(self, parts: Iterable[Batch], whitening: Whitening) -> ClippedSum:
        """Return the sum over parts, each of which depends on its own records alone."""
        total = self._engine.clipped_sum(None, whitening, self._clip)
        for part in parts:
            one = self._attempt(part, whitening)
            if one is not None:
                total.value.add_(one.value)
        return total


def _places(batch: Batch, group: int) -> Tensor:
    """Return the places of a group's members."""
    assert batch.groups is not None
    return torch.nonzero(batch.groups == group).reshape(-1)


_living: weakref.WeakSet[Gate] = weakref.WeakSet()


def _disown_all() -> None:
    """In a forked child, while it has one thread: what is reserved is its parent's."""
    for gate in list(_living):
        gate._disown()


os.register_at_fork(after_in_child=_disown_all)
