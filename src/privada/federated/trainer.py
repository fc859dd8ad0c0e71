"""The trainer of federated runs: the same step as for records that are here."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from privada.accounting import Budget, Ledger
from privada.clipping import Clipping
from privada.clipping.losses import Loss
from privada.core.errors import ArgumentError
from privada.core.validation import integer, shown
from privada.federated.clients import Clients, ClientUnits, FederatedExecutor
from privada.federated.crowds import drawn_from
from privada.mechanism import Mechanism, Noise
from privada.methods import Method
from privada.participation import CyclicPoisson, Everyone, Participation, Poisson
from privada.query.executor import Executor
from privada.train.public_scores import Validates
from privada.train.public_training import ModelSide
from privada.train.run import MethodParts, Run
from privada.train.stopping import EarlyStopping
from privada.train.trainer import Trainer


def _no_loss(output: Any, target: Any) -> Tensor:
    raise ArgumentError(
        "Expected loss for a method that takes gradients of public examples at the server, got "
        "loss=None. Give the loss that the clients use."
    )


class FederatedRun(Run):
    """A run whose records are with its clients: what is drawn are clients, which send updates."""

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """What the promise assumes of clients and of the server."""
        listed = (
            "Each client is one person or organisation with all their records; nobody is two "
            "clients.",
            "Who is drawn, who answers and what they send is seen by the operator of the server "
            "alone, who is trusted with it, and so are the server's logs; what is published is the "
            "sequence of models.",
        )
        if self.mechanism.turns == 1:
            return listed
        return *listed, "A client has one place for as long as the server runs: clients take turns."

    def _public_side(self, loss: Loss, data: Any) -> ModelSide:
        return ModelSide(self.model, loss)

    def _load(self, data: Any) -> None:
        self.clients: Clients = data
        self.units = ClientUnits(data.size)

    def _try(self, loss: Loss, clipping: Clipping) -> None:
        """Do nothing: the model and the loss run elsewhere."""

    def _mechanism(
        self, parts_of: Callable[[int], MethodParts], clip: float, clipping: Clipping
    ) -> Mechanism:
        found = super()._mechanism(parts_of, clip, clipping)
        return replace(found, sampler=drawn_from(found.sampler, self.clients))

    def _executor(self) -> Executor:
        return FederatedExecutor(self.clients, self.parameters, self.mechanism.clipping)


class FederatedTrainer(Trainer):
    """Trains a model on clients that keep their records, with privacy for each client.

    In each round clients are drawn, get the model, train it on their own records and send back what
    they made of it. The server bounds each update, adds them up with equal weights, adds noise, and
    lets the method take a step, for which the noisy mean of the updates is the gradient. So
    `DPSGD(lr=1.0)` is DP-FedAvg, `DPMomentum` has server momentum, `DPAdam` is DP-FedAdam,
    `DPAdaGrad` is DP-FedAdagrad; the other methods work as they do on records.

    Args:
        model: what is trained, at the server.
        clients: who computes updates, such as `pv.federated.InProcess`.
        method: how to train, such as `pv.methods.DPSGD(lr=1.0, clip=1.0)`.
        batch_size: the expected number of clients in a round.
        rounds: how many steps of the method to take; one of ADADP asks clients twice.
        budget, noise_multiplier, delta, ledger, seed, run, resume, weight_decay, public_term:
            as for `pv.Trainer`.
        sampling: "poisson", "everyone" or `pv.participation.CyclicPoisson(parts)`. A fixed number
            of clients is refused.
        noise: how the noise of one round depends on that of others, such as `pv.noise.Banded`.
        unit: what one client stands for, in the statement's words.
        loss: for methods that take gradients of public examples at the server, and for the usual
            metrics of `validation`.
        validation: public records at the server to evaluate the model on while it trains, a
            `pv.Validation`.
        stopping: when to end early, a `pv.EarlyStopping` by such a validation.

    Guarantee: the sequence of all models is (epsilon, delta)-differentially private for adding or
    removing a client with all its records, as `statement()` says, against everybody but the
    server's operator. A round is charged before its clients are asked.

    Edge cases: a round in which nobody is drawn, or nobody answers, adds noise alone. A client that
    sends another shape, another type or something that is not finite counts as zero; one that
    sends something huge is clipped. If there are fewer clients than `clients.size`, batches are
    smaller. If there are more, all of them take part at the same rate.

    Example:
        >>> import privada as pv, torch
        >>> trainer = pv.federated.FederatedTrainer(
        ...     torch.nn.Linear(2, 1), pv.federated.InProcess(lambda who, start: 0.9 * start, 500),
        ...     method=pv.methods.DPSGD(lr=1.0, clip=0.5), batch_size=50, rounds=4,
        ...     budget=pv.Budget(epsilon=2.0, delta=1e-4),
        ... ).fit()
        >>> trainer.epsilon() <= 2.0, trainer.statement().unit
        (True, 'client')

    Reference: McMahan et al. (2018), Learning Differentially Private Recurrent Language Models,
    arXiv 1710.06963, Algorithm 1; Reddi et al. (2021), Adaptive Federated Optimization,
    arXiv 2003.00295, Algorithm 2, for the server's rules; Li et al. (2022), Private Adaptive
    Optimization with Side Information, arXiv 2202.05963, Algorithm 3, with noise at the server.
    """

    _kind_of_run: ClassVar[type[Run]] = FederatedRun

    def __init__(
        self,
        model: nn.Module,
        clients: Clients,
        *,
        method: Method,
        batch_size: float,
        rounds: int,
        budget: Budget | None = None,
        noise_multiplier: float | None = None,
        delta: float | None = None,
        sampling: str | Participation = "poisson",
        noise: Noise | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        seed: int | None = None,
        unit: str = "client",
        run: str | None = None,
        resume: str | os.PathLike[str] | None = None,
        weight_decay: float = 0.0,
        public_term: Any = None,
        loss: Loss | None = None,
        validation: Validates | None = None,
        stopping: EarlyStopping | None = None,
    ) -> None:
        _check(clients, sampling)
        _check_public(loss, validation, stopping)
        super().__init__(
            model,
            _no_loss if loss is None else loss,
            clients,
            method=method,
            batch_size=batch_size,
            steps=integer("rounds", rounds),
            budget=budget,
            noise_multiplier=noise_multiplier,
            delta=delta,
            sampling=sampling,
            noise=noise,
            ledger=ledger,
            seed=seed,
            unit=unit,
            run=run,
            resume=resume,
            weight_decay=weight_decay,
            public_term=public_term,
            validation=validation,
            stopping=stopping,
        )

    def step(self) -> "FederatedTrainer":
        """Take one step of the method, which is charged by itself.

        So a crash loses one round, and none that were reserved ahead.

        Raises:
            BudgetExceeded: the ledger cannot pay for it; the model is as it was.
            ArgumentError: the run has taken all its steps.
        """
        self._run.charges.next_checkpoint(self.steps_done + 1)
        super().step()
        return self


def _check_public(loss: Any, validation: Any, stopping: Any) -> None:
    if isinstance(stopping, EarlyStopping):
        if stopping.private:
            raise ArgumentError(
                "Expected stopping to go by a pv.Validation, whose records are public and at the "
                "server, got private records, which clients keep to themselves."
            )
        validation = stopping.validation if validation is None else validation
    if loss is None and getattr(validation, "metrics", ()) is None:
        raise ArgumentError(
            "Expected metrics in the validation, or the loss that the clients use, got neither. "
            "Write pv.Validation(data, metrics=[pv.metrics.accuracy()])."
        )


def _check(clients: Any, sampling: Any) -> None:
    if isinstance(clients, type) or not isinstance(clients, Clients):
        raise ArgumentError(
            f"Expected clients to have `size` and `updates`, got clients={shown(clients)}. Use "
            "pv.federated.InProcess(train, size)."
        )
    integer("clients.size", clients.size)
    drawn = (Poisson, Everyone, CyclicPoisson)
    if sampling not in ("poisson", "everyone") and not isinstance(sampling, drawn):
        raise ArgumentError(
            "Expected sampling to be 'poisson', 'everyone' or "
            f"pv.participation.CyclicPoisson(parts), got sampling={shown(sampling)}. "
            "Clients come and go, so that no fixed number of them can be drawn as it is accounted."
        )
