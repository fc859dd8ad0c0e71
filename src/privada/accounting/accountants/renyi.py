"""The accountant by Renyi divergences, which add up over everything that runs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent

from privada.accounting import events, rdp
from privada.accounting.accountants.sampled_gaussians import (
    grouped,
    releases_of,
    sampled_gaussians,
)
from privada.accounting.events import Tally
from privada.accounting.mixtures import SampledGaussian, mixtures_of
from privada.accounting.orders import ORDERS, Vector

# Up to here every multiplier is charged as it is; beyond, they are grouped and rounded against us.
_MOST_DISTINCT = 2000


@dataclass(frozen=True)
class RenyiAccountant:
    """Renyi divergences of all events added up at each order, and converted at the best one.

    Args:
        common_orders: look at the orders that other libraries look at, so that figures compare with
            theirs. With False, at more, for a bound that is lower where delta is very small.

    Guarantee: an upper bound at every order, so at the best one. Holds for every kind of event.

    Edge cases: more than 2,000 different multipliers are grouped and rounded down.

    Example:
        >>> from privada.accounting import RenyiAccountant, epsilon_of, events
        >>> round(epsilon_of({events.poisson(0.01, 4.0): 10_000}, 1e-5, RenyiAccountant()), 3)
        1.035

    Reference: Mironov (2017), Renyi Differential Privacy, arXiv 1702.07476; Mironov, Talwar and
    Zhang (2019), arXiv 1908.10530, for sampling; Canonne, Kamath and Steinke (2020), arXiv
    2004.00010, Proposition 12, for the conversion.
    """

    common_orders: bool = True

    @property
    def name(self) -> str:
        """Its name as a short-hand."""
        return "rdp" if self.common_orders else "rdp, all orders"

    @property
    def description(self) -> str:
        """Its name in words."""
        return "Renyi differential privacy"

    @property
    def slow(self) -> bool:
        """An answer takes microseconds."""
        return False

    def epsilon(self, tally: Tally, delta: float) -> float:
        """Return the epsilon of the best order."""
        return rdp.to_epsilon(total_divergence(tally), delta, common=self.common_orders)


def total_divergence(counts: Mapping[DpEvent, int]) -> Vector:
    """Return the divergence of a tally at all orders, of many multipliers grouped."""
    relation = events.common_relation(counts)
    if len(counts) <= _MOST_DISTINCT:
        return events.total_divergence(counts, relation)
    releases, others = releases_of(counts)
    few = grouped(sampled_gaussians(releases, relation), _MOST_DISTINCT)
    return events.total_divergence(others, relation) + _divergence(few)


def _divergence(counts: Mapping[SampledGaussian, int]) -> Vector:
    total = np.zeros_like(ORDERS)
    for m, n in sorted(counts.items()):
        divergence = rdp.fixed_size_gaussian if m.replacing else rdp.sampled_gaussian
        total += n * divergence(m.rate, m.sigma)
    return total


def sampled_gaussians_epsilon(counts: Mapping[SampledGaussian, int], delta: float) -> float:
    """Return the bound by divergences, of many multipliers rounded down to those of a lattice."""
    lattice: Counter[SampledGaussian] = Counter()
    for part in mixtures_of(counts):
        lattice[part.near] += part.steps
    few = lattice if len(lattice) <= _MOST_DISTINCT else grouped(lattice, _MOST_DISTINCT)
    return rdp.to_epsilon(_divergence(few), delta)
