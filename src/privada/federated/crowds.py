"""Draws from clients of whom there may be more than the public number."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from dp_accounting import DpEvent

from privada.core.randomness import RandomSource
from privada.data import Indices
from privada.federated.clients import Clients, OpenToAll
from privada.participation import Cyclic, Sampler


class CyclicSampler(Sampler, Cyclic, Protocol):
    """A sampler whose units take turns."""


@dataclass(frozen=True)
class Crowd:
    """Draws from all places there are, by a sampler over the public number of them.

    Places beyond that number are drawn from by the same sampler again, as often as it takes.

    Guarantee: each client takes part by its own coin, however many others there are. If places were
    limited, one client would keep another one out, and adding it would move a sum by what both
    send.
    """

    of: Sampler
    clients: OpenToAll

    @property
    def units(self) -> int:
        """The public number of clients."""
        return self.of.units

    @property
    def batch_size(self) -> float:
        """The expected number of clients in a round, out of the public number."""
        return self.of.batch_size

    def draw(self, step: int, rng: RandomSource) -> Indices:
        """Return the places of those who take part in a round. Private: never shown."""
        return self._joined(self.of.draw(step, rng) for _ in range(self._times()))

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return the event of a release over one draw."""
        return self.of.event(noise_multiplier)

    def describe(self) -> str:
        """Return the sampling in words."""
        return self.of.describe()

    def _times(self) -> int:
        """Return how many times the public number of places it takes for all who are there."""
        return max(1, math.ceil(self.clients.places() / self.units))

    def _joined(self, draws: Iterable[Indices]) -> Indices:
        """Return draws from the public number of places as one, each from places of its own."""
        return np.concatenate([drawn + k * self.units for k, drawn in enumerate(draws)])


@dataclass(frozen=True)
class CrowdInTurns(Crowd):
    """A crowd that is dealt into parts, which take turns."""

    of: CyclicSampler

    @property
    def parts(self) -> int:
        """In how many parts the places are, one of which is drawn from in each round."""
        return self.of.parts

    def deal(self, rng: RandomSource) -> Sampler:
        """Return a crowd that is dealt afresh, whose rounds are counted from 0."""
        return DealtCrowd(self.of, self.clients)


@dataclass(frozen=True)
class DealtCrowd(Crowd):
    """A crowd whose places are dealt, those of clients that come later when they come.

    Who is in which part is private: never shown.
    """

    of: CyclicSampler
    _dealt: list[Sampler] = field(default_factory=list, init=False, repr=False, compare=False)

    def draw(self, step: int, rng: RandomSource) -> Indices:
        """Return the places of those who take part in a round. Private: never shown."""
        for _ in range(self._times() - len(self._dealt)):
            self._dealt.append(self.of.deal(rng))
        return self._joined(each.draw(step, rng) for each in self._dealt)


def drawn_from(sampler: Sampler, clients: Clients) -> Sampler:
    """Return what draws from clients, of whom there may be more than the sampler has units."""
    if not isinstance(clients, OpenToAll):
        return sampler
    return (
        CrowdInTurns(sampler, clients) if isinstance(sampler, Cyclic) else Crowd(sampler, clients)
    )
