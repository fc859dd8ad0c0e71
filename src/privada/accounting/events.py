"""What ran, in dp_accounting's own classes, and as text that a ledger can keep.

A multiplier is always the noise's standard deviation over the clip norm, that is, over the most
by which adding or removing one record moves the sum. Replacing a record moves it by twice that;
accountants, not events, know.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from privada.core.errors import EventError

ADD_OR_REMOVE = "add-or-remove-one"
REPLACE = "replace-one"
EITHER = "either"

Tally = Counter[DpEvent]


def gaussian(noise_multiplier: float) -> DpEvent:
    """Return the event of one Gaussian release over all records."""
    return GaussianDpEvent(float(noise_multiplier))


def poisson(sampling_rate: float, noise_multiplier: float) -> DpEvent:
    """Return the event of one Gaussian release over a Poisson sample."""
    if sampling_rate == 1:
        return gaussian(noise_multiplier)
    return PoissonSampledDpEvent(float(sampling_rate), gaussian(noise_multiplier))


def fixed_size(population: int, batch_size: int, noise_multiplier: float) -> DpEvent:
    """Return the event of one Gaussian release over a fixed-size sample without replacement."""
    return SampledWithoutReplacementDpEvent(population, batch_size, gaussian(noise_multiplier))


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


def relation(event: DpEvent) -> str:
    """Return the neighbouring relation under which an elementary event is accounted."""
    inner = getattr(event, "event", event)
    found = None
    if isinstance(inner, GaussianDpEvent):
        if isinstance(event, PoissonSampledDpEvent):
            found, share = ADD_OR_REMOVE, event.sampling_probability
        elif isinstance(event, SampledWithoutReplacementDpEvent):
            found, share = REPLACE, event.sample_size / max(1, event.source_dataset_size)
        elif event is inner:
            found, share = EITHER, 1.0
    if found is None:
        raise EventError(
            f"Expected an event that Privada can account for (Gaussian, alone or with Poisson or "
            f"fixed-size sampling), got {event!r}. Express the query by one of these."
        )
    # A NaN would compare as neither within a budget nor beyond it.
    if not (0 <= inner.noise_multiplier < math.inf and 0 < share <= 1):
        raise EventError(
            f"Expected a finite noise multiplier of at least 0 and a sampling rate in (0, 1], got "
            f"{event!r}."
        )
    return found


def multiplier(event: DpEvent) -> float:
    """Return the noise multiplier of an elementary event."""
    relation(event)
    inner = event if isinstance(event, GaussianDpEvent) else event.event
    return float(inner.noise_multiplier)


def sampling_rate(event: DpEvent) -> float:
    """Return the share of the records that an elementary event looks at."""
    relation(event)
    if isinstance(event, PoissonSampledDpEvent):
        return float(event.sampling_probability)
    if isinstance(event, SampledWithoutReplacementDpEvent):
        return float(event.sample_size / event.source_dataset_size)
    return 1.0


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


def compose(counts: Mapping[DpEvent, int]) -> DpEvent:
    """Return one event for everything in a tally."""
    return ComposedDpEvent([SelfComposedDpEvent(event, n) for event, n in counts.items() if n > 0])


def encode(event: DpEvent) -> str:
    """Return an elementary event as JSON; floats keep every bit."""
    relation(event)
    fields: dict[str, Any]
    if isinstance(event, PoissonSampledDpEvent):
        fields = {
            "kind": "poisson",
            "sampling_rate": float(event.sampling_probability),
            "noise_multiplier": float(event.event.noise_multiplier),
        }
    elif isinstance(event, SampledWithoutReplacementDpEvent):
        fields = {
            "kind": "fixed-size",
            "population": int(event.source_dataset_size),
            "batch_size": int(event.sample_size),
            "noise_multiplier": float(event.event.noise_multiplier),
        }
    else:
        fields = {"kind": "gaussian", "noise_multiplier": float(event.noise_multiplier)}
    return json.dumps(fields, sort_keys=True)


def decode(text: str) -> DpEvent:
    """Return the event that `encode` wrote."""
    makers: dict[str, Callable[..., DpEvent]] = {
        "poisson": poisson,
        "fixed-size": fixed_size,
        "gaussian": gaussian,
    }
    try:
        fields = json.loads(text)
        return makers[fields.pop("kind")](**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise EventError(f"Expected the text of an event, got {text!r}.") from error


def describe(event: DpEvent) -> str:
    """Return an elementary event in words."""
    relation(event)
    if isinstance(event, PoissonSampledDpEvent):
        return (
            f"Gaussian noise, multiplier {event.event.noise_multiplier:.6g}, on a Poisson sample "
            f"at rate {event.sampling_probability:.6g}"
        )
    if isinstance(event, SampledWithoutReplacementDpEvent):
        return (
            f"Gaussian noise, multiplier {event.event.noise_multiplier:.6g}, on "
            f"{event.sample_size} of {event.source_dataset_size} records drawn without replacement"
        )
    return f"Gaussian noise, multiplier {event.noise_multiplier:.6g}, on all records"
