"""The former name of `privada.participation`, kept for one minor version."""

from typing import Any

from privada import participation
from privada.core.deprecation import renamed

_NAMES = {
    "FixedSize": "FixedSizeSampler",
    "Poisson": "PoissonSampler",
    "Sampler": "Sampler",
}
__all__ = ["FixedSize", "Poisson", "Sampler"]  # noqa: F822


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'privada.sampling' has no attribute {name!r}")
    renamed(f"privada.sampling.{name}", f"privada.participation.{_NAMES[name]}")
    return getattr(participation, _NAMES[name])
