"""Fresh noise for every release."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from dp_accounting import DpEvent

from privada.core.randomness import RandomSource
from privada.core.receipts import Receipt
from privada.core.values import ClippedSum, Release
from privada.noise.gaussian import GaussianNoise


class NoiseStream(Protocol):
    """Adds the noise of one run, release after release.

    Its state is a secret. It is never written anywhere, and a resumed run starts a new one.
    """

    @property
    def secure(self) -> bool:
        """Whether the noise is unpredictable."""

    def release(self, clipped: ClippedSum, receipt: Receipt, batch_size: float) -> Release:
        """Return the clipped sum with the noise that was paid for; the receipt is spent."""

    def describe(self) -> str:
        """Return the noise in words, for the statement."""


class _Sampler(Protocol):
    def event(self, noise_multiplier: float) -> DpEvent: ...


@runtime_checkable
class Noise(Protocol):
    """How the noise of one release depends on that of others: a choice made before the data.

    Example:
        >>> import privada as pv
        >>> isinstance(pv.noise.Independent(), pv.noise.Noise)
        True
    """

    @property
    def name(self) -> str:
        """What it is called in checkpoints."""

    def event(self, sampler: _Sampler, noise_multiplier: float) -> DpEvent:
        """Return what one release over a sampler's draw is charged as."""

    def start(self, rng: RandomSource) -> NoiseStream:
        """Return the noise of one run."""


@dataclass(frozen=True)
class Independent:
    """Fresh Gaussian noise for every release, independent of all others.

    Guarantee: that of `GaussianNoise`; releases compose as independent Gaussian ones.

    Example:
        >>> import privada as pv
        >>> sampler = pv.participation.Everyone().among(50, batch_size=50)
        >>> pv.noise.Independent().event(sampler, 2.0)
        GaussianDpEvent(noise_multiplier=2.0)

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, arXiv 1607.00133,
    Algorithm 1.
    """

    name: ClassVar[str] = "independent"

    def event(self, sampler: _Sampler, noise_multiplier: float) -> DpEvent:
        """Return the sampler's own event."""
        return sampler.event(noise_multiplier)

    def start(self, rng: RandomSource) -> GaussianNoise:
        """Return Gaussian noise from a random source."""
        return GaussianNoise(rng)
