"""To add a sampler, write one file: each unit takes part by the toss of a fair coin."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privada.accounting import events
from privada.core.errors import ArgumentError


@dataclass(frozen=True)
class CoinFlipSampler:
    """One secret bit for each unit."""

    units: int

    @property
    def batch_size(self):
        return self.units / 2

    def draw(self, step, rng):
        drawn = rng.draw(-(-self.units // 8))
        return np.flatnonzero(np.unpackbits(drawn)[: self.units]).astype(np.int64)

    def event(self, noise_multiplier):
        return events.poisson(0.5, noise_multiplier)

    def describe(self):
        return "coin flips: each record enters a step with probability 0.5"


@dataclass(frozen=True)
class CoinFlips:
    """Half of the data, chosen afresh for each step."""

    name: ClassVar[str] = "coin-flips"
    fixed_count: ClassVar[bool] = False

    def among(self, units, batch_size, population=None):
        public = population or units
        if batch_size != public / 2:
            raise ArgumentError(
                f"Expected batch_size={public / 2:g}, half of the records, got "
                f"batch_size={batch_size}. Use sampling='poisson' for other batches."
            )
        return CoinFlipSampler(units)
