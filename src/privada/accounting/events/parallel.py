"""Releases on parts of the records that share none."""

from dataclasses import dataclass
from typing import Any

from dp_accounting import DpEvent

from privada.accounting.events import registry
from privada.accounting.events.kind import EventKind, Items
from privada.accounting.orders import Places, Vector


@dataclass(frozen=True)
class Parallel(DpEvent):  # type: ignore[misc]
    """Several tallies, each on a part of the records that shares no record with another's.

    A record is in one part only, so that the most expensive tally counts.

    Reference: McSherry (2009), Privacy Integrated Queries, Theorem 4.
    """

    parts: tuple[Items, ...]


class ParallelKind(EventKind[Parallel]):
    """Tallies on disjoint parts: a record meets one of them."""

    name, event = "parallel", Parallel

    def relation(self, event: Parallel) -> str:
        """Return the relation of the parts."""
        return registry.relation_within(event.parts)

    def describe(self, event: Parallel) -> str:
        """Return the event in words."""
        parts = "; ".join(registry.describe_items(part) for part in event.parts)
        return f"releases on parts that share no record, the most expensive counting: {parts}"

    def fields(self, event: Parallel) -> dict[str, Any]:
        """Return the parts."""
        return {"parts": registry.items_as_fields(event.parts)}

    def make(self, parts: list[Any]) -> DpEvent:  # type: ignore[override]
        """Return the event."""
        return Parallel(registry.items_from_fields(parts))

    def alternatives(self, event: Parallel) -> tuple[Items, ...]:
        """Return the parts."""
        return event.parts

    def divergence(self, event: Parallel, relation: str) -> Vector:
        """Return the largest divergence of a part, order by order."""
        return registry.largest_divergence(event.parts, relation)

    def divergence_at(self, event: Parallel, relation: str, places: Places) -> Vector:
        """Return the same at some of the orders."""
        return registry.largest_divergence(event.parts, relation, places)
