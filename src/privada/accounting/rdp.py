"""Renyi divergences of the mechanisms, and their conversion to (epsilon, delta).

They are computed here rather than taken from dp_accounting because that library drops fractional
orders of the Poisson-sampled Gaussian whose series does not converge (noise 0.3 at rate 0.05 loses
the best ones), has a loose bound for fixed-size samples, by differences that cancel with much
noise, and is slow: a second for fifty multipliers of the one, or for five of the other.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from privada.accounting.fixed_size_divergences import fixed_size_divergences
from privada.accounting.orders import COMMON, ORDERS, WHOLE, Places, Vector

# Below this rate the convexity gap that quadrature measures drowns in rounding, and the next
# whole order, which has a sum without cancellation, bounds a fractional one from above.
_SMALLEST_RATE = 1e-5
# Beyond these the square of a multiplier leaves the floating-point range: less noise costs
# infinity, more noise is charged as this.
_LEAST_NOISE, _MOST_NOISE = 1e-100, 1e100
# What rounding may take from a sampled divergence; it is added.
_ROUNDING = 5e-10
# A total that underflows is charged as this.
_LEAST_DIVERGENCE = 1e-300


class _Chosen(NamedTuple):
    """Some of `ORDERS`, and what of their divergences depends on nothing else.

    `whole` has the whole orders that are at or next above them, `above` says for each order which
    of these that is, `fractional` which orders are not whole. `log_binomials` has log C(alpha, i)
    for each whole order alpha and each i in `powers`, 2 and more; -inf where i > alpha.
    """

    orders: Vector
    fractional: NDArray[np.bool_]
    whole: NDArray[np.int_]
    above: NDArray[np.intp]
    powers: Vector
    log_binomials: Vector


@lru_cache(maxsize=16)
def _chosen(places: Places | None) -> _Chosen:
    orders = ORDERS if places is None else ORDERS[list(places)]
    whole = WHOLE[np.unique(np.searchsorted(WHOLE, orders))]
    powers = np.arange(2, whole[-1] + 1).astype(float)
    alpha = whole[:, None].astype(float)
    logs = gammaln(alpha + 1) - gammaln(powers + 1) - gammaln(np.maximum(alpha - powers, 0) + 1)
    logs = np.where(powers <= alpha, logs, -np.inf)
    above = np.searchsorted(whole, orders)
    return _Chosen(orders, (orders % 1) != 0, whole, above, powers, logs)


def _whole_orders(rate: float, sigma: float, chosen: _Chosen) -> Vector:
    """Return the divergence at each whole order, as log1p of a sum of positive terms."""
    whole, i = chosen.whole, chosen.powers
    growth = i * (i - 1) / (2 * sigma**2)
    # log(e^x - 1), which neither overflows nor cancels
    log_growth = np.where(growth > 30, growth, np.log(np.expm1(np.minimum(growth, 30))))
    terms = chosen.log_binomials + (log_growth + i * (math.log(rate) - math.log1p(-rate)))
    top = terms.max(axis=1, keepdims=True)
    # what would underflow, which is slow, is rounded up to e^-99
    sums = np.exp(np.maximum(terms - top, -99.0)).sum(axis=1)
    log_sum = top[:, 0] + np.log(sums) + whole * math.log1p(-rate)
    return np.asarray(np.logaddexp(0, log_sum) / (whole - 1))


def _fractional_orders(rate: float, sigma: float, alphas: Vector) -> Vector:
    """Return the divergence at orders below 11 by the trapezoidal rule.

    The integrand is a Gaussian times a function that is analytic in a strip of half-width
    pi sigma^2, so the rule converges geometrically; the step makes its error about e^-39. What
    is integrated is the gap in Bernoulli's inequality, (1 + x)^alpha - 1 - alpha x >= 0, so
    nothing of order one has to cancel.
    """
    step = min(sigma / 6, sigma**2 / 2)
    low, high = -10 * sigma, float(alphas.max()) + 10 * sigma
    z = np.arange(low, high, step)
    log_density = -(z**2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
    loss = (2 * z - 1) / (2 * sigma**2)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + loss)
    alpha = alphas[:, None]
    near = log_ratio < 1
    x = rate * np.expm1(np.where(near, loss, 0))
    gap_near = np.expm1(alpha * np.log1p(x)) - alpha * x
    # near 0 that cancels, and the next terms of the series are below 1e-13 of the first
    tiny = np.abs(x) < 1e-4
    series = 1 + (alpha - 2) / 3 * x * (1 + (alpha - 3) / 4 * x * (1 + (alpha - 4) / 5 * x))
    gap_near = np.where(tiny, alpha * (alpha - 1) / 2 * x**2 * series, gap_near)
    # Far out the ratio r = 1 + x is at least e, and r^alpha outgrows 1 + alpha x.
    far = np.where(near, 1, log_ratio)
    correction = np.exp(-alpha * far) + alpha * np.exp((1 - alpha) * far) * -np.expm1(-far)
    log_gap = np.where(
        near, np.log(np.maximum(gap_near, 1e-300)), alpha * far + np.log1p(-correction)
    )
    return np.asarray(
        np.logaddexp(0, logsumexp(log_gap + log_density, axis=1) + math.log(step)) / (alphas - 1)
    )


def _kept(divergence: Vector) -> Vector:
    """Return an array that may be kept and shared."""
    divergence.setflags(write=False)
    return divergence


@lru_cache(maxsize=4096)
def sampled_gaussian(rate: float, sigma: float, places: Places | None = None) -> Vector:
    """Return the Renyi divergence of the Poisson-sampled Gaussian, in the larger direction.

    At all of `ORDERS`, or at those in `places` alone, which is faster the fewer they are.

    Reference: Mironov, Talwar and Zhang (2019), Renyi Differential Privacy of the Sampled
    Gaussian Mechanism, Section 3, which also says which direction is the larger.
    """
    chosen = _chosen(places)
    if sigma < _LEAST_NOISE:
        return _kept(np.full_like(chosen.orders, np.inf))
    sigma = min(sigma, _MOST_NOISE)
    if rate == 1:
        return _kept(chosen.orders / (2 * sigma**2))
    # The divergence grows with the order, so the next whole order is always a bound.
    bound = _whole_orders(rate, sigma, chosen)[chosen.above]
    fractional = chosen.fractional
    # Beyond a multiplier of 1e-2 the integration grid would need millions of points.
    if rate >= _SMALLEST_RATE and sigma >= 1e-2 and fractional.any():
        exact = _fractional_orders(rate, sigma, chosen.orders[fractional])
        bound[fractional] = np.minimum(bound[fractional], exact)
    return _kept(bound * (1 + _ROUNDING))


@lru_cache(maxsize=4096)
def fixed_size_gaussian(rate: float, sigma: float, places: Places | None = None) -> Vector:
    """Return the Renyi divergence of a Gaussian over a fixed-size sample, in either direction.

    The multiplier is over what replacing a record can change. It is that of the curve of which
    loss distributions are made, and no mechanism exceeds it. `places` is as in `sampled_gaussian`.

    Reference: Balle, Barthe and Gaboardi (2018), Privacy Amplification by Subsampling, Theorem 11;
    see `fixed_size_divergences`.
    """
    whole = sampled_gaussian(1.0, sigma, places)
    if rate == 1 or sigma < _LEAST_NOISE:
        return whole
    orders = _chosen(places).orders
    found = fixed_size_divergences(rate, min(sigma, _MOST_NOISE), orders) * (1 + _ROUNDING)
    return _kept(np.minimum(found, whole))


def to_epsilon(rdp: Vector, delta: float, common: bool = False) -> float:
    """Return the least epsilon that the divergences promise at `delta`.

    With `common`, at the orders that other libraries look at too.

    Reference: Canonne, Kamath and Steinke (2020), The Discrete Gaussian for Differential
    Privacy, Proposition 12; and delta^2 <= 1 - exp(-KL) for tiny losses.
    """
    rdp = np.maximum(np.where(np.isnan(rdp), np.inf, rdp), _LEAST_DIVERGENCE)
    if delta**2 + math.expm1(-float(rdp.min())) > 0:
        return 0.0
    epsilons = rdp + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(0.0, float(np.min(epsilons[COMMON] if common else epsilons)))


def classic_epsilon(rdp: Vector, delta: float) -> float:
    """Return the epsilon of the first conversion, at all orders; older papers print it.

    Reference: Mironov (2017), Renyi Differential Privacy, Proposition 3.
    """
    rdp = np.where(np.isnan(rdp), np.inf, rdp)
    return float(np.min(rdp - math.log(delta) / (ORDERS - 1)))


def moments_epsilon(rdp: Vector, delta: float) -> float:
    """Return the epsilon of the moments accountant: whole moments 1 .. 32, the first conversion.

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, Theorem 2.
    """
    moments = np.arange(1, 33)
    at = np.searchsorted(ORDERS, moments + 1)
    rdp = np.where(np.isnan(rdp), np.inf, rdp)
    return float(np.min(rdp[at] - math.log(delta) / moments))
