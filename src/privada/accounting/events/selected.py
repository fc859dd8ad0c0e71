"""The best of a random number of runs."""

import math
from dataclasses import dataclass
from typing import Any

from dp_accounting import DpEvent

from privada.accounting.events import registry
from privada.accounting.events.kind import EventKind, Items
from privada.accounting.orders import Vector
from privada.accounting.repetition import repeated
from privada.core.errors import EventError


@dataclass(frozen=True)
class Selected(DpEvent):  # type: ignore[misc]
    """A random number of runs, of which the best one's output is released and nothing else.

    Each run draws one of the candidates, and is charged as that candidate's tally; the most
    expensive counts. `shape` says how the number of runs is distributed around its `mean`, as in
    `repetition`.

    Reference: Papernot and Steinke (2022), Hyperparameter Tuning with Renyi Differential Privacy,
    Theorems 2 and 6.
    """

    candidates: tuple[Items, ...]
    mean: float
    shape: float


class SelectedKind(EventKind[Selected]):
    """The best of a random number of runs: only divergences are known of it."""

    name, event = "selected", Selected

    def relation(self, event: Selected) -> str:
        """Return the relation of the candidates."""
        if not (1 <= event.mean < math.inf and event.shape >= 0):  # which a NaN is not
            raise EventError(
                f"Expected a finite mean of at least 1 and a shape of at least 0, got {event!r}."
            )
        return registry.relation_within(event.candidates)

    def describe(self, event: Selected) -> str:
        """Return the event in words."""
        first = registry.describe_items(event.candidates[0])
        number = len(event.candidates)
        run = first if number == 1 else f"one of {number} kinds, such as {first}"
        return (
            f"the best of a random number of runs, {event.mean:g} expected, released alone; "
            f"a run is {run}"
        )

    def fields(self, event: Selected) -> dict[str, Any]:
        """Return the candidates and how many runs are made."""
        return {
            "candidates": registry.items_as_fields(event.candidates),
            "mean": event.mean,
            "shape": event.shape if event.shape < math.inf else "poisson",
        }

    def make(self, candidates: list[Any], mean: float, shape: Any) -> DpEvent:  # type: ignore[override]
        """Return the event."""
        distribution = math.inf if shape == "poisson" else float(shape)
        return Selected(registry.items_from_fields(candidates), float(mean), distribution)

    def divergence(self, event: Selected, relation: str) -> Vector:
        """Return the divergence of repetition, from that of the most expensive candidate."""
        one = registry.largest_divergence(event.candidates, relation)
        return repeated(one, event.mean, event.shape)
