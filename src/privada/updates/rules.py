"""Update rules: two pure functions each, of releases only."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from privada.core.tensors import Parameters
from privada.core.validation import fraction
from privada.core.values import Release

# Plain numbers, strings and tensors, so that a checkpoint can hold it without code.
State = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """How a release moves the parameters.

    `init(parameters)` returns the first state; `update(release, state, parameters, lr)` returns
    the step to add to the parameters and the next state.

    Guarantee: a rule sees releases only, so whatever it does is post-processing.

    Example:
        >>> from privada.updates import Rule
        >>> sign = Rule(lambda parameters: {}, lambda release, state, parameters, lr: (
        ...     -lr * release.gradient.sign(), state))
    """

    init: Callable[[Parameters], State]
    update: Callable[[Release, State, Parameters, float], tuple[Tensor, State]]


def sgd() -> Rule:
    """Return plain gradient descent: the step is -lr times the released gradient.

    Example:
        >>> import torch
        >>> from privada.updates import sgd
        >>> sgd().init(None)
        {}

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1.
    """

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[Tensor, State]:
        return release.times(-lr), state

    return Rule(lambda parameters: {}, update)


def momentum(decay: float = 0.9) -> Rule:
    """Return the heavy ball: m <- decay m + v, and the step is -lr m.

    Edge cases: a decay of 0 is plain gradient descent.

    Example:
        >>> from privada.updates import momentum
        >>> rule = momentum(decay=0.9)

    Reference: Qian (1999), On the Momentum Term in Gradient Descent Learning Algorithms; as
    DPMomentum in 001.
    """
    decay = fraction("decay", decay)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[Tensor, State]:
        moment = decay * state["moment"] + release.gradient
        return moment * -lr, {"moment": moment}

    return Rule(lambda parameters: {"moment": parameters.zeros()}, update)
