"""Projections on convex sets, in a norm with its own weight for each coordinate."""

from typing import Protocol

import torch
from torch import Tensor

from privada.core.errors import ArgumentError
from privada.core.validation import positive, real, shown

# Halvings after which a bracket in float64 has no number left inside.
_HALVINGS = 120


class Projection(Protocol):
    """The nearest point of a convex set."""

    def project(self, point: Tensor, metric: Tensor | None = None) -> Tensor:
        """Return the point y of the set that is nearest, by sum_j metric_j (y_j - x_j)^2."""


def checked_onto(onto: Projection | None) -> Projection | None:
    """Return a projection, or None for none."""
    if onto is not None and (isinstance(onto, type) or not hasattr(onto, "project")):
        raise ArgumentError(
            f"Expected onto to be a projection of pv.updates or None, got onto={shown(onto)}. Use "
            "pv.updates.box(-1.0, 1.0), or the like."
        )
    return onto


class Box:
    """The set of points with every coordinate between `low` and `high`.

    Args:
        low, high: the bounds.

    Edge cases: the nearest point is the same whatever the metric.

    Example:
        >>> import torch
        >>> from privada.updates import box
        >>> box(-1.0, 1.0).project(torch.tensor([0.5, 3.0]))
        tensor([0.5000, 1.0000])

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Section 4.1.
    """

    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        self._low, self._high = real("low", low), real("high", high)
        if self._low >= self._high:
            raise ArgumentError(f"Expected low < high, got low={low}, high={high}.")

    def project(self, point: Tensor, metric: Tensor | None = None) -> Tensor:
        """Return the nearest point of the box."""
        return point.clamp(self._low, self._high)

    def __repr__(self) -> str:
        return f"box({self._low}, {self._high})"


box = Box
"""Constructor of `Box`, as methods and examples spell it."""


class Ball:
    """The set of points of Euclidean norm at most `radius`.

    Args:
        radius: of the ball.

    Edge cases: in a metric h the nearest point is h x / (h + mu), mu found by bisection in float64.
    Coordinates whose metric is 0 go to 0 if anything has to give.

    Example:
        >>> import torch
        >>> from privada.updates import ball
        >>> ball(1.0).project(torch.tensor([3.0, 4.0]))
        tensor([0.6000, 0.8000])

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Section 2.
    """

    def __init__(self, radius: float = 1.0) -> None:
        self._radius = positive("radius", radius)

    def project(self, point: Tensor, metric: Tensor | None = None) -> Tensor:
        """Return the nearest point of the ball."""
        x, radius = point.double(), self._radius
        norm = float(x.norm())
        if norm <= radius:
            return point.clone()
        if metric is None:
            return (x * (radius / norm)).to(point.dtype)
        h = metric.double()
        low, high = 0.0, float((h * x).norm()) / radius

        def at(mu: float) -> Tensor:
            return torch.where(h > 0, h * x / (h + mu), 0.0)

        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if float(at(middle).norm()) > radius:
                low = middle
            else:
                high = middle
        return at(high).to(point.dtype)

    def __repr__(self) -> str:
        return f"ball({self._radius})"


ball = Ball
"""Constructor of `Ball`, as methods and examples spell it."""


class Simplex:
    """The set of points with no negative coordinate and a sum of `total`.

    Args:
        total: the sum of the coordinates.

    Edge cases: in a metric h the nearest point is max(0, x - nu / h), nu found by bisection in
    float64. The metric must be positive.

    Example:
        >>> import torch
        >>> from privada.updates import simplex
        >>> simplex().project(torch.tensor([0.7, 0.7, -1.0]))
        tensor([0.5000, 0.5000, 0.0000])

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Section 2.
    """

    def __init__(self, total: float = 1.0) -> None:
        self._total = positive("total", total)

    def project(self, point: Tensor, metric: Tensor | None = None) -> Tensor:
        """Return the nearest point of the simplex."""
        x, total = point.double(), self._total
        h = torch.ones_like(x) if metric is None else metric.double()
        h = h.clamp(min=torch.finfo(point.dtype).tiny)
        low, high = float((h * (x - total)).min()), float((h * x).max())
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if float((x - middle / h).clamp_(min=0).sum()) > total:
                low = middle
            else:
                high = middle
        found = (x - high / h).clamp_(min=0)
        return found.to(point.dtype)

    def __repr__(self) -> str:
        return f"simplex({self._total})"


simplex = Simplex
"""Constructor of `Simplex`, as methods and examples spell it."""
