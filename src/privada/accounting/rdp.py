"""Renyi divergences of the mechanisms, and their conversion to (epsilon, delta).

They are computed here rather than taken from dp_accounting because that library drops fractional
orders of the Poisson-sampled Gaussian whose series does not converge (noise 0.3 at rate 0.05 loses
the best ones), takes differences that cancel for fixed-size samples with much noise, and is slow:
a second for fifty multipliers of the one, or for five of the other.
"""

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from privada.accounting.orders import COMMON, ORDERS, WHOLE, Vector

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


@lru_cache(maxsize=1)
def _log_binomials() -> Vector:
    """Return log C(alpha, i) for each whole order and each i, -inf where i > alpha."""
    alpha = WHOLE[:, None].astype(float)
    i = np.arange(WHOLE[-1] + 1)[None, :].astype(float)
    with np.errstate(invalid="ignore"):
        logs = gammaln(alpha + 1) - gammaln(i + 1) - gammaln(np.maximum(alpha - i, 0) + 1)
    return np.where(i <= alpha, logs, -np.inf)


def _whole_orders(rate: float, sigma: float) -> Vector:
    """Return the divergence at each of `WHOLE`, as log1p of a sum of positive terms."""
    i = np.arange(2, WHOLE[-1] + 1).astype(float)
    growth = i * (i - 1) / (2 * sigma**2)
    # log(e^x - 1), which neither overflows nor cancels
    log_growth = np.where(growth > 30, growth, np.log(np.expm1(np.minimum(growth, 30))))
    terms = _log_binomials()[:, 2:] + (log_growth + i * (math.log(rate) - math.log1p(-rate)))
    top = terms.max(axis=1, keepdims=True)
    # what would underflow, which is slow, is rounded up to e^-99
    sums = np.exp(np.maximum(terms - top, -99.0)).sum(axis=1)
    log_sum = top[:, 0] + np.log(sums) + WHOLE * math.log1p(-rate)
    return np.asarray(np.logaddexp(0, log_sum) / (WHOLE - 1))


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


@lru_cache(maxsize=4096)
def sampled_gaussian(rate: float, sigma: float) -> Vector:
    """Return the Renyi divergence of the Poisson-sampled Gaussian at `ORDERS`.

    Reference: Mironov, Talwar and Zhang (2019), Renyi Differential Privacy of the Sampled
    Gaussian Mechanism, Section 3.
    """
    if sigma < _LEAST_NOISE:
        return np.full_like(ORDERS, np.inf)
    sigma = min(sigma, _MOST_NOISE)
    if rate == 1:
        return ORDERS / (2 * sigma**2)
    by_whole = _whole_orders(rate, sigma)
    # The divergence grows with the order, so the next whole order is always a bound.
    bound = by_whole[np.searchsorted(WHOLE, ORDERS)]
    fractional = (ORDERS % 1) != 0
    # Beyond a multiplier of 1e-2 the integration grid would need millions of points.
    if rate >= _SMALLEST_RATE and sigma >= 1e-2:
        exact = _fractional_orders(rate, sigma, ORDERS[fractional])
        bound[fractional] = np.minimum(bound[fractional], exact)
    bound *= 1 + _ROUNDING
    bound.setflags(write=False)  # it is kept and shared
    return bound


def _log_even_moments(sigma: float) -> Vector:
    """Return log E (p/q - 1)^j under q, for even j up to 256, p and q Gaussians one apart.

    By the trapezoidal rule, whose error on such an integrand is about e^-150: it is positive, and
    nothing cancels.
    """
    step = 0.25
    z = np.arange(-32.0, 32.0 + 256 / sigma, step)
    with np.errstate(divide="ignore"):
        log_gap = np.log(np.abs(np.expm1(z / sigma - 1 / (2 * sigma**2))))
    even = np.arange(2, 257, 2)[:, None]
    log_weight = -(z**2) / 2 + math.log(step / math.sqrt(2 * math.pi))
    return np.asarray(logsumexp(even * log_gap + log_weight, axis=1))


@lru_cache(maxsize=4096)
def fixed_size_gaussian(rate: float, sigma: float) -> Vector:
    """Return a bound on the divergence, at `ORDERS`, of a Gaussian over a fixed-size sample.

    The multiplier is over what replacing a record can change. At whole orders the divergence is at
    most log(1 + sum_j C(alpha, j) q^j B_j) / (alpha - 1), where B_j is the lesser of
    4 sqrt(E (p/q - 1)^j' E (p/q - 1)^j'') at the nearest even j' and j'', and 2 E (p/q)^j; between
    them, the cumulants are interpolated.

    Reference: Wang, Balle and Kasiviswanathan (2019), Subsampled Renyi Differential Privacy and
    Analytical Moments Accountant, Theorem 27 and Corollary 10.
    """
    if rate == 1 or sigma < _LEAST_NOISE:
        return sampled_gaussian(1.0, sigma)
    sigma = min(sigma, _MOST_NOISE)
    i = np.arange(2, WHOLE[-1] + 1)
    second = math.log(2) + i * (i - 1) / (2 * sigma**2)
    first = np.full_like(second, np.inf)
    growth = 1 / sigma**2
    first[0] = math.log(4) + (growth if growth > 30 else math.log(math.expm1(growth)))
    # With less noise than this the second is always the lesser, and beyond 256 no other is needed.
    if sigma > 1.2:
        moments = _log_even_moments(sigma)
        odd_or_even = i[1:255]
        lower, upper = moments[odd_or_even // 2 - 1], moments[(odd_or_even + 1) // 2 - 1]
        first[1:255] = math.log(4) + (lower + upper) / 2
    factors = np.minimum(first, second) + i * math.log(rate)
    log_sum = logsumexp(_log_binomials()[:, 2:] + factors, axis=1)
    whole = np.append([1], WHOLE)
    cumulants = np.append([0.0], np.logaddexp(0, log_sum))
    bound = np.asarray(np.interp(ORDERS, whole, cumulants) / (ORDERS - 1)) * (1 + _ROUNDING)
    bound.setflags(write=False)  # it is kept and shared
    return bound


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
