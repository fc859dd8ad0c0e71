"""Adaptive rules on releases: all of it is post-processing, so adaptivity is free."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from privada.core.tensors import Parameters
from privada.core.validation import flag, fraction, not_negative, positive
from privada.core.values import Release, State
from privada.updates.projections import Projection, checked_onto
from privada.updates.rules import ParameterStep, UpdateRule, within


def _moments(*names: str) -> Callable[[Parameters], State]:
    """Return a first state of zero vectors, and of no steps taken."""
    return lambda parameters: {"step": 0} | {name: parameters.zeros() for name in names}


def _both(release: Release, state: State, beta1: float, beta2: float) -> tuple[int, Tensor, Tensor]:
    """Return the number of steps and both moments with one more release in them."""
    gradient = release.gradient
    second = (beta2 * state["second"]).addcmul_(gradient, gradient, value=1 - beta2)
    return state["step"] + 1, state["first"].lerp(gradient, 1 - beta1), second


def adam(beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> UpdateRule:
    """Return Adam: both moments of the releases, corrected for their start at zero.

    m <- b1 m + (1 - b1) v, s <- b2 s + (1 - b2) v^2, and the step is
    -lr (m / (1 - b1^t)) / (sqrt(s / (1 - b2^t)) + eps).

    Args:
        beta1, beta2: decays of the first and the second moment.
        eps: added to the root, so that the step stays bounded.

    Returns:
        The update rule.

    Example:
        >>> from privada.updates import adam
        >>> rule = adam(beta1=0.9, beta2=0.999)

    Reference: Kingma and Ba (2015), Adam, arXiv 1412.6980, Algorithm 1; as DP-Adam in Li et al.
    (2022), arXiv 2202.05963, Algorithm 2, and DPAdam in Mohapatra et al. (2022), arXiv 2111.04906.
    """
    beta1, beta2 = fraction("beta1", beta1), fraction("beta2", beta2)
    eps = positive("eps", eps)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[ParameterStep, State]:
        step, first, second = _both(release, state, beta1, beta2)
        root = (second / (1 - beta2**step)).sqrt_().add_(eps)
        move = ParameterStep(first / root, -lr / (1 - beta1**step))
        return move, {"step": step, "first": first, "second": second}

    return UpdateRule(_moments("first", "second"), update)


def adam_without_second_moment(beta1: float = 0.9, eps: float = 1e-8) -> UpdateRule:
    """Return Adam with its second moment at the limit that noise alone gives it.

    The step is -lr (m / (1 - b1^t)) / (sigma C / B + eps). The standard deviation sigma C / B of
    the noise is known from the release. A preconditioner may multiply the step, as
    `private_feature_moments` does by how large the features are.

    Args:
        beta1: decay of the first moment.
        eps: added to the standard deviation of the noise.

    Returns:
        The update rule.

    Example:
        >>> from privada.updates import adam_without_second_moment
        >>> rule = adam_without_second_moment()

    Reference: Mohapatra et al. (2022), The Role of Adaptive Optimizers for Honest Private
    Hyperparameter Selection, arXiv 2111.04906, Theorem 3 and Section 6, DPAdamWOSM.
    """
    beta1, eps = fraction("beta1", beta1), positive("eps", eps)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[ParameterStep, State]:
        step = state["step"] + 1
        first = state["first"].lerp(release.gradient, 1 - beta1)
        length = -lr * release.step / (1 - beta1**step)
        std = release.gradient_std
        move = (
            ParameterStep(first, length / (std + eps))
            if isinstance(std, float)
            else ParameterStep(first / (std + eps), length)
        )
        return move, {"step": step, "first": first}

    return UpdateRule(_moments("first"), update)


def rmsprop(decay: float = 0.99, eps: float = 1e-8) -> UpdateRule:
    """Return RMSProp: s <- decay s + (1 - decay) v^2, and the step is -lr v / (sqrt(s) + eps).

    Args:
        decay: decay of the second moment.
        eps: added to the root, so that the step stays bounded.

    Returns:
        The update rule.

    Example:
        >>> from privada.updates import rmsprop
        >>> rule = rmsprop(decay=0.9)

    Reference: Hinton, Srivastava and Swersky (2012), Lecture 6e; as DP-RMSProp in Li et al. (2022),
    arXiv 2202.05963.
    """
    decay, eps = fraction("decay", decay), positive("eps", eps)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[ParameterStep, State]:
        gradient = release.gradient
        second = (decay * state["second"]).addcmul_(gradient, gradient, value=1 - decay)
        return ParameterStep(gradient / (second.sqrt() + eps), -lr), {"second": second}

    return UpdateRule(lambda parameters: {"second": parameters.zeros()}, update)


def adagrad(eps: float = 1e-10, onto: Projection | None = None) -> UpdateRule:
    """Return diagonal AdaGrad: s <- s + v^2, and the step is -lr v / (sqrt(s) + eps).

    Args:
        eps: added to the root, so that the step stays bounded.
        onto: a set that each iterate is projected onto; none by default.

    Returns:
        The update rule.

    Edge cases: with `onto`, each iterate is projected in the norm of the step itself,
    sum_j (sqrt(s_j) + eps) x_j^2 / lr.

    Example:
        >>> from privada.updates import adagrad
        >>> rule = adagrad()

    Reference: Duchi, Hazan and Singer (2011), Adaptive Subgradient Methods; as DP-AdaGrad in Li et
    al. (2022), arXiv 2202.05963 and in Algorithm 2 of Asi et al. (2021), arXiv 2106.13756.
    """
    eps, onto = positive("eps", eps), checked_onto(onto)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[ParameterStep, State]:
        gradient = release.gradient
        total = state["total"] + gradient * gradient
        metric = total.sqrt().add_(eps)
        move = within(onto, parameters, ParameterStep(gradient / metric, -lr), metric)
        return move, {"total": total}

    return UpdateRule(lambda parameters: {"total": parameters.zeros()}, update)


def adagrad_norm(
    first: float = 0.0,
    least: float = 0.0,
    onto: Projection | None = None,
    *,
    denoised: bool = False,
) -> UpdateRule:
    """Return AdaGrad with one step size: b^2 <- b^2 + max(|v|^2, least), the step is -lr v / b.

    b^2 starts at `first`. The norm is that of the released gradient, noise included, so that
    it costs nothing.

    Args:
        first: the start of b^2.
        least: the least that a step adds to b^2.
        onto: a set that each iterate is projected onto; none by default.
        denoised: whether the expected squared norm of the noise, which is public, is subtracted
            from |v|^2.

    Returns:
        The update rule.

    Edge cases: a release that is exactly zero at the start moves nothing.

    Example:
        >>> from privada.updates import adagrad_norm
        >>> rule = adagrad_norm(first=20.0, least=1e-5)

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Algorithm 1, with `first` 0; Wu et al. (2021), Adaptive Differentially Private
    Empirical Risk Minimization, arXiv 2110.07435, Section 5.2.
    """
    first, least = not_negative("first", first), not_negative("least", least)
    onto, denoised = checked_onto(onto), flag("denoised", denoised)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[ParameterStep, State]:
        gradient = release.gradient
        square = float(gradient.square().sum(dtype=torch.float64))
        if denoised:
            square -= release.noise_square
        total = state["total"] + max(square, least)
        length = -lr / math.sqrt(total) if total > 0 else 0.0
        return within(onto, parameters, ParameterStep(gradient, length)), {"total": total}

    return UpdateRule(lambda parameters: {"total": first}, update)


def adam_bias_corrected(
    beta1: float = 0.9, beta2: float = 0.999, floor: float = 5e-8
) -> UpdateRule:
    """Return Adam with the variance of the noise subtracted from its second moment.

    The step is -lr (m / (1 - b1^t)) / sqrt(max(s / (1 - b2^t) - std^2, floor)), std being the
    standard deviation of the noise in the released gradient.

    Args:
        beta1, beta2: decays of the first and the second moment.
        floor: the least second moment.

    Returns:
        The update rule.

    Example:
        >>> from privada.updates import adam_bias_corrected
        >>> rule = adam_bias_corrected()

    Reference: Tang, Shpilevskiy and Lecuyer (2024), DP-AdamBC: Your DP-Adam Is Actually DP-SGD
    (Unless You Apply Bias Correction), arXiv 2312.14334.
    """
    beta1, beta2 = fraction("beta1", beta1), fraction("beta2", beta2)
    floor = positive("floor", floor)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[ParameterStep, State]:
        step, first, second = _both(release, state, beta1, beta2)
        signal = (second / (1 - beta2**step)).sub_(release.gradient_std**2).clamp_(min=floor)
        move = ParameterStep(first / signal.sqrt_(), -lr / (1 - beta1**step))
        return move, {"step": step, "first": first, "second": second}

    return UpdateRule(_moments("first", "second"), update)
