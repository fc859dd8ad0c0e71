"""The composition bounds of Wu et al. (2021), for comparison with tight accounting."""

import math
from collections.abc import Sequence

import numpy as np

from privada.core.errors import ArgumentError
from privada.core.validation import integer, positive, probability


def advanced_composition(
    epsilons: Sequence[float], deltas: Sequence[float], slack: float
) -> tuple[float, float]:
    """Return (epsilon, delta) of a sequence of mechanisms by extended advanced composition.

    epsilon = sqrt(2 log(1/slack) sum eps_i^2) + sum eps_i (e^eps_i - 1) / (e^eps_i + 1),
    delta = 1 - prod (1 - delta_i) + slack.

    Guarantee: as in the lemma, for mechanisms that are each (eps_i, delta_i)-DP with both in
    (0, 1). Much looser than `epsilon`; it is here to compare with the paper.

    Edge cases: the product is taken in logarithms, so that tiny deltas do not vanish.

    Example:
        >>> import privada as pv
        >>> eps, delta = pv.accounting.advanced_composition(
        ...     [0.1, 0.2, 0.3], [1e-6, 2e-6, 3e-6], slack=1e-5
        ... )
        >>> round(eps, 6)
        1.865039

    Reference: Wu et al. (2021), Adaptive Differentially Private Empirical Risk Minimization,
    arXiv 2110.07435, Lemma 2.2.
    """
    if len(epsilons) != len(deltas) or len(epsilons) == 0:
        raise ArgumentError(
            f"Expected one delta for each epsilon and at least one of them, got {len(epsilons)} "
            f"epsilons and {len(deltas)} deltas."
        )
    eps = np.array([probability(f"epsilons[{i}]", value) for i, value in enumerate(epsilons)])
    dels = np.array([probability(f"deltas[{i}]", value) for i, value in enumerate(deltas)])
    probability("slack", slack)
    drift = float(np.sum(eps * np.tanh(eps / 2)))
    spread = math.sqrt(2 * float(np.sum(eps**2)) * math.log(1 / slack))
    return spread + drift, -math.expm1(float(np.sum(np.log1p(-dels)))) + slack


def advanced_composition_sigma(
    *, epsilon: float, delta: float, population: int, lipschitz: float, alphas: Sequence[float]
) -> float:
    """Return the noise standard deviation of equation (6) of Wu et al. (2021).

    sigma^2 = (16 G)^2 B_delta / (n^2 eps^2) sum_t 1 / alpha_t^2, with
    B_delta = log(16 T / (n delta)) log(1.25 / delta).

    Guarantee: none that Privada relies on: it is the paper's calibration by advanced composition
    for single-record sampling, for comparison. `noise_multiplier(schedule=...)` is the tight one.

    Edge cases: 16 T must exceed n delta, else B_delta is not positive and the call is refused.

    Example:
        >>> import privada as pv
        >>> sigma = pv.accounting.advanced_composition_sigma(
        ...     epsilon=1.0, delta=1e-5, population=1000, lipschitz=1.0, alphas=[1.0] * 100
        ... )
        >>> round(sigma, 3)
        1.897

    Reference: Wu et al. (2021), Adaptive Differentially Private Empirical Risk Minimization,
    arXiv 2110.07435, Theorem 4.1.
    """
    positive("epsilon", epsilon)
    probability("delta", delta)
    integer("population", population)
    positive("lipschitz", lipschitz)
    if len(alphas) == 0:
        raise ArgumentError("Expected alphas to have one factor per step, got none.")
    inverse = sum(1 / positive(f"alphas[{t}]", alpha) ** 2 for t, alpha in enumerate(alphas))
    inside = 16 * len(alphas) / (population * delta)
    if inside <= 1:
        raise ArgumentError(
            f"Expected 16 * steps > population * delta, got 16 * {len(alphas)} and "
            f"{population} * {delta}. Equation (6) does not hold there; use noise_multiplier."
        )
    b_delta = math.log(inside) * math.log(1.25 / delta)
    return 16 * lipschitz / (population * epsilon) * math.sqrt(b_delta * inverse)
