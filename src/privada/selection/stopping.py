"""How many runs there are: a number that must be drawn as it is priced, and kept secret."""

import math

from scipy.stats import poisson

from privada.accounting.repetition import checked_mean, stopping_rate
from privada.core.randomness import RandomSource, uniforms

# Beyond this share of the probability, what is left cannot be told apart from none.
_TAIL = 1e-18
# Below this a chance is kept as its logarithm.
_TINY = 1e-280


def draw_runs(mean: float, shape: float, rng: RandomSource) -> int:
    """Return a number of runs, drawn from the distribution that `repetition` prices.

    Guarantee: true to the distribution within 1e-12 in total variation.

    Edge cases: Poisson may give 0; the others give at least 1.

    Example:
        >>> from privada.core.randomness import SeededSource
        >>> from privada.selection.stopping import draw_runs
        >>> draw_runs(1, 0.0, SeededSource(1, "runs"))
        1

    Reference: Papernot and Steinke (2022), Hyperparameter Tuning with Renyi Differential Privacy,
    arXiv 2110.03620, Definition 1.
    """
    mean = checked_mean(mean)
    u = float(uniforms(rng, 1)[0])
    if shape == math.inf:
        return int(poisson.ppf(u, mean))
    return 1 if mean == 1 else _by_inversion(u, mean, shape)


def _by_inversion(u: float, mean: float, shape: float) -> int:
    """Return the count at which the truncated negative binomial's cumulated chance reaches u."""
    gamma = stopping_rate(mean, shape)
    log_chance = _log_chance_of_one(gamma, shape)
    chance = math.exp(log_chance)
    count, reached = 1, chance
    while reached < u and (chance > _TAIL or count < mean):
        factor = (1 - gamma) * (count + shape) / (count + 1)
        log_chance += math.log(factor)
        # a product is quick, but one that starts below the smallest number never gets off 0
        chance = chance * factor if chance > _TINY else math.exp(log_chance)
        count += 1
        reached += chance
    return count


def _log_chance_of_one(gamma: float, shape: float) -> float:
    if shape == 0:
        return math.log((1 - gamma) / -math.log(gamma))
    growth = -shape * math.log(gamma)
    # log(e^x - 1), which does not overflow
    return math.log(shape * (1 - gamma)) - (growth + math.log(-math.expm1(-growth)))
