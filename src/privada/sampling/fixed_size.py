"""Fixed-size sampling without replacement."""

from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from privada.accounting import events
from privada.core.errors import ArgumentError
from privada.core.randomness import Bits, integers, words
from privada.core.validation import whole


@dataclass(frozen=True)
class FixedSize:
    """Every set of `size` among `records` records is equally likely at each step.

    Guarantee: exactly uniform (integers are drawn by rejection), fresh and independent at each
    step; accounted for replacing one record, since the batch size is fixed.

    Edge cases: `size` equal to `records` takes everything; a larger one is refused.

    Example:
        >>> from privada.core.randomness import SeededBits
        >>> from privada.sampling import FixedSize
        >>> FixedSize(records=10, size=3).draw(SeededBits(1, "sampling")).size
        3

    Reference: Wang, Balle and Kasiviswanathan (2019), Subsampled Renyi Differential Privacy and
    Analytical Moments Accountant, Theorem 27.
    """

    records: int
    size: int

    def __post_init__(self) -> None:
        whole("records", self.records)
        whole("batch_size", self.size, remedy="Fixed-size sampling takes whole batches.")
        if self.size > self.records:
            raise ArgumentError(
                f"Expected batch_size <= the number of records ({self.records}), got "
                f"batch_size={self.size}."
            )

    @property
    def batch_size(self) -> float:
        """The number of records of every step."""
        return float(self.size)

    def draw(self, bits: Bits) -> NDArray[np.int64]:
        """Return the indices of one step's records, ascending."""
        if 2 * self.size > self.records:
            keys = words(bits, self.records)
            chosen = np.argpartition(keys, self.size - 1)[: self.size]
            return np.sort(chosen).astype(np.int64)
        # The first `size` distinct values of a sequence of uniform draws are a uniform set.
        drawn = integers(bits, self.records, self.size + self.size // 4 + 8)
        while True:
            _, first = np.unique(drawn, return_index=True)
            if first.size >= self.size:
                return np.sort(drawn[np.sort(first)[: self.size]])
            drawn = np.concatenate([drawn, integers(bits, self.records, self.size)])

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return the event of a Gaussian release over one draw."""
        return events.fixed_size(self.records, self.size, noise_multiplier)

    def describe(self) -> str:
        """Return the sampling in words."""
        return f"fixed size: {self.size} of {self.records} records without replacement, each step"
