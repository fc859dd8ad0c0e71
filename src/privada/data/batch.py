"""The examples of one step, and how a model is called on them."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


@dataclass(frozen=True)
class Batch:
    """Inputs and targets of some examples, first dimension the example. Private.

    `groups` has the number of the micro-batch that each example is in; None if each is by itself.
    `dummies` says how many dummy examples follow the others; `rows` counts them, `size` does not.
    `sparse` says whether the inputs are rows of a sparse matrix.

    Example:
        >>> import torch
        >>> from privada.clipping import Batch
        >>> [part.size for part in Batch(torch.ones(5, 2), torch.zeros(5)).chunks(2)]
        [2, 2, 1]
    """

    inputs: Any
    targets: Any
    groups: Tensor | None = None
    dummies: int = 0
    rows: int = field(init=False, compare=False)
    size: int = field(init=False, compare=False)
    sparse: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        one = isinstance(self.inputs, Tensor)
        first: Tensor = self.inputs if one else tree_leaves(self.inputs)[0]
        object.__setattr__(self, "rows", first.shape[0])
        object.__setattr__(self, "size", self.rows - self.dummies)
        object.__setattr__(self, "sparse", one and first.layout == torch.sparse_csr)

    def chunks(self, size: int) -> Iterator["Batch"]:
        """Yield the examples a chunk at a time."""
        if size >= self.size:
            if self.size:
                yield self
            return
        for start in range(0, self.size, size):
            stop = min(start + size, self.size)
            inputs, targets = tree_map(
                lambda t, start=start, stop=stop: _rows(t, start, stop),
                (self.inputs, self.targets),
            )
            yield Batch(inputs, targets, None if self.groups is None else self.groups[start:stop])

    def without_dummies(self) -> "Batch":
        """Return the batch without the dummy examples at its end."""
        if not self.dummies:
            return self
        inputs, targets = tree_map(lambda t: _rows(t, 0, self.size), (self.inputs, self.targets))
        return Batch(inputs, targets, self.groups)

    def at(self, places: Tensor) -> "Batch":
        """Return the examples at some places."""
        dense = self.dense()
        inputs, targets = tree_map(lambda t: t[places.to(t.device)], (dense.inputs, dense.targets))
        groups = None if self.groups is None else self.groups[places]
        return Batch(inputs.to_sparse_csr() if self.sparse else inputs, targets, groups)

    def by_group(self) -> "Batch":
        """Return the examples in an order in which those of a group follow each other."""
        if self.groups is None:
            return self
        if len(self.groups) != self.size:
            raise ValueError(f"{self.size} examples have {len(self.groups)} groups")
        return self.at(torch.argsort(self.groups, stable=True))

    def dense(self) -> "Batch":
        """Return the batch with ordinary tensors."""
        return replace(self, inputs=self.inputs.to_dense()) if self.sparse else self

    def __repr__(self) -> str:
        return "Batch(<private>)"


def _rows(values: Tensor, start: int, stop: int) -> Tensor:
    """Return consecutive rows, of a CSR matrix too."""
    if values.layout != torch.sparse_csr:
        return values[start:stop]
    bounds = values.crow_indices()[start : stop + 1]
    inside = slice(int(bounds[0]), int(bounds[-1]))
    return csr(
        bounds - bounds[0],
        values.col_indices()[inside],
        values.values()[inside],
        (stop - start, values.shape[1]),
    )


def csr(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a CSR matrix of parts that are known to be right, without torch's remark on it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)


def scaled(batch: Batch, factor: float) -> Batch:
    """Return a batch with its floats multiplied by a factor, NaN included."""

    def times(values: Tensor) -> Tensor:
        return values * factor if values.is_floating_point() else values

    return replace(
        batch, inputs=tree_map(times, batch.inputs), targets=tree_map(times, batch.targets)
    )
