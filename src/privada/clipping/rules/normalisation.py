"""Normalisations within an example: their few parameters are materialised."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from privada.clipping.contributions import Contribution, DenseGrad
from privada.clipping.recording import ParameterUse, Recorder, Rule


def _record(
    recorder: Recorder,
    input: Tensor,
    weight: Any,
    bias: Any,
    tail: int,
    channels_last: bool,
    normalise: Callable[[Tensor, Any, Any], Tensor],
) -> Any:
    """Run a normalisation and note what its scale and its offset need.

    The gradient of the scale is the output's times the normalised input, that of the offset is the
    output's, each summed over all but the examples and the parameter's own dimensions.
    """
    if recorder.piece(input) is not None:
        return NotImplemented
    scale, offset = recorder.piece(weight), recorder.piece(bias)

    def build(use: ParameterUse) -> Iterable[Contribution]:
        assert use.gradient is not None
        (given,) = use.given()
        gradient = use.arrange(use.gradient, tail)
        dims = (1,) if channels_last else (1, *range(3, gradient.ndim))
        if scale is not None:
            with torch.no_grad():
                normal = use.arrange(normalise(given, None, None).to(gradient.dtype), tail)
            yield DenseGrad(scale, (gradient * normal).sum(dim=dims))
        if offset is not None:
            yield DenseGrad(offset, gradient.sum(dim=dims))

    use = recorder.use((weight, bias), tail, build)
    use.note(input)
    out = normalise(input, recorder.constant(weight), recorder.constant(bias))
    return recorder.capture_grad(out, use)


def layer_norm(
    recorder: Recorder,
    input: Tensor,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    """Normalise over the last dimensions."""
    shape = tuple(normalized_shape)

    def normalise(values: Tensor, weight: Any, bias: Any) -> Tensor:
        return functional.layer_norm(values, shape, weight, bias, eps)

    return _record(recorder, input, weight, bias, len(shape), True, normalise)


def rms_norm(
    recorder: Recorder,
    input: Tensor,
    normalized_shape: Any,
    weight: Any = None,
    eps: float | None = None,
) -> Any:
    """Divide by the root of the mean square over the last dimensions."""
    shape = list(normalized_shape)

    def normalise(values: Tensor, weight: Any, bias: Any) -> Tensor:
        return functional.rms_norm(values, shape, weight, eps)

    return _record(recorder, input, weight, None, len(shape), True, normalise)


def group_norm(
    recorder: Recorder,
    input: Tensor,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    """Normalise groups of channels."""

    def normalise(values: Tensor, weight: Any, bias: Any) -> Tensor:
        return functional.group_norm(values, num_groups, weight, bias, eps)

    return _record(recorder, input, weight, bias, input.ndim - 1, False, normalise)


def instance_norm(
    recorder: Recorder,
    input: Tensor,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalise each channel."""
    if running_mean is not None:
        return NotImplemented

    def normalise(values: Tensor, weight: Any, bias: Any) -> Tensor:
        return functional.instance_norm(values, None, None, weight, bias, True, momentum, eps)

    return _record(recorder, input, weight, bias, input.ndim - 1, False, normalise)


RULES: dict[Any, Rule] = {
    functional.layer_norm: layer_norm,
    functional.rms_norm: rms_norm,
    functional.group_norm: group_norm,
    functional.instance_norm: instance_norm,
}
