"""How one whitened gradient is bounded."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from privada.preconditioning import FlatScaling


@runtime_checkable
class Bound(Protocol):
    """How one gradient is bounded."""

    def sum_of(self, rows: Tensor, scaling: FlatScaling, clip: float) -> Tensor:
        """Return the sum of rows, each whitened and with a norm of at most `clip` afterwards.

        A row that is not finite counts as zero.
        """


@runtime_checkable
class ByNorm(Bound, Protocol):
    """A bound that multiplies a gradient by a factor, for which its norm is all one needs."""

    def factors(self, norms: Tensor, clip: float) -> Tensor:
        """Return factors of at most one, given upper bounds on the norms of whitened gradients."""

    def finish_(self, total: Tensor, clip: float) -> Tensor:
        """Multiply a sum of rescaled gradients in place by what all of them have in common."""


@dataclass(frozen=True)
class Threshold:
    """Shortens a gradient to the clip norm where it is longer."""

    def factors(self, norms: Tensor, clip: float) -> Tensor:
        """Return min(1, clip / norm)."""
        return clip / norms.clamp(min=clip)

    def finish_(self, total: Tensor, clip: float) -> Tensor:
        """Return the sum as it is."""
        return total

    def sum_of(self, rows: Tensor, scaling: FlatScaling, clip: float) -> Tensor:
        """Return the sum of the bounded rows."""
        return _rescaled(self, rows, scaling, clip)

    def __repr__(self) -> str:
        return "threshold()"


@dataclass(frozen=True)
class Automatic:
    """Divides a gradient by its own norm and a little more."""

    gamma: float

    def factors(self, norms: Tensor, clip: float) -> Tensor:
        """Return gamma / (norm + gamma).

        A factor above one, such as clip / (norm + gamma) would often be, could make one of the
        numbers that a short gradient is the product of overflow.
        """
        return self.gamma / (norms + self.gamma)

    def finish_(self, total: Tensor, clip: float) -> Tensor:
        """Multiply by clip / gamma, in two steps of which neither overflows."""
        return total.mul_(1 / self.gamma).mul_(clip)

    def sum_of(self, rows: Tensor, scaling: FlatScaling, clip: float) -> Tensor:
        """Return the sum of the bounded rows."""
        return _rescaled(self, rows, scaling, clip)

    def __repr__(self) -> str:
        return f"automatic(gamma={self.gamma:g})"


def factors_in(bound: ByNorm, norms: Tensor, clip: float, dtype: torch.dtype) -> Tensor:
    """Return the factors of a bound in a type, none rounded up by more than its eps."""
    factors = bound.factors(norms, clip)
    # below the smallest normal number a factor could be rounded up by much
    return torch.where(factors < torch.finfo(dtype).tiny, 0.0, factors).to(dtype)


def whitened(rows: Tensor, scaling: FlatScaling) -> Tensor:
    """Return gradients that come as rows, whitened."""
    if scaling.shift is not None:
        rows = rows - scaling.shift
    return rows if scaling.scale is None else rows / scaling.scale


def whitened_norms(rows: Tensor, scaling: FlatScaling) -> Tensor:
    """Return the norms of whitened gradients in float64; not finite for those that are not."""
    norms: Tensor = torch.linalg.vector_norm(whitened(rows, scaling), dim=1, dtype=torch.float64)
    return norms


def _rescaled(bound: ByNorm, rows: Tensor, scaling: FlatScaling, clip: float) -> Tensor:
    """Return the sum of whitened rows, each times its factor."""
    rows = whitened(rows, scaling)
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    finite = torch.isfinite(norms)
    if not bool(finite.all()):
        rows = torch.where(finite[:, None], rows, 0.0)
        norms = torch.where(finite, norms, 0.0)
    return bound.finish_(factors_in(bound, norms, clip, rows.dtype) @ rows, clip)
