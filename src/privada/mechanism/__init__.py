"""The parts of a run put together and priced, before any data: participation, clip, noise, unit."""

from privada.mechanism.bands import BandChoice, compare_bands
from privada.mechanism.mechanism import Mechanism, Parts
from privada.mechanism.releases import Releases
from privada.noise import Independent, Noise

__all__ = [
    "BandChoice",
    "Independent",
    "Mechanism",
    "Noise",
    "Parts",
    "Releases",
    "compare_bands",
]
