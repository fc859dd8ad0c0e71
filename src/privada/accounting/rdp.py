"""Renyi divergences of the mechanisms, and their conversion to (epsilon, delta).

The Poisson-sampled Gaussian is computed here rather than taken from dp_accounting because that
library drops fractional orders whose series does not converge (noise 0.3 at rate 0.05 loses
the best ones) and takes a second for fifty multipliers. Everything else is dp_accounting's.
"""

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting import SampledWithoutReplacementDpEvent as FixedSizeEvent
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from privada.accounting import events

Vector = NDArray[np.float64]

ORDERS: Vector = np.unique(
    np.concatenate([np.array(DEFAULT_RDP_ORDERS, dtype=float), 1 + np.arange(1, 10) / 100])
)
_WHOLE = np.arange(2, 65)
_WHOLE = np.concatenate([_WHOLE, [128, 256, 512, 1024]])
# Below this rate the convexity gap that quadrature measures drowns in rounding, and the next
# whole order, which has a sum without cancellation, bounds a fractional one from above.
_SMALLEST_RATE = 1e-5


@lru_cache(maxsize=1)
def _log_binomials() -> Vector:
    """Return log C(alpha, i) for each whole order and each i, -inf where i > alpha."""
    alpha = _WHOLE[:, None].astype(float)
    i = np.arange(_WHOLE[-1] + 1)[None, :].astype(float)
    with np.errstate(invalid="ignore"):
        logs = gammaln(alpha + 1) - gammaln(i + 1) - gammaln(np.maximum(alpha - i, 0) + 1)
    return np.where(i <= alpha, logs, -np.inf)


def _whole_orders(rate: float, sigma: float) -> Vector:
    """Return the divergence at each of `_WHOLE`, as log1p of a sum of positive terms."""
    alpha = _WHOLE[:, None].astype(float)
    i = np.arange(2, _WHOLE[-1] + 1)[None, :].astype(float)
    growth = i * (i - 1) / (2 * sigma**2)
    # log(e^x - 1), which neither overflows nor cancels
    log_growth = np.where(growth > 30, growth, np.log(np.expm1(np.minimum(growth, 30))))
    terms = _log_binomials()[:, 2:] + i * math.log(rate) + (alpha - i) * math.log1p(-rate)
    log_sum = logsumexp(np.where(np.isfinite(terms), terms + log_growth, -np.inf), axis=1)
    return np.asarray(np.logaddexp(0, log_sum) / (_WHOLE - 1))


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
    if rate == 1:
        return ORDERS / (2 * sigma**2)
    by_whole = _whole_orders(rate, sigma)
    # The divergence grows with the order, so the next whole order is always a bound.
    bound = by_whole[np.searchsorted(_WHOLE, ORDERS)]
    fractional = (ORDERS % 1) != 0
    # Beyond a multiplier of 1e-2 the integration grid would need millions of points.
    if rate >= _SMALLEST_RATE and sigma >= 1e-2:
        exact = _fractional_orders(rate, sigma, ORDERS[fractional])
        bound[fractional] = np.minimum(bound[fractional], exact)
    bound.setflags(write=False)  # it is kept and shared
    return bound


@lru_cache(maxsize=1024)
def _from_library(event: DpEvent, relation: str) -> Vector:
    """Return dp_accounting's divergence of an event at `ORDERS`."""
    neighbours = (
        NeighboringRelation.REPLACE_ONE
        if relation == events.REPLACE
        else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    accountant = RdpAccountant(orders=ORDERS, neighboring_relation=neighbours)
    accountant.compose(event)
    return np.asarray(accountant._rdp, dtype=float)


def divergence(event: DpEvent, relation: str) -> Vector:
    """Return the Renyi divergence of one elementary event at `ORDERS`.

    Replacing a record moves a clipped sum by 2C, which dp_accounting's accountant does not know:
    it is given half the multiplier.
    """
    if isinstance(event, PoissonSampledDpEvent):
        return sampled_gaussian(event.sampling_probability, event.event.noise_multiplier)
    factor = 0.5 if relation == events.REPLACE else 1.0
    if isinstance(event, GaussianDpEvent):
        return sampled_gaussian(1.0, factor * event.noise_multiplier)
    if isinstance(event, FixedSizeEvent):
        halved = events.fixed_size(
            event.source_dataset_size, event.sample_size, factor * event.event.noise_multiplier
        )
        return _from_library(halved, relation)
    raise AssertionError(f"events.relation let {event!r} through")


def total(counts: Mapping[DpEvent, int], relation: str) -> Vector:
    """Return the divergence of everything in a tally."""
    rdp = np.zeros_like(ORDERS)
    for event, count in counts.items():
        rdp += count * divergence(event, relation)
    return rdp


def to_epsilon(rdp: Vector, delta: float) -> float:
    """Return the least epsilon that the divergences promise at `delta`.

    Reference: Canonne, Kamath and Steinke (2020), The Discrete Gaussian for Differential
    Privacy, Proposition 12; and delta^2 <= 1 - exp(-KL) for tiny losses.
    """
    rdp = np.where(np.isnan(rdp), np.inf, rdp)
    if delta**2 + math.expm1(-float(rdp.min())) > 0:
        return 0.0
    epsilons = rdp + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(0.0, float(np.min(epsilons)))


def moments_epsilon(rdp: Vector, delta: float) -> float:
    """Return the epsilon of the moments accountant: whole moments 1 .. 32, the first conversion.

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, Theorem 2.
    """
    moments = np.arange(1, 33)
    at = np.searchsorted(ORDERS, moments + 1)
    return float(np.min(rdp[at] + math.log(1 / delta) / moments))
