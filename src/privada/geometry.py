"""Another name of `privada.preconditioning`: the geometry that gradients are clipped in."""

from typing import Any

from privada import preconditioning
from privada.core.deprecation import renamed
from privada.preconditioning import *  # noqa: F403

_FORMER = {"Geometry": "DiagonalScaling", "Shape": "Preconditioner", "Whitening": "FlatScaling"}
__all__ = [*preconditioning.__all__, *_FORMER]


def __getattr__(name: str) -> Any:
    if name not in _FORMER:
        raise AttributeError(f"module 'privada.geometry' has no attribute {name!r}")
    renamed(f"privada.geometry.{name}", f"privada.preconditioning.{_FORMER[name]}")
    return getattr(preconditioning, _FORMER[name])
