"""What a model reaches that gives every record the same output."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from privada.clipping.model_losses import ModelLoss
from privada.metrics.metric import Metric, numbers

# A class that does not occur still has a logarithm.
_LEAST = 1e-9


def constant_outputs(output: Any, targets: Any, loss: Any = None) -> Iterator[Tensor]:
    """Yield outputs that a model could give to every record, made from the targets alone.

    They are the logarithms of the frequencies of classes, or the means, the medians and the
    log-odds of numbers. `output` is that of one record, whose shape they have; of a model of
    transformers, whose `loss` says so, it has the classes last where each token has a label.
    """
    output = numbers(output)
    if not isinstance(output, Tensor) or not isinstance(targets, Tensor):
        return
    if isinstance(loss, ModelLoss) and output.ndim == 3 and targets.ndim == 2:
        _, labels = loss.aligned(output, targets)
        yield _log_frequencies(output.movedim(-1, 1), labels).movedim(1, -1)
        return
    several = output.ndim == targets.ndim + 1 and output.shape[1] > 1
    if several and not targets.is_floating_point():
        yield _log_frequencies(output, targets)
    elif output.numel() == targets[:1].numel():
        given = targets.double()
        mean = given.mean(dim=0)
        yield _like(output, mean)
        yield _like(output, given.median(dim=0).values)
        if bool(((mean >= 0) & (mean <= 1)).all()):
            mean = mean.clamp(_LEAST, 1 - _LEAST)
            yield _like(output, mean.log())
            yield _like(output, mean.log() - (1 - mean).log())


def _log_frequencies(output: Tensor, targets: Tensor) -> Tensor:
    classes = output.shape[1]
    counted = targets[(targets >= 0) & (targets < classes)].reshape(-1)
    counts = torch.bincount(counted, minlength=classes).double()
    logs = (counts / counts.sum().clamp(min=1)).clamp(min=_LEAST).log().to(output)
    return logs.reshape(1, classes, *(1,) * (output.ndim - 2)).expand(output.shape)


def _like(output: Tensor, values: Tensor) -> Tensor:
    return values.to(output).reshape(output.shape)


def best_of_constants(
    metrics: Sequence[Metric], constants: Sequence[Tensor], targets: Sequence[Tensor]
) -> dict[str, float]:
    """Return the best figure that one of some constant outputs reaches, for each metric.

    `targets` come in chunks. A metric that no constant has a figure for is left out.
    """
    found: dict[str, float] = {}
    for metric in metrics:
        figures = [_figure(metric, constant, targets) for constant in constants]
        figures = [figure for figure in figures if math.isfinite(figure)]
        if figures:
            found[metric.name] = (max if metric.greater else min)(figures)
    return found


def _figure(metric: Metric, constant: Tensor, targets: Sequence[Tensor]) -> float:
    try:
        return metric.of(
            [metric.each(constant.expand(len(some), *constant.shape[1:]), some) for some in targets]
        )
    except Exception:  # a metric of the user's own that has none for such outputs
        return math.nan
