"""What ran, in dp_accounting's own classes, and as text that a ledger can keep.

A multiplier is always the noise's standard deviation over the clip norm, that is, over the most
by which adding or removing one record moves the sum. Replacing a record moves it by twice that;
accountants, not events, know.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
from privada.core.formatting import number

ADD_OR_REMOVE = "add-or-remove-one"
REPLACE = "replace-one"
EITHER = "either"

Tally = Counter[DpEvent]
# A tally that can be part of an event: it does not change, and its order means nothing.
Items = tuple[tuple[DpEvent, int], ...]


def items_of(counts: Mapping[DpEvent, int]) -> Items:
    """Return a tally as part of an event, in an order that depends on its content alone."""
    return tuple(sorted(((e, n) for e, n in counts.items() if n > 0), key=lambda i: encode(i[0])))


@dataclass(frozen=True)
class Parallel(DpEvent):  # type: ignore[misc]
    """Several tallies, each on a part of the records that shares no record with another's.

    A record is in one part only, so that the dearest tally counts.
    """

    parts: tuple[Items, ...]


@dataclass(frozen=True)
class Selected(DpEvent):  # type: ignore[misc]
    """A random number of runs, of which the best one's output is released and nothing else.

    Each run draws one of the candidates, and is charged as that candidate's tally; the dearest
    counts. `shape` says how the number of runs is distributed around its `mean`, as in
    `repetition`.
    """

    candidates: tuple[Items, ...]
    mean: float
    shape: float


def _inside(event: DpEvent) -> tuple[Items, ...]:
    """Return the tallies that an event is made of, none if it is elementary itself."""
    if isinstance(event, Parallel):
        return event.parts
    return event.candidates if isinstance(event, Selected) else ()


def gaussian_only(event: DpEvent) -> bool:
    """Return whether an event is a Gaussian release, sampled or not."""
    return not _inside(event)


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
    if tallies := _inside(event):
        if isinstance(event, Selected) and not (
            1 <= event.mean < math.inf and event.shape >= 0  # which a NaN is not
        ):
            raise EventError(
                f"Expected a finite mean of at least 1 and a shape of at least 0, got {event!r}."
            )
        inside = [inner for tally in tallies for inner, _ in tally]
        alike = all(relation(inner) == EITHER for inner in inside)
        return EITHER if alike else common_relation(inside)
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
    if tallies := _inside(event):
        inner = [[[json.loads(encode(e)), n] for e, n in tally] for tally in tallies]
        fields = {"kind": "parallel", "parts": inner}
        if isinstance(event, Selected):
            shape = event.shape if event.shape < math.inf else "poisson"
            fields = {"kind": "selected", "candidates": inner, "mean": event.mean, "shape": shape}
    elif isinstance(event, PoissonSampledDpEvent):
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
        "parallel": lambda parts: Parallel(_decoded(parts)),
        "selected": lambda candidates, mean, shape: Selected(
            _decoded(candidates), float(mean), math.inf if shape == "poisson" else float(shape)
        ),
    }
    try:
        fields = json.loads(text)
        return makers[fields.pop("kind")](**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise EventError(f"Expected the text of an event, got {text!r}.") from error


def _decoded(tallies: list[Any]) -> tuple[Items, ...]:
    return tuple(
        tuple((decode(json.dumps(inner)), int(count)) for inner, count in tally)
        for tally in tallies
    )


def describe(event: DpEvent) -> str:
    """Return an elementary event in words."""
    relation(event)
    if isinstance(event, Parallel):
        parts = "; ".join(_listed(part) for part in event.parts)
        return f"releases on parts of the records that share none, the dearest counting: {parts}"
    if isinstance(event, Selected):
        return (
            f"the best of a random number of runs, {event.mean:g} expected, released alone; "
            f"a run is {_kinds(event.candidates)}"
        )
    if isinstance(event, PoissonSampledDpEvent):
        return (
            f"Gaussian noise, multiplier {number(event.event.noise_multiplier)}, on a Poisson "
            f"sample at rate {event.sampling_probability:.6g}"
        )
    if isinstance(event, SampledWithoutReplacementDpEvent):
        return (
            f"Gaussian noise, multiplier {number(event.event.noise_multiplier)}, on "
            f"{event.sample_size} of {event.source_dataset_size} records drawn without replacement"
        )
    return f"Gaussian noise, multiplier {number(event.noise_multiplier)}, on all records"


def _kinds(candidates: tuple[Items, ...]) -> str:
    if len(candidates) == 1:
        return _listed(candidates[0])
    return f"one of {len(candidates)} kinds, such as {_listed(candidates[0])}"


def _listed(tally: Items) -> str:
    each = (f"{count:,} times {describe(e)}" if count > 1 else describe(e) for e, count in tally)
    return " and ".join(each) or "nothing"
