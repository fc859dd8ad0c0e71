"""Scores of a model on private records that it was not trained on, with noise and charged."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from privada import data
from privada.accounting import events
from privada.clipping import Batch
from privada.clipping.calling import call, output_tensors
from privada.clipping.dependence import Dependence
from privada.clipping.labels import SEVERAL
from privada.clipping.losses import Loss, example_losses
from privada.clipping.probes import refuse_mixing_models
from privada.clipping.record_by_record import CHUNK, RecordByRecord, keeps_apart
from privada.clipping.scores import bounded_sum
from privada.core.deprecation import renamed
from privada.core.errors import ArgumentError, ModelError
from privada.core.hidden_streams import HiddenStreams, hidden_generator
from privada.core.randomness import RandomSource, SecureSource
from privada.core.silence import silenced
from privada.core.state import HeldState
from privada.core.validation import positive, real
from privada.noise import GaussianNoise
from privada.query.account import Account


@dataclass(frozen=True)
class Score:
    """What is measured of a model on each record, and between which bounds.

    Args:
        name: what it is called.
        each: a function of (outputs, targets) of some records that returns one number for each.
        low, high: the bounds. A record beyond them counts as the bound that it passed.
        greater: whether more is better.

    Guarantee: a record moves the sum of scores by at most `high - low`; noise is scaled to that.

    Edge cases: a record on which the model fails, or whose score is not a number, counts as the
    worst. Where the model or the score reads values, as by `if` or `item()`, records are scored one
    at a time.

    Example:
        >>> import privada as pv, torch
        >>> close = pv.selection.Score(
        ...     "within one", lambda out, target: ((out - target).abs() <= 1).float().mean(dim=1)
        ... )
        >>> close.each(torch.zeros(2, 1), torch.tensor([[0.5], [3.0]])).tolist()
        [1.0, 0.0]
    """

    name: str
    each: Callable[[Any, Any], Tensor]
    low: float = 0.0
    high: float = 1.0
    greater: bool = True

    def __post_init__(self) -> None:
        if not callable(self.each):
            raise ArgumentError(
                f"Expected each to be a function of (outputs, targets), got each={self.each!r}."
            )
        if real("low", self.low) >= real("high", self.high):
            raise ArgumentError(
                f"Expected low < high, got low={self.low!r}, high={self.high!r}. They are the "
                "least and the greatest score that a record can have."
            )
        real("high - low", self.span)

    @property
    def span(self) -> float:
        """How far one record can move the sum."""
        return self.high - self.low

    def utilities(self, outputs: Any, targets: Any) -> Tensor:
        """Return how much better each record is than the worst, not yet brought into bounds."""
        each = self.each(outputs, targets)
        return each - self.low if self.greater else self.high - each

    def from_utility(self, utility: float) -> float:
        """Return the score that stands for an average utility."""
        return self.low + utility if self.greater else self.high - utility

    def merits(self, outputs: Any, targets: Any) -> Tensor:
        """Return what `utilities` does; its former name."""
        renamed("Score.merits", "Score.utilities")
        return self.utilities(outputs, targets)

    def from_merit(self, merit: float) -> float:
        """Return what `from_utility` does; its former name."""
        renamed("Score.from_merit", "Score.from_utility")
        return self.from_utility(merit)

    def check(self, model: nn.Module, example: Batch) -> None:
        """Raise if scores of dummy examples are wrong in shape, out of bounds or of each other.

        Were a record's score another one beside others than alone, one record more could move the
        sum by more than the span.
        """
        try:
            refuse_mixing_models(model, example, modes=(False,))
        except ModelError:
            raise
        except Exception as error:
            raise ArgumentError(
                "Expected a model that accepts the shapes and types of the records to be scored, "
                f"but on dummy examples it failed with: {error}."
            ) from error
        outputs, found = self._check_alone(model, example)
        self._check_reach(outputs, example.targets)
        if not self.keeps_apart(model, example, CHUNK):
            warnings.warn(
                f"The model or the score {self.name!r} cannot be followed through a batch, so "
                "records are scored one at a time: slower, but as private.",
                stacklevel=2,
            )
        finite = found[torch.isfinite(found)].double()
        if bool(((finite < self.low) | (finite > self.high)).any()):
            low, high = float(finite.min()), float(finite.max())
            raise ArgumentError(
                f"Expected scores between low={self.low:g} and high={self.high:g}, but "
                f"{self.name!r} of dummy examples is between {low:g} and {high:g}. Give bounds "
                "that scores keep to, or clamp them: noise is scaled to the bounds."
            )

    def _check_alone(self, model: nn.Module, example: Batch) -> tuple[Any, Tensor]:
        """Return outputs and scores of dummy examples; raise if one is another one alone."""
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                outputs = call(model, example.inputs)
                found = self.each(outputs, example.targets)
                first = call(model, _row(example.inputs, 0))
                alone = [
                    self.each(_row(outputs, i), _row(example.targets, i))
                    for i in range(example.size)
                ]
        except Exception as error:
            raise ArgumentError(
                f"Expected the score {self.name!r} to accept the model's outputs and the targets, "
                f"but on dummy examples it failed with: {error}."
            ) from error
        wanted = [(example.size,)] + [(1,)] * example.size
        for each, shape in zip([found, *alone], wanted, strict=True):
            if not isinstance(each, Tensor) or tuple(each.shape) != shape:
                got = tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__
                raise ArgumentError(
                    f"Expected the score {self.name!r} to be one number for each of {shape[0]} "
                    f"examples, got shape {got}. Return a tensor, without averaging over examples "
                    "or squeezing a batch of one."
                )
        pairs = zip(output_tensors(first), output_tensors(_row(outputs, 0)), strict=True)
        for own, other in pairs:
            if own.shape != other.shape:
                raise ArgumentError(
                    f"Expected the model to return shape {tuple(other.shape)} for a single "
                    f"example, got {tuple(own.shape)}. Do not squeeze a batch of one."
                )
        if not torch.isclose(
            torch.cat(alone).double(), found.double(), rtol=1e-3, atol=1e-5, equal_nan=True
        ).all():
            raise ArgumentError(
                f"Expected the score {self.name!r} of an example to be the same beside others and "
                "alone, but on dummy examples it is not. Score each example by itself, without "
                "ranks, medians or averages over the others."
            )
        return outputs, found

    def _check_reach(self, outputs: Any, targets: Any) -> None:
        """Raise if a score can depend on other examples, though dummy ones do not show it."""
        outputs, targets = tree_map(torch.clone, (outputs, targets))
        with torch.no_grad(), (seen := Dependence()):
            for values in tree_leaves((outputs, targets)):
                seen.own(values)
            try:
                labels = seen.labels(self.each(outputs, targets))
            except Exception:  # it reads values, or cannot be followed; values were compared
                return
        if labels is not None and bool((labels == SEVERAL).any()):
            raise ArgumentError(
                f"Expected the score {self.name!r} of an example to depend on this example alone, "
                "but it is made with numbers of others. Score each example by itself, without "
                "maxima, ranks or averages over the others."
            )

    def keeps_apart(self, model: nn.Module, example: Batch, most: int) -> bool:
        """Return whether a record's score follows from this record alone in batches up to `most`.

        Dummy examples are followed number by number, in a small batch and in one of that size, as
        for training. Where a value is read, or no rule knows, it is not known.
        """
        return keeps_apart(lambda b: self.each(call(model, b.inputs), b.targets), example, most)


def _row(values: Any, index: int) -> Any:
    return tree_map(lambda t: t[index : index + 1], values)


def _right(output: Any, targets: Tensor) -> Tensor:
    outputs: Tensor = getattr(output, "logits", output)
    if outputs.ndim > 1 and outputs.shape[1] > 1:
        right = outputs.argmax(dim=1) == targets
    else:
        right = (outputs.reshape(targets.shape) > 0) == (targets > 0.5)
    return right.reshape(len(outputs), -1).double().mean(dim=1)


def accuracy() -> Score:
    """Return the share of records whose class is predicted rightly.

    Outputs, or their `.logits`, are one number for each class, or a single one that is positive for
    the second of two classes; where a record has several targets, its share of right ones counts.

    Guarantee: a record moves the sum by at most 1.

    Example:
        >>> import privada as pv, torch
        >>> outputs = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
        >>> pv.selection.accuracy().each(outputs, torch.tensor([0, 0])).tolist()
        [1.0, 0.0]
    """
    return Score("accuracy", _right)


@dataclass(frozen=True)
class _EachLoss:
    loss: Loss

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        return example_losses(self.loss, outputs, targets)


def bounded_loss(loss: Loss, bound: float) -> Score:
    """Return a loss as a score, each record's brought between 0 and `bound`; less is better.

    Guarantee: a record moves the sum by at most `bound`, whatever its loss.

    Edge cases: dummy examples beyond the bound do not matter here, since losses usually have
    none; choose one that ordinary records keep to.

    Example:
        >>> import privada as pv, torch
        >>> score = pv.selection.bounded_loss(torch.nn.MSELoss(), bound=4.0)
        >>> score.each(torch.tensor([[1.0], [9.0]]), torch.zeros(2, 1)).tolist()
        [1.0, 4.0]
    """
    top = positive("bound", bound)
    each = _EachLoss(loss)
    return Score("loss", _Clamped(each, top), 0.0, top, greater=False)


@dataclass(frozen=True)
class _Clamped:
    each: Callable[[Any, Any], Tensor]
    top: float

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        return self.each(outputs, targets).clamp(0.0, self.top)


@dataclass(frozen=True)
class NoisyScore:
    """A released score: its value, and the standard deviation of the noise in it."""

    value: float
    std: float


class Scorer:
    """Owns private records that no model was trained on, and releases scores of models on them.

    One query is: charge the ledger durably, score all units, add noise, release. A unit is a
    record, or all records of a person; a person's score is the average over at most
    `units.rows_per_unit` of their records, chosen afresh for each query.

    Args:
        records: the private records.
        score: what is measured.
        population: the number of units, as far as it is public; sums are divided by it.
        account: what pays for queries.
        noise: the source of noise.
        model_rng: what hidden randomness of the model comes from.
        units: which records belong to one person; by default each is a unit of its own.
        sampling_rng: what the choice of a person's records comes from.

    Guarantee: each query is one Gaussian release of a sum that a unit moves by at most the score's
    span, however many records it has.
    """

    def __init__(
        self,
        records: data.Records,
        score: Score,
        *,
        population: float,
        account: Account,
        noise: GaussianNoise,
        model_rng: RandomSource,
        units: data.Units | None = None,
        sampling_rng: RandomSource | None = None,
    ) -> None:
        self._records, self._score = records, score
        self._units: data.Units = data.RowUnits(records.size) if units is None else units
        self._sampling_rng = SecureSource() if sampling_rng is None else sampling_rng
        self._population = positive("population", population)
        self._account, self._noise, self._rng = account, noise, model_rng

    def query(self, model: nn.Module, noise_multiplier: float) -> NoisyScore:
        """Return the model's average score with noise.

        Raises:
            BudgetExceeded: before any record is read.
            LedgerError: before any record is read.
        """
        event = events.gaussian(positive("noise_multiplier", noise_multiplier))
        receipt = self._account.pay(event)
        device = next(model.parameters()).device
        before = model.training
        model.eval()
        state = HeldState(model, self._score.each, readers=data.readers_of(self._records))
        hidden = hidden_generator(self._rng, device)
        try:
            with hidden as streams, silenced(), state.untouched(), torch.no_grad():
                total = bounded_sum(self._utilities(model, streams), self._score.span, device)
        finally:
            model.train(before)
        release = self._noise.release(total, receipt, self._population)
        utility = float(release.gradient[0])
        return NoisyScore(self._score.from_utility(utility), release.noise_std / self._population)

    def _each(self, model: nn.Module) -> RecordByRecord:
        """Return what finds the utility of each record by itself."""

        def utilities(batch: Batch) -> Tensor:
            outputs = tree_map(lambda v: v[: batch.size], call(model, batch.inputs))
            return self._score.utilities(outputs, batch.without_dummies().targets)

        return RecordByRecord(
            utilities,
            data.dummy_batch(self._records).dense(),
            factors=lambda batch: output_tensors(call(model, batch.inputs)),
            expected=int(self._population) * self._units.rows_per_unit,  # public
        )

    def _utilities(self, model: nn.Module, streams: HiddenStreams) -> Iterator[Tensor]:
        """Yield the utilities of all units; a record that fails counts as the worst."""
        each = self._each(model)
        count = max(1, CHUNK // self._units.rows_per_unit)
        for start in range(0, self._units.size, count):
            units = np.arange(start, min(start + count, self._units.size))
            rows, owners = self._units.rows(units, self._sampling_rng)
            utilities, places = self._of_rows(each, rows, streams)
            if owners is None:
                yield utilities
            else:
                yield self._averages(utilities, owners[places], np.bincount(owners))

    def _averages(self, utilities: Tensor, owners: data.Indices, counts: data.Indices) -> Tensor:
        """Return the average utility of each unit, each record's brought into bounds before.

        `counts` are the records that were chosen, those that fail included.
        """
        device = utilities.device
        bounded = utilities.double().nan_to_num(nan=0.0).clamp(0.0, self._score.span)
        totals = torch.zeros(len(counts), dtype=torch.float64, device=device)
        totals.index_add_(0, torch.from_numpy(owners).to(device), bounded)
        return totals / torch.from_numpy(counts).to(device)

    def _of_rows(
        self, each: RecordByRecord, rows: data.Indices, streams: HiddenStreams
    ) -> tuple[Tensor, data.Indices]:
        """Return the utilities of the records that do not fail, and their places among `rows`."""
        batch, found = self._records.read(rows, streams)
        utilities, fine = (None, found) if batch is None else each.of(batch.dense())
        if utilities is None:
            return torch.zeros(0, dtype=torch.float64), found[:0]
        return utilities, found[fine]


def public_score(score: Score, model: nn.Module, records: data.Records) -> float:
    """Return the average score on public records, as it is."""
    total, before = 0.0, model.training
    model.eval()
    try:
        with torch.no_grad():
            for start in range(0, records.size, CHUNK):
                some = records.fetch(np.arange(start, min(start + CHUNK, records.size))).dense()
                utilities = score.utilities(call(model, some.inputs), some.targets)
                total += float(utilities.double().nan_to_num(nan=0.0).clamp(0.0, score.span).sum())
    finally:
        model.train(before)
    return score.from_utility(total / max(1, records.size))
