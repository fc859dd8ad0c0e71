"""Products with a matrix of parameters: vectors, sequences, sparse rows."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from privada.clipping.contributions import Contribution, DenseGrad
from privada.clipping.outer_products import OuterProductGrad
from privada.clipping.parameter_views import ParameterView
from privada.clipping.recording import ParameterUse, Recorder, Rule
from privada.clipping.rules.sparse import SparseOuter, sparse_linear


def build_linear(weight: ParameterView | None, bias: ParameterView | None) -> Any:
    """Return how a use of a matrix and an offset gives their contributions."""

    def build(use: ParameterUse) -> Iterable[Contribution]:
        assert use.gradient is not None
        (inputs,) = use.given()
        outputs = use.arrange(use.gradient, 1)
        known = None
        if weight is not None and inputs.layout != torch.strided:
            yield SparseOuter(weight, inputs, outputs[:, 0])
        elif weight is not None:
            outer = OuterProductGrad(weight, use.arrange(inputs.to(outputs.dtype), 1), outputs)
            known = outer.output_squares
            yield outer
        if bias is not None and outputs.shape[1] == 1:
            yield DenseGrad(bias, outputs[:, 0], known)
        elif bias is not None:
            yield DenseGrad(bias, outputs.sum(dim=1))

    return build


def linear(recorder: Recorder, input: Tensor, weight: Any, bias: Any = None) -> Any:
    """y = x W^T + b over the last dimension."""
    if recorder.piece(input) is not None or weight.ndim != 2:
        return NotImplemented
    if bias is not None and bias.shape != weight.shape[:1]:
        return NotImplemented
    use = recorder.use(
        (weight, bias), 1, build_linear(recorder.piece(weight), recorder.piece(bias))
    )
    input = recorder.expand_per_example(use, input, 1)
    use.note(input)
    apply = functional.linear if input.layout == torch.strided else sparse_linear
    return recorder.capture_grad(
        apply(input, recorder.constant(weight), recorder.constant(bias)), use
    )


def project(recorder: Recorder, values: Tensor, weight: Any, bias: Any) -> Any:
    """Apply a linear layer, by the rule if any of it is trained."""
    if recorder.piece(weight) is None and recorder.piece(bias) is None:
        return functional.linear(values, weight, bias)
    return linear(recorder, values, weight, bias)


def matmul(recorder: Recorder, input: Any, other: Any) -> Any:
    """y = x W for a matrix W of parameters on the right."""
    piece = recorder.piece(other)
    if piece is None or other.ndim != 2 or input.ndim < 2 or recorder.piece(input) is not None:
        return NotImplemented
    use = recorder.use((other,), 1, build_linear(piece.transposed(), None))
    input = recorder.expand_per_example(use, input, 1)
    use.note(input)
    return recorder.capture_grad(torch.matmul(input, recorder.constant(other)), use)


def addmm(
    recorder: Recorder, input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1
) -> Any:
    """y = b + x W, as Hugging Face's Conv1D has it."""
    weight, bias = recorder.piece(mat2), recorder.piece(input)
    if (beta, alpha) != (1, 1) or recorder.piece(mat1) is not None or weight is None:
        return NotImplemented
    if bias is not None and input.shape != mat2.shape[1:]:
        return NotImplemented
    use = recorder.use((mat2,), 1, build_linear(weight.transposed(), bias))
    use.note(mat1)
    fixed = recorder.constant
    return recorder.capture_grad(torch.addmm(fixed(input), mat1, fixed(mat2)), use)


RULES: dict[Any, Rule] = {
    functional.linear: linear,
    torch.matmul: matmul,
    torch.Tensor.matmul: matmul,
    torch.Tensor.__matmul__: matmul,
    torch.mm: matmul,
    torch.Tensor.mm: matmul,
    torch.addmm: addmm,
}
