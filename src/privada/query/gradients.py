"""The gate: the one way from private records to a release."""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privada import data
from privada.accounting import events
from privada.clipping import Batch, Clipping, Engine
from privada.clipping.averages import averages
from privada.clipping.clips import THRESHOLD, checked
from privada.clipping.squares import squared_sum
from privada.core.hidden_streams import HiddenStreams, hidden_generator
from privada.core.randomness import RandomSource
from privada.core.silence import pass_on_signals, settings_kept, silenced
from privada.core.state import HeldState
from privada.core.tensors import Parameters
from privada.core.validation import positive
from privada.core.values import ClippedSum, Release
from privada.noise import GaussianNoise
from privada.participation import Sampler
from privada.preconditioning import DiagonalScaling, FlatScaling
from privada.query.account import Account

# How many units are read at a time where all of them are, and what their gradients may take.
_UNITS_AT_A_TIME, _GRADIENT_BYTES = 256, 1 << 28
# After so many queries a model is tried on other dummy examples, at the parameters of the time.
_LOOKS = frozenset(4**k for k in range(2, 30))


class Gate:
    """Owns the private records, the sampler, the engine, the noise and the ledger's account.

    A method sees `query` alone. One query is: charge the ledger durably, draw the records, clip,
    add noise, release.

    Guarantee: no release without its charge; every release passes ClippedSum and noise. A copy of
    a gate has an account of its own.

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
        >>> release = trainer.gate.query(pv.preconditioning.isotropic(), noise_multiplier=1.0)
        >>> release.value.shape, release.batch_size
        (torch.Size([3]), 10.0)

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1.
    """

    def __init__(
        self,
        *,
        records: data.Records,
        units: data.Units | None = None,
        engine: Engine,
        parameters: Parameters,
        sampler: Sampler,
        sampling_rng: RandomSource,
        model_rng: RandomSource,
        noise: GaussianNoise,
        account: Account,
        clip: float,
        batch_size: float,
        clipping: Clipping = THRESHOLD,
        state: HeldState | None = None,
        look_again: Callable[[int], None] | None = None,
    ) -> None:
        self._state = HeldState() if state is None else state
        self._records, self._engine, self._parameters = records, engine, parameters
        self._units: data.Units = data.RowUnits(records.size) if units is None else units
        self._sampler, self._noise = sampler, noise
        self._sampling_bits, self._model_bits = sampling_rng, model_rng
        self._account = account
        self._clip, self._batch_size = positive("clip", clip), positive("batch_size", batch_size)
        self._clipping = checked(clipping)
        self._terms = clipping.terms(self._batch_size)
        self._dummy_batch = data.dummy_batch(records)
        self._laid_out: tuple[DiagonalScaling, FlatScaling] | None = None
        self._look_again, self._queries = look_again, 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._account = copy.copy(self._account)  # a copy pays for itself

    @property
    def account(self) -> Account:
        """What pays for the queries."""
        return self._account

    def settle(self) -> None:
        """Return the charges that were reserved and not used."""
        self._account.refund_unused()

    # ------------------------------------------------------------------ asking

    def query(
        self, preconditioner: DiagonalScaling, noise_multiplier: float, number: int = 0
    ) -> Release:
        """Return a release of the clipped sum of gradients at the model's current parameters.

        `number` says which one of the run's releases it is, for those who take part in turns.

        Raises:
            BudgetExceeded: before any record is read.
            LedgerError: before any record is read.
        """
        scaling = self.lay_out(preconditioner)
        self._queries += 1
        if self._look_again is not None and self._queries in _LOOKS:
            self._look_again(self._queries)  # before the charge
        event = self._sampler.event(positive("noise_multiplier", noise_multiplier))
        receipt = self._account.pay(event)
        drawn = self._sampler.draw(number, self._sampling_bits)
        rows, owners = self._units.rows(drawn, self._sampling_bits)
        if owners is None:
            groups = self._clipping.deal(rows.size, self._batch_size, self._sampling_bits)
        else:
            groups = torch.from_numpy(owners)
        clipped = self._clipped(rows, groups, scaling)
        release = self._noise.release(clipped, receipt, self._terms)
        return preconditioner.restore(release, scaling)

    def squares(self, bound: float, noise_multiplier: float, population: float) -> Release:
        """Return a release of sum_i min(g_ij^2, bound) over all units, coordinate by coordinate.

        The gradients are those at the model's current parameters, averaged over the rows of a unit;
        the release's `gradient` is the average over `population`, a public number of units.

        Raises:
            BudgetExceeded: before any record is read.
            LedgerError: before any record is read.
        """
        positive("bound", bound)
        receipt = self._account.pay(events.gaussian(positive("noise_multiplier", noise_multiplier)))
        with self._looking() as streams:
            total = squared_sum(self._parameters, self._all_rows(streams), bound)
        return self._noise.release(total, receipt, positive("population", population))

    @contextmanager
    def _looking(self) -> Iterator[HiddenStreams]:
        """Look at records: whatever they cause stays inside, and no state is left changed."""
        hidden = hidden_generator(self._model_bits, self._parameters.device)
        with hidden as streams, silenced(), self._state.untouched():
            yield streams

    def _all_rows(self, streams: HiddenStreams) -> Iterator[Tensor]:
        """Yield the gradients of all units as rows; what fails is left out, as zero."""
        room = _GRADIENT_BYTES // (8 * self._parameters.size * self._units.rows_per_unit)
        count = max(1, min(_UNITS_AT_A_TIME, room))
        for start in range(0, self._units.size, count):
            some = np.arange(start, min(start + count, self._units.size))
            indices, owners = self._units.rows(some, self._sampling_bits)
            batch, found = self._records.read(indices, streams)
            if batch is None:
                continue
            if owners is None:
                yield from self._gradients(batch)
                continue
            of = owners[found]
            for unit in np.unique(of):
                own = batch.at(torch.from_numpy(np.flatnonzero(of == unit)))
                yield from averages(self._gradients(own), torch.zeros(own.size))

    def _gradients(self, batch: Batch) -> list[Tensor]:
        """Return the gradients of records as rows; those of records that fail are zero."""
        some = self._rows(batch)
        if some is not None:
            return some
        singles = [self._rows(one) for one in batch.chunks(1)]
        none = self._parameters.zeros()[None]
        return [rows for one in singles for rows in ([none] if one is None else one)]

    def _rows(self, batch: Batch) -> list[Tensor] | None:
        """Return the gradients of some records as rows, None if one of them makes it fail."""
        try:
            with settings_kept():
                return list(self._engine.rows(batch))
        except BaseException as error:
            pass_on_signals(error)
            return None

    def lay_out(self, preconditioner: DiagonalScaling) -> FlatScaling:
        """Return a geometry laid out over the model's parameters; that of the last one is kept."""
        if self._laid_out is None or self._laid_out[0] is not preconditioner:
            self._laid_out = preconditioner, preconditioner.on(self._parameters)
        return self._laid_out[1]

    def _clipped(
        self, indices: data.Indices, groups: Tensor | None, scaling: FlatScaling
    ) -> ClippedSum:
        with self._looking() as streams:
            batch, found = self._records.read(indices, streams, self._engine.padding)
            if batch is not None and groups is not None:
                batch = replace(batch, groups=groups[torch.from_numpy(found)])
            return self._summed(batch, scaling, streams)

    def _summed(
        self, batch: Batch | None, scaling: FlatScaling, streams: HiddenStreams
    ) -> ClippedSum:
        clipped = self._attempt(batch, scaling)
        if clipped is not None:
            return clipped
        # If this fails as well, the fault is not the data's and may be told. It runs outside the
        # handler, or Python would show the first exception, of private records, beside it.
        self._engine.clipped_sum(self._dummy_batch, scaling, self._clip)
        if batch is None:
            return self._engine.clipped_sum(None, scaling, self._clip)
        batch = self._without_failing(batch, scaling)
        streams.restart()  # as if those that fail had never been there
        clipped = self._attempt(batch, scaling)
        if clipped is not None:
            return clipped
        assert batch is not None
        if batch.groups is None:
            return self._add_up(batch.chunks(1), scaling)
        groups = sorted(set(batch.groups.tolist()))
        return self._add_up((batch.at(_places(batch, group)) for group in groups), scaling)

    def _attempt(self, batch: Batch | None, scaling: FlatScaling) -> ClippedSum | None:
        """Return the clipped sum of some records, None if one of them makes it fail."""
        try:
            with settings_kept():
                return self._engine.clipped_sum(batch, scaling, self._clip)
        except BaseException as error:
            pass_on_signals(error)
            return None

    def _without_failing(self, batch: Batch, scaling: FlatScaling) -> Batch | None:
        """Return the records on which the model does not fail, each tried by itself."""
        singles = (replace(one, groups=None) for one in batch.chunks(1))
        fine = torch.tensor([self._attempt(one, scaling) is not None for one in singles])
        return batch.at(torch.nonzero(fine).reshape(-1)) if bool(fine.any()) else None

    def _add_up(self, parts: Iterable[Batch], scaling: FlatScaling) -> ClippedSum:
        """Return the sum over parts, each of which depends on its own records alone."""
        total = self._engine.clipped_sum(None, scaling, self._clip)
        for part in parts:
            one = self._attempt(part, scaling)
            if one is not None:
                total.value.add_(one.value)
        return total


def _places(batch: Batch, group: int) -> Tensor:
    """Return the places of a group's members."""
    assert batch.groups is not None
    return torch.nonzero(batch.groups == group).reshape(-1)
