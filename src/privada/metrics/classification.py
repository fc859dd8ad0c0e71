"""Metrics of classes."""

from typing import Any

import torch
from scipy.stats import rankdata
from torch import Tensor

from privada.core.errors import ArgumentError
from privada.metrics.metric import Metric, numbers


def accuracy() -> Metric:
    """Return the share of targets whose class is predicted rightly.

    Outputs are one number for each class, or a single one that is positive for the second of two
    classes. Where a record has several targets, as tokens or as questions with yes or no, each
    counts.

    Guarantee: none; it is for public records.

    Edge cases: targets below 0, such as the -100 that torch ignores, do not count. Of outputs with
    several parts, as of models of transformers, the logits count.

    Example:
        >>> import privada as pv, torch
        >>> right = pv.metrics.accuracy()
        >>> outputs = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
        >>> right.of([right.each(outputs, torch.tensor([0, 0]))])
        0.5
    """
    return Metric("accuracy", _right_and_counted, _share)


def _right_and_counted(outputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
    outputs = numbers(outputs)
    counted = targets >= 0
    if outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 1:
        right = outputs.argmax(dim=1) == targets
    elif _are_shares(outputs, targets):
        right = outputs.argmax(dim=1) == targets.argmax(dim=1)
        counted = torch.ones_like(right)
    else:
        right = (outputs.reshape(targets.shape) > 0) == (targets > 0.5)
    return _by_record(right & counted), _by_record(counted)


def _are_shares(outputs: Tensor, targets: Tensor) -> bool:
    """Return whether a target has a share for each of several classes."""
    if outputs.shape != targets.shape or targets.ndim < 2 or targets.shape[1] == 1:
        return False
    totals = targets.double().sum(dim=1)
    return torch.allclose(totals, torch.ones_like(totals), atol=1e-4)


def _by_record(flags: Tensor) -> Tensor:
    return flags.reshape(len(flags), -1).double().sum(dim=1)


def _share(noted: tuple[Tensor, Tensor]) -> float:
    right, counted = noted
    return float(right.sum() / counted.sum())


def auc() -> Metric:
    """Return the area under the ROC curve of two classes, ties counted half.

    Outputs are two numbers, one for each class, or a single one that is greater for the second.

    Guarantee: none; it is for public records.

    Edge cases: where all targets are of one class there is no such figure, and it is not a number.

    Example:
        >>> import privada as pv, torch
        >>> area = pv.metrics.auc()
        >>> outputs, targets = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])
        >>> area.of([area.each(outputs, targets)])
        0.75

    Reference: Hanley and McNeil (1982), The Meaning and Use of the Area under a Receiver Operating
    Characteristic Curve.
    """
    return Metric("area under the ROC curve", _margins, _area)


def _margins(outputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
    outputs = numbers(outputs)
    flat = outputs.reshape(len(outputs), -1)
    if flat.shape[1] > 2 or targets.numel() != len(outputs):
        raise ArgumentError(
            "Expected outputs for two classes, one or two numbers for each record, got shape "
            f"{tuple(outputs.shape)}. Use pv.metrics.accuracy() for more classes."
        )
    margins = flat[:, 0] if flat.shape[1] == 1 else flat[:, 1] - flat[:, 0]
    return margins.double(), targets.reshape(-1) > 0.5


def _area(noted: tuple[Tensor, Tensor]) -> float:
    margins, second = (each.cpu().numpy() for each in noted)
    ones, zeros = int(second.sum()), int((~second).sum())
    if not ones or not zeros:
        return float("nan")
    ranks = rankdata(margins)  # not a number where a margin is not
    return float((ranks[second].sum() - ones * (ones + 1) / 2) / (ones * zeros))
