"""The parts of a private run put together and priced, before any data."""

from privada.mechanism.mechanism import Mechanism, Parts
from privada.mechanism.releases import Releases

__all__ = ["Mechanism", "Parts", "Releases"]
