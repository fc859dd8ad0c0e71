"""Losses, and parameters, with which a model would not learn as its owner thinks it does.

They are refused on dummy examples, before any record is read.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from privada.clipping.calling import call, of_tensors, output_tensors
from privada.clipping.leaves import leaves
from privada.clipping.losses import Loss, one_example
from privada.clipping.self_check import moved, write_pattern
from privada.core.errors import ModelError
from privada.core.tensors import Parameters
from privada.data.batch import Batch

# A gradient below this, at outputs of ordinary size, is one of rounding.
_ZERO = {torch.float64: 1e-7, torch.float32: 1e-5}


def refuse_hooks(parameters: Parameters) -> None:
    """Raise if a parameter has a gradient hook: it would see, or change, un-noised gradients."""
    with parameters.trainable() as tensors:
        pairs = zip(parameters.layout.names, tensors, strict=True)
        hooked = [name for name, tensor in pairs if tensor._backward_hooks]
    if hooked:
        raise ModelError(
            f"Expected parameters without gradient hooks, got hooks on {hooked}: they would be "
            "given single examples' gradients without noise. Remove them (handle.remove()); what "
            "they do can be done to the released gradient, by the optimiser of pv.PrivateLoop."
        )


def refuse_parameters_elsewhere(model: nn.Module, loss: Loss, example: Batch) -> None:
    """Raise if the loss depends on something trainable that is not the model's.

    It would not be trained. What is made anew in each run, as the points of a gradient penalty are,
    is not meant.
    """
    own = {id(parameter) for parameter in model.parameters()}
    if isinstance(loss, nn.Module):
        others = [n for n, p in loss.named_parameters() if p.requires_grad and id(p) not in own]
        if others:
            raise ModelError(
                f"Expected a loss whose trainable parameters are the model's, got {others}, which "
                "the model does not have: they would not be trained. Make the loss a submodule of "
                "the model (self.loss = loss in its __init__), or freeze the parameters with "
                "loss.requires_grad_(False)."
            )
    one = next(example.chunks(1)).dense()
    with torch.enable_grad():
        try:
            first, again = (_reached(model, loss, one) for _ in range(2))
        except Exception:  # whatever a user's model raises; the engine says it better
            return
    kept = {id(tensor) for tensor in again}
    found = [tensor for tensor in first if id(tensor) in kept and id(tensor) not in own]
    if found:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in found[:5])
        raise ModelError(
            f"Expected the model or the loss to use no trainable tensors but the model's "
            f"parameters, got {len(found)} others, of shapes {shapes}: they would not be trained. "
            "Make them parameters of the model (an nn.Parameter, or a module in an nn.ModuleList, "
            "that is an attribute of it), or freeze them with requires_grad_(False)."
        )


def _reached(model: nn.Module, loss: Loss, one: Batch) -> list[Tensor]:
    return leaves(one_example(loss, call(model, one.inputs), one.targets))


def refuse_flat_losses(
    model: nn.Module, loss: Loss, parameters: Parameters, example: Batch
) -> None:
    """Raise if the loss of one example does not depend on the model's output.

    That is so of losses that compare the examples of a batch with each other. A loss that is flat
    somewhere, as a hinge is, is not flat at all of a number of outputs and targets.
    """
    singles = list(example.dense().chunks(1))
    if not _flat(model, loss, singles):
        return
    with moved(parameters):  # a loss that uses the model's parameters may start with zeros
        if not _flat(model, loss, singles):
            return
    raise ModelError(
        "Expected a loss of one example's output and target, got one whose gradient is zero or not "
        "finite for every dummy output and target. A loss that compares the examples of a batch "
        "with each other, as contrastive losses do, is constant for one example: let each record "
        "bring what it is compared with, or choose a loss of one output and one target."
    )


def _flat(model: nn.Module, loss: Loss, singles: list[Batch]) -> bool:
    """Return whether a loss has no gradient wherever it could be taken; False if nowhere."""
    taken = 0
    loss = _on_cpu(loss)
    with _as_before(model), _as_before(loss):
        for one in singles:
            try:
                with torch.no_grad():
                    outputs = call(model, one.inputs)
            except Exception:  # whatever a user's model raises; the engine says it better
                return False
            tensors = output_tensors(outputs)
            if not of_tensors(outputs) or not any(v.is_floating_point() for v in tensors):
                return False
            targets, outputs = tree_map(lambda t: t.cpu(), (one.targets, outputs))
            for target in _targets(targets):
                for output in _outputs(outputs):
                    slope = _slope(loss, output, target)
                    zero = max(_ZERO.get(v.dtype, 1e-3) for v in _floats(output))
                    if slope is not None and slope > zero:
                        return False
                    taken += slope is not None
    return taken > 0


def _slope(loss: Loss, output: Any, target: Any) -> float | None:
    """Return the norm of a loss's gradient, zero if it is not finite; None if it has none here."""
    output = tree_map(lambda v: v.detach().requires_grad_() if v.is_floating_point() else v, output)
    try:
        with torch.enable_grad():
            value = one_example(loss, output, target)
            if not value.requires_grad:
                return 0.0
            found = torch.autograd.grad(value, _floats(output), allow_unused=True)
    except Exception:  # not every output and every target is one that it accepts
        return None
    gradients = [gradient for gradient in found if gradient is not None]
    if not all(bool(gradient.isfinite().all()) for gradient in gradients):
        return 0.0
    return math.hypot(*(float(gradient.norm()) for gradient in gradients))


def _floats(output: Any) -> list[Tensor]:
    return [v for v in output_tensors(output) if v.is_floating_point()]


def _outputs(like: Any) -> Iterator[Any]:
    """Yield outputs: the model's own, others around it, and those of common last layers."""
    for exact in (True, False):
        for change in _CHANGES:

            def changed(values: Tensor, exact: bool = exact, change: _Change = change) -> Tensor:
                if not values.is_floating_point():
                    return values
                dtype = torch.float64 if exact else values.dtype
                return change(values.to(dtype), _spread(values, 3.0).to(dtype))

            yield tree_map(changed, like)


_Change = Callable[[Tensor, Tensor], Tensor]


def _class_dimension(values: Tensor) -> int:
    return 1 if values.ndim > 1 else 0


# What becomes of an output and of other numbers of its shape.
_CHANGES: tuple[_Change, ...] = (
    lambda own, other: own,
    lambda own, other: own + other,
    lambda own, other: 5 * other,
    lambda own, other: -5 * other,
    lambda own, other: torch.sigmoid(other),
    lambda own, other: other.exp(),
    lambda own, other: other.softmax(dim=_class_dimension(other)),
    lambda own, other: other.log_softmax(dim=_class_dimension(other)),
)


def _spread(like: Tensor, width: float) -> Tensor:
    """Return numbers that are spread evenly over a width around zero."""
    values = torch.empty(like.numel(), dtype=like.dtype)
    write_pattern(values, 1, width)
    return values.view(like.shape)


def _targets(like: Any) -> Iterator[Any]:
    """Yield targets: the dummy one, signs and small numbers."""

    def filled(number: float) -> Any:
        def fill(values: Tensor) -> Tensor:
            signed = number >= 0 or values.is_floating_point() or values.dtype.is_signed
            return torch.full_like(values, number if signed else 0)

        return tree_map(fill, like)

    def between(values: Tensor) -> Tensor:
        return _spread(values, 1.0).add_(0.5) if values.is_floating_point() else values

    yield from (like, filled(1), filled(-1), tree_map(between, like))


def _on_cpu(loss: Loss) -> Loss:
    """Return a loss on the processor: elsewhere a target that is no class ends the process."""
    if not isinstance(loss, nn.Module):
        return loss
    elsewhere = any(t.device.type != "cpu" for t in (*loss.parameters(), *loss.buffers()))
    return copy.deepcopy(loss).cpu() if elsewhere else loss


@contextmanager
def _as_before(module: Any) -> Iterator[None]:
    """Put the buffers of a module back afterwards."""
    buffers = list(module.buffers()) if isinstance(module, nn.Module) else []
    kept = [(buffer, buffer.clone(), buffer._version) for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before, version in kept:
                if buffer._version != version:
                    buffer.copy_(before)
