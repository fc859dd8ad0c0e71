"""The public rows of a trainer of transformers, and what `compute_metrics` finds on them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from privada.clipping.calling import call
from privada.clipping.losses import Loss
from privada.core.errors import ArgumentError, DataError
from privada.core.validation import shown
from privada.metrics import Metric, Validation
from privada.metrics.losses import metrics_of
from privada.metrics.metric import numbers

ComputeMetrics = Callable[[Any], Mapping[str, float]]
# How many rows run through the model at a time: logits of words are large.
EVALUATED = 32
# How many rows are tried to see which figures there are.
_TRIED = 16


class EvaluatedRows(NamedTuple):
    """What `compute_metrics` gets, as from transformers: logits and labels of public rows."""

    predictions: np.ndarray
    label_ids: np.ndarray


@dataclass(frozen=True)
class Evaluation:
    """How public rows are to be evaluated.

    Args:
        compute: transformers' `compute_metrics`, None without.
        best: the name of the figure that early stopping goes by, None for the first.
        greater: whether more of it is better, None for what its name says.
        every: how many steps lie between two evaluations.
        batch_size: how many rows run through the model at a time.
    """

    compute: ComputeMetrics | None = None
    best: str | None = None
    greater: bool | None = None
    every: int | None = None
    batch_size: int = EVALUATED

    def of(
        self, rows: Any, model: nn.Module, loss: Loss, collate: Callable[[list[Any]], Any]
    ) -> Validation:
        """Return the validation on some public rows."""
        if isinstance(rows, Mapping):
            raise DataError(
                f"Expected eval_dataset to be one data set, got several, {', '.join(rows)}. Give "
                "one of them, such as rows['validation'], and the others to evaluate()."
            )
        metrics: tuple[Metric, ...] = metrics_of(loss)
        if self.compute is not None:
            own = self._computed(rows, model, collate)
            names = {each.name for each in own}
            left = (each for each in metrics if each.name not in names | {"accuracy", "R^2"})
            metrics = (*own, *left)
        return Validation(
            rows, every=self.every, metrics=self._sorted(metrics), batch_size=self.batch_size
        )

    def _sorted(self, metrics: Sequence[Metric]) -> list[Metric]:
        """Return the metrics with the one first that stopping goes by."""
        if self.best is None:
            return list(metrics)
        name = self.best.removeprefix("eval_")
        first = [each for each in metrics if each.name == name]
        if not first:
            raise ArgumentError(
                "Expected metric_for_best_model to be one of the figures "
                f"{', '.join(each.name for each in metrics)}, got "
                f"metric_for_best_model={shown(self.best)}."
            )
        (best,) = first
        if self.greater is not None:
            best = Metric(best.name, best.each, best.reduce, self.greater)
        return [best, *(each for each in metrics if each.name != name)]

    def _computed(
        self, rows: Any, model: nn.Module, collate: Callable[[list[Any]], Any]
    ) -> tuple[Metric, ...]:
        """Return a metric for each figure that `compute_metrics` finds on some rows."""
        assert self.compute is not None
        some = [collate([rows[place]]) for place in range(min(_TRIED, len(rows)))]
        before = model.training
        device = next(model.parameters()).device
        model.eval()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                outputs = [
                    numbers(call(model, {n: v.to(device) for n, v in inputs.items()}))
                    for inputs, _ in some
                ]
        finally:
            model.train(before)
        found = _figures(self.compute, torch.cat(outputs), torch.cat([y for _, y in some]))
        # as transformers takes it: less is better of what is called a loss
        return tuple(
            Metric(
                name,
                _logits_and_labels,
                _Figure(self.compute, name),
                greater=not name.endswith("loss"),
            )
            for name in found
        )


def _logits_and_labels(outputs: Any, labels: Any) -> tuple[Any, Any]:
    return numbers(outputs), labels


@dataclass(frozen=True)
class _Figure:
    """One of the figures that `compute_metrics` finds."""

    compute: ComputeMetrics
    name: str

    def __call__(self, noted: tuple[Tensor, Tensor]) -> float:
        return _figures(self.compute, *noted)[self.name]


def _figures(compute: ComputeMetrics, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Return what `compute_metrics` finds, by names without the prefix of an evaluation."""
    given = EvaluatedRows(outputs.cpu().numpy(), labels.cpu().numpy())
    found = compute(given)
    if not isinstance(found, Mapping) or not found:
        raise ArgumentError(
            "Expected compute_metrics to return a dictionary of numbers by name, got "
            f"{shown(found)}."
        )
    try:
        return {str(name).removeprefix("eval_"): float(value) for name, value in found.items()}
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"Expected compute_metrics to return numbers by name, got {shown(dict(found))}. "
            "Return one number for each name."
        ) from error
