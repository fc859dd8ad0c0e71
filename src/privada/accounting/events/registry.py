"""All kinds of events by their class and by their name, and what is asked of any event."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent, NoOpDpEvent, SelfComposedDpEvent

from privada.accounting.events.kind import (
    ADD_OR_REMOVE,
    EITHER,
    EventKind,
    GaussianRelease,
    Items,
    Tally,
    positive_items,
)
from privada.accounting.orders import ORDERS, Places, Vector
from privada.core.errors import EventError

_by_class: dict[type[DpEvent], EventKind[Any]] = {}
_by_name: dict[str, EventKind[Any]] = {}


def register(kind: EventKind[Any]) -> None:
    """Make a kind of event known; one that is known already is refused.

    Example:
        >>> from privada import EventError
        >>> from privada.accounting import events
        >>> try:
        ...     events.register(events.kind_of(events.gaussian(1.0)))
        ... except EventError as error:
        ...     print(error)
        Expected a new kind of event, got 'gaussian', which is known.
    """
    if kind.event in _by_class or kind.name in _by_name:
        raise EventError(f"Expected a new kind of event, got {kind.name!r}, which is known.")
    _by_class[kind.event] = _by_name[kind.name] = kind


def kind_of(event: DpEvent) -> EventKind[Any]:
    """Return the kind of an elementary event; refuse the unknown by name."""
    kind = _by_class.get(type(event))
    if kind is None:
        raise EventError(
            f"Expected an event that Privada can account for ({', '.join(_by_name)}), got "
            f"{event!r}. Express the query by one of these, or register a kind of its own."
        )
    return kind


def relation(event: DpEvent) -> str:
    """Return the neighbouring relation under which an elementary event is accounted."""
    return kind_of(event).relation(event)


def describe(event: DpEvent) -> str:
    """Return an elementary event in words."""
    relation(event)
    return kind_of(event).describe(event)


def describe_items(tally: Items) -> str:
    """Return a tally in words."""
    each = (f"{count:,} times {describe(e)}" if count > 1 else describe(e) for e, count in tally)
    return " and ".join(each) or "nothing"


def encode(event: DpEvent) -> str:
    """Return an elementary event as JSON; floats keep every bit."""
    return json.dumps(as_fields(event), sort_keys=True)


def as_fields(event: DpEvent) -> dict[str, Any]:
    """Return an elementary event as values that JSON can hold."""
    relation(event)
    kind = kind_of(event)
    return {"kind": kind.name, **kind.fields(event)}


def decode(text: str) -> DpEvent:
    """Return the event that `encode` wrote."""
    try:
        return from_fields(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise EventError(f"Expected the text of an event, got {text!r}.") from error


def from_fields(fields: dict[str, Any]) -> DpEvent:
    """Return the event of `as_fields`."""
    rest = dict(fields)
    return _by_name[rest.pop("kind")].make(**rest)


def items_of(counts: Mapping[DpEvent, int]) -> Items:
    """Return a tally as part of an event, in an order that depends on its content alone."""
    return tuple(sorted(positive_items(counts), key=lambda item: encode(item[0])))


def items_as_fields(tallies: tuple[Items, ...]) -> list[list[list[Any]]]:
    """Return tallies as values that JSON can hold."""
    return [[[as_fields(event), count] for event, count in tally] for tally in tallies]


def items_from_fields(tallies: list[Any]) -> tuple[Items, ...]:
    """Return the tallies of `items_as_fields`."""
    return tuple(
        tuple((from_fields(fields), int(count)) for fields, count in tally) for tally in tallies
    )


def tally(event: DpEvent, count: int = 1) -> Tally:
    """Return how often each elementary event occurs in `event`; refuse the unknown by name."""
    if isinstance(event, NoOpDpEvent):
        return Counter()
    if isinstance(event, SelfComposedDpEvent):
        return tally(event.event, event.count * count)
    if isinstance(event, ComposedDpEvent):
        total: Tally = Counter()
        for part in event.events:
            total.update(tally(part, count))
        return total
    relation(event)
    return Counter({event: count})


def compose(counts: Mapping[DpEvent, int]) -> DpEvent:
    """Return one event for everything in a tally."""
    return ComposedDpEvent([SelfComposedDpEvent(event, n) for event, n in positive_items(counts)])


def common_relation(events: Iterable[DpEvent]) -> str:
    """Return the one relation of all events; refuse a mixture."""
    found = {relation(event) for event in events} - {EITHER}
    if len(found) > 1:
        raise EventError(
            "Expected events of one neighbouring relation, got both add-or-remove-one (Poisson) "
            "and replace-one (fixed-size). Their costs do not add up: use one way of sampling for "
            "everything that touches a data set."
        )
    return found.pop() if found else ADD_OR_REMOVE


def relation_within(tallies: tuple[Items, ...]) -> str:
    """Return the relation of an event that is made of tallies; refuse one that is made of none."""
    if not tallies:
        raise EventError("Expected an event that is made of at least one tally, got none.")
    inside = [event for tally in tallies for event, _ in tally]
    alike = all(relation(event) == EITHER for event in inside)
    return EITHER if alike else common_relation(inside)


def release_count(counts: Mapping[DpEvent, int]) -> int:
    """Return how many releases a tally has: a probability of failing goes with one, and is none."""
    return sum(n for event, n in counts.items() if not kind_of(event).failure(event))


def release_of(event: DpEvent) -> GaussianRelease | None:
    """Return what kind of Gaussian release an elementary event is, None if it is not one."""
    relation(event)
    return kind_of(event).release(event)


def _release(event: DpEvent) -> GaussianRelease:
    found = release_of(event)
    if found is None:
        raise EventError(f"Expected the event of a Gaussian release, got {event!r}.")
    return found


@lru_cache(maxsize=1024)
def multiplier(event: DpEvent) -> float:
    """Return the noise multiplier of a Gaussian release."""
    return _release(event).noise_multiplier


def sampling_rate(event: DpEvent) -> float:
    """Return the share of the records that a Gaussian release looks at."""
    return _release(event).sampling_rate


def divergence(event: DpEvent, relation: str, places: Places | None = None) -> Vector:
    """Return the Renyi divergence of one elementary event, a bound in both directions.

    At all of `ORDERS`, or at those in `places` alone, which is faster the fewer they are.

    Example:
        >>> from privada.accounting import events
        >>> from privada.accounting.orders import ORDERS
        >>> ORDERS[[18, 78]].tolist()
        [2.0, 8.0]
        >>> events.divergence(events.gaussian(2.0), events.ADD_OR_REMOVE, (18, 78)).tolist()
        [0.25, 1.0]
    """
    kind = kind_of(event)
    if places is None:
        return kind.divergence(event, relation)
    return kind.divergence_at(event, relation, places)


def total_divergence(
    counts: Mapping[DpEvent, int], relation: str, places: Places | None = None
) -> Vector:
    """Return the Renyi divergence of everything in a tally at `ORDERS`, or at some of them."""
    total = np.zeros(ORDERS.size if places is None else len(places))
    for event, count in counts.items():
        total += count * divergence(event, relation, places)
    return total


def largest_divergence(
    tallies: tuple[Items, ...], relation: str, places: Places | None = None
) -> Vector:
    """Return, at each order, the divergence of the tally that has the largest there."""
    each = [total_divergence(dict(tally), relation, places) for tally in tallies]
    return np.asarray(np.max(each, axis=0))
