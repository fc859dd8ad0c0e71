"""Which records a step looks at: indices only, never the data."""

from privada.sampling.fixed_size import FixedSize
from privada.sampling.poisson import Poisson
from privada.sampling.sampler import Sampler

__all__ = ["FixedSize", "Poisson", "Sampler"]
