"""Renyi divergences by quadrature of their definition, in mpmath.

D_a(P || Q) = log(integral of p^a q^(1-a)) / (a - 1).
"""

import math

import mpmath as mp
import numpy as np

_DIGITS = 40
# What lies this many units of the logarithm below the integrand's peak is left out.
_NEGLIGIBLE = 110.0

Mixture = tuple[tuple[float, float], ...]


def sampled_gaussian(rate: float, sigma: float, order: float) -> mp.mpf:
    """Return D_order of (1-q) N(0, s^2) + q N(1, s^2) against N(0, s^2)."""
    return _divergence(_mixed(rate, 1.0), ((1.0, 0.0),), sigma, order)


def sampled_gaussian_reversed(rate: float, sigma: float, order: float) -> mp.mpf:
    """Return D_order of N(0, s^2) against (1-q) N(0, s^2) + q N(1, s^2)."""
    return _divergence(((1.0, 0.0),), _mixed(rate, 1.0), sigma, order)


def replaced_in_sample(
    rate: float, sigma: float, order: float, others: float = 0.0, backwards: bool = False
) -> mp.mpf:
    """Return D_order for a record 1 replaced by -1 where without it the sum is `others`.

    With `backwards`, for -1 replaced by 1.
    """
    p, q = (_mixed(rate, mean, others) for mean in (1.0, -1.0))
    return _divergence(q, p, sigma, order) if backwards else _divergence(p, q, sigma, order)


def amplified_curve(rate: float, sigma: float, order: float) -> mp.mpf:
    """Return D_order of two distributions with the hockey-stick curve of a fixed-size sample.

    At gamma = 1 + q (g - 1) >= 1 the curve is q H(g) in both directions, H that of two Gaussians
    one apart, in closed form. It is integrated with the weights by which divergences are made of
    curves: a (a-1) (gamma^(a-2) + gamma^(-a-1)). The variable is s log g.
    """
    with mp.workdps(_DIGITS + 20):
        q, s, a = mp.mpf(rate), mp.mpf(sigma), mp.mpf(order)

        def tail(x: mp.mpf) -> mp.mpf:
            return mp.erfc(x / mp.sqrt(2)) / 2

        def integrand(u: mp.mpf) -> mp.mpf:
            g = mp.exp(u / s)
            gamma = 1 + q * (g - 1)
            curve = tail(u - 1 / (2 * s)) - g * tail(u + 1 / (2 * s))
            return (gamma ** (a - 2) + gamma ** (-a - 1)) * curve * g

        total = mp.fsum(
            mp.quad(integrand, piece, method="gauss-legendre", maxdegree=4)
            for piece in _curve_support(rate, sigma, order)
        )
        return mp.log1p(a * (a - 1) * q**2 * total / s) / (a - 1)


def _curve_support(rate: float, sigma: float, order: float) -> list[list[float]]:
    reach = order / sigma + 16
    # fine near the zeros of 1 + q (g - 1), which lie 2 pi s apart
    fine = np.arange(0, min(reach, 40 * sigma), min(1.0, 3 * sigma))
    u = np.append(fine, np.arange(fine[-1] + min(1.0, 3 * sigma), reach + 1, 1.0))
    log_gamma = np.logaddexp(math.log1p(-rate), math.log(rate) + u / sigma)
    # the curve is at most 1, and falls as the Gaussian does from its mean loss on
    height = (order - 2) * log_gamma + u / sigma - np.maximum(u - 0.5 / sigma, 0) ** 2 / 2
    kept = height > height.max() - _NEGLIGIBLE
    panels = np.flatnonzero(kept[1:] | kept[:-1])
    runs = np.split(panels, np.flatnonzero(np.diff(panels) > 1) + 1)
    return [u[run[0] : run[-1] + 2].tolist() for run in runs]


def epsilon(divergence: mp.mpf, order: float, delta: float) -> mp.mpf:
    """Return the epsilon that one order promises: Canonne, Kamath and Steinke, Proposition 12."""
    a = mp.mpf(order)
    return divergence + mp.log1p(-1 / a) - mp.log(delta * a) / (a - 1)


def _mixed(rate: float, mean: float, others: float = 0.0) -> Mixture:
    with mp.workdps(_DIGITS):
        q = mp.mpf(rate)
        return tuple((w, m) for w, m in ((1 - q, others), (q, mean)) if w)


def _divergence(p: Mixture, q: Mixture, sigma: float, order: float) -> mp.mpf:
    with mp.workdps(_DIGITS):
        s, a = mp.mpf(sigma), mp.mpf(order)

        def log_density(mixture: Mixture, x: mp.mpf) -> mp.mpf:
            return mp.log(mp.fsum(w * mp.exp(-((x - m) ** 2) / (2 * s**2)) for w, m in mixture))

        def integrand(x: mp.mpf) -> mp.mpf:
            return mp.exp(a * log_density(p, x) + (1 - a) * log_density(q, x))

        pieces = _support(p, q, sigma, order)
        total = mp.fsum(
            mp.quad(integrand, piece, method="gauss-legendre", maxdegree=4) for piece in pieces
        )
        return mp.log(total / (s * mp.sqrt(2 * mp.pi))) / (a - 1)


def _support(p: Mixture, q: Mixture, sigma: float, order: float) -> list[list[float]]:
    """Return the runs of break points between which the integrand is not negligible."""
    panel = min(sigma, 5 * sigma**2)
    reach = order + 16 * sigma
    x = np.arange(-reach - 1, reach, panel)

    def log_density(mixture: Mixture) -> np.ndarray:
        logs = [math.log(w) - (x - m) ** 2 / (2 * sigma**2) for w, m in mixture]
        return np.logaddexp.reduce(logs)

    height = order * log_density(p) + (1 - order) * log_density(q)
    kept = np.flatnonzero(height > height.max() - _NEGLIGIBLE)
    runs = np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1)
    return [[float(x[run[0]] - panel), *x[run].tolist(), float(x[run[-1]] + panel)] for run in runs]
