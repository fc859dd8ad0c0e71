"""Batches are filled up with dummy examples, so that a record's company does not change its bits.

Products of matrices may round differently for another number of rows, or for a row in another
place, and a model that makes much of its last bits, such as attention over large inputs, turns that
into whole clip norms: one record more would move the gradients of all others. On the processors we
have seen, a row's bits are the same wherever it stands and whatever stands beside it once the
number of rows is a multiple of eight. So batches are filled up to a multiple, which is found out
for each model, on dummy examples, at the sizes that it will have.

There is at least one dummy example in each batch: code that looks whether anything is masked, as
that of `transformers` does, then always finds the same.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from privada.data.batch import Batch, csr
from privada.data.dummies import make_dummies, places_of

# What is tried, the cheapest first.
MULTIPLES = (8, 16, 32, 64)
# A size to try where none is known.
_EXPECTED = 64
# How far above their expected size batches are tried, in standard deviations of a Poisson number.
_DEVIATIONS = 6.0
# Examples of several magnitudes: what rounds alike when all is small may not when some is large.
_MAGNITUDES = (1.0, 30.0, 1000.0)


@dataclass(frozen=True)
class Padding:
    """How batches are filled up: to a `multiple`, with copies of one dummy example.

    `most` is the largest number of records in a batch. `invariant` says whether a record's bits
    were seen not to depend on its company.
    """

    dummy: Batch
    multiple: int
    most: int
    invariant: bool

    def size(self, count: int) -> int:
        """Return how many examples a batch of `count` records is filled up to."""
        return count if self.multiple == 1 else (count // self.multiple + 1) * self.multiple

    def fill(self, batch: Batch) -> Batch:
        """Return the batch with dummy examples behind the records."""
        extra = self.size(batch.size) - batch.size
        if extra == batch.dummies:
            return batch
        batch = batch.without_dummies()
        inputs, targets = tree_map(
            lambda values, dummy: _filled(values, dummy, extra),
            (batch.inputs, batch.targets),
            (self.dummy.inputs, self.dummy.targets),
        )
        return replace(batch, inputs=inputs, targets=targets, dummies=extra)

    def rows(self, values: Tensor, places: Tensor, dummy: Tensor) -> Tensor:
        """Return some rows of a tensor, filled up, without a second copy of them."""
        count = len(places)
        filled = values.new_empty((self.size(count), *values.shape[1:]))
        torch.index_select(values, 0, places, out=filled[:count])
        filled[count:] = dummy
        return filled


def _filled(values: Tensor, dummy: Tensor, extra: int) -> Tensor:
    if values.layout != torch.sparse_csr:
        return torch.cat([values, dummy.to(values.dtype).expand(extra, *dummy.shape[1:])])
    own = dummy if dummy.layout == torch.sparse_csr else dummy.to_sparse_csr()
    each = own.values().numel()
    ends = values.crow_indices()
    more = ends[-1] + each * torch.arange(1, extra + 1, device=ends.device)
    return csr(
        torch.cat([ends, more]),
        torch.cat([values.col_indices(), own.col_indices().repeat(extra)]),
        torch.cat([values.values(), own.values().to(values.dtype).repeat(extra)]),
        (values.shape[0] + extra, values.shape[1]),
    )


def sizes_to_try(room: int, expected: float | None = None) -> list[int]:
    """Return sizes of filled batches that stand for all: the least, a power of two, the largest.

    The largest is above nearly all batches that are drawn; a larger batch is worked through in
    parts. Code that looks at the number of examples mostly asks how many there are, or whether some
    power of two divides it.
    """
    most = _EXPECTED if expected is None else max(1.0, float(expected))
    step = MULTIPLES[-1]
    largest = math.ceil((most + _DEVIATIONS * math.sqrt(most) + 1) / step) * step
    if largest > room:
        multiples = [m for m in MULTIPLES if m <= room] or [room]
        largest = room // multiples[0] * multiples[0]
    return sorted({min(MULTIPLES[0], largest), 1 << (largest.bit_length() - 1), largest})


def find_padding(
    example: Batch,
    factors: Callable[[Batch], Iterable[Tensor]],
    room: int,
    expected: float | None = None,
) -> Padding:
    """Return the smallest padding with which an example's bits do not depend on its company.

    `factors` returns what gradients are made of, first dimension the example; `room` is how many
    examples a pass has memory for, `expected` how many records a batch will have. No batch will be
    larger than the largest that was tried.
    """
    dummy = make_dummies(example, 1, seed=1)
    if room == 1:
        return Padding(dummy, 1, 1, True)  # always alone
    multiples = [m for m in MULTIPLES if m <= room] or [room]
    *smaller, most = sizes_to_try(room, expected)
    for multiple in multiples:
        largest = most // multiple * multiple
        own = {*(n for n in smaller if n % multiple == 0), 2 * multiple, 3 * multiple}
        sizes = sorted({multiple, *(min(n, largest) for n in own), largest})
        if _invariant(example, factors, multiple, sizes):
            return Padding(dummy, multiple, largest - 1, True)
    return Padding(dummy, multiples[0], most // multiples[0] * multiples[0] - 1, False)


def _invariant(
    example: Batch, factors: Callable[[Batch], Iterable[Tensor]], count: int, sizes: Iterable[int]
) -> bool:
    """Return whether examples have the same factors, to the last bit, in all sizes and places."""
    some = _wild(example, count, seed=2)
    expected: list[Tensor] | None = None
    for size in sizes:
        places = places_of(size, seed=size)[:count]
        batch = _put(_wild(example, size, seed=3), some, places)
        try:
            found = [values[places] for values in factors(batch)]
        except Exception:  # the engine has other ways for what does not run
            return False
        if expected is not None and not _same(expected, found):
            return False
        expected = found
    return True


def _same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
        for a, b in zip(first, second, strict=True)
    )


def _wild(example: Batch, size: int, seed: int) -> Batch:
    """Return dummy examples of different magnitudes."""
    batch = make_dummies(example, size, seed).dense()
    scale = torch.tensor(_MAGNITUDES)[torch.arange(size) % len(_MAGNITUDES)]

    def scaled(values: Tensor) -> Tensor:
        if not values.is_floating_point():
            return values
        own = scale.to(values.device, values.dtype)
        return values * own.view(-1, *[1] * (values.ndim - 1))

    return replace(batch, inputs=tree_map(scaled, batch.inputs))


def _put(batch: Batch, some: Batch, places: Tensor) -> Batch:
    """Return a batch with some of its examples replaced."""

    def put(values: Any, new: Any) -> Any:
        values = values.clone()
        values[places.to(values.device)] = new
        return values

    inputs, targets = tree_map(put, (batch.inputs, batch.targets), (some.inputs, some.targets))
    return Batch(inputs, targets)
