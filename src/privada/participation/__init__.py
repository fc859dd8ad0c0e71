"""Who takes part in a step: indices only, never the data.

What draws the units of a step is also what names the event, so that what is sampled is what is
accounted.
"""

from typing import Any

from privada.core.errors import ArgumentError
from privada.core.validation import one_of, shown
from privada.participation.cyclic import (
    Cyclic,
    CyclicPoisson,
    CyclicPoissonSampler,
)
from privada.participation.everyone import Everyone, FullBatchSampler
from privada.participation.fixed_size import FixedSize, FixedSizeSampler
from privada.participation.participation import Participation, Sampler
from privada.participation.poisson import Poisson, PoissonSampler

_SHORT_HANDS: dict[str, Participation] = {
    each.name: each for each in (Poisson(), FixedSize(), Everyone())
}
NAMES = tuple(_SHORT_HANDS)


def participation(sampling: Any) -> Participation:
    """Return the participation that a user asks for, by itself or by its name.

    Example:
        >>> from privada.participation import participation
        >>> participation("poisson")
        Poisson()
    """
    if isinstance(sampling, str):
        return _SHORT_HANDS[one_of("sampling", sampling, NAMES)]
    if isinstance(sampling, type) or not isinstance(sampling, Participation):
        raise ArgumentError(
            f"Expected sampling to be one of {', '.join(map(repr, NAMES))} or a value of "
            f"pv.participation, got sampling={shown(sampling)}. Use pv.participation.Poisson()."
        )
    return sampling


__all__ = [
    "Cyclic",
    "CyclicPoisson",
    "CyclicPoissonSampler",
    "Everyone",
    "FixedSize",
    "FixedSizeSampler",
    "FullBatchSampler",
    "Participation",
    "Poisson",
    "PoissonSampler",
    "Sampler",
    "participation",
]
