"""Public records that a model is evaluated on while it trains."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from privada import data as private_data
from privada.clipping import Batch
from privada.clipping.calling import call
from privada.clipping.losses import Loss
from privada.core.errors import ArgumentError, DataError, PrivadaError
from privada.core.overlap import refuse_private
from privada.core.public_examples import as_public
from privada.core.validation import integer, shown
from privada.metrics.baselines import best_of_constants, constant_outputs
from privada.metrics.losses import metrics_of
from privada.metrics.metric import Metric, metric, numbers

# How many records are tried before a run.
_TRIED = 16


@dataclass(frozen=True, eq=False)
class Validation:
    """Records that are declared public, on which a model is evaluated while it trains.

    Args:
        data: what `Trainer` takes as data, or a `pv.Public`.
        every: how many steps lie between two evaluations; by default there are ten in a run. The
            end of the run is one in any case.
        metrics: what is measured, of `pv.metrics`; a `pv.selection.Score` works too. By default
            accuracy or R^2, as it suits the loss, and the loss itself. The first is the one that
            `pv.EarlyStopping` goes by.
        baseline: the output of a model that gives every record the same, from which the baselines
            are computed, such as the logarithms of public class frequencies. By default, for each
            metric, the best of some that are made from the targets of these records: class
            frequencies, or the mean, the median and the log-odds.
        batch_size: how many records run through the model at a time.

    Guarantee: none for these records: their figures are shown as they are. They must be public,
    and so tell nothing of a private record; the statement says that they were declared so. For the
    private records nothing changes, since an evaluation looks at released models alone.

    Edge cases: records that are the private ones, the same memory or subset, or copies of most of
    them, are refused, as for `pv.Public`. A transform of the trainer is not used; its collate is. A
    metric that is not a number, as the AUC of a single class, stays so and never is the best.

    Example:
        >>> import privada as pv, torch
        >>> x = torch.rand(600, 2)
        >>> y = (x.sum(dim=1) > 1).long()
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), (x[:400], y[:400]),
        ...     method=pv.methods.DPSGD(lr=0.5), batch_size=40, steps=20,
        ...     budget=pv.Budget(4.0, 1e-4),
        ...     validation=pv.Validation((x[400:], y[400:]), every=5),
        ... ).fit()
        >>> [each.step for each in trainer.evaluations]
        [5, 10, 15, 20]
        >>> sorted(trainer.evaluations[-1].values) == sorted(trainer.evaluations[-1].baselines)
        True
    """

    data: Any
    every: int | None = None
    metrics: Sequence[Any] | None = None
    baseline: Any = None
    batch_size: int = 256

    def __post_init__(self) -> None:
        if self.every is not None:
            integer("every", self.every)
        integer("batch_size", self.batch_size)
        if self.metrics is not None:
            given = self.metrics if isinstance(self.metrics, (list, tuple)) else (self.metrics,)
            chosen = tuple(metric(each) for each in given)
            names = [each.name for each in chosen]
            if not chosen or len(set(names)) < len(names):
                raise ArgumentError(
                    "Expected metrics to be one or more with different names, got "
                    f"{', '.join(map(repr, names)) or 'none'}. Leave them out for those that suit "
                    "the loss."
                )
            object.__setattr__(self, "metrics", chosen)

    def __repr__(self) -> str:
        return f"Validation({self.describe()})"

    def describe(self) -> str:
        """Return the settings in words."""
        names = "" if self.metrics is None else ", ".join(each.name for each in self.metrics)
        often = "ten times" if self.every is None else f"every {self.every} steps"
        return f"{names or 'the usual metrics'} on public records {often}"

    def on(
        self, model: nn.Module, loss: Loss, private: Sequence[Any], load: Any
    ) -> "PublicEvaluator":
        """Return what evaluates a model on these records.

        `private` are the data that they must not be; `load` makes records of public data.

        Raises:
            DataError: they are the private ones, or the model or a metric fails on them.
        """
        given = as_public(self.data).data
        for each in private:
            refuse_private(given, each)
        metrics = metrics_of(loss) if self.metrics is None else tuple(self.metrics)
        records = load(given)
        made = PublicEvaluator(model, metrics, records, self.baseline, self.batch_size, loss)
        output = numbers(made.output_of_one())
        if isinstance(output, Tensor):
            private_data.check_ranges(records, model, loss, output)
        return made


class PublicEvaluator:
    """Evaluates a model on public records.

    Args:
        model: the model.
        metrics: what is measured.
        records: the records.
        baseline: one output for all, None for some that are made from the targets.
        batch_size: how many records run through the model at a time.
        loss: the loss of the model, which may say how its outputs are laid out.
    """

    def __init__(
        self,
        model: nn.Module,
        metrics: tuple[Metric, ...],
        records: private_data.Records,
        baseline: Any,
        batch_size: int,
        loss: Any = None,
    ) -> None:
        self.metrics, self._loss = metrics, loss
        self._model, self._records, self._given = model, records, baseline
        self._size = batch_size
        self._try()

    def _try(self) -> None:
        """Raise unless model and metrics work on some records."""
        try:
            self._figures(min(_TRIED, self._records.size))
            _ = self._constants(few=True)
        except PrivadaError:
            raise
        except Exception as error:  # whatever a user's model or metric raises
            raise DataError(
                "Expected public records that the model and the metrics of the validation accept, "
                f"got some on which they fail with: {str(error).rstrip('.')}. Give them as private "
                "ones are given."
            ) from error

    def values(self) -> dict[str, float]:
        """Return the figures of the model as it is."""
        return self._figures(self._records.size)

    @cached_property
    def baselines(self) -> dict[str, float]:
        """What a model reaches that gives every record the same output, for each metric."""
        targets = [batch.targets for batch in self._batches(self._records.size)]
        if not all(isinstance(each, Tensor) for each in targets):
            return {}
        with torch.no_grad():
            return best_of_constants(self.metrics, self._constants(), targets)

    def output_of_one(self) -> Any:
        """Return the output of the model as it is for the first record."""
        before = self._model.training
        self._model.eval()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                return call(self._model, next(self._batches(1)).inputs)
        finally:
            self._model.train(before)

    def _figures(self, count: int) -> dict[str, float]:
        noted: list[list[Any]] = [[] for _ in self.metrics]
        before = self._model.training
        self._model.eval()
        try:
            # the draws of a model are its own, and a run's do not depend on how often it looks
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                for batch in self._batches(count):
                    outputs = call(self._model, batch.inputs)
                    for metric, parts in zip(self.metrics, noted, strict=True):
                        parts.append(_kept(metric.each(outputs, batch.targets)))
                return {m.name: m.of(parts) for m, parts in zip(self.metrics, noted, strict=True)}
        finally:
            self._model.train(before)

    def _batches(self, count: int) -> Iterator[Batch]:
        for start in range(0, count, self._size):
            places = np.arange(start, min(start + self._size, count))
            yield self._records.fetch(places).dense()

    def _constants(self, few: bool = False) -> list[Tensor]:
        """Return outputs that a model could give to all records."""
        one, output = next(self._batches(1)), self.output_of_one()
        if self._given is not None:
            given = torch.as_tensor(self._given)
            if not isinstance(output, Tensor) or given.numel() != output.numel():
                raise ArgumentError(
                    f"Expected baseline to be one output of the model, got baseline="
                    f"{shown(self._given)}. Give as many numbers as the model has outputs."
                )
            return [given.to(output).reshape(output.shape)]
        if few or not isinstance(one.targets, Tensor):
            return []
        targets = torch.cat([batch.targets for batch in self._batches(self._records.size)])
        return list(constant_outputs(output, targets, self._loss))


def figures_on(
    model: nn.Module, validation: Validation
) -> tuple[dict[str, float], dict[str, float]]:
    """Return what a model reaches on public records, whose metrics are given, and baselines."""
    first = next(model.parameters())

    def load(given: Any) -> private_data.Records:
        return private_data.load(given, first.dtype, first.device, public=True)

    found = validation.on(model, nn.Identity(), (), load)
    return found.values(), found.baselines


def _kept(noted: Any) -> Any:
    """Return what was noted of some records, in ordinary memory."""
    return tree_map(lambda each: each.detach().cpu(), noted)
