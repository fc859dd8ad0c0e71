"""Metrics of models of transformers, whose outputs and labels are not laid out as torch's."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privada.clipping.losses import example_losses
from privada.clipping.model_losses import IGNORED, ModelLoss
from privada.metrics.classification import accuracy
from privada.metrics.metric import Metric, numbers
from privada.metrics.regression import r2

# The logarithm of the largest perplexity.
_MOST = 700.0


def metrics_of_model(loss: ModelLoss) -> tuple[Metric, ...]:
    """Return the metrics that go with the loss of a model of transformers.

    They are the perplexity of a language model, R^2 of numbers, or the accuracy of classes, and the
    loss. Of tokens with labels each counts the same.
    """
    own = Metric("loss", _Weighted(loss), _average, greater=False)
    if loss.of_words:
        return Metric("perplexity", _Weighted(loss), _perplexity, greater=False), own
    plain = r2() if loss.of_numbers else accuracy()
    return Metric(plain.name, _Aligned(loss, plain), plain.reduce), own


@dataclass(frozen=True)
class _Aligned:
    loss: ModelLoss
    plain: Metric

    def __call__(self, outputs: Any, labels: Tensor) -> Any:
        return self.plain.each(*self.loss.aligned(numbers(outputs), labels))


@dataclass(frozen=True)
class _Weighted:
    """The losses of examples, times how many labels each has, and these numbers."""

    loss: ModelLoss

    def __call__(self, outputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = numbers(outputs)
        losses = example_losses(self.loss, logits, labels).double()
        _, counted = self.loss.aligned(logits, labels)
        weights = torch.ones_like(losses)
        if logits.ndim == 3 and labels.ndim == 2:
            weights = (counted != IGNORED).sum(dim=1).double()
        return torch.where(weights > 0, losses, 0.0) * weights, weights


def _average(noted: tuple[Tensor, Tensor]) -> float:
    losses, weights = noted
    return float(losses.sum() / weights.sum())


def _perplexity(noted: tuple[Tensor, Tensor]) -> float:
    return math.exp(min(_average(noted), _MOST))
