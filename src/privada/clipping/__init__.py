"""From a batch to a sum in which no record counts for more than the clip norm."""

from privada.clipping.clips import (
    Clipping,
    adaptive,
    automatic,
    ellipsoid,
    in_turns,
    microbatches,
    per_layer,
    threshold,
)
from privada.clipping.engine import Engine, make_engine
from privada.clipping.layers import refuse_mixing_layers
from privada.clipping.norm_controls import NormControl
from privada.data.batch import Batch

__all__ = [
    "Batch",
    "Clipping",
    "Engine",
    "NormControl",
    "adaptive",
    "automatic",
    "ellipsoid",
    "in_turns",
    "make_engine",
    "microbatches",
    "per_layer",
    "refuse_mixing_layers",
    "threshold",
]
