"""The loop adapter: `loss.backward(); optimizer.step()` stays as it is.

The batches, outputs and losses that a private loop passes around are tokens, not tensors: they can
be handed on in the usual order and hold nothing. All the work is one query of the gate, made when
the optimiser steps.
"""

import inspect
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import nn

from privada.accounting import Budget, Ledger, Statement
from privada.clipping import Clipping
from privada.clipping.clips import THRESHOLD
from privada.clipping.losses import Loss
from privada.core.deprecation import renamed_argument
from privada.core.errors import ArgumentError, PrivateValueError
from privada.core.validation import instance, positive, shown
from privada.data import Collate, Transform
from privada.methods import Parts
from privada.objective import objective
from privada.participation import Participation, participation
from privada.preconditioning import Preconditioner, isotropic
from privada.train.run import Run, Settings
from privada.updates import Controller, scheduled, sgd

# What to do instead, by the kind of token.
_INSTEAD = {
    "input": "Give it to the model that the loop gives, and put preprocessing into the dataset",
    "target": "Give it to the criterion that the loop gives, and put preprocessing into the "
    "dataset",
    "output": "Give it to the criterion that the loop gives, and put reshaping into the model or "
    "into the loss that the loop is made with",
    "loss": "Call backward() on it as it is; put factors and sums into the loss that the loop is "
    "made with, and for larger batches raise batch_size, without accumulation or a GradScaler",
}


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

    def __format__(self, how: str) -> str:
        return self._refuse(f"formatted as {how!r}") if how else repr(self)

    def _refuse(self, what: str) -> NoReturn:
        instead = _INSTEAD.get(self._kind, "Pass it on")
        raise PrivateValueError(
            f"Expected the {self._kind} of a private step only to be passed on, but it was {what}, "
            f"which needs its value, and that would show un-noised private data. {instead}. "
            "Measure on public data: model and criterion take ordinary tensors too."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f"asked for .{name}")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer torch's own functions: the loop's loss is taken, all others are refused."""
        given = kwargs or {}
        token = next(each for each in _leaves((args, given)) if isinstance(each, PrivateToken))
        return token._called(function, args, given)

    def _called(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        kinds = {t._kind for t in (*args, *kwargs.values()) if isinstance(t, PrivateToken)}
        name = getattr(function, "__name__", repr(function))
        is_loss = name.endswith(("loss", "entropy", "entropy_with_logits", "kl_div"))
        if not is_loss or kinds != {"output", "target"}:
            self._refuse(f"given to torch's {name}")
        return self._loop._take_loss(function, args, kwargs)


def _refusing(what: str) -> Callable[..., NoReturn]:
    def method(self: PrivateToken, *args: Any) -> NoReturn:
        self._refuse(what)

    return method


for _names, _what in {
    "float int bool complex index": "read as a number",
    "len": "measured by len()",
    "iter reversed contains": "iterated over",
    "getitem setitem": "indexed",
    "array": "given to NumPy",
    "eq ne lt gt le ge": "compared",
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul "
    "rmatmul neg pos abs invert round and rand or ror xor rxor": "used in arithmetic",
}.items():
    for _name in _names.split():
        setattr(PrivateToken, f"__{_name}__", _refusing(_what))
PrivateToken.__hash__ = object.__hash__  # type: ignore[method-assign]


def _leaves(values: Any) -> Iterator[Any]:
    """Give what is in tuples, lists and dictionaries, however deep."""
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, (tuple, list)):
        for each in values:
            yield from _leaves(each)
    else:
        yield values


class PrivateLoss(PrivateToken):
    """Stands for the loss of a private step: it can be differentiated, not read."""

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Mark the step as ready; the gradient is made when the optimiser steps."""
        if gradient is not None or create_graph or inputs is not None:
            raise ArgumentError(
                "Expected loss.backward() without gradient, create_graph and inputs, got one of "
                "them. The gradient of a private step is made when the optimiser steps; put "
                "factors into the loss that the loop is made with."
            )
        self._loop._mark_backward()


class _Probe(PrivateToken):
    """Notes which of torch's losses a criterion calls, and with what."""

    def __init__(self, kind: str, loop: "PrivateLoop", calls: list[tuple[Any, ...]]) -> None:
        super().__init__(kind, loop)
        self._calls = calls

    def _called(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        made = PrivateLoss("loss", self._loop)
        self._calls.append((made, function, _settings_of(function, args, kwargs)))
        return made


def _settings_of(function: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, tokens as the words for them."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        named = dict(bound.arguments)
    except (TypeError, ValueError):  # a function without a signature
        named = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    return {n: v._kind if isinstance(v, PrivateToken) else v for n, v in named.items()}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.equal(one.cpu(), other.cpu())
    return type(one) is type(other) and bool(one == other)


def _short(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if torch.is_tensor(value) else repr(value)


class _PendingGradient(torch.Tensor):
    """Stands in .grad between backward and step, where the gradient is not made yet."""

    _HARMLESS = ("__get__", "zero_", "_foreach_zero_", "detach_", "requires_grad_", "__deepcopy__")

    @classmethod
    def of(cls, parameter: torch.Tensor) -> "_PendingGradient":
        """Return a stand-in of a parameter's shape that takes no memory."""
        like = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
        made: _PendingGradient = torch.Tensor._make_subclass(cls, like.expand(parameter.shape))
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return "<private gradient, not released yet>"

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse to be looked at, but for what an optimiser does to clear gradients."""
        name = getattr(function, "__name__", repr(function))
        if name == "__get__":
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        if name in cls._HARMLESS:
            return args[0]
        raise PrivateValueError(
            f"Expected gradients not to be used between loss.backward() and optimizer.step(), but "
            f"one was given to torch's {name}: a private gradient is clipped example by example "
            "and made with noise by optimizer.step(). Set clip= instead of clip_grad_norm_ or "
            "clip_grad_value_, leave out a GradScaler, and look at .grad after the step."
        )


class PrivateCriterion:
    """The user's loss: tokens give a token, tensors give what they always gave."""

    def __init__(self, loss: Loss, loop: "PrivateLoop") -> None:
        self._loss, self._loop = loss, loop

    def __call__(self, output: Any, target: Any) -> Any:
        """Return a token for tokens, the loss for tensors."""
        private = [isinstance(value, PrivateToken) for value in (output, target)]
        if all(private):
            return PrivateLoss("loss", self._loop)
        if any(private):
            raise PrivateValueError(
                "Expected output and target of one private step, got one of them and an ordinary "
                "tensor. Pass both on as the loader and the model gave them."
            )
        return self._loss(output, target)

    def to(self, *args: Any, **kwargs: Any) -> "PrivateCriterion":
        """Return itself, with the loss where it was sent."""
        if isinstance(self._loss, nn.Module):
            self._loss.to(*args, **kwargs)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loss, name)


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
        preconditioner: the shape to clip in, one of `pv.preconditioning`; isotropic by default.
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
    ) -> None:
        settings = Settings(
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            budget=budget,
            noise_multiplier=noise_multiplier,
            delta=delta,
            sampling=participation(sampling),
            ledger=ledger,
            seed=seed,
            population=population,
            unit=unit,
            engine=engine,
            transform=transform,
            collate=collate,
            example=example,
            objective=objective(weight_decay, public_term),
            groups=groups,
            rows_per_unit=rows_per_unit,
        )
        self._clip = positive("clip", clip)
        if not isinstance(model, nn.Module):
            raise ArgumentError(
                f"Expected model to be a torch.nn.Module, got model={shown(model)}. Give a model "
                "that is made, not its class."
            )
        instance(
            "clipping",
            clipping,
            Clipping,
            "to be one of pv.clipping",
            "Use pv.clipping.threshold().",
        )
        self._optimizer, self._loss = optimizer, loss
        self._parts = Parts(
            rule=sgd(),
            controller=scheduled(1.0) if controller is None else controller,
            preconditioner=isotropic() if preconditioner is None else preconditioner,
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
            clip=self._clip,
            clipping=clipping,
            parts_of=lambda steps: self._parts,
            name=type(optimizer).__name__.lower(),
        )
        self._state = self._parts.controller.init(self._run.parameters)
        self._module = model
        self._ready = False
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
        return self._run.noise_multiplier

    @property
    def ledger(self) -> Ledger:
        """The ledger that the run is charged to."""
        return self._run.ledger

    def _take_loss(self, function: Any, args: Any, kwargs: dict[str, Any]) -> PrivateLoss:
        """Return the loss of tokens if it is the one that the loop was made with."""
        calls: list[tuple[Any, ...]] = []
        try:
            made = self._loss(_Probe("output", self, calls), _Probe("target", self, calls))
        except Exception:  # a loss of the user's own, which tokens cannot go through
            made = None
        asked = _settings_of(function, args, kwargs)
        own = getattr(self._loss, "__name__", None) or repr(self._loss)
        found = f"torch's {function.__name__}"
        if len(calls) == 1 and made is calls[0][0] and calls[0][1] is function:
            settings = calls[0][2]
            other = [n for n in asked if not _same(asked[n], settings.get(n))]
            if not other:
                return PrivateLoss("loss", self)
            found += " with " + ", ".join(
                f"{n}={_short(asked[n])} in place of {_short(settings.get(n))}" for n in other
            )
        raise ArgumentError(
            f"Expected the loss that the loop was made with, {own}, got {found}. Call the "
            "criterion that the loop gives, or make the loop with this loss."
        )

    def _mark_backward(self) -> None:
        if self._ready:
            raise ArgumentError(
                "Expected one backward pass before each optimizer.step(), got two. For larger "
                "batches raise batch_size: they are worked through in chunks."
            )
        self._ready = True
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = _PendingGradient.of(parameter)

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
        rates = [group["lr"] for group in self._optimizer.param_groups]
        if self._controlled and self._rates not in (None, rates):
            raise ArgumentError(
                f"Expected the controller alone to set the learning rate, got lr={rates[0]!r} "
                f"where it had set {self._rates[0]!r}. Leave out the scheduler or the controller."
            )
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
        self._rates = [lr] * len(rates)

    def detach(self) -> None:
        """Return unused charges and give the optimiser back to ordinary use."""
        self._run.gate.settle()
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if isinstance(parameter.grad, _PendingGradient):
                    parameter.grad = None
        self._hook.remove()

    def epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon of everything charged on the ledger, earlier runs included."""
        return self._run.epsilon(delta)

    def statement(self) -> Statement:
        """Return what was promised so far, what it cost and what it rests on."""
        self._run.gate.settle()
        words = f"own loop with torch.optim.{type(self._optimizer).__name__} (clip={self._clip})"
        return self._run.statement(words, self.steps_done)
