"""What every way of taking part in a step does."""

from typing import Protocol, runtime_checkable

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from privada.core.randomness import RandomSource


class Sampler(Protocol):
    """Draws the units of a step, and says which event a release over them is."""

    @property
    def units(self) -> int:
        """The number of units that are drawn from."""

    @property
    def batch_size(self) -> float:
        """The expected number of units, which is public."""

    def draw(self, step: int, rng: RandomSource) -> NDArray[np.int64]:
        """Return the indices of one step's units, ascending. Private: never shown."""

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return the event of a Gaussian release over one draw."""

    def describe(self) -> str:
        """Return the sampling in words."""


@runtime_checkable
class Participation(Protocol):
    """Who takes part in a step: a choice that is made before the data are known.

    A way of one's own has a `name`, says by `fixed_count` which change of the data it is accounted
    for, and makes by `among` the sampler that draws as it is accounted.

    Example:
        >>> from privada.participation import Poisson
        >>> Poisson().among(1000, batch_size=10).describe()
        'Poisson: each record enters a step independently with probability 0.01'
    """

    @property
    def name(self) -> str:
        """What it is called in checkpoints and in short-hands."""

    @property
    def fixed_count(self) -> bool:
        """Whether neighbouring data sets have the same number of units, one being replaced."""

    def among(self, units: int, batch_size: float, population: int | None = None) -> Sampler:
        """Return the sampler for so many units.

        `population` is a public figure that stands for the number of units in the sampling rate.

        Raises:
            ArgumentError: the batch size is not one that it can draw.
        """
