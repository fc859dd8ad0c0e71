"""What a tally of events costs, by each accountant."""

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from itertools import combinations_with_replacement, product

import numpy as np
from dp_accounting import DpEvent, get_epsilon_gaussian
from scipy.special import ndtri

from privada.accounting import events, inversion, pld, rdp
from privada.accounting.events import REPLACE, GaussianRelease, Tally
from privada.accounting.mixtures import SMALLEST_MULTIPLIER, Mechanism, parts_of
from privada.accounting.orders import ORDERS, Vector
from privada.core.errors import ArgumentError
from privada.core.validation import integer, one_of, probability

ACCOUNTANTS = ("pld", "rdp", "moments")
# "rdp" keeps to the orders that other libraries use; this, which "pld" falls back on, does not.
_ALL_ORDERS = "rdp, all orders"

# Up to here every multiplier is charged as it is; beyond, they are grouped and rounded against us,
# unless they are at so few rates that "pld" mixes them.
_MOST_DISTINCT = {"pld": 48, "rdp": 2000}
_FEW_RATES = 4
_GROUPING_STABLE = 5e-3
_MOST_TIMES = 2**53
# A rate from here on is charged as 1, which costs no less; on a grid it would lose its digits.
_NEARLY_ALL = 1 - 1e-9
_MOST_GROUPS = 384
# Where a rate is below this, losses are too unlike each other in size for one grid.
_SMALL_RATE = 2e-3
# Where rounding on a grid may be more than this fraction of delta, none is used either.
_MUCH_ROUNDING = 0.01
# So many ways in which a record can be in parts of the data are looked at one by one.
_MOST_WAYS = 64


def times(name: str, value: object, least: int = 1) -> int:
    """Return `value` as a whole number that floating-point numbers count exactly."""
    number = integer(name, value, least)
    if number > _MOST_TIMES:
        raise ArgumentError(
            f"Expected {name} <= 2**53, got {name}={value!r}. Beyond it, costs cannot be counted "
            "exactly; no run is that long."
        )
    return number


def _mechanisms(releases: Mapping[GaussianRelease, int], relation: str) -> dict[Mechanism, int]:
    """Return sampled Gaussians by rate and multiplier, all unsampled ones made into one.

    Gaussian releases on the same records compose exactly: their inverse variances add. Replacing
    a record moves a clipped sum by twice the clip norm, so every multiplier counts half.
    """
    replacing = relation == REPLACE
    factor = 0.5 if replacing else 1.0
    found: Counter[Mechanism] = Counter()
    precision, unsampled = 0.0, False
    for (rate, multiplier), count in releases.items():
        sigma = factor * multiplier
        if rate < _NEARLY_ALL:
            found[Mechanism(rate, sigma, replacing)] += count
        else:
            inverse = 1 / sigma if sigma else math.inf
            precision, unsampled = precision + count * inverse * inverse, True
    if unsampled:  # even where its precision underflows
        found[Mechanism(1.0, max(precision, 1e-300) ** -0.5, replacing)] += 1
    return dict(found)


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
    try:
        with np.errstate(all="ignore"):
            closed = float(get_epsilon_gaussian(sigma, delta))
    except (ArithmeticError, ValueError):
        return simple
    # the tolerances of the library's root finder are added
    return min(simple, closed * (1 + 1e-9) + 2e-12) if closed >= 0 else simple


def _total_variation(counts: Mapping[Mechanism, int]) -> float:
    """Return a bound on the total variation distance of a composition: the sum over its parts."""
    half = math.sqrt(0.125)
    return sum(n * m.rate * math.erf(half / m.sigma) for m, n in counts.items()) * (1 + 1e-9)


def _grouped(counts: Mapping[Mechanism, int], groups: int) -> dict[Mechanism, int]:
    """Return fewer mechanisms that cost no less: in each group, the most sampled, least noisy.

    Groups are cells of a geometric grid, so that no multiplier or rate moves by more than a
    fixed fraction. Unsampled releases, which are one mechanism already, stay apart.
    """
    apart = {m: n for m, n in counts.items() if m.rate == 1}
    counts = {m: n for m, n in counts.items() if m.rate < 1}
    if not counts:
        return apart
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
    merged = Counter(apart)
    for rate, sigma, n in gathered.values():
        merged[Mechanism(rate, sigma, replacing)] += n
    return dict(merged)


def _sparse(counts: Mapping[Mechanism, int], delta: float) -> bool:
    """Return whether the moment generating function is inverted, and no grid is used.

    That loses no digits to the steps: rounding is a fraction of each term, not of 1.
    """
    rounding = pld.rounding(sum(counts.values()))
    return min(m.rate for m in counts) < _SMALL_RATE or rounding > _MUCH_ROUNDING * delta


def _mixed(counts: Mapping[Mechanism, int]) -> bool:
    """Return whether there are many multipliers at few rates."""
    return len(counts) > _FEW_RATES and len({m.rate for m in counts}) <= _FEW_RATES


def _pld_epsilon(counts: Mapping[Mechanism, int], delta: float) -> float:
    sparse = _sparse(
        counts, delta
    )  # of groups, whose least rate may be larger, nothing else is asked

    def price(
        tally: Mapping[Mechanism, int], interval: float | None = None
    ) -> tuple[float, float | None]:
        """Return epsilon, and the interval of the grid if there is one."""
        if sparse:
            return inversion.epsilon(tally, delta), None
        return pld.epsilon(tally, delta, interval)

    if len(counts) <= _MOST_DISTINCT["pld"] or len({m.rate for m in counts}) <= _FEW_RATES:
        return price(counts)[0]
    groups = _MOST_DISTINCT["pld"]
    value, interval = price(_grouped(counts, groups))
    while groups < _MOST_GROUPS:
        groups *= 2
        # the settled grid is four times finer than the last one that was as good
        finer, _ = price(_grouped(counts, groups), None if interval is None else 4 * interval)
        stable = abs(value - finer) <= _GROUPING_STABLE * finer
        value = min(value, finer)
        if stable:
            break
    return value


def _within_range(counts: Mapping[Mechanism, int], delta: float) -> bool:
    least = inversion.SMALLEST_DELTA if _sparse(counts, delta) else pld.SMALLEST_DELTA
    return delta >= least and all(m.sigma >= SMALLEST_MULTIPLIER for m in counts)


def _releases(counts: Mapping[DpEvent, int]) -> tuple[Counter[GaussianRelease], Tally]:
    """Return the Gaussian releases of a tally, and the other events."""
    releases: Counter[GaussianRelease] = Counter()
    others: Tally = Counter()
    for event, count in counts.items():
        release = events.release_of(event)
        if release is None:
            others[event] += count
        else:
            releases[release] += count
    return releases, others


def _rdp_total(counts: Mapping[DpEvent, int], relation: str) -> Vector:
    """Return the divergence of a tally, of many multipliers grouped."""
    if len(counts) <= _MOST_DISTINCT["rdp"]:
        return events.total_divergence(counts, relation)
    releases, others = _releases(counts)
    few = _grouped(_mechanisms(releases, relation), _MOST_DISTINCT["rdp"])
    return events.total_divergence(others, relation) + _divergence(few)


def _divergence(counts: Mapping[Mechanism, int]) -> Vector:
    total = np.zeros_like(ORDERS)
    for m, n in sorted(counts.items()):
        divergence = rdp.fixed_size_gaussian if m.replacing else rdp.sampled_gaussian
        total += n * divergence(m.rate, m.sigma)
    return total


def _renyi_epsilon(counts: Mapping[Mechanism, int], delta: float) -> float:
    """Return the bound by divergences, of many multipliers rounded down to those of a lattice."""
    lattice: Counter[Mechanism] = Counter()
    for part in parts_of(counts):
        lattice[part.near] += part.steps
    most = _MOST_DISTINCT["rdp"]
    few = lattice if len(lattice) <= most else _grouped(lattice, most)
    return rdp.to_epsilon(_divergence(few), delta)


def _place(item: tuple[DpEvent, int]) -> tuple[float, float, str, int]:
    event, count = item
    release = events.release_of(event)
    if release is None:
        return 2.0, 0.0, events.encode(event), count
    return *release, "", count


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
    integer = Counter({event: n for event, n in counts.items() if event not in divided})
    choices = [combinations_with_replacement(parts[event], n) for event, n in divided.items()]
    found = []
    for way in product(*choices):
        met = Counter(integer)
        for part in (part for chosen in way for part in chosen):
            met.update(dict(part))
        found.append(met)
    return found


def _without_failures(counts: Tally, delta: float) -> tuple[Tally, float]:
    """Return the events that cannot fail, and what the others leave of delta.

    A query that fails with a probability p and else tells nothing is dominated by a loss that is
    infinite with probability p and else 0. Composed with it, delta(epsilon) becomes
    p + (1 - p) delta(epsilon), which is at most p + delta(epsilon).
    """
    failing = {event: events.kind_of(event).failure(event) for event in counts}
    lost = math.fsum(n * failing[event] for event, n in counts.items())
    if lost == 0:
        return counts, delta
    kept = Counter({event: n for event, n in counts.items() if not failing[event]})
    return kept, math.nextafter(delta - lost * (1 + 1e-12), -1.0)


@lru_cache(maxsize=4096)
def _epsilon(items: frozenset[tuple[DpEvent, int]], delta: float, accountant: str) -> float:
    # in an order that does not depend on hashes, so that sums are the same in every process
    counts: Tally = Counter(dict(sorted(items, key=_place)))
    relation = events.common_relation(counts)
    counts, left = _without_failures(counts, delta)
    if left < delta:
        return _epsilon(frozenset(counts.items()), left, accountant) if left > 0 else math.inf
    releases, others = _releases(counts)
    if not others and any(release.noise_multiplier == 0 for release in releases):
        return math.inf
    if accountant == "pld" and others:
        met = _met_by_one(counts)
        if met is not None:
            return max(epsilon_of(tally, delta) for tally in met)
        accountant = _ALL_ORDERS  # only divergences are known of a selection
    if accountant == "moments":
        return rdp.moments_epsilon(_rdp_total(counts, relation), delta)
    if accountant == "rdp":
        return rdp.to_epsilon(_rdp_total(counts, relation), delta, common=True)
    if accountant == _ALL_ORDERS:
        return rdp.to_epsilon(_rdp_total(counts, relation), delta)
    return _gaussian_releases_epsilon(releases, relation, delta, items)


def _gaussian_releases_epsilon(
    releases: Counter[GaussianRelease],
    relation: str,
    delta: float,
    items: frozenset[tuple[DpEvent, int]],
) -> float:
    """Return the epsilon of Gaussian releases by their loss distributions, or by divergences."""
    mechanisms = _mechanisms(releases, relation)
    if not mechanisms:
        return 0.0
    if any(m.sigma == 0 for m in mechanisms):
        return math.inf
    if all(m.rate == 1 for m in mechanisms):
        (single,) = mechanisms
        return _gaussian_epsilon(single.sigma, delta)
    if _total_variation(mechanisms) <= delta:
        return 0.0
    if not _within_range(mechanisms, delta):
        return _epsilon(items, delta, _ALL_ORDERS)
    value = _pld_epsilon(mechanisms, delta)
    # The RDP of fixed-size sampling is slow and much looser. So is that of many multipliers at few
    # rates where no grid is used.
    slow = relation == REPLACE or (_sparse(mechanisms, delta) and _mixed(mechanisms))
    if not slow or value == math.inf:
        value = min(value, _renyi_epsilon(mechanisms, delta))
    return value


def epsilon_of(counts: Mapping[DpEvent, int], delta: float, accountant: str = "pld") -> float:
    """Return the epsilon at `delta` of everything in a tally.

    Guarantee: an upper bound under every accountant. "pld" takes the RDP bound where losses leave
    the range of the grid and, for Poisson sampling, where it is lower; of more than four
    multipliers at up to four rates, where no grid is used, it is not asked for. There is no grid if
    a rate is below 0.002, or rounding on it may be more than a hundredth of delta.

    Edge cases: an empty tally costs 0; a multiplier of 0 costs infinity, and so does one whose
    cost exceeds every number, and failures as probable as delta; events of two neighbouring
    relations together are refused, and counts beyond 2**53. The result depends on the tally, delta
    and accountant alone.

    Example:
        >>> from privada.accounting import events
        >>> from privada.accounting.accountants import epsilon_of
        >>> round(epsilon_of({events.poisson(0.01, 4.0): 10_000}, 1e-5), 3)
        0.947
    """
    one_of("accountant", accountant, ACCOUNTANTS)
    delta = probability("delta", delta)
    whole_counts = ((event, times("count", n, least=0)) for event, n in counts.items())
    items = frozenset((event, n) for event, n in whole_counts if n > 0)
    return _epsilon(items, delta, accountant) if items else 0.0
