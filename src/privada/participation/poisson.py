"""Poisson sampling: every record by its own coin."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from privada.accounting import events
from privada.core.errors import ArgumentError
from privada.core.randomness import RandomSource, uniforms
from privada.core.validation import integer, rate


@dataclass(frozen=True)
class PoissonSampler:
    """Each of `units` records enters a step independently with probability `sampling_rate`.

    The gaps between chosen records are geometric, so a draw costs time in proportion to the batch
    and not to the data set.

    Guarantee: the coins are independent, each true to the rate within a relative 2^-52 / rate,
    and secret when `bits` are secure: what amplification by sampling assumes.

    Edge cases: the batch may be empty, or far larger than expected. A rate of 1 takes everything.

    Example:
        >>> from privada.core.randomness import SeededSource
        >>> from privada.participation import PoissonSampler
        >>> sampler = PoissonSampler(units=10_000_000, sampling_rate=3e-7)
        >>> sampler.draw(0, SeededSource(1, "sampling")).size
        5

    Reference: Mironov, Talwar and Zhang (2019), Renyi Differential Privacy of the Sampled
    Gaussian Mechanism, Definition 3.
    """

    units: int
    sampling_rate: float

    def __post_init__(self) -> None:
        integer("units", self.units)
        rate("sampling_rate", self.sampling_rate)

    @property
    def batch_size(self) -> float:
        """The expected number of records."""
        return self.units * self.sampling_rate

    def draw(self, step: int, rng: RandomSource) -> NDArray[np.int64]:
        """Return the indices of one step's records, ascending."""
        if self.sampling_rate == 1:
            return np.arange(self.units, dtype=np.int64)
        log_miss = math.log1p(-self.sampling_rate)
        mean = self.batch_size
        count = math.ceil(mean + 6 * math.sqrt(mean) + 16)
        parts: list[NDArray[np.float64]] = []
        end = -1.0
        while end < self.units:
            gaps = np.floor(np.log(uniforms(rng, count)) / log_miss) + 1
            places = end + np.cumsum(gaps)
            parts.append(places)
            end = float(places[-1])
        places = np.concatenate(parts)
        return places[places < self.units].astype(np.int64)

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return the event of a Gaussian release over one draw."""
        return events.poisson(self.sampling_rate, noise_multiplier)

    def describe(self) -> str:
        """Return the sampling in words."""
        return (
            f"Poisson: each record enters a step independently with probability "
            f"{self.sampling_rate:.6g}"
        )


@dataclass(frozen=True)
class Poisson:
    """Poisson sampling: each record enters each step by its own coin.

    The cheapest way to take part: what is released of a step costs little, because it is not known
    who was in it.

    Guarantee: accounted for adding or removing one record.

    Edge cases: a batch may be empty, or far larger than expected.

    Example:
        >>> import privada as pv, torch
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=3, noise_multiplier=1.0,
        ...     delta=1e-3, sampling=pv.participation.Poisson(),
        ... )

    Reference: Mironov, Talwar and Zhang (2019), Renyi Differential Privacy of the Sampled
    Gaussian Mechanism, Definition 3.
    """

    name: ClassVar[str] = "poisson"
    fixed_count: ClassVar[bool] = False

    def among(self, units: int, batch_size: float, population: int | None = None) -> PoissonSampler:
        """Return the sampler whose expected batch has `batch_size` of the population."""
        public = population or units
        if batch_size > public:
            raise ArgumentError(
                f"Expected batch_size <= the number of records ({public}), got "
                f"batch_size={batch_size}."
            )
        return PoissonSampler(units, batch_size / public)
