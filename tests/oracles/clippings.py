"""The references of clipping: plain loops, in float64, over gradients given as rows.

Each returns the sum of the bounded, whitened gradients. One that is not finite counts as zero.
"""

import math

import torch

from privada.clipping.workspace import Workspace
from tests.oracles.examples import whitened


def _norm(row):
    return math.sqrt(math.fsum(x * x for x in row.tolist()))


def _finite(row):
    return all(math.isfinite(x) for x in row.tolist())


def threshold(rows, clip, scale=None, shift=None, groups=None):
    """Return the sum of u min(1, clip / |u|)."""
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for row in whitened(rows.double(), scale, shift):
        if _finite(row):
            norm = _norm(row)
            total += row if norm <= clip else row * (clip / norm)
    return total


def automatic(gamma):
    """Return the function that sums u clip / (|u| + gamma)."""

    def summed(rows, clip, scale=None, shift=None, groups=None):
        total = torch.zeros(rows.shape[1], dtype=torch.float64)
        for row in whitened(rows.double(), scale, shift):
            if _finite(row):
                total += row * (clip / (_norm(row) + gamma))
        return total

    return summed


def multiplier(row, scale, clip):
    """Return the multiplier of the projection of one gradient, by bisection on its logarithm."""

    def length(log):
        parts = zip(row.tolist(), scale.tolist(), strict=True)
        return math.sqrt(math.fsum((g / s / (1 + math.exp(log) / s**2)) ** 2 for g, s in parts))

    low, high = -700.0, 300.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if length(middle) > clip else (low, middle)
    return math.exp(low)


def projection(row, scale, clip):
    """Return the nearest point to a gradient with |point / scale| <= clip."""
    if _norm(row / scale) <= clip:
        return row.clone()
    return row / (1 + multiplier(row, scale, clip) / scale**2)


def ellipsoid(rows, clip, scale=None, shift=None, groups=None):
    """Return the sum of projections onto the ellipsoid, whitened."""
    scale = torch.ones(rows.shape[1]).double() if scale is None else scale.double()
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for row in whitened(rows.double(), None, shift):
        if _finite(row):
            total += projection(row, scale, clip) / scale
    return total


def microbatches(rows, clip, scale=None, shift=None, groups=None):
    """Return the sum of the clipped averages over groups; each row is one without `groups`."""
    members = {}
    for place, row in enumerate(rows.double()):
        members.setdefault(place if groups is None else int(groups[place]), []).append(row)
    averages = [sum(group) / len(group) for group in members.values()]
    if not averages:
        return torch.zeros(rows.shape[1], dtype=torch.float64)
    return threshold(torch.stack(averages), clip, scale, shift)


# ---------------------------------------------------------------------- before there was a choice


def plain_sum(rows, scaling, clip, total):
    """Add exactly what per-example engines added when there was nothing but a threshold."""
    if scaling.shift is not None:
        rows = rows - scaling.shift
    if scaling.scale is not None:
        rows = rows / scaling.scale
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    factors = (clip / norms.clamp(min=clip)).to(rows.dtype)
    total += factors @ rows
    return total


def plain_one_pass(engine, batch, scaling, clip, total):
    """Add exactly what the engine of one pass added."""
    weight = 0.0
    for chunk in batch.chunks(engine._chunk):
        contributions = engine._contributions(chunk, Workspace())
        norms = engine._norms(contributions, chunk.size, scaling)
        factors = clip / norms.clamp(min=clip)
        kept = torch.where(factors < torch.finfo(total.dtype).tiny, 0.0, factors).to(total.dtype)
        for each in contributions:
            each.add_to(total, kept)
        weight += float(kept.sum(dtype=torch.float64)) if scaling.shift is not None else 1.0
    if scaling.shift is not None:
        total.add_(scaling.shift, alpha=-weight)
    if scaling.scale is not None:
        total.div_(scaling.scale)
    return total
