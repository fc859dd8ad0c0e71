"""Linear layers on sparse rows, which stay sparse up to the clipped sum."""

import torch
from torch import Tensor
from torch.nn import functional

from privada.clipping.norms import either, extreme, row_squares
from privada.clipping.parameter_views import ParameterView, Weights

# Without this library, torch has no product of a CSR matrix on the processor.
_HAS_PRODUCT: bool = torch._C.has_mkl


def _entries(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the example, the column and the value of each entry of a CSR matrix."""
    counts, columns = rows.crow_indices().diff(), rows.col_indices()
    numbers = torch.arange(len(counts), device=counts.device)
    examples = torch.repeat_interleave(numbers, counts, output_size=len(columns))
    return examples, columns, rows.values()


def sparse_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b for a CSR matrix x."""
    if _HAS_PRODUCT or rows.is_cuda:
        return functional.linear(rows, weight, bias)
    examples, columns, values = _entries(rows)
    picked = weight.t()[columns] * values[:, None]
    out = torch.zeros((rows.shape[0], weight.shape[0]), dtype=weight.dtype, device=rows.device)
    out.index_add_(0, examples, picked)
    return out if bias is None else out + bias


class SparseOuter:
    """Gradients b^T a of a matrix (m, n), where a are rows of a CSR matrix."""

    def __init__(self, piece: ParameterView, rows: Tensor, outputs: Tensor) -> None:
        self.piece, self._outputs = piece, outputs
        self._examples, self._columns, self._values = _entries(rows)
        keys = self._examples * rows.shape[1] + self._columns
        if bool((keys.diff() <= 0).any()):  # entries of one place add up before they are squared
            distinct, places = torch.unique(keys, return_inverse=True)
            self._values = self._values.new_zeros(len(distinct)).index_add_(0, places, self._values)
            self._examples, self._columns = distinct // rows.shape[1], distinct % rows.shape[1]

    def _gathered(self, each: Tensor) -> Tensor:
        """Return sums over the entries of an example, in the last dimension."""
        shape = (*each.shape[:-1], len(self._outputs))
        total = torch.zeros(shape, dtype=torch.float64, device=each.device)
        return total.index_add_(-1, self._examples, each.double())

    def squared_norms(self, weights: Weights | None) -> Tensor:
        """Return each example's weighted squared norm."""
        squares = self._values.double() ** 2
        if weights is None:
            return row_squares(self._outputs) * self._gathered(squares)
        columns = weights.of(self.piece).scales.index_select(1, self._columns).double().pow_(-2)
        found = self._gathered(columns.mul_(squares))
        return (found.t() * self._outputs.double() ** 2).sum(dim=1)

    def products(self, flat: Tensor) -> Tensor:
        """Return each example's inner product with the piece of `flat`."""
        moved = self.piece.of(flat).index_select(1, self._columns) * self._values
        return (self._gathered(moved).t() * self._outputs).sum(dim=1)

    def add_to(self, flat: Tensor, factors: Tensor) -> None:
        """Add the weighted sum of the gradients."""
        scaled = (self._outputs * factors[:, None]).index_select(0, self._examples)
        self.piece.of(flat).t().index_add_(0, self._columns, scaled.mul_(self._values[:, None]))

    def rounding(self, weights: Weights | None) -> None:
        """Return none: nothing cancels in a product of two vectors."""

    def extreme(self) -> Tensor | None:
        """Return the examples that have huge factors."""
        outputs = extreme(self._outputs)
        values = extreme(self._values[:, None])
        if values is None:
            return outputs
        found = torch.zeros(len(self._outputs), dtype=torch.bool, device=values.device)
        found[self._examples[values]] = True
        return either([outputs, found])

    def factors(self) -> list[Tensor]:
        """Return what the gradients are made of."""
        return [self._outputs]

    def materialise(self, start: int, stop: int) -> Tensor:
        """Return the gradients of some examples."""
        here = (self._examples >= start) & (self._examples < stop)
        columns = self.piece.shape[1]
        dense = torch.zeros(
            (stop - start, columns), dtype=self._values.dtype, device=self._values.device
        )
        dense.index_put_(
            (self._examples[here] - start, self._columns[here]), self._values[here], accumulate=True
        )
        return self._outputs[start:stop, :, None] * dense[:, None, :]

    def drop(self, kept: Tensor) -> None:
        """Make some examples' gradients zero."""
        self._outputs = torch.where(kept[:, None], self._outputs, 0.0)
        self._values = torch.where(kept[self._examples], self._values, 0.0)
