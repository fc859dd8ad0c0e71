"""What a tally of events costs, by each accountant."""

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from dp_accounting import DpEvent, get_epsilon_gaussian

from privada.accounting import events, pld, rdp
from privada.accounting.events import REPLACE
from privada.accounting.pld import Mechanism
from privada.core.validation import one_of, probability, whole

ACCOUNTANTS = ("pld", "rdp", "moments")

# Up to here every multiplier is charged as it is; beyond, they are grouped and rounded against us.
_MOST_DISTINCT = {"pld": 48, "rdp": 2000}
_GROUPING_STABLE = 5e-3
_MOST_GROUPS = 384


def _mechanisms(counts: Mapping[DpEvent, int], relation: str) -> dict[Mechanism, int]:
    """Return sampled Gaussians by rate and multiplier, all unsampled ones made into one.

    Gaussian releases on the same records compose exactly: their inverse variances add. Replacing
    a record moves a clipped sum by twice the clip norm, so every multiplier counts half.
    """
    replacing = relation == REPLACE
    factor = 0.5 if replacing else 1.0
    found: Counter[Mechanism] = Counter()
    precision = 0.0
    for event, count in counts.items():
        rate, sigma = events.sampling_rate(event), factor * events.multiplier(event)
        if rate < 1:
            found[Mechanism(rate, sigma, replacing)] += count
        else:
            precision += count / sigma**2
    if precision:
        found[Mechanism(1.0, precision**-0.5, replacing)] += 1
    return dict(found)


def _grouped(counts: Mapping[Mechanism, int], groups: int) -> dict[Mechanism, int]:
    """Return fewer mechanisms that cost no less: in each group, the most sampled, least noisy.

    Groups are cells of a geometric grid, so that no multiplier or rate moves by more than a
    fixed fraction.
    """
    replacing = next(iter(counts)).replacing
    values = np.log(np.array([(m.rate, m.sigma) for m in counts]))
    spans = np.ptp(values, axis=0)
    varying = int(np.count_nonzero(spans > 1e-12))
    cells = max(1, round(groups ** (1 / max(1, varying))))
    width = np.where(spans > 1e-12, spans / cells, 1.0)
    place = np.minimum((values - values.min(axis=0)) / width, cells - 1).astype(int)
    gathered: dict[tuple[int, ...], tuple[float, float, int]] = {}
    for cell, (m, n) in zip(map(tuple, place), counts.items(), strict=True):
        top_rate, low_sigma, total = gathered.get(cell, (m.rate, m.sigma, 0))
        gathered[cell] = max(top_rate, m.rate), min(low_sigma, m.sigma), total + n
    merged: Counter[Mechanism] = Counter()
    for rate, sigma, n in gathered.values():
        merged[Mechanism(rate, sigma, replacing)] += n
    return dict(merged)


def _pld_epsilon(counts: Mapping[Mechanism, int], delta: float) -> float:
    if len(counts) <= _MOST_DISTINCT["pld"]:
        return pld.epsilon(counts, delta)[0]
    groups = _MOST_DISTINCT["pld"]
    value, interval = pld.epsilon(_grouped(counts, groups), delta)
    while groups < _MOST_GROUPS:
        groups *= 2
        # the settled grid is four times finer than the last one that was as good
        finer, _ = pld.epsilon(_grouped(counts, groups), delta, 4 * interval)
        stable = abs(value - finer) <= _GROUPING_STABLE * finer
        value = min(value, finer)
        if stable:
            break
    return value


def _within_range(counts: Mapping[Mechanism, int], delta: float) -> bool:
    return delta >= pld.SMALLEST_DELTA and all(m.sigma >= pld.SMALLEST_MULTIPLIER for m in counts)


def _rdp_total(counts: Mapping[DpEvent, int], relation: str) -> rdp.Vector:
    """Return the divergence of a tally, of many multipliers grouped."""
    if relation == REPLACE or len(counts) <= _MOST_DISTINCT["rdp"]:
        return rdp.total(counts, relation)
    grouped = _grouped(_mechanisms(counts, relation), _MOST_DISTINCT["rdp"])
    return rdp.total({events.poisson(m.rate, m.sigma): n for m, n in grouped.items()}, relation)


@lru_cache(maxsize=4096)
def _epsilon(items: frozenset[tuple[DpEvent, int]], delta: float, accountant: str) -> float:
    counts = dict(items)
    relation = events.common_relation(counts)
    if any(events.multiplier(event) == 0 for event in counts):
        return math.inf
    if accountant == "moments":
        return rdp.moments_epsilon(_rdp_total(counts, relation), delta)
    if accountant == "rdp":
        return rdp.to_epsilon(_rdp_total(counts, relation), delta)
    mechanisms = _mechanisms(counts, relation)
    if all(m.rate == 1 for m in mechanisms):
        (single,) = mechanisms
        # closed form; the tolerances of its root finder are added
        return float(get_epsilon_gaussian(single.sigma, delta)) * (1 + 1e-9) + 2e-12
    if not _within_range(mechanisms, delta):
        return _epsilon(items, delta, "rdp")
    value = _pld_epsilon(mechanisms, delta)
    # The RDP of fixed-size sampling is slow and much looser, unless rounding outgrows delta.
    if relation != REPLACE or pld.rounding(mechanisms) > 0.01 * delta:
        value = min(value, _epsilon(items, delta, "rdp"))
    return value


def epsilon_of(counts: Mapping[DpEvent, int], delta: float, accountant: str = "pld") -> float:
    """Return the epsilon at `delta` of everything in a tally.

    Guarantee: an upper bound under every accountant. "pld" takes the RDP bound where losses leave
    the range of the grid and, for Poisson sampling, where it is lower.

    Edge cases: an empty tally costs 0; a multiplier of 0 costs infinity; events of two
    neighbouring relations together are refused.

    Example:
        >>> from privada.accounting import events
        >>> from privada.accounting.accountants import epsilon_of
        >>> round(epsilon_of({events.poisson(0.01, 4.0): 10_000}, 1e-5), 3)
        0.947
    """
    one_of("accountant", accountant, ACCOUNTANTS)
    probability("delta", delta)
    items = frozenset((event, n) for event, n in counts.items() if whole("count", n, least=0) > 0)
    return _epsilon(items, delta, accountant) if items else 0.0
