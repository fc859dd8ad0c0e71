"""Local training, on a client's own records."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privada.clipping.losses import Loss
from privada.core.errors import ArgumentError
from privada.core.tensors import Parameters
from privada.core.validation import integer, positive, shown
from privada.preconditioning import DiagonalScaling
from privada.preconditioning.features import ByFeature


@dataclass(frozen=True)
class LocalSGD:
    """Mini-batch gradient descent on one client, divided by side information if there is any.

        w <- w - lr grad f(w) / A

    With `preconditioner` it is what AdaDPS does on a device, which the paper found better than
    scales at the server; without, it is what DP-FedAvg does.

    Args:
        lr: the learning rate on the device.
        epochs: how often it goes through the client's records.
        batch_size: how many records a local step takes.
        preconditioner: the side information A, such as `pv.preconditioning.token_frequency(...)`
            of public text; fixed, and the same for all clients.

    Guarantee: none of its own: it runs on one client's records, and what the client sends is
    bounded at the server.

    Edge cases: a client without records leaves the model as it is.

    Example:
        >>> import privada as pv, torch
        >>> model = torch.nn.Linear(2, 1)
        >>> records = torch.ones(10, 2), torch.zeros(10, 1)
        >>> loss = torch.nn.MSELoss()
        >>> before = loss(model(records[0]), records[1]).item()
        >>> pv.federated.LocalSGD(lr=0.1, batch_size=5).train_(model, loss, records)
        >>> loss(model(records[0]), records[1]).item() < before
        True

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Algorithm 3, lines 3 to 6.
    """

    lr: float
    epochs: int = 1
    batch_size: int = 32
    preconditioner: DiagonalScaling | ByFeature | None = None

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        integer("epochs", self.epochs)
        integer("batch_size", self.batch_size)
        scaling = self.preconditioner
        if scaling is None:
            return
        fixed = isinstance(scaling, (DiagonalScaling, ByFeature))
        if not fixed or getattr(scaling, "shift", None) is not None:
            raise ArgumentError(
                "Expected preconditioner to be fixed scales without a shift, such as "
                "pv.preconditioning.diagonal, token_frequency or tf_idf, got preconditioner="
                f"{shown(scaling)}."
            )

    def train_(
        self,
        model: nn.Module,
        loss: Loss,
        records: tuple[Tensor, Tensor],
        generator: torch.Generator | None = None,
    ) -> None:
        """Train a model in place on a client's records, a pair of inputs and targets.

        `generator` shuffles them, by default torch's own.
        """
        parameters = Parameters(model)
        scales = self._scales(parameters)
        for _ in range(self.epochs):
            order = torch.randperm(len(records[0]), generator=generator)
            for start in range(0, len(order), self.batch_size):
                some = order[start : start + self.batch_size]
                self._step_(model, loss, [each[some] for each in records], parameters, scales)

    def _scales(self, parameters: Parameters) -> list[Tensor] | None:
        if self.preconditioner is None:
            return None
        fixed, _ = self.preconditioner.at({}, parameters)
        scale = fixed.on(parameters).scale
        return None if scale is None else parameters.layout.pieces(scale)

    def _step_(
        self,
        model: nn.Module,
        loss: Any,
        batch: list[Tensor],
        parameters: Parameters,
        scales: list[Tensor] | None,
    ) -> None:
        with torch.enable_grad(), parameters.trainable() as tensors:
            found = torch.autograd.grad(loss(model(batch[0]), batch[1]), tensors, allow_unused=True)
            with torch.no_grad():
                for place, (tensor, gradient) in enumerate(zip(tensors, found, strict=True)):
                    if gradient is not None:
                        step = gradient if scales is None else gradient / scales[place]
                        tensor.sub_(step, alpha=self.lr)
