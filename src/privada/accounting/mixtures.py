"""Mechanisms, and how many different multipliers are made of a few: by mixtures that dominate.

Joining the dots once more, in the noise: let delta_s(epsilon) be the hockey-stick divergence of two
Gaussians one apart with standard deviation s, and v = erf(1 / (s sqrt(8))) their total variation
distance. At every real epsilon, delta_s(epsilon) is a convex function of v: with m = 1 / s,

    d delta / dm = phi(epsilon / m - m / 2)   and   dv / dm = phi(m / 2),

so d delta / dv = exp((epsilon - (epsilon / m)^2) / 2), which grows with m, and so with v. Sampling
maps the divergence affinely, so the same holds for sampled Gaussians. Hence, for a < s < b, the
mechanism that runs with a in a share (v_s - v_b) / (v_a - v_b) of the cases, and with b in the
others, has at least the divergence of s everywhere. What dominates does so under composition. The
excess is of second order in log(b / a).

References: Doroshenko et al. (2022), Connect the Dots, for the same in epsilon; Zhu, Dong and Wang
(2022), Optimal Accounting of Differential Privacy via Characteristic Function, Theorem 10, for
domination under composition; Balle and Wang (2018), Improving the Gaussian Mechanism, Theorem 8,
for delta.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

SMALLEST_MULTIPLIER = 0.02
# Up to so many multipliers at one rate are taken as they are; more are mixed from a lattice.
_MOST_EXACT = 16
_PER_OCTAVE = 64
# Of more different multipliers than this, shares are rounded up to multiples of 1 / grain.
_MOST_SHARES = 1000
_GRAIN = 16


class SampledGaussian(NamedTuple):
    """A sampled Gaussian release: the rate, and the noise over what one record can change.

    `replacing` is False for Poisson sampling under add-or-remove-one, True for fixed-size sampling
    under replace-one, where a record's exchange changes a clipped sum by up to twice the clip norm
    and the multiplier is over that.
    """

    rate: float
    sigma: float
    replacing: bool = False


@dataclass(frozen=True)
class Mixture:
    """Releases each of which is, in a share of the cases, the less noisy of two mechanisms.

    `shares` says how many releases have which share. Releases of one mechanism have it as both.
    """

    near: SampledGaussian
    far: SampledGaussian
    shares: tuple[tuple[float, int], ...]

    @cached_property
    def steps(self) -> int:
        """The number of releases."""
        return sum(n for _, n in self.shares)

    @cached_property
    def mean(self) -> float:
        """The mean share of the less noisy mechanism."""
        return min(1.0, sum(share * n for share, n in self.shares) / self.steps)


def _point(place: int) -> float:
    return float(SMALLEST_MULTIPLIER * 2.0 ** (place / _PER_OCTAVE))


def around(sigma: float) -> tuple[float, float]:
    """Return the points of the lattice next to a multiplier: one at most, one above it."""
    place = max(0, math.floor(_PER_OCTAVE * math.log2(sigma / SMALLEST_MULTIPLIER)))
    if place > 0 and _point(place) > sigma:
        place -= 1
    elif _point(place + 1) <= sigma:
        place += 1
    return _point(place), _point(place + 1)


def share_of(sigma: float, near: float, far: float) -> float:
    """Return in which share of the cases `near` must be run, else `far`, to dominate `sigma`.

    Rounding is upwards. Where distances approach 1, their complements keep the digits.
    """
    of_near, of_sigma, of_far = (math.sqrt(0.125) / s for s in (near, sigma, far))
    if of_far < 1:
        share = (math.erf(of_sigma) - math.erf(of_far)) / (math.erf(of_near) - math.erf(of_far))
    else:
        beyond = math.erfc(of_far)
        share = (beyond - math.erfc(of_sigma)) / (beyond - math.erfc(of_near))
    return min(1.0, max(0.0, share) + 1e-12)


def mixtures_of(counts: Mapping[SampledGaussian, int]) -> tuple[Mixture, ...]:
    """Return mechanisms as parts that cost no less, many multipliers at one rate as mixtures.

    The lattice is the same for all, so that what is known of its mechanisms serves every question.

    Guarantee: every part dominates its releases. No multiplier counts as more than 1.1% less noise.

    Edge cases: multipliers are at least `SMALLEST_MULTIPLIER`. Below about 0.1 shares approach 1,
    and a mixture costs nearly what that 1.1% less noise does. Rates are taken as they are.
    """
    exact: list[Mixture] = []
    mixed: defaultdict[tuple[SampledGaussian, SampledGaussian], Counter[float]] = defaultdict(
        Counter
    )
    distinct = Counter((m.rate, m.replacing) for m in counts)
    for mechanism, n in sorted(counts.items()):
        rate, sigma, replacing = mechanism
        different = distinct[rate, replacing]
        if different <= _MOST_EXACT:
            exact.append(Mixture(mechanism, mechanism, ((1.0, n),)))
            continue
        near, far = around(sigma)
        share = share_of(sigma, near, far)
        if different > _MOST_SHARES:
            share = math.ceil(share * _GRAIN) / _GRAIN
        mixed[SampledGaussian(rate, near, replacing), SampledGaussian(rate, far, replacing)][
            share
        ] += n
    return (*exact, *(Mixture(*pair, tuple(shares.items())) for pair, shares in mixed.items()))
