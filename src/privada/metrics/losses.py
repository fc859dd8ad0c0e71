"""A loss as a metric, and the metrics that go with a loss unless others are asked for."""

from torch import Tensor, nn
from torch.nn import functional

from privada.clipping.losses import Loss, example_losses
from privada.clipping.model_losses import ModelLoss
from privada.metrics.classification import accuracy
from privada.metrics.metric import Metric
from privada.metrics.model_metrics import metrics_of_model
from privada.metrics.regression import r2

_OF_CLASSES = (
    nn.CrossEntropyLoss,
    nn.NLLLoss,
    nn.BCEWithLogitsLoss,
    functional.cross_entropy,
    functional.nll_loss,
    functional.binary_cross_entropy_with_logits,
)
_OF_NUMBERS = (
    nn.MSELoss,
    nn.L1Loss,
    nn.HuberLoss,
    nn.SmoothL1Loss,
    functional.mse_loss,
    functional.l1_loss,
    functional.huber_loss,
    functional.smooth_l1_loss,
)


def loss(function: Loss, name: str = "loss") -> Metric:
    """Return the average of a loss over the records, each as if it were a batch of its own.

    Less is better.

    Guarantee: none; it is for public records.

    Edge cases: any loss that `Trainer` takes.

    Example:
        >>> import privada as pv, torch
        >>> squared = pv.metrics.loss(torch.nn.MSELoss(), "mean squared error")
        >>> squared.of([squared.each(torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]))])
        5.0
    """

    def each(outputs: Tensor, targets: Tensor) -> Tensor:
        return example_losses(function, outputs, targets)

    return Metric(name, each, greater=False)


def metrics_of(function: Loss) -> tuple[Metric, ...]:
    """Return the metrics that go with a loss: what it is for, then the loss itself."""
    if isinstance(function, ModelLoss):
        return metrics_of_model(function)
    own = loss(function)
    kind = type(function) if isinstance(function, nn.Module) else function
    if kind in _OF_CLASSES:
        return accuracy(), own
    if kind in _OF_NUMBERS:
        return r2(), own
    return (own,)
