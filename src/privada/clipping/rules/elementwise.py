"""Parameters that are added to, multiplied with, or repeated for the examples."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from privada.clipping.contributions import Contribution, DenseGrad
from privada.clipping.parameter_views import ParameterView
from privada.clipping.recording import ParameterUse, Recorder, Rule


def _own_dimensions(shape: torch.Size) -> int:
    """Return how many trailing dimensions of a parameter are not there for broadcasting alone."""
    lead = 0
    while lead < len(shape) and shape[lead] == 1:
        lead += 1
    return len(shape) - lead


def _summed(use: ParameterUse, values: Tensor, shape: torch.Size, tail: int) -> Tensor:
    """Return values summed, for each example, to a parameter's shape."""
    arranged = use.arrange(values, tail).sum(dim=1)
    dims = [
        d + 1 for d in range(tail) if shape[len(shape) - tail + d] == 1 != arranged.shape[d + 1]
    ]
    if dims:
        arranged = arranged.sum(dim=dims, keepdim=True)
    return arranged.reshape(len(arranged), *shape)


def _split(recorder: Recorder, first: Any, second: Any) -> tuple[Any, Any] | None:
    """Return the tensor and the parameter, if there is one of each."""
    tracked = recorder.piece(first) is not None, recorder.piece(second) is not None
    if tracked[0] == tracked[1] or not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return None
    return (second, first) if tracked[0] else (first, second)


def _combine(recorder: Recorder, input: Any, other: Any, product: bool) -> Any:
    pair = _split(recorder, input, other)
    if pair is None:
        return NotImplemented
    values, parameter = pair
    shape, tail, piece = (
        parameter.shape,
        _own_dimensions(parameter.shape),
        recorder.piece(parameter),
    )
    assert piece is not None
    kept: ParameterView = piece
    if values.ndim <= tail == len(shape):  # the examples are where it has one entry, if anywhere
        together = torch.broadcast_shapes(values.shape, shape)  # type: ignore[no-untyped-call]
        repeated = expand(recorder, parameter, *together)
        if repeated is NotImplemented:
            return NotImplemented
        return values * repeated if product else values + repeated

    def build(use: ParameterUse) -> Iterable[Contribution]:
        assert use.gradient is not None
        gradient = use.gradient * use.given()[0] if product else use.gradient
        yield DenseGrad(kept, _summed(use, gradient, shape, tail))

    use, fixed = recorder.use((parameter,), tail, build), recorder.constant(parameter)
    if product:
        use.note(values)
    return recorder.capture_grad(values * fixed if product else values + fixed, use)


def add(recorder: Recorder, input: Any, other: Any, *, alpha: float = 1) -> Any:
    """y = x + p."""
    return NotImplemented if alpha != 1 else _combine(recorder, input, other, product=False)


def multiply(recorder: Recorder, input: Any, other: Any) -> Any:
    """y = x * p."""
    return _combine(recorder, input, other, product=True)


def expand(recorder: Recorder, input: Any, *sizes: Any) -> Any:
    """Repeat a parameter, such as a class token, once for each example."""
    piece = recorder.piece(input)
    if piece is None:
        return NotImplemented
    repeated, shape = recorder.constant(input).expand(*sizes), input.shape
    if repeated.numel() == input.numel() and recorder.examples > 1:
        return NotImplemented
    new = repeated.ndim - input.ndim
    lead = [d for d in range(repeated.ndim) if d < new or shape[d - new] == 1]
    order = lead + [d for d in range(repeated.ndim) if d not in lead]
    tail, kept = repeated.ndim - len(lead), piece

    def build(use: ParameterUse) -> Iterable[Contribution]:
        assert use.gradient is not None
        summed = use.arrange(use.gradient, tail).sum(dim=1)
        yield DenseGrad(kept, summed.reshape(len(summed), *shape))

    use = recorder.use((input,), tail, build)
    moved = repeated.permute(order).clone(memory_format=torch.contiguous_format)
    back = sorted(range(len(order)), key=order.__getitem__)
    return recorder.capture_grad(moved, use).permute(back)


def expand_as(recorder: Recorder, input: Any, other: Tensor) -> Any:
    """Repeat a parameter to another's shape."""
    return expand(recorder, input, *other.shape)


def repeat(recorder: Recorder, input: Any, *repeats: Any) -> Any:
    """Repeat a parameter along dimensions that it does not have, or that have one entry."""
    times = repeats[0] if isinstance(repeats[0], (tuple, list)) else repeats
    shape = (1,) * (len(times) - input.ndim) + tuple(input.shape)
    if any(n != 1 and size != 1 for n, size in zip(times, shape, strict=True)):
        return NotImplemented
    return expand(recorder, input, *(n * size for n, size in zip(times, shape, strict=True)))


RULES: dict[Any, Rule] = {
    torch.add: add,
    torch.Tensor.add: add,
    torch.Tensor.__add__: add,
    torch.Tensor.__radd__: add,
    torch.mul: multiply,
    torch.Tensor.mul: multiply,
    torch.Tensor.__mul__: multiply,
    torch.Tensor.__rmul__: multiply,
    torch.Tensor.expand: expand,
    torch.Tensor.expand_as: expand_as,
    torch.Tensor.repeat: repeat,
}
