"""What one parameter contributes to each example's gradient, kept in factors where that is cheaper.

A contribution knows the squared norms of its per-example gradients under a diagonal weighting, and
their weighted sum; neither needs the gradients themselves. Squared norms err upwards: sums of
products that can cancel carry a bound on their rounding, and squares that can underflow carry a
bound on what was lost.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import torch
from torch import Tensor

from privada.clipping.norms import (
    COLUMNS,
    LARGE,
    all_within,
    either,
    extreme,
    lengths,
    not_negative,
    rounding_of,
    row_squares,
    spans,
    square_products,
    upper_bounded,
    weighted_squares,
    with_rounding,
)
from privada.clipping.parameter_views import ParameterView, ViewWeights, Weights, weights_of
from privada.clipping.workspace import Workspace, scratch

# A block of gradients that stays in the cache until it is squared.
_BLOCK_BYTES = 1 << 20


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


def _where(kept: Tensor, values: Tensor) -> Tensor:
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
        self._gradients, self._squares = _where(kept, self._gradients), None


class OuterProductGrad:
    """Gradients b^T a of a matrix (m, n), a: (examples, positions, n), b: (examples, positions, m).

    With one position the norm is that of two vectors, and needs one product of matrices in a
    general diagonal geometry. With several it is taken from the Gram matrices of the positions
    where the weights are an outer product and that is cheaper, else from the gradients, which take
    the place of their factors where they are no larger, and are made a chunk at a time where they
    are.
    """

    def __init__(self, piece: ParameterView, inputs: Tensor, outputs: Tensor) -> None:
        self.piece = piece
        self.inputs, self.outputs = inputs, outputs
        self.seen: list[Tensor] = []  # squared lengths that no factor is above, if known
        self._output_squares: Tensor | None = None

    def join(self, other: Self) -> "OuterProductGrad":
        """Return the sum of two contributions to one piece."""
        return OuterProductGrad(
            self.piece,
            torch.cat([self.inputs, other.inputs], dim=1),
            torch.cat([self.outputs, other.outputs], dim=1),
        )

    @property
    def factor_size(self) -> int:
        """How many numbers the factors take."""
        return self.inputs.numel() + self.outputs.numel()

    def compact(self, room: int, workspace: Workspace) -> "OuterProductGrad | DenseGrad":
        """Return the gradients themselves where that saves a product and there is room for them.

        With them, the sum takes one pass over m n numbers an example; without, a product over all
        positions once more.
        """
        examples, positions, (m, n) = *self.inputs.shape[:2], self.piece.shape
        dear = positions > 8 and positions * positions * (m + n) > 8 * m * n
        if not dear or examples * m * n > room:
            return self
        gradients = workspace.take((examples, m, n), self.inputs)
        return DenseGrad(self.piece, torch.bmm(self.outputs.mT, self.inputs, out=gradients))

    def squared_norms(self, weights: Weights | None) -> Tensor:
        """Return each example's weighted squared norm."""
        here = weights_of(weights, self.piece)
        positions, (m, n) = self.inputs.shape[1], self.piece.shape
        if positions == 1:
            return self._of_vectors(self.inputs[:, 0], self.outputs[:, 0], here)
        if (here is None or here.separable) and positions * (m + n) < m * n:
            return self.by_gram(here)
        return self._by_blocks(here)

    def _by_blocks(self, weights: ViewWeights | None) -> Tensor:
        """Return squared norms from gradients that are made a block of rows at a time.

        A block stays in the cache until it is squared and added up, and takes the place of the one
        before: fresh memory would cost as much as the product.
        """
        examples, _, n = self.inputs.shape
        m, width = self.outputs.shape[2], n * self.inputs.element_size()
        found = torch.zeros(examples, dtype=torch.float64, device=self.inputs.device)
        rounding, seen = torch.zeros_like(found), []
        for start, stop in spans(examples, m * width, _BLOCK_BYTES):
            inputs, outputs = self.inputs[start:stop], self.outputs[start:stop]
            seen += [lengths(inputs.flatten(1)), lengths(outputs.flatten(1))]
            rounding[start:stop] = _rounding(inputs, outputs, weights)
            for top, bottom in spans(m, (stop - start) * width, _BLOCK_BYTES):
                block = scratch((stop - start, bottom - top, n), self.inputs)
                block = torch.bmm(outputs.mT[:, top:bottom], inputs, out=block).flatten(1)
                if weights is not None:
                    block.mul_(weights.inverse[top:bottom].reshape(-1))
                found[start:stop] += row_squares(block)
        self._see([each.square() for each in seen], None)
        return with_rounding(found, rounding)

    def output_squares(self) -> Tensor:
        """Return the squared norms of the outputs, which have one position."""
        if self._output_squares is None:
            self._output_squares = row_squares(self.outputs[:, 0])
        return self._output_squares

    def _of_vectors(self, a: Tensor, b: Tensor, weights: ViewWeights | None) -> Tensor:
        if weights is None or weights.separable:
            rows, columns = (None, None) if weights is None else (weights.rows, weights.columns)
            of_a = row_squares(a if columns is None else a * columns)
            of_b = self.output_squares() if rows is None else row_squares(b * rows)
            self._see([of_a, of_b], weights)
            return of_a * of_b
        turned = a.shape[1] >= b.shape[1]
        narrow, wide = (b, a) if turned else (a, b)
        width, dtype = wide.shape[1], a.dtype
        products, chain = square_products(wide, weights, turned), min(width, COLUMNS)
        if weights.least_square:  # the products bound lengths well enough for what follows
            of_wide = upper_bounded(products[:, 0], dtype, width, chain, weights.largest)
            of_wide.div_(weights.least_square)
        else:
            of_wide = row_squares(wide)
        of_narrow = row_squares(narrow)
        self._see([of_wide, of_narrow], None)
        tiny = 4 * torch.finfo(dtype).tiny * (weights.largest + 1)
        lost = (width * of_narrow + narrow.shape[1] * of_wide) * tiny
        sums = (products * narrow.square()).sum(dim=1, dtype=torch.float64)
        return upper_bounded(sums, dtype, width, chain).add_(lost)

    def _see(self, squares: list[Tensor], weights: ViewWeights | None) -> None:
        """Keep bounds on all factors, from the squared lengths of weighted ones."""
        least = 1.0 if weights is None else min(1.0, weights.least)
        self.seen = [each if least == 1 else each / least**2 for each in squares]

    def by_gram(self, weights: ViewWeights | None) -> Tensor:
        """Return each example's weighted squared norm, from the Gram matrices of positions."""
        found, positions, seen = [], self.inputs.shape[1], []
        width = 2 * positions * positions * self.inputs.element_size()
        for start, stop in spans(self.inputs.shape[0], width):
            a, b = self.inputs[start:stop], self.outputs[start:stop]
            if weights is not None:
                a = a if weights.columns is None else a * weights.columns
                b = b if weights.rows is None else b * weights.rows
            gram = torch.bmm(a, a.mT).mul_(torch.bmm(b, b.mT))
            # what sums of like numbers lose goes with the products, the rest with the sizes
            like = torch.linalg.vector_norm(gram.flatten(1), ord=1, dim=1).double()
            like *= math.sqrt(a.shape[2]) + math.sqrt(b.shape[2])
            of_a, of_b = lengths(a, dim=2), lengths(b, dim=2)
            seen += [of_a, of_b]
            rounding = torch.finfo(a.dtype).eps * (2 * _products(of_a, of_b, a.dtype) ** 2 + like)
            # and products lost to underflow go with what they would have been multiplied by
            tiny = torch.finfo(a.dtype).tiny
            rounding += tiny * b.shape[2] * of_a.sum(dim=1).square_()
            rounding += tiny * a.shape[2] * of_b.sum(dim=1).square_()
            found.append(gram.sum(dim=(1, 2), dtype=torch.float64).clamp_(min=0) + rounding)
        self._see([each.square() for each in seen], weights)
        lost = 2 * self.piece.size * torch.finfo(self.inputs.dtype).tiny
        return torch.cat(found) + lost * (1 + (0 if weights is None else weights.largest))

    def products(self, flat: Tensor) -> Tensor:
        """Return each example's inner product with the piece of `flat`."""
        direction = self.piece.of(flat)
        if direction.shape[0] < direction.shape[1]:
            moved = torch.matmul(self.inputs, direction.t())
            return (moved * self.outputs).sum(dim=(1, 2), dtype=torch.float64)
        moved = torch.matmul(self.outputs, direction)
        return (moved * self.inputs).sum(dim=(1, 2), dtype=torch.float64)

    def add_to(self, flat: Tensor, factors: Tensor) -> None:
        """Add the weighted sum of the gradients."""
        self._sum(self.piece.of(flat), factors, beta=1)

    def write_to(self, flat: Tensor, factors: Tensor) -> None:
        """Put the weighted sum of the gradients in the place of what is there."""
        self._sum(self.piece.of(flat), factors, beta=0)

    def _sum(self, total: Tensor, factors: Tensor, beta: int) -> None:
        """Make a total `beta` times itself and the weighted sum of the gradients."""
        inputs, outputs, each = self.inputs, self.outputs, factors.view(-1, 1, 1)
        if inputs.shape[2] < outputs.shape[2]:  # scale the narrower of the two
            inputs = inputs * each
        else:
            outputs = outputs * each
        if inputs.shape[1] == 1:
            torch.addmm(total, outputs[:, 0].t(), inputs[:, 0], beta=beta, out=total)
        elif outputs.is_contiguous() and inputs.is_contiguous():
            rows, columns = outputs.flatten(0, 1), inputs.flatten(0, 1)
            torch.addmm(total, rows.t(), columns, beta=beta, out=total)
        else:  # which joining examples and positions would copy
            torch.addbmm(total, outputs.mT, inputs, beta=beta, out=total)

    def extreme(self) -> Tensor | None:
        """Return the examples that have huge factors."""
        if self.seen and all_within(self.seen, LARGE[self.inputs.dtype]):
            return None
        return extreme(self.inputs, self.outputs)

    def rounding(self, weights: Weights | None) -> Tensor | None:
        """Return the rounding of sums over several positions."""
        if self.inputs.shape[1] == 1:
            return None
        return _rounding(self.inputs, self.outputs, weights_of(weights, self.piece))

    def factors(self) -> list[Tensor]:
        """Return what the gradients are made of."""
        return [self.inputs, self.outputs]

    def materialise(self, start: int, stop: int) -> Tensor:
        """Return the gradients of some examples."""
        return torch.bmm(self.outputs[start:stop].mT, self.inputs[start:stop])

    def drop(self, kept: Tensor) -> None:
        """Make some examples' gradients zero."""
        self.inputs, self.outputs = _where(kept, self.inputs), _where(kept, self.outputs)
        self._output_squares = None


def extremes(contributions: Sequence[Contribution]) -> Tensor | None:
    """Return the examples whose norm and sum must be taken from their gradients; None for none."""
    seen = [each for each in contributions if isinstance(each, OuterProductGrad) and each.seen]
    if seen:  # one look at all of them
        squares = [squared for each in seen for squared in each.seen]
        if all_within(squares, LARGE[seen[0].inputs.dtype]):
            contributions = [each for each in contributions if each not in seen]
    return either(each.extreme() for each in contributions)


def _rounding(inputs: Tensor, outputs: Tensor, weights: ViewWeights | None) -> Tensor:
    if weights is not None:
        inputs, outputs = inputs * weights.bounds[1], outputs * weights.bounds[0]
    return rounding_of(inputs, outputs)


def _sizes(a: Tensor, b: Tensor) -> Tensor:
    """Return, for each example, the sum over positions of |a| |b|."""
    return _products(lengths(a, dim=2), lengths(b, dim=2), a.dtype)


def _products(of_a: Tensor, of_b: Tensor, dtype: torch.dtype) -> Tensor:
    return (of_a * of_b).to(dtype).sum(dim=1, dtype=torch.float64)


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
        self._rows = _where(kept[self._example], self._rows)
        self.outputs = _where(kept, self.outputs)


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
        rounding = 2 * torch.finfo(moved.dtype).eps * _sizes(outer.inputs, outer.outputs) * far
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
