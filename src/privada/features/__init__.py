"""Features of records, each computed of its own record, so that they cost no privacy."""

from privada.features.extraction import extract
from privada.features.latent_semantics import LatentSemantics
from privada.features.scattering import Scattering2D

__all__ = ["LatentSemantics", "Scattering2D", "extract"]
