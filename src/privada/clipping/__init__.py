"""From a batch to a sum in which no record counts for more than the clip norm."""

from privada.clipping.clips import Clipping, automatic, ellipsoid, microbatches, threshold
from privada.clipping.engine import Engine, make_engine
from privada.clipping.layers import refuse_mixing_layers
from privada.data.batch import Batch

__all__ = [
    "Batch",
    "Clipping",
    "Engine",
    "automatic",
    "ellipsoid",
    "make_engine",
    "microbatches",
    "refuse_mixing_layers",
    "threshold",
]
