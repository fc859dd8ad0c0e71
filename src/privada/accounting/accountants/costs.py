"""What a tally costs by any accountant: arguments are checked, and each question asked once."""

import math
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.accountants.accountant import Accountant
from privada.accounting.accountants.sampled_gaussians import releases_of
from privada.accounting.events import Tally
from privada.core.errors import ArgumentError
from privada.core.validation import integer, probability

_MOST_TIMES = 2**53
_by_name: dict[str, Accountant] = {}


def register(accountant: Accountant) -> None:
    """Let an accountant be asked for by its name."""
    _by_name[accountant.name] = accountant


def accountant_of(accountant: str | Accountant) -> Accountant:
    """Return the accountant that a name stands for, or the one that is given.

    Example:
        >>> from privada.accounting.accountants import accountant_of
        >>> accountant_of("rdp")
        RenyiAccountant(common_orders=True)
    """
    found = _by_name.get(accountant) if isinstance(accountant, str) else accountant
    if not isinstance(found, Accountant) or isinstance(found, type):
        names = ", ".join(repr(name) for name in _by_name)
        raise ArgumentError(
            f"Expected accountant to be one of {names} or an Accountant, got "
            f"accountant={accountant!r}."
        )
    return found


def times(name: str, value: object, least: int = 1) -> int:
    """Return `value` as a whole number that floating-point numbers count exactly."""
    number = integer(name, value, least)
    if number > _MOST_TIMES:
        raise ArgumentError(
            f"Expected {name} <= 2**53, got {name}={value!r}. Beyond it, costs cannot be counted "
            "exactly; no run is that long."
        )
    return number


def _place(item: tuple[DpEvent, int]) -> tuple[float, float, str, int]:
    event, count = item
    release = events.release_of(event)
    if release is None:
        return 2.0, 0.0, events.encode(event), count
    return *release, "", count


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
def _epsilon(items: frozenset[tuple[DpEvent, int]], delta: float, accountant: Accountant) -> float:
    # in an order that does not depend on hashes, so that sums are the same in every process
    counts: Tally = Counter(dict(sorted(items, key=_place)))
    events.common_relation(counts)
    counts, left = _without_failures(counts, delta)
    if left <= 0:
        return math.inf
    if left < delta:
        return _epsilon(frozenset(counts.items()), left, accountant) if counts else 0.0
    releases, others = releases_of(counts)
    if not others and any(release.noise_multiplier == 0 for release in releases):
        return math.inf
    return accountant.epsilon(counts, delta)


def epsilon_of(
    counts: Mapping[DpEvent, int], delta: float, accountant: str | Accountant = "pld"
) -> float:
    """Return the epsilon at `delta` of everything in a tally.

    Args:
        counts: how often each event runs.
        delta: between 0 and 1.
        accountant: an `Accountant`, or the name of one: "pld" (`LossDistributionAccountant`, tight,
            the default), "rdp" (`RenyiAccountant`) or "moments" (`MomentsAccountant`).

    Returns:
        The epsilon; infinity where there is no bound.

    Guarantee: an upper bound under every accountant.

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
    asked = accountant_of(accountant)
    delta = probability("delta", delta)
    whole_counts = ((event, times("count", n, least=0)) for event, n in counts.items())
    items = frozenset((event, n) for event, n in whole_counts if n > 0)
    return _epsilon(items, delta, asked) if items else 0.0
