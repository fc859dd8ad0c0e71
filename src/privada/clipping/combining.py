"""All contributions to one parameter as one: gradients add up before norms are taken."""

from collections.abc import Sequence

import torch
from torch import Tensor

from privada.clipping.contributions import Contribution, DenseGrad, EmbeddingGrad
from privada.clipping.norms import (
    LARGE,
    all_within,
    either,
    lengths,
    not_negative,
    spans,
    weighted_squares,
    with_rounding,
)
from privada.clipping.outer_products import OuterProductGrad, sizes_of
from privada.clipping.parameter_views import ParameterView, Weights, weights_of
from privada.clipping.rules.convolution import Patches
from privada.clipping.workspace import Workspace


def extremes(contributions: Sequence[Contribution]) -> Tensor | None:
    """Return the examples whose norm and sum must be taken from their gradients; None for none."""
    seen = [each for each in contributions if isinstance(each, OuterProductGrad) and each.seen]
    if seen:  # one look at all of them
        squares = [squared for each in seen for squared in each.seen]
        if all_within(squares, LARGE[seen[0].inputs.dtype]):
            contributions = [each for each in contributions if each not in seen]
    return either(each.extreme() for each in contributions)


class Sum:
    """Several contributions to one parameter, of different kinds or to pieces that overlap.

    Of a table of rows that is also a matrix (an embedding tied to the output layer) the norm is
    taken from products over positions; of others, from the gradients, a chunk at a time.
    """

    def __init__(self, piece: ParameterView, parts: Sequence[Contribution], examples: int) -> None:
        self.piece, self.parts, self._examples = piece, list(parts), examples

    def squared_norms(self, weights: Weights | None) -> Tensor:
        """Return each example's weighted squared norm."""
        match self.parts:
            case [EmbeddingGrad() as rows, OuterProductGrad() as outer] if (
                rows.piece == outer.piece
            ):
                return self._of_tied(rows, outer, weights)
            case [OuterProductGrad() as outer, EmbeddingGrad() as rows] if (
                rows.piece == outer.piece
            ):
                return self._of_tied(rows, outer, weights)
        here = weights_of(weights, self.piece)
        parts = spans(self._examples, 24 * self.piece.size)
        found = [weighted_squares(self.materialise(*part), here) for part in parts]
        return with_rounding(torch.cat(found), self.rounding(weights))

    @staticmethod
    def _of_tied(rows: EmbeddingGrad, outer: OuterProductGrad, weights: Weights | None) -> Tensor:
        """Add twice the inner product: over pairs of a token s and a position t, b_ts (a_t e_s)."""
        tokens, moved = rows.tokens, rows.outputs
        if weights is not None:
            moved = moved * weights.of(rows.piece).scales[tokens].pow(-2)
        index = tokens[:, None, :].expand(-1, outer.outputs.shape[1], -1)
        pairs = outer.outputs.gather(2, index) * torch.bmm(outer.inputs, moved.mT)
        cross = pairs.sum(dim=(1, 2), dtype=torch.float64)
        far = lengths(moved, dim=2).sum(dim=1)
        rounding = 2 * torch.finfo(moved.dtype).eps * sizes_of(outer.inputs, outer.outputs) * far
        both = rows.squared_norms(weights) + outer.squared_norms(weights) + 2 * cross
        return not_negative(both) + 2 * rounding

    def products(self, flat: Tensor) -> Tensor:
        """Return each example's inner product with the piece of `flat`."""
        return torch.stack([part.products(flat) for part in self.parts]).sum(dim=0)

    def add_to(self, flat: Tensor, factors: Tensor) -> None:
        """Add the weighted sum of the gradients."""
        for part in self.parts:
            part.add_to(flat, factors)

    def extreme(self) -> Tensor | None:
        """Return the examples that have huge factors."""
        return either(part.extreme() for part in self.parts)

    def rounding(self, weights: Weights | None) -> Tensor:
        """Return the rounding of the parts, which may cancel each other."""
        eps = torch.finfo(self.parts[0].materialise(0, 1).dtype).eps
        total = torch.zeros(self._examples, dtype=torch.float64)
        for part in self.parts:
            norms, own = part.squared_norms(weights).sqrt(), part.rounding(weights)
            total = total.to(norms.device) + 4 * eps * norms + (0.0 if own is None else own)
        return total

    def factors(self) -> list[Tensor]:
        """Return what the gradients are made of."""
        return [each for part in self.parts for each in part.factors()]

    def materialise(self, start: int, stop: int) -> Tensor:
        """Return the gradients of some examples."""
        total: Tensor | None = None
        for part in self.parts:
            gradients = part.materialise(start, stop)
            if total is None:
                total = gradients.new_zeros((stop - start, self.piece.size))
            view = total.as_strided(
                (stop - start, *part.piece.shape),
                (self.piece.size, *part.piece.stride),
                part.piece.offset - self.piece.offset,
            )
            view += gradients.view(view.shape)
        assert total is not None
        return total.view(stop - start, *self.piece.shape)

    def drop(self, kept: Tensor) -> None:
        """Make some examples' gradients zero."""
        for part in self.parts:
            part.drop(kept)


Joined = DenseGrad | OuterProductGrad | EmbeddingGrad


def combine(
    contributions: Sequence[Contribution], whole: ParameterView, examples: int
) -> Contribution:
    """Return all contributions to one parameter as one, since gradients add before norms do."""
    joined: dict[tuple[ParameterView, type], Contribution] = {}
    for each in contributions:
        key = each.piece, type(each)
        if key in joined and isinstance(each, Joined):
            joined[key] = joined[key].join(each)  # type: ignore[attr-defined]
        elif key in joined:
            joined[key] = Sum(whole, [joined[key], each], examples)
        else:
            joined[key] = each
    parts = list(joined.values())
    return parts[0] if len(parts) == 1 else Sum(whole, parts, examples)


def compacted(contributions: list[Contribution], workspace: Workspace) -> list[Contribution]:
    """Replace factors by gradients where that saves work, within the memory that factors take."""
    workspace.renew()
    room = sum(
        each.factor_size for each in contributions if isinstance(each, OuterProductGrad | Patches)
    )
    found = []
    for each in contributions:
        if isinstance(each, OuterProductGrad | Patches):
            small = each.compact(room, workspace)
            room -= 0 if small is each else small.factor_size
            each = small
        found.append(each)
    return found
