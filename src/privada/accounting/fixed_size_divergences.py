"""The Renyi divergence of a Gaussian over a fixed-size sample, for replacing one record.

With Q the unchanged and P the changed data, H_g = E_Q (P/Q - g)_+ their hockey-stick divergence and
a > 1, two integrations by parts give

    E_Q (P/Q)^a - 1 = a (a-1) int_1^inf (g^(a-2) H_g(P, Q) + g^(-a-1) H_g(Q, P)) dg,

in which all weights are positive, so that bounds on the curves bound the divergence. Let H'_g be
the curve of the Gaussian alone. Sampling a share q without replacement makes of it, in both
directions, H_r <= q H'_g at every r = 1 + q (g-1) >= 1. With that the integral over g has a closed
form: if l ~ N(-1 / (2 s^2), 1 / s^2) is the Gaussian's loss under Q, of which
H'_g = E (e^l - g)_+, and r = 1 + q (e^l - 1), then

    E_Q (P/Q)^a - 1 <= E [(r^a - 1) (1 - r^(1-a)); l > 0].

At q = 1 both sides are e^(a (a-1) / (2 s^2)) - 1. No factor cancels, however small the loss. Loss
distributions are made of the same curve (`loss_grids`), so what is lost against them is the
conversion to epsilon alone.

References: Balle, Barthe and Gaboardi (2018), Privacy Amplification by Subsampling, arXiv
1807.01647, Theorem 11, for the curve; Sason and Verdu (2016), f-Divergence Inequalities, arXiv
1508.00335, Proposition 3, for the integral.
"""

import math
from typing import NamedTuple

import numpy as np

from privada.accounting.orders import Vector

# The integral is over u = s l in panels of at most this width, by a Gauss rule on each. The
# integrand is a Gaussian of variance 1 times powers of r, which is analytic but for zeros at a
# distance of pi s from the axis; near them panels are narrower.
_WIDEST = 2.0
_PLACES, _WEIGHTS = ((each + shift) / 2 for each, shift in zip(
    np.polynomial.legendre.leggauss(10), (1, 0), strict=True))  # fmt: skip
_WIDENING = 1.5
# How far from a peak it is integrated, and how much less than the largest logarithm an integrand
# is left out: e^-32 = 1e-14 of the whole.
_REACH, _NEGLIGIBLE = 8.0, 32.0
# Beyond this loss r is q e^l to the last digit.
_LARGE = 650.0
# With less noise than this, peaks are narrower than the digits that say where they are.
_LEAST_NOISE = 1e-4


class _Panels(NamedTuple):
    """Intervals of u, for which of the orders each is, and about the largest logarithm of each."""

    order: np.ndarray[tuple[int], np.dtype[np.intp]]
    start: Vector
    width: Vector
    top: Vector


def fixed_size_divergences(rate: float, sigma: float, orders: Vector) -> Vector:
    """Return the divergence at each of `orders`, to within 1e-12 of it.

    The noise `sigma` is over what replacing a record can change.

    Edge cases: with noise below 1e-4, log(1 + q (e^(a (a-1) / (2 s^2)) - 1)) / (a-1), which is
    larger since powers are convex: r^a <= 1 - q + q e^(a l).

    Example:
        >>> import numpy as np
        >>> from privada.accounting.fixed_size_divergences import fixed_size_divergences
        >>> fixed_size_divergences(0.01, 2.0, np.array([2.0, 8.0])).round(6).tolist()
        [3.9e-05, 0.000156]
    """
    log_odds = math.log1p(-rate) - math.log(rate)
    if sigma < _LEAST_NOISE:
        growth = orders * (orders - 1) / (2 * sigma**2)
        return np.asarray((np.logaddexp(log_odds, growth) + math.log(rate)) / (orders - 1))
    edges = _edges(log_odds, sigma, float(orders.max()))
    row, start, width, top = _panels(rate, sigma, orders, edges)
    u = start[:, None] + width[:, None] * _PLACES
    power, factor = _integrand(u, rate, sigma, orders[row][:, None])
    each = (np.exp(power - top[row][:, None]) * factor) @ _WEIGHTS * width
    sums = np.bincount(row, weights=each, minlength=orders.size) / math.sqrt(2 * math.pi)
    # what underflows is rounded up
    log_moment = top + np.log(np.maximum(sums, 1e-300))
    return np.asarray(np.logaddexp(0, log_moment) / (orders - 1))


def _integrand(u: Vector, rate: float, sigma: float, order: Vector) -> tuple[Vector, Vector]:
    """Return the logarithm of r^a times the Gaussian's density, and the other factor.

    That is (1 - r^-a) (1 - r^(1-a)), between 0 and 1. The density lacks 1 / sqrt(2 pi).
    """
    loss = u / sigma
    x = rate * np.expm1(np.minimum(loss, _LARGE))
    log_r = np.log1p(x) + np.maximum(loss - _LARGE, 0.0)
    one = -np.expm1((1 - order) * log_r)
    # 1 - r^-a is 1 - (1 - one) / r
    return order * log_r - (u + 0.5 / sigma) ** 2 / 2, one * (x + one) / (1 + x)


def _edges(log_odds: float, sigma: float, largest: float) -> Vector:
    """Return the edges of panels from 0 to where r is q e^l at all orders, or to the last peak.

    The zeros of r are at l = `log_odds` +- i pi.
    """
    zero, last = max(log_odds, 0.0), largest / sigma + _REACH
    width = min(_WIDEST, 2 * sigma)
    edges = width * np.arange(1 + math.ceil(min(sigma * (zero + 3), last) / width))
    wider = math.ceil(math.log(_WIDEST / width) / math.log(_WIDENING))
    widths = np.minimum(_WIDEST, width * _WIDENING ** np.arange(1, wider + 1))
    edges = np.append(edges, edges[-1] + np.cumsum(widths))
    end = min(sigma * (zero + math.log(largest) + 3), last)
    rest = math.ceil(max(0.0, end - edges[-1]) / _WIDEST)
    return np.append(edges, edges[-1] + _WIDEST * np.arange(1, rest + 1))


def _panels(rate: float, sigma: float, orders: Vector, shared: Vector) -> _Panels:
    """Return, for each order, the panels that its integrand is not negligible on.

    Beyond the shared edges r^a is q^a e^(a l), and there is one peak, where u is (a - 1/2) / s.
    """
    peak = (orders - 0.5) / sigma
    around = np.maximum(shared[-1], peak - _REACH)[:, None]
    around = around + _WIDEST * np.arange(1 + math.ceil(2 * _REACH / _WIDEST))
    edges = np.hstack([np.broadcast_to(shared, (orders.size, shared.size)), around])
    power, factor = _integrand(edges, rate, sigma, orders[:, None])
    with np.errstate(divide="ignore"):
        logs = power + np.log(factor)
    # r^a (1 - r^-a) (1 - r^(1-a)) rises and the density falls: this is the most on each panel
    falls = np.diff((edges + 0.5 / sigma) ** 2) / 2
    kept = logs[:, 1:] + falls > logs.max(axis=1, keepdims=True) - _NEGLIGIBLE
    kept[:, shared.size - 1] = False  # between the shared edges and a peak beyond them
    row, column = np.nonzero(kept)
    start = edges[row, column]
    return _Panels(row, start, edges[row, column + 1] - start, power.max(axis=1))
