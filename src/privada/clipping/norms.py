"""Norms that err upwards, whatever rounding does, and a bound on the memory for making them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from privada.clipping.parameter_views import ViewWeights
from privada.clipping.workspace import scratch

# What per-example gradients that are made and dropped again may take at a time.
CHUNK_BYTES = 1 << 26
# Norms between these have squares that fit float32, with room to spare.
_PLAIN = 1e-12, 1e15
# Factors beyond these are taken for huge.
LARGE = {torch.float32: 1e15, torch.float64: 1e100}
# How many squares are added up in one go, at most, and how many sums vector units make of them at
# least.
_ROW, _LANES = 4096, 4
# A block of squares that stays in the cache between the two operations on it.
_CACHE_BYTES = 1 << 22
# How many columns of squares are added up in one go, at most, and for how many rows of weights
# all of these sums are made before they are added.
COLUMNS, _NARROW = 1024, 64
# How many squared inverse scales of a matrix are kept, at most.
_KEPT = 1 << 18


def upper_bounded(
    sums: Tensor, dtype: torch.dtype, count: int, chain: float, largest: float = 0.0
) -> Tensor:
    """Return sums of `count` squares, made in `dtype`, in float64 and not below the true ones.

    At most `chain` of them are added one after another, and each addition may lose half an eps;
    the products themselves, and roots that are squared again, a few more. Squares below the
    smallest normal number may be lost; as much is added for each, times the largest weight on them.
    """
    kind = torch.finfo(dtype)
    factor, lost = 1 + kind.eps * (4 + chain / 2), 2 * count * kind.tiny * (1 + largest)
    return (sums.double() * factor).add_(lost)


def row_squares(values: Tensor) -> Tensor:
    """Return the squared norms of rows in float64, not below the true ones."""
    width = values.shape[1]
    if values.stride(1) != 1:  # vector units would add a row up number by number
        values = values.contiguous()
    if width <= _ROW:
        found = torch.linalg.vector_norm(values, dim=1).double().square_()
        return upper_bounded(found, values.dtype, width, width / _LANES)
    # no float32 sum is a long one
    count, size = parts_of(width)
    parts = values[:, : count * size].view(len(values), count, size)
    found = torch.linalg.vector_norm(parts, dim=2).double().square_().sum(dim=1)
    if count * size < width:
        found += torch.linalg.vector_norm(values[:, count * size :], dim=1).double().square_()
    return upper_bounded(found, values.dtype, width, _ROW / _LANES)


@lru_cache(maxsize=256)
def parts_of(width: int, most: int = _ROW) -> tuple[int, int]:
    """Return the number and the size of equal parts of a row, each of `most` numbers or fewer.

    They are all of it if it has a divisor for that; vector units like those better. Else something
    is left over.
    """
    least = max(1, -(-width // most))
    for count in range(least, 4 * least + 1):
        if width % count == 0:
            return count, width // count
    return width // most, most


def rounding_of(inputs: Tensor, outputs: Tensor, factor: float = 1.0) -> Tensor:
    """Return how far the norm of a sum of products may be from that of the same sum made otherwise.

    The clipped sum adds the products up in another order: where they cancel, what is left of them
    is another rounding, in proportion to their sizes.
    """
    each = [lengths(values.flatten(1)) for values in (inputs, outputs)]
    return 4 * torch.finfo(inputs.dtype).eps * factor * each[0] * each[1]


def not_negative(squares: Tensor) -> Tensor:
    """Return squared norms, zero where rounding took them below, infinite where one overflowed."""
    inf = math.inf
    return squares.nan_to_num(nan=inf, posinf=inf, neginf=inf).clamp_(min=0)


def with_rounding(squares: Tensor, rounding: Tensor) -> Tensor:
    """Return squared norms that are not below those of sums which rounding has taken elsewhere."""
    raised_norms: Tensor = squares.sqrt() + rounding
    return raised_norms.square()


def lengths(values: Tensor, dim: int = 1) -> Tensor:
    """Return norms in float64, also of numbers whose squares do not fit their type."""
    norms: Tensor = torch.linalg.vector_norm(values, dim=dim)
    plain = (norms > _PLAIN[0]) & (norms < _PLAIN[1])
    found = norms.double()
    if not bool(plain.all()):
        others = values.movedim(dim, -1)[~plain].double()
        found[~plain] = torch.linalg.vector_norm(others, dim=-1)
    return found


def extreme(*factors: Tensor) -> Tensor | None:
    """Return where gradients have factors so large that those they multiply may be lost to them.

    A factor below the smallest normal number is rounded to one of few, or to zero, and a huge
    factor makes that matter, in norms as in sums. None is for nowhere.
    """
    return either(_beyond(each, LARGE[each.dtype]) for each in factors)


def _beyond(values: Tensor, most: float) -> Tensor | None:
    if not values.numel():
        return None
    low, high = torch.aminmax(values)
    if -most <= float(low) <= float(high) <= most:
        return None
    return (values.abs() > most).flatten(1).any(dim=1)


def all_within(squares: Sequence[Tensor], most: float) -> bool:
    """Return whether no squared length is above that of `most`; a NaN is."""
    every = torch.cat([each.flatten() for each in squares])
    return not every.numel() or float(every.max()) <= most * most


def either(found: Iterable[Tensor | None]) -> Tensor | None:
    """Return where any of some masks is true; None if there is none."""
    total: Tensor | None = None
    for mask in found:
        if mask is not None:
            total = mask if total is None else total | mask
    return total


def spans(count: int, bytes_each: int, most: int = CHUNK_BYTES) -> Iterator[tuple[int, int]]:
    """Yield consecutive ranges of a count of things, each within a bound on memory."""
    step = max(1, most // max(1, bytes_each))
    for start in range(0, count, step):
        yield start, min(count, start + step)


def weighted_squares(gradients: Tensor, weights: ViewWeights | None) -> Tensor:
    """Return the weighted squared norms of materialised gradients, not below the true ones."""
    flat = gradients.reshape(len(gradients), -1)
    if weights is None:
        return row_squares(flat)
    return row_squares(flat * weights.inverse.reshape(-1))


def _squares(values: Tensor) -> Tensor:
    """Return squares in memory that the next ones will be in."""
    return torch.mul(values, values, out=scratch(values.shape, values))


def square_products(values: Tensor, weights: ViewWeights, turned: bool) -> Tensor:
    """Return the product of the squares of values with the squared inverse scales of a matrix.

    `turned` says that its transpose is meant. Long sums are made in float64. The squared inverse
    scales of a large matrix are made a part at a time, and dropped.
    """
    scales = weights.scales.t() if turned else weights.scales
    kept = weights.squares if scales.numel() <= _KEPT else None
    if kept is not None and turned:
        kept = kept.t()

    def part(columns: slice) -> Tensor:
        if kept is not None:
            return kept[columns]
        here = scales[columns].t() if turned else scales[columns]
        made = torch.pow(here, -2, out=scratch(here.shape, here, "weights"))
        return made.t() if turned else made

    width, narrow = scales.shape
    bytes_each = values.element_size()
    count, size = parts_of(width, COLUMNS)
    if count == 1 and size == width and values.numel() * bytes_each <= _CACHE_BYTES:
        return torch.mm(values * values, part(slice(None)))
    found = torch.zeros((len(values), narrow), dtype=torch.float64, device=values.device)
    done = 0
    if kept is not None and narrow <= _NARROW:
        done = count * size
        parts = kept[:done].view(count, size, narrow)
        for start, stop in spans(len(values), done * bytes_each, _CACHE_BYTES):
            squares = _squares(values[start:stop, :done]).view(-1, count, size)
            sums = torch.bmm(squares.transpose(0, 1), parts)
            found[start:stop] = sums.sum(dim=0, dtype=torch.float64)
    for first in range(done, width, size):
        columns = slice(first, min(first + size, width))
        squared = part(columns)
        for start, stop in spans(len(values), size * bytes_each, _CACHE_BYTES):
            found[start:stop] += torch.mm(_squares(values[start:stop, columns]), squared)
    return found
