"""Fixed-size sampling without replacement."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from privada.accounting import events
from privada.core.errors import ArgumentError
from privada.core.randomness import RandomSource, integers, random_words
from privada.core.validation import integer


@dataclass(frozen=True)
class FixedSizeSampler:
    """Every set of `size` among `units` records is equally likely at each step.

    Guarantee: exactly uniform (integers are drawn by rejection), fresh and independent at each
    step; accounted for replacing one record, since the batch size is fixed.

    Edge cases: `size` equal to `units` takes everything; a larger one is refused.

    Example:
        >>> from privada.core.randomness import SeededSource
        >>> from privada.participation import FixedSizeSampler
        >>> FixedSizeSampler(units=10, size=3).draw(0, SeededSource(1, "sampling")).size
        3

    Reference: Balle, Barthe and Gaboardi (2018), Privacy Amplification by Subsampling, arXiv
    1807.01647, Theorem 11.
    """

    units: int
    size: int

    def __post_init__(self) -> None:
        integer("units", self.units)
        integer("batch_size", self.size, remedy="Fixed-size sampling takes whole batches.")
        if self.size > self.units:
            raise ArgumentError(
                f"Expected batch_size <= the number of records ({self.units}), got "
                f"batch_size={self.size}."
            )

    @property
    def batch_size(self) -> float:
        """The number of records of every step."""
        return float(self.size)

    def draw(self, step: int, rng: RandomSource) -> NDArray[np.int64]:
        """Return the indices of one step's records, ascending."""
        if 2 * self.size > self.units:
            keys = random_words(rng, self.units)
            chosen = np.argpartition(keys, self.size - 1)[: self.size]
            return np.sort(chosen).astype(np.int64)
        # The first `size` distinct values of a sequence of uniform draws are a uniform set.
        drawn = integers(rng, self.units, self.size + self.size // 4 + 8)
        while True:
            _, first = np.unique(drawn, return_index=True)
            if first.size >= self.size:
                return np.sort(drawn[np.sort(first)[: self.size]])
            drawn = np.concatenate([drawn, integers(rng, self.units, self.size)])

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return the event of a Gaussian release over one draw."""
        return events.fixed_size(self.units, self.size, noise_multiplier)

    def describe(self) -> str:
        """Return the sampling in words."""
        return f"fixed size: {self.size} of {self.units} records without replacement, each step"


@dataclass(frozen=True)
class FixedSize:
    """Sampling of a fixed number of records without replacement, afresh for each step.

    Guarantee: accounted for replacing one record, since the number of records is fixed.

    Edge cases: the batch size must be whole, and a public `population` is refused: the rate needs
    the true number of records.

    Example:
        >>> from privada.participation import FixedSize
        >>> FixedSize().among(1000, batch_size=10).describe()
        'fixed size: 10 of 1000 records without replacement, each step'

    Reference: Balle, Barthe and Gaboardi (2018), Privacy Amplification by Subsampling, arXiv
    1807.01647, Theorem 11.
    """

    name: ClassVar[str] = "fixed-size"
    fixed_count: ClassVar[bool] = True

    def among(
        self, units: int, batch_size: float, population: int | None = None
    ) -> FixedSizeSampler:
        """Return the sampler of `batch_size` among `units`."""
        if population is not None:
            raise ArgumentError(
                "Expected population=None for fixed-size sampling, whose rate needs the true "
                "number of records. Use sampling='poisson'."
            )
        exact = float(batch_size).is_integer()
        return FixedSizeSampler(units, int(batch_size) if exact else batch_size)  # type: ignore[arg-type]
