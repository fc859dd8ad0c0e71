"""The loop adapter: `loss.backward(); optimizer.step()` stays as it is.

The batches, outputs and losses that a private loop passes around are tokens (`train/tokens.py`).
All the work is one gradient query, made when the optimiser steps.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from privada.accounting import Budget, Ledger, Statement
from privada.clipping import Clipping
from privada.clipping.clips import THRESHOLD
from privada.clipping.losses import Loss
from privada.clipping.model_losses import ModelLoss
from privada.core.deprecation import renamed_argument
from privada.core.errors import ArgumentError
from privada.core.ranks import refuse_several
from privada.core.validation import positive, shown
from privada.data import Collate, Transform
from privada.mechanism import Noise
from privada.methods import Parts
from privada.participation import Participation
from privada.preconditioning import Preconditioner, isotropic
from privada.query.executor import Execution
from privada.train.bill import statement
from privada.train.dry_run import check_model
from privada.train.modes import training_mode
from privada.train.run import Run
from privada.train.settings import TrainSettings
from privada.train.state import TrainState
from privada.train.step import (
    counting_what_is_lost,
    first_state,
    prepare,
    release_gradient,
    take_step,
)
from privada.train.team import told_state
from privada.train.tokens import (
    PendingGradient,
    PrivateCriterion,
    PrivateLoader,
    PrivateLoss,
    PrivateModel,
    same_loss,
)
from privada.updates import Controller, scheduled, sgd


@renamed_argument("geometry", "preconditioner")
class PrivateLoop:
    """Keeps an ordinary PyTorch loop and makes it private.

    Iterating over it gives the four things that a loop uses, to be put in the place of the
    ordinary ones:

        model, optimizer, criterion, loader = pv.PrivateLoop(...)
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()

    Args:
        model: any torch module that treats examples one by one.
        optimizer: any torch optimiser over the model's trainable parameters; what it does with
            the released gradient is post-processing.
        loss: a torch loss, module or function of (output, target); it is taken per example.
        data: as for `Trainer`.
        clip: the largest norm that one example's gradient may keep.
        preconditioner: what gradients are scaled by before they are clipped, one of
            `pv.preconditioning`; isotropic by default.
        clipping: how gradients are bounded, one of `pv.clipping`.
        controller: `pv.updates.step_doubling` to let ADADP set the learning rate of a plain
            torch.optim.SGD; a step then takes two releases, and optimizer.param_groups shows the
            rate.

    The other arguments are those of `Trainer`.

    Guarantee: as for `Trainer`. Inputs, targets, outputs and losses in the loop are tokens without
    a value, so that nothing un-noised can be printed, logged or compared by mistake.

    Edge cases: asking a token for its value, two backward passes before a step, a step without a
    backward pass, and an optimiser of other parameters are errors that say what to do. Model and
    criterion work as before on ordinary tensors, for evaluation on public data.

    Example:
        >>> import privada as pv, torch
        >>> from sklearn.datasets import load_iris
        >>> x, y = load_iris(return_X_y=True)
        >>> net = torch.nn.Linear(4, 3)
        >>> loop = pv.PrivateLoop(
        ...     net, torch.optim.Adam(net.parameters(), lr=0.1), torch.nn.CrossEntropyLoss(),
        ...     (x.astype("float32"), y), batch_size=15, epochs=1, clip=1.0,
        ...     noise_multiplier=2.0, delta=1e-3,
        ... )
        >>> model, optimizer, criterion, loader = loop
        >>> for inputs, targets in loader:
        ...     optimizer.zero_grad()
        ...     loss = criterion(model(inputs), targets)
        ...     loss.backward()
        ...     optimizer.step()
        >>> loop.steps_done
        10

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        data: Any,
        *,
        clip: float,
        batch_size: float,
        epochs: float | None = None,
        steps: int | None = None,
        budget: Budget | None = None,
        noise_multiplier: float | None = None,
        delta: float | None = None,
        sampling: str | Participation = "poisson",
        ledger: Ledger | str | os.PathLike[str] | None = None,
        seed: int | None = None,
        population: int | None = None,
        unit: str = "record",
        preconditioner: Preconditioner | None = None,
        clipping: Clipping = THRESHOLD,
        controller: Controller | None = None,
        engine: str = "auto",
        transform: Transform | None = None,
        collate: Collate | None = None,
        example: Any = None,
        weight_decay: float = 0.0,
        public_term: Any = None,
        groups: Any = None,
        rows_per_unit: int | None = None,
        executor: Execution | None = None,
        noise: Noise | None = None,
    ) -> None:
        settings = TrainSettings.of(locals())
        self._clip = positive("clip", clip)
        check_model(model, loss)
        self._check_optimizer(model, optimizer)
        self._optimizer, self._loss, self._module = optimizer, loss, model
        self._controlled = controller is not None
        if self._controlled:
            self._check_plain(optimizer)
        parts = Parts(
            rule=sgd(),
            controller=scheduled(1.0) if controller is None else controller,
            preconditioner=isotropic() if preconditioner is None else preconditioner,
        )
        self._start(data, settings, parts, clipping)

    def _start(self, data: Any, settings: TrainSettings, parts: Parts, clipping: Clipping) -> None:
        """Put the run together, and the four things that a loop uses."""
        model, loss, optimizer = self._module, self._loss, self._optimizer
        self._run = Run(
            model,
            loss,
            data,
            settings,
            clip=self._clip,
            clipping=clipping,
            parts_of=lambda steps: parts,
            name=type(optimizer).__name__.lower(),
            stacklevel=5,  # past the wrapper that takes former names of arguments
        )
        self._state = first_state(self._run)
        self._run.share_model()
        # what the last step has found: the gradient, or the learning rate of the controller
        self._found: Tensor | float | None = None
        self._ready = self._autocast = False
        self._as_made = self._type_and_device()
        self._rates: list[float] | None = None
        self.steps_done = 0
        self.model = PrivateModel(model, self)
        self.criterion = PrivateCriterion(loss, self)
        self.loader = PrivateLoader(self, math.ceil(self._run.population / settings.batch_size))
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    @staticmethod
    def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError(
                f"Expected optimizer to be a torch.optim.Optimizer, got optimizer="
                f"{shown(optimizer)}. Write torch.optim.SGD(model.parameters(), lr=0.1), or the "
                "like."
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ArgumentError(
                "Expected an optimiser that takes one gradient a step, got LBFGS, whose line "
                "search looks at the private data an unknown number of times."
            )
        trained = {id(p) for p in model.parameters() if p.requires_grad}
        given = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if trained != given:
            raise ArgumentError(
                f"Expected the optimiser to have exactly the model's trainable parameters, got "
                f"{len(given - trained)} others and {len(trained - given)} missing. Freeze what "
                "is not to be trained (requires_grad=False) and make the optimiser from "
                "[p for p in model.parameters() if p.requires_grad]."
            )

    @staticmethod
    def _check_plain(optimizer: torch.optim.Optimizer) -> None:
        """Raise unless the optimiser does nothing but follow the gradient."""
        plain = isinstance(optimizer, torch.optim.SGD) and not any(
            group[name]
            for group in optimizer.param_groups
            for name in ("momentum", "weight_decay", "nesterov", "maximize")
        )
        if not plain:
            raise ArgumentError(
                "Expected torch.optim.SGD without momentum and weight decay beside a controller, "
                f"which takes the steps itself, got {optimizer!r}. Leave controller out to keep "
                "the optimiser."
            )

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self._optimizer, self.criterion, self.loader))

    @property
    def steps(self) -> int:
        """The number of steps of the whole run."""
        return self._run.steps

    @property
    def noise_multiplier(self) -> float:
        """The calibrated or given noise multiplier."""
        return self._run.mechanism.noise_multiplier

    @property
    def ledger(self) -> Ledger:
        """The ledger that the run is charged to."""
        return self._run.ledger

    def take_loss(self, function: Any, args: Any, kwargs: dict[str, Any]) -> PrivateLoss:
        """Return the loss of tokens if it is the one that the loop was made with."""
        return same_loss(self, self._loss, function, args, kwargs)

    @property
    def names(self) -> tuple[tuple[str, ...], str] | None:
        """The names of a record's inputs and that of its target, where it is one dictionary."""
        return getattr(self._run.records, "names", None)

    @property
    def loss_of_model(self) -> bool:
        """Whether the loss is the one that the model computes from labels."""
        return isinstance(self._loss, ModelLoss)

    def note_autocast(self) -> None:
        """Note whether the model was called under autocast."""
        self._autocast = self._autocast_now()

    def _autocast_now(self) -> bool:
        return torch.is_autocast_enabled(self._run.parameters.device.type)

    def mark_backward(self) -> None:
        """Note that a step is ready."""
        if self._ready:
            raise ArgumentError(
                "Expected one backward pass before each optimizer.step(), got two. For larger "
                "batches raise batch_size: they are worked through in chunks."
            )
        self._ready = True
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = PendingGradient.of(parameter)

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any
    ) -> tuple[Any, dict[str, Any]] | None:
        """Release what the step needs; return the arguments of a step whose closure has run."""
        self._check_step()
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._take_ready_step()
            return None
        try:  # it goes forward and backward, as Lightning's does
            with torch.enable_grad():
                loss = closure()
            self._take_ready_step()
        except BaseException:
            self._forget_backward()
            raise
        return (args[0], lambda: loss), {}

    def _check_step(self) -> None:
        """Raise if no step can be taken, whatever is asked for."""
        if self.steps_done >= self.steps:
            raise ArgumentError(
                f"Expected at most the planned {self.steps} steps, all of which are taken. "
                "Plan more epochs or steps when making the loop: the noise depends on it."
            )
        if self._run.settings.executor is None:
            refuse_several(
                "optimizer.step() of a private loop",
                "Train in one process (devices=1 in Lightning), or make the loop in each with "
                "executor=pv.execute.DataParallel() and keep a loop of your own.",
            )
        if (now := self._type_and_device()) != self._as_made:
            raise ArgumentError(
                f"Expected a model of the type and on the device that it had when the loop was "
                f"made, {self._as_made}, got {now}. Convert and move it before the loop is made."
            )
        if self._controlled:
            self._check_rates()

    def _type_and_device(self) -> str:
        first = next(p for p in self._module.parameters() if p.requires_grad)
        return f"{first.dtype} on {first.device}"

    def _take_ready_step(self) -> None:
        """Release what a step needs, once a backward pass has asked for it."""
        if not self._ready:
            raise ArgumentError(
                "Expected loss.backward() before optimizer.step(), got a step without it. Call "
                "loop.detach() first if the optimiser is to be used outside the private loop."
            )
        if self._autocast and not self._autocast_now():
            raise ArgumentError(
                "Expected optimizer.step() under the same torch.autocast as the model, got a step "
                "outside of it: gradients are made when the optimiser steps. Put the making of "
                "the loop and the step under torch.autocast too, or leave it out (precision="
                "'32-true' in Lightning)."
            )
        with training_mode(self._module):
            self._release()
        self._ready = False
        self.steps_done += 1

    def _forget_backward(self) -> None:
        """Return to where no backward pass has asked for a step."""
        self._ready = False
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if isinstance(parameter.grad, PendingGradient):
                    parameter.grad = None

    def _release(self) -> None:
        """Do what a step releases; on all ranks, if there are several."""
        if not self._run.follow("optimizer.step", self._take):
            with self._run.together("optimizer.step", self._told):
                self._state = prepare(self._run, self._state)
                if self._controlled:
                    self._state, self._found = take_step(self._run, self._state)
                else:
                    with counting_what_is_lost(self._run, self._state.releases):
                        release, state = release_gradient(self._run, self._state)
                    self._found = release.gradient
                    self._state = replace(state, step=state.step + 1)
        if isinstance(self._found, float):
            self._set_rate(self._found)
        elif self._found is not None:
            self._run.parameters.set_gradient(self._found)
        self._found = None

    def _told(self) -> tuple[TrainState, Any]:
        """Return how far the run is and what was found, for the ranks that follow."""
        return told_state(self._state), self._found

    def _take(self, told: tuple[TrainState, Any]) -> None:
        """Take over what rank 0 has found; on a rank that follows."""
        self._state, self._found = told

    def _check_rates(self) -> None:
        """Raise if somebody else has set the learning rate."""
        rates = [group["lr"] for group in self._optimizer.param_groups]
        if self._rates not in (None, rates):
            raise ArgumentError(
                f"Expected the controller alone to set the learning rate, got lr={rates[0]!r} "
                f"where it had set {self._rates[0]!r}. Leave out the scheduler or the controller."
            )

    def _set_rate(self, lr: float) -> None:
        """Show the rate with which the controller has taken a step in the optimiser's place."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
            for parameter in group["params"]:
                parameter.grad = None
        self._rates = [lr] * len(self._optimizer.param_groups)

    def detach(self) -> None:
        """Return unused charges and give the optimiser back to ordinary use."""
        self._run.gradients.account.refund_unused()
        self._forget_backward()
        self._hook.remove()

    def epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon of everything charged on the ledger, earlier runs included."""
        return self._run.charges.epsilon(delta)

    def statement(self) -> Statement:
        """Return what was promised so far, what it cost and what it rests on."""
        self._run.gradients.account.refund_unused()
        words = f"own loop with torch.optim.{type(self._optimizer).__name__} (clip={self._clip})"
        return statement(self._run, words, self.steps_done)
