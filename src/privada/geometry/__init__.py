"""The shape in which gradients are clipped, and where it comes from."""

from privada.geometry.diagonal import Geometry, Whitening, diagonal, isotropic

__all__ = ["Geometry", "Whitening", "diagonal", "isotropic"]
