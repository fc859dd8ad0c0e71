"""Units are dealt into parts, which take part in turns; within a part each by its own coin."""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from privada.accounting import events
from privada.core.errors import ArgumentError
from privada.core.randomness import RandomSource, integers
from privada.core.validation import integer, rate
from privada.participation.participation import Sampler
from privada.participation.poisson import PoissonSampler


@runtime_checkable
class Cyclic(Protocol):
    """A sampler of which each unit may be in one of so many steps in a row.

    Example:
        >>> import privada as pv
        >>> from privada.participation import Cyclic
        >>> isinstance(pv.participation.CyclicPoisson(4).among(100, batch_size=10), Cyclic)
        True
    """

    @property
    def parts(self) -> int:
        """In how many parts the units are, one of which is drawn from in each step."""

    def deal(self, rng: RandomSource) -> Sampler:
        """Return a sampler over parts that are dealt afresh, whose steps are counted from 0."""


@dataclass(frozen=True)
class CyclicPoissonSampler:
    """Deals each unit to one of `parts` parts; step t draws from part t mod `parts`.

    Guarantee: each unit has its part by itself, uniformly, whoever else is there, and takes part in
    every `parts`-th step with probability `sampling_rate`, independently. So what happens in
    `parts` steps in a row is known of one unit by one of them, and costs what one Poisson step at
    `sampling_rate` costs. `event` is what these steps together are charged as.

    Edge cases: parts are of about the same size, not exactly. With a rate of 1 the whole part takes
    part.

    Example:
        >>> from privada.core.randomness import SeededSource
        >>> from privada.participation import CyclicPoissonSampler
        >>> dealt = CyclicPoissonSampler(units=8, sampling_rate=1.0, parts=2).deal(
        ...     SeededSource(1, "sampling")
        ... )
        >>> drawn = [dealt.draw(step, SeededSource(2, "sampling")).tolist() for step in range(3)]
        >>> drawn[0] == drawn[2], sorted(drawn[0] + drawn[1])
        (True, [0, 1, 2, 3, 4, 5, 6, 7])

    Reference: Choquette-Choo et al. (2023), (Amplified) Banded Matrix Factorization,
    arXiv 2306.08153, Algorithm 2 and Theorem 4.
    """

    units: int
    sampling_rate: float
    parts: int

    def __post_init__(self) -> None:
        integer("units", self.units)
        rate("sampling_rate", self.sampling_rate)
        integer("parts", self.parts)

    @property
    def batch_size(self) -> float:
        """The expected number of units in a step."""
        return self.units * self.sampling_rate / self.parts

    def deal(self, rng: RandomSource) -> "DealtSampler":
        """Return a sampler over parts that are dealt afresh."""
        part = integers(rng, self.parts, self.units)
        order = np.argsort(part, kind="stable")
        ends = np.cumsum(np.bincount(part, minlength=self.parts))[:-1]
        return DealtSampler(self, tuple(np.split(order, ends)))

    def draw(self, step: int, rng: RandomSource) -> NDArray[np.int64]:
        """Return the units of one step by itself, under a deal that is used for nothing else."""
        return self.deal(rng).draw(step, rng)

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return the event of `parts` Gaussian releases in a row, one over each part."""
        return events.poisson(self.sampling_rate, noise_multiplier)

    def describe(self) -> str:
        """Return the sampling in words."""
        return (
            f"cyclic Poisson: each record is dealt to one of {self.parts} parts, which take turns; "
            f"when its part has its turn, it enters independently with probability "
            f"{self.sampling_rate:.6g}; {self.parts} steps, a turn of all parts, are charged as "
            "one release"
        )


@dataclass(frozen=True)
class DealtSampler:
    """A cyclic sampler whose parts are dealt. Who is in which part is private: never shown."""

    of: CyclicPoissonSampler
    members: tuple[NDArray[np.int64], ...]

    @property
    def units(self) -> int:
        """The number of units in all parts."""
        return self.of.units

    @property
    def batch_size(self) -> float:
        """The expected number of units in a step."""
        return self.of.batch_size

    def draw(self, step: int, rng: RandomSource) -> NDArray[np.int64]:
        """Return the units of one step, ascending."""
        own = self.members[step % self.of.parts]
        if not own.size:
            return own
        return own[PoissonSampler(own.size, self.of.sampling_rate).draw(step, rng)]

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return the event of as many releases in a row as there are parts."""
        return self.of.event(noise_multiplier)

    def describe(self) -> str:
        """Return the sampling in words."""
        return self.of.describe()

    def __repr__(self) -> str:
        return f"DealtSampler({self.of!r}, <private>)"


@dataclass(frozen=True)
class CyclicPoisson:
    """Cyclic Poisson sampling: units are dealt into parts, of which one takes part in each step.

    T steps cost what T / parts Poisson steps at `parts` times the rate cost. By itself that is
    dearer than Poisson sampling; it is what noise that is correlated over as many steps needs
    (`pv.noise.Banded`), which then more than makes up for it.

    Args:
        parts: how many steps pass from one turn of a part to the next.

    Guarantee: accounted for adding or removing one unit, whose part nobody knows.

    Edge cases: the batch size is at most the number of units divided by `parts`. A run that is
    resumed, or goes back a step, deals the parts anew and pays for a turn of all of them anew.

    Example:
        >>> import privada as pv, torch
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=6, noise_multiplier=1.0,
        ...     delta=1e-3, sampling=pv.participation.CyclicPoisson(3),
        ... ).fit()
        >>> sum(trainer.ledger.totals().values())  # two turns of three steps
        2

    Reference: Choquette-Choo et al. (2023), (Amplified) Banded Matrix Factorization,
    arXiv 2306.08153, Algorithm 2 and Theorem 4.
    """

    parts: int
    fixed_count: ClassVar[bool] = False

    def __post_init__(self) -> None:
        integer("parts", self.parts)

    @property
    def name(self) -> str:
        """What it is called in checkpoints."""
        return f"cyclic-poisson({self.parts})"

    def among(
        self, units: int, batch_size: float, population: int | None = None
    ) -> CyclicPoissonSampler:
        """Return the sampler whose expected batch has `batch_size` of the population."""
        public = population or units
        most = public / self.parts
        if not batch_size <= most:
            raise ArgumentError(
                f"Expected batch_size <= the number of records / parts ({public} / {self.parts} = "
                f"{most:g}), got batch_size={batch_size}. Take fewer parts, or smaller batches."
            )
        # the quotient may be rounded to just above 1
        return CyclicPoissonSampler(units, min(1.0, batch_size * self.parts / public), self.parts)


def steps_of_a_charge(sampler: Sampler) -> int:
    """Return how many releases in a row one charge pays for."""
    return sampler.parts if isinstance(sampler, Cyclic) else 1


def charges_for(releases: int, turns: int) -> int:
    """Return how many charges pay for so many releases in a row."""
    return math.ceil(releases / turns)
