"""The Euclidean projection onto an ellipsoid, of many gradients at once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from privada.clipping.norms import spans
from privada.preconditioning import FlatScaling

# What one copy of the gradients that are projected together may take.
_BYTES = 1 << 25
# Newton's steps are enough in a dozen turns or two; bisection is for what nobody thought of.
_NEWTON_TURNS, _MOST_TURNS = 40, 120
# How close to the surface the solver goes; what is left is taken by rescaling.
_PRECISION = 1e-12
# Bounds that keep quotients of squared scales, and of norms, away from the ends of float64.
_LEAST = 1e-290


@dataclass(frozen=True)
class Ellipsoid:
    """Bounds a gradient by its Euclidean projection onto {g : |g / scale| <= clip}."""

    def sum_of(self, rows: Tensor, scaling: FlatScaling, clip: float) -> Tensor:
        """Return the sum of the projections of some gradients, whitened; in float64."""
        total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
        scale = torch.ones(1) if scaling.scale is None else scaling.scale
        scale = scale.to(total.device, total.dtype)
        for start, stop in spans(len(rows), 8 * rows.shape[1], _BYTES):
            part = rows[start:stop].double()
            if scaling.shift is not None:
                part = part - scaling.shift
            total += projected(part / scale, scale, clip).sum(dim=0)
        return total

    def __repr__(self) -> str:
        return "ellipsoid()"


def projected(whitened: Tensor, scale: Tensor, clip: float) -> Tensor:
    """Return the whitened projections of rows d, given as u = d / scale in float64.

    The projection of d is p_j = d_j / (1 + l / scale_j^2) with the multiplier l >= 0 for which
    |p / scale| is `clip`, and d itself where |u| <= clip. With D = scale^2 that is the secular
    equation of trust regions, |u D / (D + l)| = clip. The inverse of its left side is concave in l,
    so Newton's steps on it go up to the root and, but for rounding, never beyond.

    Guarantee: no row has a norm above `clip`, up to rounding in float64, whatever the solver did:
    what is left outside is rescaled. A row that is not finite becomes zero.

    Reference: Conn, Gould and Toint (2000), Trust-Region Methods, Section 7.3.
    """
    norms = torch.linalg.vector_norm(whitened, dim=1)
    finite = torch.isfinite(norms)
    lengths = torch.where(finite, norms, 0.0).clamp(min=clip)[:, None]
    outside = lengths > clip
    # lengths of at most one and scales of at most one: only quotients matter
    squares = (scale / scale.max()).square().clamp(min=_LEAST)
    weighted, target = whitened / lengths * squares, (clip / lengths).clamp(min=_LEAST)
    high = 1 / target - 1
    low = float(squares.min()) * high
    multiplier = low.clone()
    for turn in range(_MOST_TURNS):
        inverse = (squares + multiplier).reciprocal_()
        parts = (weighted * inverse).square_()
        square = parts.sum(dim=1, keepdim=True)
        length = square.sqrt()
        done = ~outside | ((length - target).abs() <= _PRECISION * target)
        if bool(done.all()):
            break
        far = length > target
        low, high = torch.where(far, multiplier, low), torch.where(far, high, multiplier)
        slope = parts.mul_(inverse).sum(dim=1, keepdim=True)
        newton = multiplier + square * (length - target) / (target * slope)
        good = (newton > low) & (newton < high) & (turn < _NEWTON_TURNS)
        halved = low.sqrt() * high.sqrt()
        multiplier = torch.where(done, multiplier, torch.where(good, newton, halved))
    found = lengths * (weighted / (squares + multiplier))
    found = torch.where(outside, found, whitened)
    norms = torch.linalg.vector_norm(found, dim=1, keepdim=True)
    found = found * (clip / norms.clamp(min=clip))
    return torch.where(torch.isfinite(norms), found, 0.0)
