"""What it costs to run a mechanism a random number of times and release the best result alone.

The number of runs is drawn before anything is looked at, from one of the distributions below;
`shape` says which: infinity for Poisson, 1 for geometric, 0 for logarithmic, and anything else
for the truncated negative binomial.

References: Papernot and Steinke (2022), Hyperparameter Tuning with Renyi Differential Privacy; Liu
and Talwar (2019), Private Selection from Private Candidates, as Theorem 1 of Mohapatra et al.
(2022).
"""

import math
from collections.abc import Callable

import numpy as np

from privada.accounting.orders import ORDERS, Vector
from privada.core.errors import ArgumentError
from privada.core.validation import not_negative, probability, real

# As Mohapatra et al. (2022) set it: it has next to no part in the delta, and the hard stop is
# rarely reached.
SMALLEST_STOP = 1e-20


def checked_mean(mean: float) -> float:
    """Return an expected number of runs of at least one."""
    number = real("mean", mean)
    if number < 1:
        raise ArgumentError(f"Expected mean >= 1, got mean={mean!r}. It is a number of runs.")
    return number


def _negative_binomial_mean(shape: float, gamma: float) -> float:
    if shape == 0:
        return (1 / gamma - 1) / -math.log(gamma)
    return shape * (1 - gamma) / (gamma * -math.expm1(shape * math.log(gamma)))


def stopping_rate(mean: float, shape: float) -> float:
    """Return the parameter gamma of the distribution of at least one run with a given mean.

    Example:
        >>> from privada.accounting.repetition import stopping_rate
        >>> stopping_rate(mean=10, shape=1)
        0.1
    """
    mean, shape = checked_mean(mean), not_negative("shape", shape)
    if mean == 1:
        return 1.0
    if shape == 1:
        return 1 / mean

    if mean < 1 + 1e-6:  # the mean is 1 + (1 + shape)(1 - gamma) / 2 and more; a lower rate is safe
        return 1 - 2.001 * (mean - 1) / (1 + shape)

    from scipy.optimize import brentq  # slow to load, and seldom of use

    def excess(log_gamma: float) -> float:
        return math.log(_negative_binomial_mean(shape, math.exp(log_gamma)) / mean)

    # a lower rate has a larger mean: the root lies where the first bound is still too large
    return math.exp(brentq(excess, -math.log(mean) - 60, -1e-12, xtol=1e-15, rtol=1e-14))


def repeated(rdp: Vector, mean: float, shape: float) -> Vector:
    """Return the divergences, at `ORDERS`, of the best of a random number of runs.

    `rdp` has those of one run. With exactly one run they are the same.

    Guarantee: an upper bound at every order, given that the number of runs is drawn as said, that
    runs draw their settings independently and from the same distribution, and that the best run's
    output alone is released, with ties broken without looking at the data again.

    Edge cases: a mean of 1 is one run, except for Poisson, which may have none or several.

    Reference: Papernot and Steinke (2022), Theorems 2 and 6.
    """
    mean = checked_mean(mean)
    rdp = np.where(np.isnan(rdp), np.inf, rdp)
    if shape == math.inf:
        found = rdp + mean * _delta_at(rdp, np.log1p(1 / (ORDERS - 1)))
        found = found + math.log(mean) / (ORDERS - 1)
    elif mean == 1:
        return rdp
    else:
        gamma = stopping_rate(mean, shape)
        once = np.min((1 - 1 / ORDERS) * rdp - math.log(gamma) / ORDERS)
        found = rdp + (1 + shape) * once + math.log(mean) / (ORDERS - 1)
    # divergences grow with the order, so each higher one is a bound
    return np.asarray(np.minimum.accumulate(found[::-1])[::-1])


def _delta_at(rdp: Vector, epsilons: Vector) -> Vector:
    """Return the delta that the divergences of one run promise at each epsilon."""
    with np.errstate(over="ignore"):
        logs = (ORDERS - 1) * (rdp - epsilons[:, None] + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    return np.asarray(np.exp(np.minimum(np.min(logs, axis=1), 0.0)))


def liu_talwar(
    cost: Callable[[float], float],
    candidates: float,
    delta: float,
    hard_stop: float = SMALLEST_STOP,
) -> float:
    """Return the epsilon of selection with random stopping, at `delta` in all.

    After each run a coin of bias gamma = 1 / `candidates` says whether to stop, and after
    (1/gamma) log(1/delta_2) runs it is over, delta_2 being `hard_stop`; the best run so far is
    released. `cost` gives the epsilon of one run at a delta. With (eps_1, delta_1) for one run,
    the whole is (3 eps_1 + 3 sqrt(2 delta_1), sqrt(2 delta_1) (1/gamma) log(1/delta_2) + delta_2);
    delta_1 is what makes the second of these `delta`.

    Example:
        >>> from privada.accounting.repetition import liu_talwar
        >>> round(liu_talwar(lambda delta: 0.5, candidates=10, delta=1e-6), 3)
        1.5

    Reference: Liu and Talwar (2019), Theorem 3.4, as Theorem 1 of Mohapatra et al. (2022).
    """
    candidates, delta = checked_mean(candidates), probability("delta", delta)
    hard_stop = probability("hard_stop", hard_stop)
    if hard_stop >= delta:
        raise ArgumentError(
            f"Expected hard_stop < delta, got hard_stop={hard_stop}, delta={delta}. It is a part "
            "of delta."
        )
    longest = candidates * -math.log(hard_stop)
    root = (delta - hard_stop) / longest  # sqrt(2 delta_1)
    return 3 * cost(root**2 / 2) + 3 * root
