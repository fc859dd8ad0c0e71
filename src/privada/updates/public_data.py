"""Rules that use public gradients after the release, which costs nothing."""

import math
from collections.abc import Callable
from typing import Any

import torch

from privada.core.public_examples import Public, as_public
from privada.core.tensors import Parameters
from privada.core.validation import fraction, integer, positive, share
from privada.core.values import Release, State
from privada.updates.learning_rates import function_of_step
from privada.updates.rules import ParameterStep, UpdateRule

_SOURCE = "gradients of examples declared public"


def _starting(examples: Public, *names: str) -> Callable[[Parameters], State]:
    """Return the first state: no steps, vectors of zero. The model must accept the examples."""

    def init(parameters: Parameters) -> State:
        parameters.try_public(examples)
        return {"step": 0} | {name: parameters.zeros() for name in names}

    return init


def public_rmsprop(public: Any, decay: float = 0.9, eps: float = 1e-8) -> UpdateRule:
    """Return RMSProp whose second moment is that of public gradients.

    s <- decay s + (1 - decay) g^2 for the average public gradient g at the current parameters, and
    the step is -lr v / (sqrt(s) + eps).

    Args:
        public: a `pv.Public`, or data that are used in full in every step.
        decay: decay of the second moment.
        eps: added to the root, so that the step stays bounded.

    Returns:
        The update rule.

    Guarantee: post-processing of releases and of examples that are declared public.

    Example:
        >>> import numpy as np
        >>> from privada.updates import public_rmsprop
        >>> rule = public_rmsprop((np.zeros((5, 2)), np.zeros(5)))

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Section 6.1.1, DP-R-Pub.
    """
    examples = as_public(public)
    decay, eps = fraction("decay", decay), positive("eps", eps)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[ParameterStep, State]:
        shown = parameters.public_gradient(examples, state["step"])
        second = (decay * state["second"]).addcmul_(shown, shown, value=1 - decay)
        move = ParameterStep(release.gradient.div_(second.sqrt().add_(eps)), -lr)
        return move, {"step": state["step"] + 1, "second": second}

    return UpdateRule(_starting(examples, "second"), update, source=_SOURCE)


def public_adam(
    public: Any,
    mix: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
) -> UpdateRule:
    """Return Adam on a mixture of released and public gradients, scaled by public ones.

    m <- b1 m + (1 - b1) (mix v + (1 - mix) g), s <- b2 s + (1 - b2) g^2 for the average public
    gradient g at the current parameters; both are corrected for their start at zero.

    Args:
        public: a `pv.Public`, or data that are used in full in every step.
        mix: the weight of the release in the mixture.
        beta1, beta2: decays of the first and the second moment.
        eps: added to the root, so that the step stays bounded.

    Returns:
        The update rule.

    Guarantee: post-processing of releases and of examples that are declared public.

    Example:
        >>> import numpy as np
        >>> from privada.updates import public_adam
        >>> rule = public_adam((np.zeros((5, 2)), np.zeros(5)), mix=0.5)

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Appendix C, DP-Adam-Pub; mix, beta1 and beta2 are its beta1, beta2 and beta3.
    """
    examples, mix = as_public(public), share("mix", mix)
    beta1, beta2 = fraction("beta1", beta1), fraction("beta2", beta2)
    eps = positive("eps", eps)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[ParameterStep, State]:
        step = state["step"] + 1
        shown = parameters.public_gradient(examples, state["step"])
        mixture = release.with_public_term(shown.lerp(release.private_gradient, mix))
        first = state["first"].lerp(mixture, 1 - beta1)
        second = (beta2 * state["second"]).addcmul_(shown, shown, value=1 - beta2)
        root = (second / (1 - beta2**step)).sqrt_().add_(eps)
        move = ParameterStep(first / root, -lr / (1 - beta1**step))
        return move, {"step": step, "first": first, "second": second}

    return UpdateRule(_starting(examples, "first", "second"), update, source=_SOURCE)


def mixed_with_public(public: Any, weight: float | Callable[[int], float]) -> UpdateRule:
    """Return descent along weight v + (1 - weight) g, g being the average public gradient.

    Args:
        public: a `pv.Public`, or data that are used in full in every step.
        weight: the weight of the release, a number in [0, 1] or a function of the step, counted
            from 0.

    Returns:
        The update rule.

    Guarantee: post-processing of releases and of examples that are declared public.

    Example:
        >>> import numpy as np
        >>> from privada.updates import mixed_with_public, falling_weight
        >>> data = np.zeros((5, 2)), np.zeros(5)
        >>> rule = mixed_with_public(data, falling_weight(steps=100))

    Reference: Amid et al. (2022), Public Data-Assisted Mirror Descent for Private Model Training,
    arXiv 2112.00193; as PDA-DPMD in Li et al. (2022), arXiv 2202.05963.
    """
    examples = as_public(public)
    if callable(weight):
        at = function_of_step("weight", weight, 0, share)
    else:
        fixed = share("weight", weight)
        at = lambda step: fixed  # noqa: E731

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[ParameterStep, State]:
        step = state["step"]
        shown = parameters.public_gradient(examples, step)
        mixture = release.with_public_term(shown.lerp(release.private_gradient, at(step)))
        return ParameterStep(mixture, -lr), {"step": step + 1}

    return UpdateRule(_starting(examples), update, source=_SOURCE)


def falling_weight(steps: int) -> Callable[[int], float]:
    """Return cos(pi t / 2T): all private at first, all public in the end.

    Args:
        steps: the number of steps T.

    Returns:
        The weight as a function of the step, counted from 0.

    Example:
        >>> from privada.updates import falling_weight
        >>> falling_weight(steps=100)(0)
        1.0

    Reference: Amid et al. (2022), Public Data-Assisted Mirror Descent for Private Model Training,
    arXiv 2112.00193.
    """
    steps = integer("steps", steps)
    return lambda step: max(0.0, math.cos(math.pi * step / (2 * steps)))


def public_subspace(public: Any, dimensions: int, every: int = 1) -> UpdateRule:
    """Return descent along the release, projected on the principal directions of public gradients.

    The directions are the leading right singular vectors of the matrix of public gradients, at the
    parameters as they are at every `every`-th step.

    Args:
        public: a `pv.Public`, whose batch of m examples gives m gradients.
        dimensions: of the subspace.
        every: how many steps a subspace is used for.

    Returns:
        The update rule.

    Guarantee: post-processing of releases and of examples that are declared public.

    Edge cases: no more directions are used than there are public gradients in a batch or than
    these span. A public batch of m examples takes memory for m gradients.

    Example:
        >>> import numpy as np
        >>> from privada.updates import public_subspace
        >>> rule = public_subspace((np.zeros((5, 2)), np.zeros(5)), dimensions=2)

    Reference: Zhou, Wu and Banerjee (2021), Bypassing the Ambient Dimension: Private SGD with
    Gradient Subspace Identification, arXiv 2007.03813; as PDP-SGD in Asi et al. (2021),
    arXiv 2106.13756.
    """
    examples = as_public(public)
    dimensions, every = integer("dimensions", dimensions), integer("every", every)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[ParameterStep, State]:
        step, basis = state["step"], state["basis"]
        if step % every == 0:
            basis = _leading(parameters.public_gradients(examples, step), dimensions)
        along = release.with_public_term(basis.t() @ (basis @ release.private_gradient))
        return ParameterStep(along, -lr), {"step": step + 1, "basis": basis}

    return UpdateRule(_starting(examples, "basis"), update, source=_SOURCE)


def _leading(rows: torch.Tensor, dimensions: int) -> torch.Tensor:
    """Return orthonormal rows that span the main directions of others."""
    _, values, vectors = torch.linalg.svd(rows.double(), full_matrices=False)
    kept = values > values.max() * rows.shape[1] * torch.finfo(torch.float64).eps
    found: torch.Tensor = vectors[kept][:dimensions].to(rows.dtype)
    return found
