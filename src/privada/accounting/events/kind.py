"""What the library has to know of one kind of event."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from dp_accounting import DpEvent

from privada.accounting.orders import Places, Vector

ADD_OR_REMOVE = "add-or-remove-one"
REPLACE = "replace-one"
EITHER = "either"

Tally = Counter[DpEvent]
# A tally that can be part of an event: it does not change, and its order means nothing.
Items = tuple[tuple[DpEvent, int], ...]
Event = TypeVar("Event", bound=DpEvent)


class GaussianRelease(NamedTuple):
    """A sum with Gaussian noise over a sample: the sampling rate and the noise multiplier."""

    sampling_rate: float
    noise_multiplier: float


class EventKind(ABC, Generic[Event]):
    """One kind of event: its neighbouring relation, words, text, and what accountants need.

    Accountants know sampled Gaussian releases (`release`), events of which a record meets one of
    several parts (`alternatives`), events that may fail altogether (`failure`), and the Renyi
    divergence of all of them (`divergence`). A kind says which of these it is.

    Attributes:
        name: what the text of an event calls the kind.
        event: the class of its events.

    Example:
        >>> from privada.accounting import events
        >>> events.kind_of(events.poisson(0.1, 2.0)).name
        'poisson'
    """

    name: ClassVar[str]
    event: ClassVar[type[DpEvent]]

    @abstractmethod
    def relation(self, event: Event) -> str:
        """Return the neighbouring relation; raise an EventError if a value is not allowed."""

    @abstractmethod
    def describe(self, event: Event) -> str:
        """Return the event in words."""

    @abstractmethod
    def fields(self, event: Event) -> dict[str, Any]:
        """Return the event as values that JSON can hold; floats keep every bit."""

    @abstractmethod
    def make(self, **fields: Any) -> DpEvent:
        """Return the event that `fields` came from."""

    @abstractmethod
    def divergence(self, event: Event, relation: str) -> Vector:
        """Return the Renyi divergence at `orders.ORDERS`, as an upper bound.

        It bounds both directions of the relation: with a record against without it, and without it
        against with it. A filter adds it up along a path and relies on either.
        """

    def divergence_at(self, event: Event, relation: str, places: Places) -> Vector:
        """Return the divergence at some of the orders, for a kind that can do so faster."""
        return self.divergence(event, relation)[list(places)]

    def release(self, event: Event) -> GaussianRelease | None:
        """Return what kind of Gaussian release it is, None if it is not one."""
        return None

    def alternatives(self, event: Event) -> tuple[Items, ...]:
        """Return the tallies of which one record meets exactly one, none if that says nothing."""
        return ()

    def failure(self, event: Event) -> float:
        """Return the probability with which it may tell anything, where that is all it costs."""
        return 0.0


def positive_items(counts: Mapping[DpEvent, int]) -> list[tuple[DpEvent, int]]:
    """Return the events of a tally that occur."""
    return [(event, count) for event, count in counts.items() if count > 0]
