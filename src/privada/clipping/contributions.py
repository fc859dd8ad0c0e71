"""What one parameter contributes to each example's gradient, kept in factors where that is cheaper.

A contribution knows the squared norms of its per-example gradients under a diagonal weighting, and
their weighted sum; neither needs the gradients themselves. Squared norms err upwards: sums of
products that can cancel carry a bound on their rounding, and squares that can underflow carry a
bound on what was lost.
"""

from collections.abc import Callable
from typing import Protocol, Self

import torch
from torch import Tensor

from privada.clipping.norms import (
    row_squares,
    upper_bounded,
    weighted_squares,
)
from privada.clipping.parameter_views import ParameterView, Weights, weights_of


class Contribution(Protocol):
    """The gradients of a batch's examples with respect to one piece of the parameters.

    Flat vectors are laid out as the model's parameters are.
    """

    @property
    def piece(self) -> ParameterView:
        """The part of the parameters."""

    def squared_norms(self, weights: Weights | None) -> Tensor:
        """Return an upper bound on each example's weighted squared norm, in float64."""

    def products(self, flat: Tensor) -> Tensor:
        """Return each example's inner product with the piece of a flat vector, in float64."""

    def add_to(self, flat: Tensor, factors: Tensor) -> None:
        """Add the sum of the examples' gradients, weighted by `factors`, to a flat vector."""

    def extreme(self) -> Tensor | None:
        """Return the examples whose norm and sum must be taken from their gradient; None for none.

        Their factors are too large for those that they multiply.
        """

    def rounding(self, weights: Weights | None) -> Tensor | None:
        """Return how far each example's weighted part of a sum may be from its gradient.

        None is for no further than in proportion to the gradient, as where nothing cancels.
        """

    def factors(self) -> list[Tensor]:
        """Return what the gradients are made of, first dimension the example."""

    def materialise(self, start: int, stop: int) -> Tensor:
        """Return the gradients of some examples, in the shape of the piece."""

    def drop(self, kept: Tensor) -> None:
        """Make the gradients of examples zero that are not `kept`."""


def zero_unless(kept: Tensor, values: Tensor) -> Tensor:
    """Return values with those of examples zero that are not `kept`."""
    return torch.where(kept.view(-1, *[1] * (values.ndim - 1)), values, 0.0)


class DenseGrad:
    """Gradients that are kept as they are: (examples, *shape).

    `squares` returns their squared norms, where something else needs them too.
    """

    def __init__(
        self, piece: ParameterView, gradients: Tensor, squares: Callable[[], Tensor] | None = None
    ) -> None:
        self.piece, self._gradients, self._squares = piece, gradients, squares

    @property
    def factor_size(self) -> int:
        """How many numbers are kept."""
        return self._gradients.numel()

    def join(self, other: Self) -> "DenseGrad":
        """Return the sum of two contributions to one piece."""
        return DenseGrad(self.piece, self._gradients + other._gradients)

    def squared_norms(self, weights: Weights | None) -> Tensor:
        """Return each example's weighted squared norm."""
        if weights is None and self._squares is not None:
            return self._squares()
        return weighted_squares(self._gradients, weights_of(weights, self.piece))

    def products(self, flat: Tensor) -> Tensor:
        """Return each example's inner product with the piece of `flat`."""
        rows = self._gradients.reshape(len(self._gradients), -1)
        return (rows @ self.piece.of(flat).reshape(-1)).double()

    def add_to(self, flat: Tensor, factors: Tensor) -> None:
        """Add the weighted sum of the gradients."""
        total = self.piece.of(flat)
        rows = self._gradients.reshape(len(self._gradients), -1)
        total += (factors @ rows).view(self.piece.shape)

    def write_to(self, flat: Tensor, factors: Tensor) -> None:
        """Put the weighted sum of the gradients in the place of what is there."""
        total = self.piece.of(flat)
        rows = self._gradients.reshape(len(self._gradients), -1)
        if total.is_contiguous():
            torch.mv(rows.t(), factors, out=total.view(-1))
        else:
            total.copy_((factors @ rows).view(self.piece.shape))

    def extreme(self) -> None:
        """Return none: these are gradients, not factors of them."""

    def rounding(self, weights: Weights | None) -> None:
        """Return none: the sum is of the gradients that norms are taken from."""

    def factors(self) -> list[Tensor]:
        """Return what the gradients are made of."""
        return [self._gradients]

    def materialise(self, start: int, stop: int) -> Tensor:
        """Return the gradients of some examples."""
        return self._gradients[start:stop]

    def drop(self, kept: Tensor) -> None:
        """Make some examples' gradients zero."""
        self._gradients, self._squares = zero_unless(kept, self._gradients), None


class EmbeddingGrad:
    """Gradients of a table of rows: row `tokens[i, t]` of example i gets `outputs[i, t]`.

    Repeated tokens of an example are added up before anything is squared.
    """

    def __init__(self, piece: ParameterView, tokens: Tensor, outputs: Tensor) -> None:
        self.piece, self.tokens, self.outputs = piece, tokens, outputs
        count = piece.shape[0]
        keys = tokens + count * torch.arange(len(tokens), device=tokens.device)[:, None]
        distinct, places = torch.unique(keys, return_inverse=True)
        self._example = distinct // count
        self._token = distinct % count
        flat = outputs.reshape(-1, outputs.shape[-1])
        summed = torch.zeros((len(distinct), flat.shape[1]), dtype=flat.dtype, device=flat.device)
        self._rows = summed.index_add_(0, places.reshape(-1), flat)

    def join(self, other: Self) -> "EmbeddingGrad":
        """Return the sum of two contributions to one piece."""
        tokens = torch.cat([self.tokens, other.tokens], dim=1)
        return EmbeddingGrad(self.piece, tokens, torch.cat([self.outputs, other.outputs], dim=1))

    def _gathered(self, each: Tensor) -> Tensor:
        total = torch.zeros(len(self.tokens), dtype=torch.float64, device=each.device)
        total.index_add_(0, self._example, each.double())
        return total

    def squared_norms(self, weights: Weights | None) -> Tensor:
        """Return each example's weighted squared norm."""
        if weights is None:
            return self._gathered(row_squares(self._rows))
        here = weights.of(self.piece)
        found = (self._rows * self._rows * here.scales[self._token].pow(-2)).sum(dim=1)
        width = self._rows.shape[1]
        return self._gathered(upper_bounded(found, found.dtype, width, width, here.largest))

    def products(self, flat: Tensor) -> Tensor:
        """Return each example's inner product with the piece of `flat`."""
        return self._gathered((self._rows * self.piece.of(flat)[self._token]).sum(dim=1))

    def add_to(self, flat: Tensor, factors: Tensor) -> None:
        """Add the weighted sum of the gradients."""
        scaled = self._rows * factors[self._example, None]
        self.piece.of(flat).index_add_(0, self._token, scaled)

    def extreme(self) -> None:
        """Return none: these are gradients, not factors of them."""

    def rounding(self, weights: Weights | None) -> None:
        """Return none: the sum is of the gradients that norms are taken from."""

    def factors(self) -> list[Tensor]:
        """Return what the gradients are made of."""
        return [self.tokens, self.outputs]

    def materialise(self, start: int, stop: int) -> Tensor:
        """Return the gradients of some examples."""
        here = (self._example >= start) & (self._example < stop)
        rows = self._rows[here]
        dense = torch.zeros((stop - start, *self.piece.shape), dtype=rows.dtype, device=rows.device)
        dense[self._example[here] - start, self._token[here]] = rows
        return dense

    def drop(self, kept: Tensor) -> None:
        """Make some examples' gradients zero."""
        self._rows = zero_unless(kept[self._example], self._rows)
        self.outputs = zero_unless(kept, self.outputs)
