"""Adaptive rules on releases: all of it is post-processing, so adaptivity is free."""

from collections.abc import Callable

from torch import Tensor

from privada.core.tensors import Parameters
from privada.core.validation import fraction, positive
from privada.core.values import Release
from privada.updates.rules import Rule, State


def _moments(*names: str) -> Callable[[Parameters], State]:
    """Return a first state of zero vectors, and of no steps taken."""
    return lambda parameters: {"step": 0} | {name: parameters.zeros() for name in names}


def adam(beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Rule:
    """Return Adam: both moments of the releases, corrected for their start at zero.

    m <- b1 m + (1 - b1) v, s <- b2 s + (1 - b2) v^2, and the step is
    -lr (m / (1 - b1^t)) / (sqrt(s / (1 - b2^t)) + eps).

    Example:
        >>> from privada.updates import adam
        >>> rule = adam(beta1=0.9, beta2=0.999)

    Reference: Kingma and Ba (2015), Adam, Algorithm 1; as DP-Adam in 000, Algorithm 2, and DPAdam
    in 001.
    """
    beta1, beta2 = fraction("beta1", beta1), fraction("beta2", beta2)
    eps = positive("eps", eps)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[Tensor, State]:
        gradient, step = release.gradient, state["step"] + 1
        first = state["first"].lerp(gradient, 1 - beta1)
        second = (beta2 * state["second"]).addcmul_(gradient, gradient, value=1 - beta2)
        root = (second / (1 - beta2**step)).sqrt_().add_(eps)
        change = (first / root).mul_(-lr / (1 - beta1**step))
        return change, {"step": step, "first": first, "second": second}

    return Rule(_moments("first", "second"), update)


def adam_without_second_moment(beta1: float = 0.9, eps: float = 1e-8) -> Rule:
    """Return Adam with its second moment at the limit that noise alone gives it.

    The step is -lr (m / (1 - b1^t)) / (sigma C / B + eps): the release itself says what the
    standard deviation sigma C / B of its noise is.

    Example:
        >>> from privada.updates import adam_without_second_moment
        >>> rule = adam_without_second_moment()

    Reference: The Role of Adaptive Optimizers for Honest Private Hyperparameter Selection (001),
    Theorem 3 and Section 6, DPAdamWOSM.
    """
    beta1, eps = fraction("beta1", beta1), positive("eps", eps)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[Tensor, State]:
        step = state["step"] + 1
        first = state["first"].lerp(release.gradient, 1 - beta1)
        change = first * (-lr / (1 - beta1**step)) / (release.gradient_std + eps)
        return change, {"step": step, "first": first}

    return Rule(_moments("first"), update)


def rmsprop(decay: float = 0.99, eps: float = 1e-8) -> Rule:
    """Return RMSProp: s <- decay s + (1 - decay) v^2, and the step is -lr v / (sqrt(s) + eps).

    Example:
        >>> from privada.updates import rmsprop
        >>> rule = rmsprop(decay=0.9)

    Reference: Hinton, Srivastava and Swersky (2012), Lecture 6e; as DP-RMSProp in 000.
    """
    decay, eps = fraction("decay", decay), positive("eps", eps)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[Tensor, State]:
        gradient = release.gradient
        second = (decay * state["second"]).addcmul_(gradient, gradient, value=1 - decay)
        return (gradient / (second.sqrt() + eps)).mul_(-lr), {"second": second}

    return Rule(lambda parameters: {"second": parameters.zeros()}, update)


def adagrad(eps: float = 1e-10) -> Rule:
    """Return diagonal AdaGrad: s <- s + v^2, and the step is -lr v / (sqrt(s) + eps).

    Example:
        >>> from privada.updates import adagrad
        >>> rule = adagrad()

    Reference: Duchi, Hazan and Singer (2011), Adaptive Subgradient Methods; as DP-AdaGrad in 000
    and private AdaGrad in 004.
    """
    eps = positive("eps", eps)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[Tensor, State]:
        gradient = release.gradient
        total = state["total"] + gradient * gradient
        return (gradient / (total.sqrt() + eps)).mul_(-lr), {"total": total}

    return Rule(lambda parameters: {"total": parameters.zeros()}, update)
