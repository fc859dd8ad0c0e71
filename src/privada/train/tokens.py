"""Tokens: what a private loop passes around in the place of tensors.

They can be handed on in the usual order and hold nothing, so that nothing un-noised can be printed,
logged or compared by mistake.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import torch
from torch import nn

from privada.clipping.losses import Loss
from privada.core.errors import ArgumentError, PrivateValueError


class Loop(Protocol):
    """What tokens have to know of the loop that they belong to."""

    steps_done: int

    @property
    def steps(self) -> int:
        """The number of steps of the whole run."""

    @property
    def names(self) -> tuple[tuple[str, ...], str] | None:
        """The names of a record's inputs and that of its target, where it is one dictionary."""

    @property
    def loss_of_model(self) -> bool:
        """Whether the loss is the one that the model computes from labels."""

    def note_autocast(self) -> None:
        """Note whether the model was called under autocast."""

    def take_loss(self, function: Any, args: Any, kwargs: dict[str, Any]) -> "PrivateLoss":
        """Return the loss of tokens if it is the one that the loop was made with."""

    def mark_backward(self) -> None:
        """Note that a step is ready."""


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

    def __init__(self, kind: str, loop: Loop) -> None:
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
        return self._loop.take_loss(function, args, kwargs)


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


class PrivateOutput(PrivateToken):
    """Stands for what a model gives; it has a loss if the model was given its labels."""

    def __init__(self, loop: Loop, labelled: bool) -> None:
        super().__init__("output", loop)
        self._labelled = labelled

    @property
    def loss(self) -> "PrivateLoss":
        """The loss that a model of transformers computes from its labels."""
        if not self._labelled:
            raise ArgumentError(
                "Expected a model that was given its labels, got a call without them, or records "
                "that are no dictionaries with labels. Call model(**batch), or the criterion that "
                "the loop gives."
            )
        if not self._loop.loss_of_model:
            raise ArgumentError(
                "Expected the loss that the loop was made with, got the one that the model has "
                "inside. Call the criterion that the loop gives, or make the loop with "
                "privada.huggingface.ModelLoss(model)."
            )
        return PrivateLoss("loss", self._loop)


class PrivateLoss(PrivateToken, torch.Tensor):  # type: ignore[misc]
    """Stands for the loss of a private step: it can be differentiated, not read.

    It is a tensor without a value, since frameworks such as Lightning take nothing else for a loss.
    """

    # What may be asked of it, beside what begins with an underscore.
    _HARMLESS = ("backward", "to", "cuda", "cpu", "detach", "clone", "requires_grad")

    def __new__(cls, kind: str, loop: Loop) -> "PrivateLoss":
        """Return a token without memory behind it."""
        made: PrivateLoss = torch.Tensor._make_wrapper_subclass(cls, ())
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse what comes past torch's functions, as torch.tensor(loss) does."""
        token = next(each for each in _leaves((args, kwargs)) if isinstance(each, PrivateToken))
        token._refuse(f"given to torch's {function}")

    requires_grad = True

    def detach(self) -> "PrivateLoss":
        """Return itself: there is no value to be cut off."""
        return self

    def clone(self, **kwargs: Any) -> "PrivateLoss":
        """Return itself: there is no value to be copied."""
        return self

    def __truediv__(self, divisor: Any) -> "PrivateLoss":
        """Return itself divided by one, as by the number of batches that are accumulated."""
        if type(divisor) is not int or divisor != 1:
            self._refuse("used in arithmetic")
        return self

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name not in PrivateLoss._HARMLESS:
            self._refuse(f"asked for .{name}")
        return object.__getattribute__(self, name)

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
        self._loop.mark_backward()


class _Probe(PrivateToken):
    """Notes which of torch's losses a criterion calls, and with what."""

    def __init__(self, kind: str, loop: Loop, calls: list[tuple[Any, ...]]) -> None:
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


class PendingGradient(torch.Tensor):
    """Stands in .grad between backward and step, where the gradient is not made yet."""

    _HARMLESS = ("__get__", "zero_", "_foreach_zero_", "detach_", "requires_grad_", "__deepcopy__")

    @classmethod
    def of(cls, parameter: torch.Tensor) -> "PendingGradient":
        """Return a stand-in of a parameter's shape that takes no memory."""
        like = torch.zeros((), dtype=parameter.dtype, device=parameter.device)
        made: PendingGradient = torch.Tensor._make_subclass(cls, like.expand(parameter.shape))
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

    def __init__(self, loss: Loss, loop: Loop) -> None:
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

    def __init__(self, module: nn.Module, loop: Loop) -> None:
        super().__init__()
        self.module = module
        self.__dict__["_loop"] = loop
        self.register_load_state_dict_pre_hook(_with_prefix)  # type: ignore[no-untyped-call]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return a token for tokens, the module's output for tensors."""
        if any(isinstance(value, PrivateToken) for value in (*inputs, *named.values())):
            self._loop.note_autocast()
            return PrivateOutput(self._loop, self._labelled(inputs, named))
        return self.module(*inputs, **named)

    def _labelled(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Return whether the labels are among the inputs; raise unless they are a record's."""
        names = self._loop.names
        if names is None:
            return False
        wanted, target = names
        given = set(named) - {target}
        if inputs or given != set(wanted) or not all(map(_is_token, named.values())):
            raise ArgumentError(
                f"Expected the model to be given what a record has, {', '.join(wanted)}, got "
                f"{', '.join(sorted(given)) or 'inputs without names'}: when the step is taken it "
                "is called with all of them and nothing else. Call model(**batch), remove "
                "columns from the data set, and set other arguments in the model's configuration."
            )
        return target in named

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


def _is_token(value: Any) -> bool:
    return isinstance(value, PrivateToken)


def _with_prefix(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Rename what is loaded from the names of the user's module, under which it is saved."""
    own = [name for name in state if name.startswith(prefix)]
    if any(name.startswith(f"{prefix}module.") for name in own):
        return  # of a module that has a part of this name, or as a wrapper has saved it
    for name in own:
        state[f"{prefix}module.{name[len(prefix) :]}"] = state.pop(name)


class PrivateLoader:
    """Gives as many batches of tokens as an epoch has steps, until the planned steps are taken.

    A batch is a pair, or a dictionary of tokens where records are dictionaries.

    The plan has ceil(epochs n / batch_size) steps, so the last of several passes may be shorter.
    """

    def __init__(self, loop: Loop, per_epoch: int) -> None:
        self._loop, self._per_epoch = loop, per_epoch

    def __len__(self) -> int:
        return self._per_epoch

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._per_epoch):
            if self._loop.steps_done >= self._loop.steps:
                return
            yield self._batch()

    def _batch(self) -> Any:
        names = self._loop.names
        if names is None:
            return PrivateToken("input", self._loop), PrivateToken("target", self._loop)
        inputs, target = names
        batch = {name: PrivateToken("input", self._loop) for name in inputs}
        return batch | {target: PrivateToken("target", self._loop)}


def same_loss(
    loop: Loop, loss: Loss, function: Any, args: Any, kwargs: dict[str, Any]
) -> PrivateLoss:
    """Return the loss of tokens if one of torch's functions is what `loss` would call.

    Raises:
        ArgumentError: it is another function, or has other settings.
    """
    calls: list[tuple[Any, ...]] = []
    try:
        made = loss(_Probe("output", loop, calls), _Probe("target", loop, calls))
    except Exception:  # a loss of the user's own, which tokens cannot go through
        made = None
    asked = _settings_of(function, args, kwargs)
    own = getattr(loss, "__name__", None) or repr(loss)
    found = f"torch's {function.__name__}"
    if len(calls) == 1 and made is calls[0][0] and calls[0][1] is function:
        settings = calls[0][2]
        other = [n for n in asked if not _same(asked[n], settings.get(n))]
        if not other:
            return PrivateLoss("loss", loop)
        found += " with " + ", ".join(
            f"{n}={_short(asked[n])} in place of {_short(settings.get(n))}" for n in other
        )
    raise ArgumentError(
        f"Expected the loss that the loop was made with, {own}, got {found}. Call the "
        "criterion that the loop gives, or make the loop with this loss."
    )
