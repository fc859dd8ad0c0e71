"""Clipped sums of the gradients of one linear layer, in other features than its own."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from privada.clipping.bounds import factors_in
from privada.clipping.calling import call
from privada.clipping.engine import Engine
from privada.clipping.losses import Loss, example_losses
from privada.core.errors import ArgumentError, ModelError
from privada.core.feature_maps import FeatureMap
from privada.core.tensors import Parameters
from privada.core.validation import shown
from privada.core.values import ClippedSum
from privada.data.batch import Batch
from privada.preconditioning import FlatScaling

# A matrix of more features than these takes too much time and memory, and too much noise.
MOST_FEATURES = 2048
# Rows at a time; gradients of single rows take that times the number of parameters.
_ROWS, _GRADIENTS = 8192, 1 << 24


def curvature_of(loss: Loss, outputs: int) -> float:
    """Return the largest second derivative of a loss in any direction of a layer's outputs.

    Raises:
        ArgumentError: it is not known for this loss.
    """
    reduction = getattr(loss, "reduction", None)
    terms = outputs if reduction == "mean" else 1
    plain = not any(getattr(loss, name, None) is not None for name in ("weight", "pos_weight"))
    if plain and reduction in ("mean", "sum"):
        if type(loss) is nn.CrossEntropyLoss:
            return 0.5  # of diag(p) - p p^T, for any number of classes
        if type(loss) is nn.BCEWithLogitsLoss:
            return 0.25 / terms
        if type(loss) is nn.MSELoss:
            return 2.0 / terms
    raise ArgumentError(
        "Expected a loss whose curvature is known for a method that solves linear models, got "
        f"loss={shown(loss)}. Use torch.nn.CrossEntropyLoss(), BCEWithLogitsLoss() or MSELoss(), "
        "without weights, or another method, such as pv.methods.DPAdamWOSM()."
    )


def check_linear(model: nn.Module, example: Batch) -> None:
    """Raise unless a model is one linear layer of features, all of it trainable."""
    fits = type(model) is nn.Linear and all(p.requires_grad for p in model.parameters())
    fits = fits and not model._forward_hooks and not model._forward_pre_hooks
    inputs = example.inputs
    if not fits or not isinstance(inputs, Tensor) or inputs.ndim != 2:
        found = f"{type(model).__name__}" if not fits else "inputs that are not one row of numbers"
        raise ModelError(
            "Expected a torch.nn.Linear on rows of numbers, all of it trainable and without hooks, "
            f"for a method that solves linear models, got {found}. Use another method for this "
            "model, such as pv.methods.DPAdamWOSM()."
        )
    assert isinstance(model, nn.Linear)
    if model.in_features > MOST_FEATURES:
        raise ModelError(
            f"Expected at most {MOST_FEATURES:,} features for a method that releases a matrix of "
            f"them, got {model.in_features:,}. Use another method, such as "
            "pv.methods.DPAdamWOSM(), or fewer features."
        )


class LinearEngine:
    """Clips the gradients of a linear layer in mapped features, where a scaling has some.

    The gradient of an example is the product of e, the derivative of its loss in the outputs, and
    its features x. In features x' = x S its norm is |e| |x'|, so that no gradient has to be made
    where a clipping asks for norms alone. For other scalings, `inner` does as without this.

    Guarantee: that of `inner`: the sum has the sensitivity that the clipping says. Sums, and
    derivatives times features, are in float64; norms that are computed in less are bounded from
    above.

    Edge cases: an example whose gradient is not finite counts as zero.
    """

    def __init__(self, inner: Engine, model: nn.Module, loss: Loss, like: Parameters) -> None:
        self._inner, self._model, self._loss, self._like = inner, model, loss, like
        self.clipping, self.padding = inner.clipping, inner.padding
        self._lengths = _Lengths()

    def rows(self, batch: Batch) -> Iterator[Tensor]:
        """Yield the gradients of the examples as rows, in the layer's own features."""
        return self._inner.rows(batch)

    def clipped_sum(self, batch: Batch | None, scaling: FlatScaling, clip: float) -> ClippedSum:
        """Return the sum of the whitened, clipped per-example gradients; zero for None."""
        features = scaling.features
        if features is None:
            return self._inner.clipped_sum(batch, scaling, clip)
        clipping, like = self.clipping, self._like
        total = torch.zeros(like.size, dtype=torch.float64, device=like.device)
        statistics = clipping.no_statistics(like.device)
        if batch is not None:
            batch = batch.without_dummies().dense()
            if clipping.by_norm is not None and not len(statistics):
                for place, chunk in enumerate(batch.chunks(_ROWS)):
                    found = self._lengths.of(place, features.of(chunk.inputs), features.matrix)
                    total += self._sum_by_norms(chunk, features, found, clip)
            else:
                ordered = batch.by_group()
                rows = self._mapped_rows(ordered, features)
                clipping.add_rows(
                    total, statistics, rows, ordered.groups, FlatScaling(None, None), clip
                )
        return clipping.clipped(total, statistics, clip)

    def _derivatives(self, batch: Batch) -> Tensor:
        """Return the derivatives of the examples' losses in their outputs, in float64."""
        with torch.enable_grad():
            outputs = call(self._model, batch.inputs).detach().requires_grad_()
            losses = example_losses(self._loss, outputs, batch.targets)
            (found,) = torch.autograd.grad(losses.sum(), outputs)
        derivatives: Tensor = found.double()
        return derivatives

    def _sum_by_norms(
        self, batch: Batch, features: FeatureMap, lengths: Tensor, clip: float
    ) -> Tensor:
        bound = self.clipping.by_norm
        assert bound is not None
        derivatives, inputs = self._derivatives(batch), features.of(batch.inputs)
        norms = torch.linalg.vector_norm(derivatives, dim=1) * lengths
        finite = torch.isfinite(norms)
        factors = factors_in(bound, torch.where(finite, norms, 0.0), clip, torch.float64)
        scaled = torch.where(finite[:, None], derivatives * factors[:, None], 0.0)
        rows = torch.where(finite[:, None], inputs.double(), 0.0)
        return features.flat(bound.finish_(scaled.T @ rows, clip)[None] @ features.matrix)[0]

    def _mapped_rows(self, batch: Batch, features: FeatureMap) -> Iterator[Tensor]:
        """Yield the gradients of the examples in mapped features, some at a time."""
        for chunk in batch.chunks(max(1, _GRADIENTS // self._like.size)):
            mapped = features.of(chunk.inputs).double() @ features.matrix
            yield features.flat(self._derivatives(chunk)[:, :, None] * mapped[:, None, :])


class _Lengths:
    """Lengths of rows times a matrix, kept for as long as both stay the same.

    Every step of a run takes all rows, and finding their lengths anew would be most of its work.
    What is kept is used for rows that are equal to those that it was found for, value by value.
    """

    def __init__(self) -> None:
        self._matrix: Tensor | None = None
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, place: int, inputs: Tensor, matrix: Tensor) -> Tensor:
        """Return upper bounds on the lengths of some rows, which came at a place before."""
        if self._matrix is not matrix:
            self._matrix, self._kept = matrix, {}
        before = self._kept.get(place)
        if before is not None and torch.equal(before[0], inputs):
            return before[1]
        self._kept[place] = inputs.clone(), lengths(inputs, matrix)
        return self._kept[place][1]

    def __getstate__(self) -> dict[str, object]:
        return {"_matrix": None, "_kept": {}}  # rows are not copied along


def lengths(inputs: Tensor, matrix: Tensor) -> Tensor:
    """Return upper bounds on the norms of rows times a matrix, in float64.

    The product is made in the type of the rows. What rounding can take from its norm is added: in m
    additions at most m units of roundoff, times the norms of the row and of the matrix.
    """
    rounded = matrix.to(inputs.dtype)
    product = torch.linalg.vector_norm(inputs @ rounded, dim=1, dtype=torch.float64)
    unit = (len(matrix) + 2) * torch.finfo(inputs.dtype).eps
    most = unit * float(torch.linalg.matrix_norm(matrix)) * (1 + unit)
    bounds: Tensor = product + most * torch.linalg.vector_norm(inputs, dim=1, dtype=torch.float64)
    return bounds
