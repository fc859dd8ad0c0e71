"""The loop adapter: `loss.backward(); optimizer.step()` stays as it is.

The batches, outputs and losses that a private loop passes around are tokens, not tensors: they can
be handed on in the usual order and hold nothing. All the work is one query of the gate, made when
the optimiser steps.
"""

import math
import os
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import nn

from privada.accounting import Budget, Ledger, Statement
from privada.clipping import Clipping
from privada.clipping.clips import THRESHOLD
from privada.clipping.losses import Loss
from privada.core.errors import ArgumentError, PrivateValueError
from privada.core.validation import positive
from privada.data import Collate, Transform
from privada.geometry import Shape, isotropic
from privada.methods import Parts
from privada.run import Run, Settings
from privada.updates import Controller, scheduled, sgd


class PrivateToken:
    """Stands for a private tensor in a loop. It can be passed on; it has no value to look at."""

    def __init__(self, kind: str, loop: "PrivateLoop") -> None:
        self._kind, self._loop = kind, loop

    def to(self, *args: Any, **kwargs: Any) -> "PrivateToken":
        """Return itself: the gate moves the records to the model's device."""
        return self

    cuda = cpu = to

    def __repr__(self) -> str:
        return f"<private {self._kind}>"

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise PrivateValueError(
            f"Expected the {self._kind} of a private step only to be passed on, but its value was "
            "asked for, which would show un-noised private data. Measure on public data; put "
            "preprocessing into the dataset, and reshaping into the model or the loss."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    __len__ = __iter__ = __getitem__ = __float__ = __int__ = __bool__ = __array__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse
    __lt__ = __gt__ = __le__ = __ge__ = __neg__ = __matmul__ = __format__ = _refuse


class PrivateLoss(PrivateToken):
    """Stands for the loss of a private step: it can be differentiated, not read."""

    def backward(self) -> None:
        """Mark the step as ready; the gradient is made when the optimiser steps."""
        self._loop._mark_backward()


class PrivateModel(nn.Module):
    """The user's model: tokens give a token, tensors give what they always gave."""

    def __init__(self, module: nn.Module, loop: "PrivateLoop") -> None:
        super().__init__()
        self.module = module
        self.__dict__["_loop"] = loop

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return a token for tokens, the module's output for tensors."""
        if any(isinstance(value, PrivateToken) for value in (*inputs, *named.values())):
            return PrivateToken("output", self._loop)
        return self.module(*inputs, **named)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's own state, without a prefix."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the module's own state."""
        return self.module.load_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class PrivateLoader:
    """Gives as many pairs of tokens as an epoch has steps, until the planned steps are taken.

    The plan has ceil(epochs n / batch_size) steps, so the last of several passes may be shorter.
    """

    def __init__(self, loop: "PrivateLoop", per_epoch: int) -> None:
        self._loop, self._per_epoch = loop, per_epoch

    def __len__(self) -> int:
        return self._per_epoch

    def __iter__(self) -> Iterator[tuple[PrivateToken, PrivateToken]]:
        for _ in range(self._per_epoch):
            if self._loop.steps_done >= self._loop.steps:
                return
            yield PrivateToken("input", self._loop), PrivateToken("target", self._loop)


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
        geometry: the shape to clip in, one of `pv.geometry`; isotropic by default.
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
        sampling: str = "poisson",
        ledger: Ledger | str | os.PathLike[str] | None = None,
        seed: int | None = None,
        population: int | None = None,
        unit: str = "record",
        geometry: Shape | None = None,
        clipping: Clipping = THRESHOLD,
        controller: Controller | None = None,
        engine: str = "auto",
        transform: Transform | None = None,
        collate: Collate | None = None,
        example: Any = None,
    ) -> None:
        settings = Settings(
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            budget=budget,
            noise_multiplier=noise_multiplier,
            delta=delta,
            sampling=sampling,
            ledger=ledger,
            seed=seed,
            population=population,
            unit=unit,
            engine=engine,
            transform=transform,
            collate=collate,
            example=example,
        )
        self._clip = positive("clip", clip)
        self._optimizer, self._loss = optimizer, loss
        self._parts = Parts(
            rule=sgd(),
            controller=scheduled(1.0) if controller is None else controller,
            geometry=isotropic() if geometry is None else geometry,
        )
        self._controlled = controller is not None
        self._check_optimizer(model, optimizer)
        if self._controlled:
            self._check_plain(optimizer)
        self._run = Run(
            model,
            loss,
            data,
            settings,
            clip=clip,
            clipping=clipping,
            parts_of=lambda steps: self._parts,
            name=type(optimizer).__name__.lower(),
        )
        self._state = self._parts.controller.init(self._run.parameters)
        self._module = model
        self._ready = False
        self.steps_done = 0
        self.model = PrivateModel(model, self)
        self.loader = PrivateLoader(self, math.ceil(self._run.population / batch_size))
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    @staticmethod
    def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError(
                f"Expected optimizer to be a torch.optim.Optimizer, got {optimizer!r}."
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
        return self._run.noise_multiplier

    @property
    def ledger(self) -> Ledger:
        """The ledger that the run is charged to."""
        return self._run.ledger

    def criterion(self, output: Any, target: Any) -> Any:
        """Return a token for tokens, the loss for tensors."""
        private = [isinstance(value, PrivateToken) for value in (output, target)]
        if all(private):
            return PrivateLoss("loss", self)
        if any(private):
            raise PrivateValueError(
                "Expected output and target of one private step, got one of them and an ordinary "
                "tensor. Pass both on as the loader and the model gave them."
            )
        return self._loss(output, target)

    def _mark_backward(self) -> None:
        if self._ready:
            raise ArgumentError(
                "Expected one backward pass before each optimizer.step(), got two. For larger "
                "batches raise batch_size: they are worked through in chunks."
            )
        self._ready = True

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._ready:
            raise ArgumentError(
                "Expected loss.backward() before optimizer.step(), got a step without it. Call "
                "loop.detach() first if the optimiser is to be used outside the private loop."
            )
        if args[1:] or kwargs.get("closure") is not None:
            raise ArgumentError("Expected optimizer.step() without a closure, got one.")
        if self.steps_done >= self.steps:
            raise ArgumentError(
                f"Expected at most the planned {self.steps} steps, all of which are taken. "
                "Plan more epochs or steps when making the loop: the noise depends on it."
            )
        before = self._module.training
        self._module.train()
        try:
            self._ask()
        except BaseException:
            self._run.give_up(self.steps_done)
            raise
        finally:
            self._module.train(before)
        self._ready = False
        self.steps_done += 1

    def _ask(self) -> None:
        """Give the optimiser a released gradient, or take the step in its place."""
        parameters, number = self._run.parameters, self.steps_done
        if not self._controlled:
            parameters.set_gradient(self._run.query(number).gradient)
            return
        _, self._state, lr = self._parts.controller.iterate(
            lambda: self._run.query(number), self._parts.rule, parameters, {}, self._state, number
        )
        for group in self._optimizer.param_groups:
            group["lr"] = lr
            for parameter in group["params"]:
                parameter.grad = None

    def detach(self) -> None:
        """Return unused charges and give the optimiser back to ordinary use."""
        self._run.gate.settle()
        self._hook.remove()

    def epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon of everything charged on the ledger, earlier runs included."""
        return self._run.epsilon(delta)

    def statement(self) -> Statement:
        """Return what was promised so far, what it cost and what it rests on."""
        self._run.gate.settle()
        words = f"own loop with torch.optim.{type(self._optimizer).__name__} (clip={self._clip})"
        return self._run.statement(words, self.steps_done)
