"""Metrics of numbers."""

from torch import Tensor

from privada.metrics.metric import Metric


def r2() -> Metric:
    """Return the share of the targets' variance that the outputs explain, R^2.

    It is 1 for outputs without error, and 0 for the mean of the targets.

    Guarantee: none; it is for public records.

    Edge cases: where all targets are the same, it is not a number.

    Example:
        >>> import privada as pv, torch
        >>> explained = pv.metrics.r2()
        >>> targets = torch.tensor([0.0, 1.0, 2.0])
        >>> explained.of([explained.each(torch.tensor([0.0, 1.0, 1.0]), targets)])
        0.5
    """
    return Metric("R^2", _both, _explained)


def _both(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return outputs.reshape(targets.shape).double(), targets.double()


def _explained(noted: tuple[Tensor, Tensor]) -> float:
    outputs, targets = noted
    spread = (targets - targets.mean(dim=0)).square().sum()
    return float("nan") if spread == 0 else float(1 - (outputs - targets).square().sum() / spread)


def mean_absolute_error() -> Metric:
    """Return the average distance between outputs and targets; less is better.

    Guarantee: none; it is for public records.

    Edge cases: where a record has several targets, each counts the same.

    Example:
        >>> import privada as pv, torch
        >>> error = pv.metrics.mean_absolute_error()
        >>> error.of([error.each(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 4.0]))])
        2.0
    """
    return Metric("mean absolute error", _distance, greater=False)


def _distance(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.reshape(targets.shape) - targets).abs().reshape(len(targets), -1)
