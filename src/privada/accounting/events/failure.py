"""A query that keeps its promise but for a small probability."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting import DpEvent

from privada.accounting.events.kind import EITHER, EventKind
from privada.accounting.orders import ORDERS, Vector
from privada.core.errors import EventError


@dataclass(frozen=True)
class Failure(DpEvent):  # type: ignore[misc]
    """Tells nothing of a record, but for a probability with which it may tell anything.

    It is (0, probability)-differentially private. A query that leaves out whatever few records
    have, and can fail to, is charged this beside its noise.

    Reference: Dwork and Roth (2014), The Algorithmic Foundations of Differential Privacy, Theorem
    3.16, by which its delta adds up with those of other releases.
    """

    probability: float


class FailureKind(EventKind[Failure]):
    """A probability that is taken from delta."""

    name, event = "failure", Failure

    def relation(self, event: Failure) -> str:
        """Return that it is either."""
        if not 0 <= event.probability <= 1:  # which a NaN is not
            raise EventError(f"Expected a probability between 0 and 1, got {event!r}.")
        return EITHER

    def describe(self, event: Failure) -> str:
        """Return the event in words."""
        return f"a probability of {event.probability:.2g} of telling more, taken from delta"

    def fields(self, event: Failure) -> dict[str, Any]:
        """Return the probability."""
        return {"probability": float(event.probability)}

    def make(self, probability: float) -> DpEvent:  # type: ignore[override]
        """Return the event."""
        return Failure(float(probability))

    def failure(self, event: Failure) -> float:
        """Return the probability."""
        return event.probability

    def divergence(self, event: Failure, relation: str) -> Vector:
        """Return infinity: what can fail has no finite divergence."""
        return np.full_like(ORDERS, np.inf if event.probability > 0 else 0.0)
