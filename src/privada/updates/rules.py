"""Update rules: two pure functions each, of releases only."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from privada.core.tensors import Parameters
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
        return release.gradient * -lr, state

    return Rule(lambda parameters: {}, update)
