"""Features of records, each computed of its own record, so that they cost no privacy."""

from privada.features.extraction import extract
from privada.features.scattering import Scattering2D

__all__ = ["Scattering2D", "extract"]
