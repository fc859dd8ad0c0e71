"""What every sampler does."""

from typing import Protocol

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from privada.core.randomness import Bits


class Sampler(Protocol):
    """Draws the records of a step, and says which event a release over them is."""

    @property
    def batch_size(self) -> float:
        """The expected number of records, which is public."""

    def draw(self, bits: Bits) -> NDArray[np.int64]:
        """Return the indices of one step's records, ascending. Private: never shown."""

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return the event of a Gaussian release over one draw."""

    def describe(self) -> str:
        """Return the sampling in words."""
