"""Poisson sampling: every record by its own coin."""

import math
from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from privada.accounting import events
from privada.core.randomness import Bits, uniforms
from privada.core.validation import rate, whole


@dataclass(frozen=True)
class Poisson:
    """Each of `records` records enters a step independently with probability `sampling_rate`.

    The gaps between chosen records are geometric, so a draw costs time in proportion to the batch
    and not to the data set.

    Guarantee: the coins are independent, each true to the rate within a relative 2^-52 / rate,
    and secret when `bits` are secure: what amplification by sampling assumes.

    Edge cases: the batch may be empty, or far larger than expected. A rate of 1 takes everything.

    Example:
        >>> from privada.core.randomness import SeededBits
        >>> from privada.sampling import Poisson
        >>> Poisson(records=10_000_000, sampling_rate=3e-7).draw(SeededBits(1, "sampling")).size
        5

    Reference: Mironov, Talwar and Zhang (2019), Renyi Differential Privacy of the Sampled
    Gaussian Mechanism, Definition 3.
    """

    records: int
    sampling_rate: float

    def __post_init__(self) -> None:
        whole("records", self.records)
        rate("sampling_rate", self.sampling_rate)

    @property
    def batch_size(self) -> float:
        """The expected number of records."""
        return self.records * self.sampling_rate

    def draw(self, bits: Bits) -> NDArray[np.int64]:
        """Return the indices of one step's records, ascending."""
        if self.sampling_rate == 1:
            return np.arange(self.records, dtype=np.int64)
        log_miss = math.log1p(-self.sampling_rate)
        mean = self.batch_size
        count = math.ceil(mean + 6 * math.sqrt(mean) + 16)
        parts: list[NDArray[np.float64]] = []
        end = -1.0
        while end < self.records:
            gaps = np.floor(np.log(uniforms(bits, count)) / log_miss) + 1
            places = end + np.cumsum(gaps)
            parts.append(places)
            end = float(places[-1])
        places = np.concatenate(parts)
        return places[places < self.records].astype(np.int64)

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return the event of a Gaussian release over one draw."""
        return events.poisson(self.sampling_rate, noise_multiplier)

    def describe(self) -> str:
        """Return the sampling in words."""
        return (
            f"Poisson: each record enters a step independently with probability "
            f"{self.sampling_rate:.6g}"
        )
