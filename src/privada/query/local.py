"""Clipped sums in this process: reads records, and lets nothing of them out but the sum."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from privada import data
from privada.clipping import Batch, Engine
from privada.clipping.averages import averages
from privada.clipping.feature_products import feature_product_sum
from privada.clipping.features import feature_sum
from privada.clipping.one_pass import OnePassEngine
from privada.clipping.probes import refuse_mixing_models
from privada.clipping.squares import squared_sum
from privada.core.errors import ArgumentError, ModelError
from privada.core.hidden_streams import HiddenStreams, hidden_generator
from privada.core.randomness import RandomSource
from privada.core.silence import pass_on_signals, settings_kept, silenced
from privada.core.state import HeldState
from privada.core.tensors import Parameters
from privada.core.values import ClippedSum
from privada.data import Indices
from privada.preconditioning import FlatScaling
from privada.query.executor import Draw

# How many units are read at a time where all of them are, and what their gradients may take.
_UNITS_AT_A_TIME, _GRADIENT_BYTES = 256, 1 << 28
_UNITS_OF_INPUTS = 8192
# After so many sums a model is tried on other dummy examples, at the parameters of the time.
_RECHECKED_AFTER = frozenset(4**k for k in range(2, 30))


def try_model(model: nn.Module, example: Batch) -> Exception | None:
    """Raise if dummy examples touch each other; return what a model raises that does not run.

    The engine, which is tried afterwards, says that in better words.
    """
    try:
        refuse_mixing_models(model, example)
    except ModelError:
        raise
    except Exception as error:
        return error
    return None


class LocalExecutor:
    """Computes clipped sums in this process, from the records themselves.

    Guarantee: whatever records make code raise, warn, log or print stays inside. A record that
    cannot be read, that does not have the public structure, or on which the model fails, counts as
    zero, and the others are as if it were absent. A model or a loss whose state is changed by
    records is an error, and its state is put back.

    Edge cases: an empty draw gives zero. If the model fails on a dummy example as well, the fault
    is not the data's and the exception is raised. In micro-batches a record that fails is left out
    of its group; a group that fails even so, because its members do not go together, counts as
    zero.

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, arXiv 1607.00133,
    Algorithm 1.
    """

    def __init__(
        self,
        *,
        records: data.Records,
        engine: Engine,
        parameters: Parameters,
        model_rng: RandomSource,
        units: data.Units | None = None,
        state: HeldState | None = None,
        model: nn.Module | None = None,
    ) -> None:
        self._records, self.engine, self.parameters = records, engine, parameters
        self._units: data.Units = data.RowUnits(records.size) if units is None else units
        self.model_rng, self._model = model_rng, model
        self._state = HeldState() if state is None else state
        self._dummy_batch = data.dummy_batch(records)
        self._checks = 0

    def recheck(self) -> None:
        """Try the model on other dummy examples now and then, at its current parameters.

        What this raises follows from the model and from releases, not from records.
        """
        self._checks += 1
        if self._model is None or self._checks not in _RECHECKED_AFTER:
            return
        example = data.dummy_batch(self._records, seed=self._checks)
        try_model(self._model, example.dense())
        if isinstance(self.engine, OnePassEngine):
            self.engine.look_again(example)

    # ------------------------------------------------------------------ sums of a draw

    def clipped_sum(self, drawn: Draw, scaling: FlatScaling, clip: float) -> ClippedSum:
        """Return the sum of the scaled gradients of a draw, each bounded by the clip norm."""
        hidden = hidden_generator(self.model_rng, self.parameters.device)
        # whatever records cause stays inside, and no state is left changed
        with hidden as streams, silenced(), self._state.untouched():
            batch, found = self._records.read(drawn.rows, streams, self.engine.padding)
            if batch is not None and drawn.groups is not None:
                batch = replace(batch, groups=drawn.groups[torch.from_numpy(found)])
            return self._summed(batch, scaling, clip, streams)

    def _summed(
        self, batch: Batch | None, scaling: FlatScaling, clip: float, streams: HiddenStreams
    ) -> ClippedSum:
        clipped = self._attempt(batch, scaling, clip)
        if clipped is not None:
            return clipped
        # If this fails as well, the fault is not the data's and may be told. It runs outside the
        # handler, or Python would show the first exception, of private records, beside it.
        self.engine.clipped_sum(self._dummy_batch, scaling, clip)
        if batch is None:
            return self.engine.clipped_sum(None, scaling, clip)
        batch = self._without_failing(batch, scaling, clip)
        streams.restart()  # as if those that fail had never been there
        clipped = self._attempt(batch, scaling, clip)
        if clipped is not None:
            return clipped
        assert batch is not None
        if batch.groups is None:
            return self._add_up(batch.chunks(1), scaling, clip)
        groups = sorted(set(batch.groups.tolist()))
        return self._add_up((batch.at(_places(batch, group)) for group in groups), scaling, clip)

    def _attempt(self, batch: Batch | None, scaling: FlatScaling, clip: float) -> ClippedSum | None:
        """Return the clipped sum of some records, None if one of them makes it fail."""
        try:
            with settings_kept():
                return self.engine.clipped_sum(batch, scaling, clip)
        except BaseException as error:
            pass_on_signals(error)
            return None

    def _without_failing(self, batch: Batch, scaling: FlatScaling, clip: float) -> Batch | None:
        """Return the records on which the model does not fail, each tried by itself."""
        singles = (replace(one, groups=None) for one in batch.chunks(1))
        fine = torch.tensor([self._attempt(one, scaling, clip) is not None for one in singles])
        return batch.at(torch.nonzero(fine).reshape(-1)) if bool(fine.any()) else None

    def _add_up(self, parts: Iterable[Batch], scaling: FlatScaling, clip: float) -> ClippedSum:
        """Return the sum over parts, each of which depends on its own records alone."""
        total = self.engine.clipped_sum(None, scaling, clip)
        for part in parts:
            one = self._attempt(part, scaling, clip)
            if one is not None:
                total.value.add_(one.value)
        return total

    # ------------------------------------------------------------------ sums over all units

    def squared_sum(
        self, bound: float, rng: RandomSource, part: int = 0, parts: int = 1
    ) -> ClippedSum:
        """Return sum_i min(g_ij^2, bound) over all units, coordinate by coordinate.

        A unit's gradient is the average over its rows, of which `rng` chooses some where there are
        more than a look takes. With `parts`, it is the sum over one of so many disjoint parts of
        the units.
        """
        hidden = hidden_generator(self.model_rng, self.parameters.device)
        with hidden as streams, silenced(), self._state.untouched():
            return squared_sum(self.parameters, self._all_rows(streams, rng, part, parts), bound)

    def feature_products(self, size_weight: float, rng: RandomSource) -> ClippedSum:
        """Return the sum of products of the inputs of a linear model over all units.

        As `feature_product_sum` has it, with a last input of 1 where the model has a bias. A unit
        counts as the average over its rows, of which `rng` chooses some where there are more than a
        look takes.
        """
        shapes = self.parameters.layout.shapes
        bias = len(shapes) > 1
        hidden = hidden_generator(self.model_rng, self.parameters.device)
        with hidden as streams, silenced(), self._state.untouched():
            parts = self._all_inputs(streams, rng, bias)
            return feature_product_sum(parts, int(shapes[0][1]) + bias, size_weight)

    def _all_inputs(
        self, streams: HiddenStreams, rng: RandomSource, bias: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs of all units that can be read, and one over the rows of their unit."""
        count = max(1, _UNITS_OF_INPUTS // self._units.rows_per_unit)
        for start in range(0, self._units.size, count):
            some = np.arange(start, min(start + count, self._units.size))
            indices, owners = self._units.rows(some, rng)
            batch, found = self._records.read(indices, streams)
            if batch is None:
                continue
            weights = np.ones(len(found))
            if owners is not None:
                weights = 1 / np.bincount(owners)[owners[found]]
            inputs = batch.dense().inputs.cpu()
            rows = torch.nn.functional.pad(inputs, (0, 1), value=1.0) if bias else inputs
            yield rows, torch.from_numpy(weights)

    def features(self) -> int:
        """Return how many features a record has; raise if its inputs are not one row of numbers."""
        inputs = self._dummy_batch.inputs
        if isinstance(inputs, Tensor) and inputs.is_floating_point() and inputs.ndim == 2:
            return int(inputs.shape[1])
        raise ArgumentError(
            "Expected records whose inputs are one row of numbers each, to find the moments of "
            "their features, got others. Flatten them, or give scales with "
            "pv.preconditioning.by_feature. Nothing was charged."
        )

    def feature_sum(self, rng: RandomSource, part: int = 0, parts: int = 1) -> ClippedSum:
        """Return the sum over all units of x^2 / |x^2|, and of how large their rows are.

        A unit counts as the average over its rows, of which `rng` chooses some where there are
        more than a look takes. With `parts`, it is the sum over one of so many disjoint parts.
        """
        width, device = self.features(), self.parameters.device
        with hidden_generator(self.model_rng, device) as streams, silenced():
            read = (
                (batch.without_dummies().inputs, None if of is None else torch.from_numpy(of))
                for batch, of in self._all_units(width, streams, rng, part, parts)
            )
            return feature_sum(width, read, device)

    def _all_rows(
        self, streams: HiddenStreams, rng: RandomSource, part: int = 0, parts: int = 1
    ) -> Iterator[Tensor]:
        """Yield the gradients of all units as rows; what fails is left out, as zero."""
        for batch, of in self._all_units(self.parameters.size, streams, rng, part, parts):
            if of is None:
                yield from self._gradients(batch)
                continue
            for unit in np.unique(of):
                own = batch.at(torch.from_numpy(np.flatnonzero(of == unit)))
                yield from averages(self._gradients(own), torch.zeros(own.size))

    def _all_units(
        self, width: int, streams: HiddenStreams, rng: RandomSource, part: int, parts: int
    ) -> Iterator[tuple[Batch, Indices | None]]:
        """Yield the records of all units, some units at a time, and the unit that each is of.

        So many that a row of `width` numbers for each record does not take too much memory.
        """
        room = _GRADIENT_BYTES // (8 * width * self._units.rows_per_unit)
        count = max(1, min(_UNITS_AT_A_TIME, room))
        for place, start in enumerate(range(0, self._units.size, count)):
            some = np.arange(start, min(start + count, self._units.size))
            indices, owners = self._units.rows(some, rng)  # for all: the same choices in each part
            if place % parts != part:
                continue
            batch, found = self._records.read(indices, streams)
            if batch is not None:
                yield batch, None if owners is None else owners[found]

    def _gradients(self, batch: Batch) -> list[Tensor]:
        """Return the gradients of records as rows; those of records that fail are zero."""
        some = self._rows(batch)
        if some is not None:
            return some
        singles = [self._rows(one) for one in batch.chunks(1)]
        none = self.parameters.zeros()[None]
        return [rows for one in singles for rows in ([none] if one is None else one)]

    def _rows(self, batch: Batch) -> list[Tensor] | None:
        """Return the gradients of some records as rows, None if one of them makes it fail."""
        try:
            with settings_kept():
                return list(self.engine.rows(batch))
        except BaseException as error:
            pass_on_signals(error)
            return None


def _places(batch: Batch, group: int) -> Tensor:
    """Return the places of a group's members."""
    assert batch.groups is not None
    return torch.nonzero(batch.groups == group).reshape(-1)
