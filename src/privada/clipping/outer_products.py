"""Gradients of matrices that are kept in factors: outer products, summed over positions."""

import math
from typing import Self

import torch
from torch import Tensor

from privada.clipping.contributions import DenseGrad, zero_unless
from privada.clipping.norms import (
    COLUMNS,
    LARGE,
    all_within,
    extreme,
    lengths,
    rounding_of,
    row_squares,
    spans,
    square_products,
    upper_bounded,
    with_rounding,
)
from privada.clipping.parameter_views import ParameterView, ViewWeights, Weights, weights_of
from privada.clipping.workspace import Workspace, scratch

# A block of gradients that stays in the cache until it is squared.
_BLOCK_BYTES = 1 << 20


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
        self.inputs, self.outputs = zero_unless(kept, self.inputs), zero_unless(kept, self.outputs)
        self._output_squares = None


def _rounding(inputs: Tensor, outputs: Tensor, weights: ViewWeights | None) -> Tensor:
    if weights is not None:
        inputs, outputs = inputs * weights.bounds[1], outputs * weights.bounds[0]
    return rounding_of(inputs, outputs)


def sizes_of(a: Tensor, b: Tensor) -> Tensor:
    """Return, for each example, the sum over positions of |a| |b|."""
    return _products(lengths(a, dim=2), lengths(b, dim=2), a.dtype)


def _products(of_a: Tensor, of_b: Tensor, dtype: torch.dtype) -> Tensor:
    return (of_a * of_b).to(dtype).sum(dim=1, dtype=torch.float64)
