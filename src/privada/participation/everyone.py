"""All of the data in every step."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from privada.accounting import events
from privada.core.errors import ArgumentError
from privada.core.randomness import RandomSource
from privada.core.validation import integer


@dataclass(frozen=True)
class FullBatchSampler:
    """Every one of `units` records takes part in every step.

    Guarantee: nothing is hidden by sampling, and nothing is accounted as if it were.

    Example:
        >>> from privada.core.randomness import SecureSource
        >>> from privada.participation import FullBatchSampler
        >>> FullBatchSampler(units=3).draw(0, SecureSource())
        array([0, 1, 2])
    """

    units: int

    def __post_init__(self) -> None:
        integer("units", self.units)

    @property
    def batch_size(self) -> float:
        """The number of records."""
        return float(self.units)

    def draw(self, step: int, rng: RandomSource) -> NDArray[np.int64]:
        """Return all indices; no bits are drawn."""
        return np.arange(self.units, dtype=np.int64)

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return the event of a Gaussian release over all records."""
        return events.gaussian(noise_multiplier)

    def describe(self) -> str:
        """Return the sampling in words."""
        return "none: all records take part in every step"


@dataclass(frozen=True)
class Everyone:
    """All of the data in every step: full-batch gradient descent.

    Guarantee: accounted without amplification, for adding or removing a record.

    Edge cases: `batch_size` must be the number of records, or the public `population`.

    Example:
        >>> from privada.participation import Everyone
        >>> Everyone().among(50, batch_size=50).event(2.0)
        GaussianDpEvent(noise_multiplier=2.0)

    Reference: Dwork and Roth (2014), The Algorithmic Foundations of Differential Privacy,
    Appendix A, for the Gaussian mechanism.
    """

    name: ClassVar[str] = "everyone"
    fixed_count: ClassVar[bool] = False

    def among(
        self, units: int, batch_size: float, population: int | None = None
    ) -> FullBatchSampler:
        """Return the sampler that takes everyone."""
        public = population or units
        if batch_size != public:
            raise ArgumentError(
                f"Expected batch_size={public}, the number of records, where everyone takes part "
                f"in every step, got batch_size={batch_size}. Use sampling='poisson' for smaller "
                "batches."
            )
        return FullBatchSampler(units)
