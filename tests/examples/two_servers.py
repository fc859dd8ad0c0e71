"""To add a noise, write one file: two servers add half of the variance each."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from privada.accounting import events
from privada.core.errors import ArgumentError
from privada.core.receipts import check_receipt
from privada.core.values import Release
from privada.noise.gaussian import add_noise_


@dataclass(frozen=True)
class TwoServers:
    """Noise that neither of two servers knows as a whole."""

    name: ClassVar[str] = "two servers"

    def event(self, sampler, noise_multiplier):
        return sampler.event(noise_multiplier)

    def start(self, rng):
        return TwoServersStream(rng)


@dataclass(frozen=True)
class TwoServersStream:
    """Adds the noise of both servers, one after the other."""

    rng: Any

    @property
    def secure(self):
        return self.rng.secure

    def release(self, clipped, receipt, batch_size):
        check_receipt(receipt)
        if not clipped.sensitivity > 0:
            raise ArgumentError(f"Expected sensitivity > 0, got {clipped.sensitivity}.")
        receipt.spend()
        std = events.multiplier(receipt.event) * clipped.sensitivity
        for _ in range(2):
            add_noise_(clipped.value, std / math.sqrt(2), self.rng)
        value, statistics = clipped.value, None
        if clipped.extra:
            value, statistics = value[: -clipped.extra], value[-clipped.extra :]
        return Release(value, std, batch_size, receipt, statistics=statistics)

    def describe(self):
        return "Gaussian, in two parts" if self.secure else "seeded: not a private release"
