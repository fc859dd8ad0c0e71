"""The accountant by privacy loss distributions: tight, for what is planned beforehand."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement, product

import numpy as np
from dp_accounting import DpEvent
from scipy.special import ndtri

from privada.accounting import events, inversion, pld
from privada.accounting.accountants.costs import epsilon_of
from privada.accounting.accountants.renyi import RenyiAccountant, sampled_gaussians_epsilon
from privada.accounting.accountants.sampled_gaussians import (
    grouped,
    releases_of,
    sampled_gaussians,
)
from privada.accounting.events import REPLACE, Tally
from privada.accounting.mixtures import SMALLEST_MULTIPLIER, SampledGaussian

# What is asked where no loss distribution is known, or where losses leave the range of the grid.
_OTHERWISE = RenyiAccountant(common_orders=False)
# Up to here every multiplier is charged as it is; beyond, they are grouped and rounded against us,
# unless they are at so few rates that they are mixed.
_MOST_DISTINCT = 48
_FEW_RATES = 4
_GROUPING_STABLE = 5e-3
_MOST_GROUPS = 384
# Where a rate is below this, losses are too unlike each other in size for one grid.
_SMALL_RATE = 2e-3
# Where rounding on a grid may be more than this fraction of delta, none is used either.
_MUCH_ROUNDING = 0.01
# So many ways in which a record can be in parts of the data are looked at one by one.
_MOST_WAYS = 64


@dataclass(frozen=True)
class LossDistributionAccountant:
    """The distribution of the privacy loss of everything together, computed numerically.

    On a grid (`privada.accounting.pld`), or by inverting its moment generating function where rates
    are small (`privada.accounting.inversion`).

    Guarantee: an upper bound, as a rule within a tenth of a per cent of the true epsilon. It is one
    for what is fixed before the first look. It is not a bound for runs that are chosen in the light
    of earlier releases.

    Edge cases: takes the bound by Renyi divergences where losses leave the range of the grid and,
    for Poisson sampling, where it is lower; of more than four multipliers at up to four rates,
    where no grid is used, it is not asked for. There is no grid if a rate is below 0.002, or
    rounding on it may be more than a hundredth of delta.

    Example:
        >>> from privada.accounting import LossDistributionAccountant, epsilon_of, events
        >>> accountant = LossDistributionAccountant()
        >>> round(epsilon_of({events.poisson(0.01, 4.0): 10_000}, 1e-5, accountant), 3)
        0.947

    Reference: Koskela, Jalko and Honkela (2020), arXiv 1906.03049; Doroshenko et al. (2022), arXiv
    2207.04380.
    """

    @property
    def name(self) -> str:
        """Its name as a short-hand."""
        return "pld"

    @property
    def description(self) -> str:
        """Its name in words."""
        return "privacy loss distributions (tight numerical composition)"

    @property
    def slow(self) -> bool:
        """An answer takes milliseconds, or seconds for long schedules."""
        return True

    def epsilon(self, tally: Tally, delta: float) -> float:
        """Return the epsilon of the loss distribution, or by divergences."""
        releases, others = releases_of(tally)
        if others:
            met = _met_by_one(tally)
            if met is not None:
                return max(epsilon_of(each, delta, self) for each in met)
            return epsilon_of(tally, delta, _OTHERWISE)  # only divergences are known of a selection
        relation = events.common_relation(tally)
        mechanisms = sampled_gaussians(releases, relation)
        if any(m.sigma == 0 for m in mechanisms):
            return math.inf
        if all(m.rate == 1 for m in mechanisms):
            (single,) = mechanisms
            return _gaussian_epsilon(single.sigma, delta)
        if _total_variation(mechanisms) <= delta:
            return 0.0
        if not _within_range(mechanisms, delta):
            return epsilon_of(tally, delta, _OTHERWISE)
        value = _numerical_epsilon(mechanisms, delta)
        # The RDP of fixed-size sampling is never tighter here, since it is that of the same curve.
        # That of many multipliers at few rates, where no grid is used, is slow and much looser.
        slow = relation == REPLACE or (_sparse(mechanisms, delta) and _mixed(mechanisms))
        if not slow or value == math.inf:
            value = min(value, sampled_gaussians_epsilon(mechanisms, delta))
        return value


def _gaussian_epsilon(sigma: float, delta: float) -> float:
    """Return the epsilon of one Gaussian, from its closed form.

    delta(epsilon) is the chance of a larger loss less a positive term, so the epsilon at which
    that chance is delta is a bound; it is all but exact where the noise is small, and stands in
    there, where the closed form cancels.
    """
    if sigma == 0:
        return math.inf
    simple = max(0.0, (0.5 / sigma - float(ndtri(delta))) / sigma) * (1 + 1e-9) + 2e-12
    if sigma < 1e-3:
        return simple
    # which loads SciPy's statistics, of no other use
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    try:
        with np.errstate(all="ignore"):
            closed = float(get_epsilon_gaussian(sigma, delta))
    except (ArithmeticError, ValueError):
        return simple
    # the tolerances of the library's root finder are added
    return min(simple, closed * (1 + 1e-9) + 2e-12) if closed >= 0 else simple


def _total_variation(counts: Mapping[SampledGaussian, int]) -> float:
    """Return a bound on the total variation distance of a composition: the sum over its parts."""
    half = math.sqrt(0.125)
    return sum(n * m.rate * math.erf(half / m.sigma) for m, n in counts.items()) * (1 + 1e-9)


def _sparse(counts: Mapping[SampledGaussian, int], delta: float) -> bool:
    """Return whether the moment generating function is inverted, and no grid is used.

    That loses no digits to the steps: rounding is a fraction of each term, not of 1.
    """
    rounding = pld.rounding(sum(counts.values()))
    return min(m.rate for m in counts) < _SMALL_RATE or rounding > _MUCH_ROUNDING * delta


def on_a_grid(counts: Mapping[SampledGaussian, int], delta: float) -> bool:
    """Return whether what some sampled releases cost is found on a grid."""
    sampled = all(m.rate < 1 for m in counts)
    return sampled and _within_range(counts, delta) and not _sparse(counts, delta)


def _mixed(counts: Mapping[SampledGaussian, int]) -> bool:
    """Return whether there are many multipliers at few rates."""
    return len(counts) > _FEW_RATES and len({m.rate for m in counts}) <= _FEW_RATES


def _numerical_epsilon(counts: Mapping[SampledGaussian, int], delta: float) -> float:
    # of groups, whose least rate may be larger, nothing else is asked
    sparse = _sparse(counts, delta)

    def price(
        tally: Mapping[SampledGaussian, int], interval: float | None = None
    ) -> tuple[float, float | None]:
        """Return epsilon, and the interval of the grid if there is one."""
        if sparse:
            return inversion.epsilon(tally, delta), None
        return pld.epsilon(tally, delta, interval)

    if len(counts) <= _MOST_DISTINCT or len({m.rate for m in counts}) <= _FEW_RATES:
        return price(counts)[0]
    groups = _MOST_DISTINCT
    value, interval = price(grouped(counts, groups))
    while groups < _MOST_GROUPS:
        groups *= 2
        # the settled grid is four times finer than the last one that was as good
        finer, _ = price(grouped(counts, groups), None if interval is None else 4 * interval)
        stable = abs(value - finer) <= _GROUPING_STABLE * finer
        value = min(value, finer)
        if stable:
            break
    return value


def _within_range(counts: Mapping[SampledGaussian, int], delta: float) -> bool:
    least = inversion.SMALLEST_DELTA if _sparse(counts, delta) else pld.SMALLEST_DELTA
    return delta >= least and all(m.sigma >= SMALLEST_MULTIPLIER for m in counts)


def _met_by_one(counts: Mapping[DpEvent, int]) -> list[Tally] | None:
    """Return the tallies that one record can have met, where events are on disjoint parts.

    A record is in one part of each division of the data, so whatever is charged for the others
    does not see it. None if there are too many ways, or none at all.
    """
    parts = {event: events.kind_of(event).alternatives(event) for event in counts}
    divided = {event: counts[event] for event, each in parts.items() if each}
    ways = math.prod(math.comb(n + len(parts[e]) - 1, n) for e, n in divided.items())
    if not divided or ways > _MOST_WAYS:
        return None
    common = Counter({event: n for event, n in counts.items() if event not in divided})
    choices = [combinations_with_replacement(parts[event], n) for event, n in divided.items()]
    found = []
    for way in product(*choices):
        met = Counter(common)
        for part in (part for chosen in way for part in chosen):
            met.update(dict(part))
        found.append(met)
    return found
