"""A Renyi filter: what may be charged when each charge is chosen in the light of earlier releases.

docs/filters.md has the proof, and says why composing loss distributions along the way is none.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.budget import Budget
from privada.accounting.events import Tally
from privada.accounting.orders import ORDERS, Places, Vector
from privada.core.errors import ArgumentError

FILTER = "filter"  # the name of what counts, in statements
# The share of delta that is kept for queries that may fail altogether, whatever is charged.
FAILURE_SHARE = 2.0**-6
# Multipliers are rounded down to a lattice with so many points to each doubling. A divergence
# grows by at most 0.3 per cent for it, and many multipliers share one.
POINTS_PER_DOUBLING = 512
# How the weights of orders fall around the order at which a budget is used up by Gaussian noise:
# as a Cauchy density of log (order - 1), of this width and shifted towards the lower orders that
# sampling with little noise is best at. The rest is spread evenly over all orders.
_WIDTH, _SHIFT, _SPREAD_EVENLY = 0.1, -0.05, 0.05
_NEAR, _FAR, _LARGEST_ORDER = 0.09, 0.35, 1024.0
# How many kinds of events show what a typical run is, with multipliers rounded down to so many in
# each doubling, and where no budget says which delta.
_MOST_TYPICAL, _TYPICAL_POINTS, _SOME_DELTA = 64, 8, 1e-6
# What rounding may take from an epsilon; it is added.
_ROUNDING = 1e-9
# A divergence of this is as good as infinite, and can be added up.
_INFINITE = 1e200
_MOST_EXACT = 1 << 53  # beyond which counts are no run's, and floats cannot tell them apart
_UNIT_BITS = 256  # divergences are added up as whole multiples of 2^-256, rounded up
_WHOLE_INFINITE = math.ceil(math.ldexp(_INFINITE, _UNIT_BITS))


@dataclass(frozen=True)
class RenyiFilter:
    """Renyi divergences added up at a few orders, which together bound the privacy loss.

    With R_j the divergence at order a_j of everything charged, and weights w_j that add up to 1,

        epsilon = max over L of  L + log(1 - delta sum_j w_j exp((a_j - 1) (L - R_j))).

    Orders and weights are fixed before the first look. No order has to be the best one in the end:
    each contributes, and the result is never above what the best order gives with its share w_j of
    delta.

    Args:
        orders: some of the orders at which divergences are computed, in increasing order.
        weights: one for each, positive; they add up to 1.

    Guarantee: every charge may depend on all releases before it: its kind, noise, sampling rate,
    and whether there is one at all. If `epsilon` never exceeds E, all releases together are
    (E, delta)-differentially private. Stop at any time that depends on the releases: then
    P(S) <= E_Q[e^epsilon 1_S] + delta for the epsilon of that time and every event S.

    Edge cases: what may fail altogether is taken from a share of delta, 1/64, that is always kept
    for it, and costs infinity beyond.

    Example:
        >>> import privada as pv
        >>> from privada.accounting import events
        >>> from privada.accounting.filters import RenyiFilter
        >>> counts = RenyiFilter.for_budget(pv.Budget(1.0, 1e-5))
        >>> round(counts.epsilon({events.poisson(0.01, 4.0): 10_000}, 1e-5), 2)
        1.06

    Reference: Feldman and Zrnic (2021), Individual Privacy Accounting via a Renyi Filter, arXiv
    2008.11193, for one order; Whitehouse et al. (2023), Fully Adaptive Composition in Differential
    Privacy, arXiv 2203.05481, for supermartingales of the privacy loss; docs/filters.md for all
    orders together.
    """

    orders: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        orders, weights = tuple(map(float, self.orders)), tuple(map(float, self.weights))
        known = set(ORDERS.tolist())
        if not orders or not set(orders) <= known or list(orders) != sorted(set(orders)):
            raise ArgumentError(
                f"Expected orders to be some of those at which divergences are computed, in "
                f"increasing order, got orders={orders!r}."
            )
        if (
            len(weights) != len(orders)
            or not all(weight > 0 for weight in weights)
            or abs(math.fsum(weights) - 1) > 1e-9
        ):
            raise ArgumentError(
                f"Expected one positive weight for each of {len(orders)} orders, adding up to 1, "
                f"got weights={weights!r}."
            )
        object.__setattr__(self, "orders", orders)
        object.__setattr__(self, "weights", weights)

    # ------------------------------------------------------------------ which orders

    @classmethod
    def for_budget(
        cls, budget: Budget | None, typical: Mapping[DpEvent, int] | None = None
    ) -> "RenyiFilter":
        """Return orders that suit a budget, or one that is used up by runs of a kind.

        Args:
            budget: what is to be used up; None for weights that favour no budget.
            typical: what a typical run is charged as. Most weight is then given to the orders at
                which such runs use up the budget, else to those at which Gaussian noise does.
        """
        shape = None if not typical else _at_orders(typical)
        places, weights = _around(_best_order(shape, budget))
        return cls(tuple(ORDERS[places].tolist()), tuple(weights.tolist()))

    def encode(self) -> str:
        """Return the filter as text; floats keep every bit."""
        return json.dumps({"orders": self.orders, "weights": self.weights})

    @classmethod
    def decode(cls, text: str) -> "RenyiFilter":
        """Return the filter that `encode` wrote."""
        try:
            fields: dict[str, Any] = json.loads(text)
            return cls(tuple(fields["orders"]), tuple(fields["weights"]))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ArgumentError(f"Expected the text of a filter, got {text!r}.") from error

    # ------------------------------------------------------------------ what it costs

    @property
    def name(self) -> str:
        """Its name in statements."""
        return FILTER

    @property
    def description(self) -> str:
        """Its name in words."""
        return "a Renyi filter over several orders"

    @property
    def slow(self) -> bool:
        """An answer takes less than a millisecond, once divergences are known."""
        return False

    @cached_property
    def places(self) -> Places:
        """Which of the orders at which divergences are computed it has."""
        return tuple(np.searchsorted(ORDERS, self.orders).tolist())

    def epsilon(self, tally: Tally | Mapping[DpEvent, int], delta: float) -> float:
        """Return the epsilon at `delta` of everything in a tally."""
        total = FilterTotals(self)
        total.add(tally)
        return total.epsilon(delta)

    def epsilon_at(self, divergences: Vector, delta: float) -> float:
        """Return the epsilon at `delta` of given divergences at the orders.

        An order at which it is infinite, or not a number, does not count; infinity if none does.
        """
        known = (np.asarray(divergences) >= 0) & (np.asarray(divergences) < _INFINITE)
        if not known.any():
            return math.inf
        slopes = self._slopes[known]
        intercepts = self._log_weights[known] - slopes * np.asarray(divergences)[known]
        return _largest(slopes, intercepts, delta)

    @cached_property
    def _slopes(self) -> Vector:
        slopes: Vector = np.asarray(self.orders) - 1
        return slopes

    @cached_property
    def _log_weights(self) -> Vector:
        logs: Vector = np.log(np.asarray(self.weights))
        return logs


class _Sums(NamedTuple):
    """What a tally adds up to: divergences for a relation, and what may fail."""

    relation: str
    divergences: Any
    failing: Tally


class FilterTotals:
    """Everything charged so far, as a filter adds it up; one more charge costs microseconds.

    Args:
        filter: the orders and their weights.

    Guarantee: sums are those of whole numbers, and so exact: they depend on what is there alone,
    not on the order in which it came or on what was taken back since. Who adds up the same has the
    same epsilon, to the last bit.
    """

    def __init__(self, filter: RenyiFilter) -> None:
        self.filter = filter
        self._counts: Tally = Counter()
        nothing = np.zeros(len(filter.orders), dtype=object)
        self._sums = _Sums(events.EITHER, nothing, Counter())

    def add(self, changes: Mapping[DpEvent, int]) -> None:
        """Add events; negative numbers take them away.

        Raises:
            EventError: they are not of the neighbouring relation of what is there; nothing was
                added.
        """
        counted, failing = _counted_and_failing(changes)
        self._sums = self._with(counted, failing)
        self._counts.update(counted)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at `delta`; infinity where none is known."""
        return self._epsilon(self._sums, delta)

    def check(self, changes: Mapping[DpEvent, int]) -> None:
        """Raise an EventError unless events can be added."""
        self._with(*_counted_and_failing(changes))

    def epsilon_with(self, changes: Mapping[DpEvent, int], delta: float) -> float:
        """Return what the epsilon would be if events were added."""
        return self._epsilon(self._with(*_counted_and_failing(changes)), delta)

    def _with(self, counted: Tally, failing: Tally) -> _Sums:
        now, relation = self._sums, self._relation_with(counted)
        if relation == now.relation:
            divergences = now.divergences + self._sum(counted, relation)
        else:  # all are different ones
            after = self._counts.copy()
            after.update(counted)
            divergences = self._sum(after, relation)
        failing = now.failing + failing if failing else now.failing
        return _Sums(relation, divergences, failing)

    def _sum(self, counts: Mapping[DpEvent, int], relation: str) -> Any:
        relation = events.ADD_OR_REMOVE if relation == events.EITHER else relation
        total = np.zeros(len(self.filter.orders), dtype=object)
        for event, count in counts.items():
            if count:
                total = total + count * _whole_divergence(event, relation, self.filter.places)
        return total

    def _relation_with(self, changes: Tally) -> str:
        """Return the relation of what is there after changes; refuse a mixture."""
        now = self._sums.relation
        found = {events.relation(event) for event, n in changes.items() if n > 0} - {events.EITHER}
        if found <= {now} and not any(n < 0 for n in changes.values()):
            return now
        # where all that had a relation was taken back, it does not matter any more
        held = (event for event, n in self._counts.items() if n + changes[event] > 0)
        kept = next((each for each in held if events.relation(each) != events.EITHER), None)
        found |= set() if kept is None else {events.relation(kept)}
        if len(found) > 1:
            events.common_relation([*changes, *self._counts])
        return found.pop() if found else events.EITHER

    def _epsilon(self, sums: _Sums, delta: float) -> float:
        failing = ((n, events.kind_of(event).failure(event)) for event, n in sums.failing.items())
        failure = math.fsum(_times(n, each) for n, each in failing) * (1 + 1e-12)
        kept = FAILURE_SHARE * delta
        if failure > kept:
            return math.inf
        if not sums.divergences.any():  # then nobody can tell the two data sets apart
            return 0.0
        divergences = np.array([_as_float(total) for total in sums.divergences])
        return self.filter.epsilon_at(divergences, delta - kept)


def _times(count: int, probability: float) -> float:
    """Return a product that no count makes too large for a float."""
    return count * probability if count < _MOST_EXACT else math.inf


def _counted_and_failing(changes: Mapping[DpEvent, int]) -> tuple[Tally, Tally]:
    """Return what is charged by its divergence, on the lattice, and what may fail."""
    counted: Tally = Counter()
    failing: Tally = Counter()
    for event, count in changes.items():
        if events.kind_of(event).failure(event):
            failing[event] += count
        else:
            counted[lattice_event(event)] += count
    return counted, failing


@lru_cache(maxsize=1 << 14)
def _whole_divergence(event: DpEvent, relation: str, places: Places) -> Any:
    """Return the divergence of one event at some orders in units of 2^-256, as whole numbers."""
    found = np.asarray(events.divergence(event, relation, places), dtype=float)
    # what is not a number, or below 0, is not known, and so as good as infinite
    known = np.where((found >= 0) & (found <= _INFINITE), found, _INFINITE).tolist()
    return np.array([math.ceil(math.ldexp(each, _UNIT_BITS)) for each in known], dtype=object)


def _as_float(total: int) -> float:
    """Return a sum of whole divergences, infinity for one that is as good as that."""
    return math.inf if total >= _WHOLE_INFINITE else total / (1 << _UNIT_BITS)


def lattice_event(event: DpEvent, points_per_doubling: int = POINTS_PER_DOUBLING) -> DpEvent:
    """Return the event that a filter charges for another: one with a little less noise.

    So that thousands of different multipliers have few divergences. Less noise costs no less. What
    is no sampled Gaussian release stays as it is.
    """
    release = events.release_of(event)
    if release is None or release.sampling_rate >= 1 or release.noise_multiplier <= 0:
        return event
    return _on_lattice(event, release.noise_multiplier, points_per_doubling)


@lru_cache(maxsize=1 << 17)
def _on_lattice(event: DpEvent, noise_multiplier: float, points_per_doubling: int) -> DpEvent:
    place = math.floor(math.log2(noise_multiplier) * points_per_doubling + 1e-9)
    below = 2.0 ** (place / points_per_doubling)
    if below > noise_multiplier:
        # by the rounding of the logarithm alone: a point of the lattice stands for itself
        return event
    kind = events.kind_of(event)
    return kind.make(**{**kind.fields(event), "noise_multiplier": below})


# ---------------------------------------------------------------------- orders


def _at_orders(tally: Mapping[DpEvent, int]) -> Vector | None:
    """Return the divergences of the most frequent events, None if they are of no use."""
    usable: Tally = Counter()
    for event, count in tally.items():
        if count > 0 and not events.kind_of(event).failure(event):
            usable[lattice_event(event, _TYPICAL_POINTS)] += min(count, _MOST_EXACT)
    some = dict(usable.most_common(_MOST_TYPICAL))
    found = events.total_divergence(some, events.common_relation(some))
    return found if np.any(np.isfinite(found) & (found > 0)) else None


def _best_order(shape: Vector | None, budget: Budget | None) -> float | None:
    """Return the order at which a multiple of some divergences uses up a budget last.

    By default they are those of Gaussian noise. Without a budget, it is the order that is best for
    the divergences themselves, at a delta as good as any.
    """
    delta = _SOME_DELTA if budget is None else budget.delta
    rest = np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    if budget is None:
        return None if shape is None else float(ORDERS[int((shape + rest).argmin())])
    shape = ORDERS if shape is None else np.where(shape > 0, shape, np.inf)
    allowed = (budget.epsilon - rest) / shape
    # so small a budget that no order serves: the largest comes closest
    return float(ORDERS[int(allowed.argmax())]) if allowed.max() > 0 else _LARGEST_ORDER


def _around(best: float | None) -> tuple[Any, Vector]:
    """Return places among the orders, and weights, most of them near the best one."""
    lowest, highest = math.log(0.25), math.log(_LARGEST_ORDER - 1)
    wide = np.arange(lowest, highest + _FAR, _FAR)
    near = np.zeros(0) if best is None else math.log(best - 1) + np.arange(-12, 13) * _NEAR
    wanted = np.clip(np.concatenate([wide, near]), lowest, highest)
    logs = np.log(ORDERS - 1)
    places = np.unique(np.abs(logs[:, None] - wanted).argmin(axis=0))
    at = logs[places]
    # as a density over log (order - 1): each order stands for the middle of the way to the next
    edges = np.concatenate([at[:1], (at[1:] + at[:-1]) / 2, at[-1:]])
    widths = np.maximum(np.diff(edges), 1e-3)
    weights = widths / widths.sum()
    if best is not None:
        from_best = (at - math.log(best - 1) - _SHIFT) / _WIDTH
        peak = widths / (1 + from_best**2)
        weights = _SPREAD_EVENLY * weights + (1 - _SPREAD_EVENLY) * peak / peak.sum()
    return places, weights / weights.sum()


# ---------------------------------------------------------------------- the largest loss


def _largest(slopes: Vector, intercepts: Vector, delta: float) -> float:
    """Return the maximum over L of L + log(1 - delta sum_j exp(intercept_j + slope_j L)).

    The function is concave. Its slope falls through 0 where u = log(delta s (1 + t)) does, with s
    the sum and t the derivative of log s; u grows by at least the least slope. Between two points
    with slopes of different signs the maximum is below either tangent.
    """
    log_delta = math.log(delta)

    def terms(loss: float) -> tuple[float, float, float]:
        """Return log(delta s), t and the derivative of t."""
        exponents = intercepts + slopes * loss
        top = float(exponents.max())
        shares = np.exp(exponents - top)
        total = float(shares.sum())
        mean = float(shares @ slopes) / total
        spread = float(shares @ (slopes * slopes)) / total - mean * mean
        return log_delta + top + math.log(total), mean, max(0.0, spread)

    # below `low` every term is too small, above `high` one alone is too large
    left = -log_delta - np.log1p(slopes) - intercepts
    low = float(np.min((left - math.log(slopes.size)) / slopes))
    high = float(np.min(left / slopes))
    low = min(low, high) - 1e-6 * (1 + abs(low))
    loss = high
    for _ in range(100):
        log_sum, mean, spread = terms(loss)
        u = log_sum + math.log1p(mean)
        low, high = (loss, high) if u < 0 else (low, loss)
        if high - low <= 1e-12 * (1 + abs(high)):
            break
        loss -= u / (mean + spread / (1 + mean))
        if not low < loss < high:
            loss = (low + high) / 2
        if abs(u) < 1e-12:
            break
    return _tangent_bound(terms, low, high)


def _tangent_bound(terms: Any, low: float, high: float) -> float:
    """Return an upper bound of the concave function between two points that enclose its top."""

    def value(loss: float) -> tuple[float, float]:
        log_sum, mean, _ = terms(loss)
        if log_sum >= 0:
            return -math.inf, -math.inf
        left = -math.expm1(log_sum)
        return loss + math.log(left), 1 - mean * math.exp(log_sum) / left

    bounds = []
    for start, other in ((low, high), (high, low)):
        height, slope = value(start)
        if math.isfinite(height):
            bounds.append(height + max(0.0, slope * (other - start)))
    # at the top both are within rounding of the value
    best = min(bounds) if bounds else high
    return max(0.0, best + _ROUNDING * (1 + abs(best)))
