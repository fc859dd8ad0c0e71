"""How many bands of correlated noise are worth it, before any data."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from privada.accounting import Budget, epsilon_of
from privada.accounting.calibration import least_noise
from privada.core.errors import ArgumentError
from privada.core.validation import integer, positive
from privada.noise import Banded
from privada.participation import CyclicPoisson
from privada.participation.cyclic import charges_for


@dataclass(frozen=True)
class BandChoice:
    """What a number of bands costs and brings, at one budget.

    Attributes:
        noise: for `Trainer(noise=...)`; one band is independent noise.
        sampling: for `Trainer(sampling=...)`; one part is Poisson sampling.
        noise_multiplier: what the budget asks for.
        error: the root mean square, over the steps, of the noise in the sum of all releases so
            far, in clip norms. It is what should be small.

    Example:
        >>> import privada as pv
        >>> choices = pv.mechanism.compare_bands(
        ...     units=1000, batch_size=50, steps=20, budget=pv.Budget(4.0, 1e-4), bands=[1, 4]
        ... )
        >>> sorted(each.bands for each in choices)
        [1, 4]
    """

    noise: Banded
    sampling: CyclicPoisson
    noise_multiplier: float
    error: float

    @property
    def bands(self) -> int:
        """The number of bands, and of parts."""
        return self.noise.bands


def compare_bands(
    *,
    units: int,
    batch_size: float,
    steps: int,
    budget: Budget,
    momentum: float = 0.0,
    bands: Iterable[int] | None = None,
) -> tuple[BandChoice, ...]:
    """Return what different numbers of bands bring, the best one first.

    More bands take back more noise, and ask for more of it, since a part has its turn at a higher
    rate. Correlated noise pays where steps are few or batches large; where a record is seldom
    drawn, independent noise is better.

    Args:
        units: the public number of units.
        batch_size: how many take part in a step, on average.
        steps: how many releases there are.
        budget: what they may cost together.
        momentum: that of the update rule.
        bands: what to try; by default 1, 2, 3, 4, 6, 8, 12, ... as far as batches allow.

    Example:
        >>> import privada as pv
        >>> best, *others = pv.mechanism.compare_bands(
        ...     units=1000, batch_size=50, steps=100, budget=pv.Budget(4.0, 1e-4)
        ... )
        >>> independent = next(each for each in others if each.bands == 1)
        >>> best.bands > 1, best.error < 0.85 * independent.error
        (True, True)

    Reference: Choquette-Choo et al. (2023), (Amplified) Banded Matrix Factorization,
    arXiv 2306.08153, Section 5.
    """
    integer("units", units)
    integer("steps", steps)
    most = min(steps, int(units / positive("batch_size", batch_size)))
    if most < 1:
        raise ArgumentError(f"Expected batch_size <= units ({units}), got batch_size={batch_size}.")
    tried = _usual(most) if bands is None else sorted({integer("bands", each) for each in bands})
    found = [_choice(each, units, batch_size, steps, budget, momentum) for each in tried]
    return tuple(sorted(found, key=lambda each: each.error))


def _usual(most: int) -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12, 16 and so on, up to a number."""
    powers = [1 << k for k in range(most.bit_length())]
    return sorted({n for n in (*powers, *(3 * p // 2 for p in powers[1:])) if n <= most})


def _choice(
    bands: int, units: int, batch_size: float, steps: int, budget: Budget, momentum: float
) -> BandChoice:
    sampling, noise = CyclicPoisson(bands), Banded(bands, momentum, steps)
    sampler, turns = sampling.among(units, batch_size), charges_for(steps, bands)
    multiplier = least_noise(
        lambda sigma: epsilon_of({noise.event(sampler, sigma): turns}, budget.delta),
        budget.epsilon,
        str(budget),
    )
    stds = noise.relative_stds(steps)
    error = multiplier * math.sqrt(float(np.mean(stds**2)))
    return BandChoice(noise, sampling, multiplier, error)
