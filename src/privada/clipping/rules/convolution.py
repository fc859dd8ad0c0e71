"""Convolutions in one, two and three dimensions: linear layers over unfolded patches."""

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from privada.clipping.contributions import Contribution, DenseGrad
from privada.clipping.norms import (
    CHUNK_BYTES,
    extreme,
    rounding_of,
    spans,
    weighted_squares,
    with_rounding,
)
from privada.clipping.outer_products import OuterProductGrad
from privada.clipping.parameter_views import ParameterView, ViewWeights, Weights, weights_of
from privada.clipping.recording import ParameterUse, Recorder, Rule
from privada.clipping.workspace import Workspace

Sizes = tuple[int, ...]


def _sizes(value: Any, dims: int) -> Sizes:
    return (value,) * dims if isinstance(value, int) else tuple(value)


def _padded(values: Tensor, padding: Any, kernel: Sizes, dilation: Sizes) -> Tensor:
    """Return the input with its zeros around it, as torch pads it."""
    pairs: list[int] = []
    for axis in reversed(range(len(kernel))):
        if padding == "valid":
            left = right = 0
        elif padding == "same":
            total = dilation[axis] * (kernel[axis] - 1)
            left, right = total // 2, total - total // 2
        else:
            left = right = padding[axis] if len(padding) > 1 else padding[0]
        pairs += [left, right]
    return functional.pad(values, pairs) if any(pairs) else values


def _joinable(kernels: ParameterView) -> bool:
    """Return whether a kernel's dimensions after its first lie in memory as one."""
    dims = list(zip(kernels.shape, kernels.stride, strict=True))[1:]
    return all(a[1] == b[0] * b[1] for a, b in pairwise(dims))


class Patches:
    """Gradients of a convolution's weight: inputs (examples, k, channels, *size).

    The gradient of an example is the product of its output gradients and its unfolded patches,
    which are made for a few examples at a time.
    """

    def __init__(
        self,
        piece: ParameterView,
        inputs: Tensor,
        outputs: Tensor,
        stride: Sizes,
        padding: Any,
        dilation: Sizes,
        groups: int,
    ) -> None:
        self.piece = piece
        self._inputs, self._outputs = inputs, outputs
        self._stride, self._padding, self._dilation = stride, padding, dilation
        self._groups = groups

    @property
    def factor_size(self) -> int:
        """How many numbers the factors take."""
        return self._inputs.numel() + self._outputs.numel()

    def compact(self, room: int, workspace: Workspace) -> "Patches | DenseGrad":
        """Return the gradients themselves where there is room for them."""
        examples = self._inputs.shape[0]
        if examples * self.piece.size > room or self._by_gram():
            return self
        gradients = workspace.take((examples, *self.piece.shape), self._inputs)
        for start, stop in self._spans():
            gradients[start:stop] = self.materialise(start, stop)
        return DenseGrad(self.piece, gradients)

    def _spans(self) -> Iterable[tuple[int, int]]:
        places = math.prod(self._outputs.shape[3:]) * self._outputs.shape[1]
        width = places * math.prod(self.piece.shape[1:]) * self._groups + 2 * self.piece.size
        most = CHUNK_BYTES // 8
        return spans(self._inputs.shape[0], width * self._inputs.element_size(), most)

    def _unfolded(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return patches (examples, groups, n, positions) and outputs (..., m, positions)."""
        inputs, outputs = self._inputs[start:stop], self._outputs[start:stop]
        examples, k, m = outputs.shape[:3]
        kernel, sizes = self.piece.shape[2:], outputs.shape[3:]
        padded = _padded(inputs.flatten(0, 1), self._padding, kernel, self._dilation)
        steps = padded.stride()[2:]
        patches = padded.as_strided(
            (*padded.shape[:2], *kernel, *sizes),
            (
                *padded.stride()[:2],
                *(s * d for s, d in zip(steps, self._dilation, strict=True)),
                *(s * d for s, d in zip(steps, self._stride, strict=True)),
            ),
            padded.storage_offset(),
        )
        n = math.prod(self.piece.shape[1:])
        a = patches.reshape(examples, k, self._groups, n, -1)
        b = outputs.reshape(examples, k, self._groups, m // self._groups, -1)
        if k == 1:
            return a[:, 0], b[:, 0]
        return (
            a.permute(0, 2, 3, 1, 4).flatten(3),
            b.permute(0, 2, 3, 1, 4).flatten(3),
        )

    def factors(self) -> list[Tensor]:
        """Return what the gradients are made of."""
        return [self._inputs, self._outputs]

    def materialise(self, start: int, stop: int) -> Tensor:
        """Return the gradients of some examples."""
        a, b = self._unfolded(start, stop)
        gradients = torch.matmul(b, a.mT)
        return gradients.reshape(stop - start, *self.piece.shape)

    def _by_gram(self) -> bool:
        m, n = self.piece.shape[0], math.prod(self.piece.shape[1:])
        positions = math.prod(self._outputs.shape[3:]) * self._outputs.shape[1]
        return self._groups == 1 and positions * (m + n) < m * n

    def squared_norms(self, weights: Weights | None) -> Tensor:
        """Return each example's weighted squared norm."""
        here = weights_of(weights, self.piece.matrix())
        if self._by_gram() and (here is None or here.separable):
            return torch.cat([self._gram(*span, here) for span in self._spans()])
        found = [weighted_squares(self.materialise(*span), here) for span in self._spans()]
        return with_rounding(torch.cat(found), self.rounding(weights))

    def rounding(self, weights: Weights | None) -> Tensor:
        """Return the rounding of sums over positions."""
        here = weights_of(weights, self.piece.matrix())
        outputs, largest = self._outputs, math.sqrt(math.prod(self.piece.shape[2:]))
        if here is not None:
            rows, columns = here.bounds
            outputs = outputs * rows.view(-1, *[1] * len(self._stride))
            largest *= float(columns.max())
        return rounding_of(self._inputs, outputs, largest)

    def _gram(self, start: int, stop: int, weights: ViewWeights | None) -> Tensor:
        a, b = self._unfolded(start, stop)
        return OuterProductGrad(self.piece.matrix(), a[:, 0].mT, b[:, 0].mT).by_gram(weights)

    def products(self, flat: Tensor) -> Tensor:
        """Return each example's inner product with the piece of `flat`."""
        direction = self.piece.of(flat)
        moved = _CONVOLVE[len(self._stride)](
            self._inputs.flatten(0, 1),
            direction,
            None,
            self._stride,
            self._padding,
            self._dilation,
            self._groups,
        )
        both = moved.view(self._outputs.shape) * self._outputs
        return both.flatten(1).sum(dim=1, dtype=torch.float64)

    def add_to(self, flat: Tensor, factors: Tensor) -> None:
        """Add the weighted sum of the gradients."""
        scaled = self._outputs * factors.view(-1, *[1] * (self._outputs.ndim - 1))
        kernel = self.piece.shape[2:]
        padded = _padded(self._inputs.flatten(0, 1), self._padding, kernel, self._dilation)
        dims = len(kernel)
        total = self.piece.of(flat)
        _, found, _ = torch.ops.aten.convolution_backward(
            scaled.flatten(0, 1),
            padded,
            total,
            None,
            self._stride,
            (0,) * dims,
            self._dilation,
            False,
            (0,) * dims,
            self._groups,
            (False, True, False),
        )
        total += found

    def extreme(self) -> Tensor | None:
        """Return the examples that have huge factors."""
        return extreme(self._inputs, self._outputs)

    def drop(self, kept: Tensor) -> None:
        """Make some examples' gradients zero."""
        shape = (-1, *[1] * (self._inputs.ndim - 1))
        self._inputs = torch.where(kept.view(shape), self._inputs, 0.0)
        self._outputs = torch.where(kept.view(shape), self._outputs, 0.0)


def _rule(dims: int, convolve: Callable[..., Tensor]) -> Rule:
    def convolution(
        recorder: Recorder,
        input: Tensor,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        """Convolve."""
        if input.ndim != dims + 2 or recorder.piece(input) is not None:
            return NotImplemented
        around = padding if isinstance(padding, str) else _sizes(padding, dims)
        settings = _sizes(stride, dims), around, _sizes(dilation, dims), groups
        kernels, offsets = recorder.piece(weight), recorder.piece(bias)
        if kernels is not None and not _joinable(kernels):
            return NotImplemented

        def build(use: ParameterUse) -> Iterable[Contribution]:
            assert use.gradient is not None
            outputs = use.arrange(use.gradient, dims + 1)
            if kernels is not None:
                inputs = use.arrange(use.given()[0].to(outputs.dtype), dims + 1)
                yield Patches(kernels, inputs, outputs, *settings)
            if offsets is not None:
                yield DenseGrad(offsets, outputs.sum(dim=(1, *range(3, outputs.ndim))))

        use = recorder.use((weight, bias), dims + 1, build)
        use.note(input)
        fixed = recorder.constant
        out = convolve(input, fixed(weight), fixed(bias), *settings)
        return recorder.capture_grad(out, use)

    return convolution


_CONVOLVE = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
RULES: dict[Any, Rule] = {function: _rule(dims, function) for dims, function in _CONVOLVE.items()}
