"""Update rules: pure functions of releases only."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from privada.core.deprecation import renamed, renamed_argument
from privada.core.tensors import Parameters
from privada.core.validation import fraction, instance, integer
from privada.core.values import Release, State
from privada.updates.projections import Projection, checked_onto


class ParameterStep(NamedTuple):
    """What a rule adds to the parameters: `length` times `direction`.

    Args:
        direction: a vector over all trainable parameters.
        length: what it is multiplied by.

    Example:
        >>> import torch
        >>> from privada.updates import ParameterStep
        >>> ParameterStep(torch.ones(2), -0.5).length
        -0.5
    """

    direction: Tensor
    length: float = 1.0


Update = Callable[[Release, State, Parameters, float], tuple[ParameterStep, State]]


def nothing(parameters: Parameters) -> State:
    """Return the state of a rule that keeps none."""
    return {}


def last_parameters(state: State) -> Tensor | None:
    """Return None: a run ends with the parameters of its last step."""
    return None


@renamed_argument("answer", "final_parameters")
@dataclass(frozen=True)
class UpdateRule:
    """How a release moves the parameters, as an optimiser's step does.

    Args:
        init: `init(parameters)` returns the first state.
        update: `update(release, state, parameters, lr)` returns a `ParameterStep` and the next
            state.
        final_parameters: `final_parameters(state)` returns the parameters that the run ends with,
            or None for those of the last step.
        source: what else the rule uses, in words that the statement repeats.

    Guarantee: a rule sees releases only, so whatever it does is post-processing.

    Example:
        >>> from privada.updates import ParameterStep, UpdateRule
        >>> sign = UpdateRule(lambda parameters: {}, lambda release, state, parameters, lr: (
        ...     ParameterStep(release.gradient.sign(), -lr), state))
    """

    init: Callable[[Parameters], State]
    update: Update
    final_parameters: Callable[[State], Tensor | None] = last_parameters
    source: str = ""

    @property
    def answer(self) -> Callable[[State], Tensor | None]:
        """The former name of `final_parameters`."""
        renamed("UpdateRule.answer", "UpdateRule.final_parameters")
        return self.final_parameters


def sgd(onto: Projection | None = None) -> UpdateRule:
    """Return plain gradient descent: the step is -lr times the released gradient.

    Args:
        onto: a set that each iterate is projected onto; none by default.

    Returns:
        The update rule.

    Example:
        >>> import torch
        >>> from privada.updates import sgd
        >>> sgd().init(None)
        {}

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, arXiv 1607.00133,
    Algorithm 1.
    """
    onto = checked_onto(onto)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[ParameterStep, State]:
        return within(onto, parameters, ParameterStep(*release.move(-lr))), state

    return UpdateRule(nothing, update)


def momentum(decay: float = 0.9) -> UpdateRule:
    """Return heavy-ball momentum: m <- decay m + v, and the step is -lr m.

    Args:
        decay: how much of the last step is kept.

    Returns:
        The update rule.

    Edge cases: a decay of 0 is plain gradient descent.

    Example:
        >>> from privada.updates import momentum
        >>> rule = momentum(decay=0.9)

    Reference: Qian (1999), On the Momentum Term in Gradient Descent Learning Algorithms; as
    DPMomentum in Mohapatra et al. (2022), arXiv 2111.04906.
    """
    decay = fraction("decay", decay)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[ParameterStep, State]:
        moment = decay * state["moment"] + release.gradient
        return ParameterStep(moment, -lr), {"moment": moment}

    return UpdateRule(lambda parameters: {"moment": parameters.zeros()}, update)


def within(
    onto: Projection | None,
    parameters: Parameters,
    move: ParameterStep,
    metric: Tensor | None = None,
) -> ParameterStep:
    """Return a step that ends at the projection of where the given step ends.

    The projection is the nearest point in the norm sqrt(sum_j metric_j x_j^2), the ordinary one by
    default.
    """
    if onto is None:
        return move
    before = parameters.read()
    point = before.add(move.direction, alpha=move.length)
    return ParameterStep(onto.project(point, metric).sub_(before))


def averaged(rule: UpdateRule, after: int = 0) -> UpdateRule:
    """Return a rule that ends with the mean of the parameters of all steps, or of the last ones.

    The model is trained as before; when the run ends, its parameters become the mean. Those that
    training started from are not in it.

    Args:
        rule: the rule to average.
        after: how many steps at the start are left out of the mean.

    Returns:
        The same rule with other `final_parameters`.

    Guarantee: the parameters are post-processing of releases, and so is their mean.

    Example:
        >>> from privada.updates import averaged, sgd
        >>> rule = averaged(sgd())

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Algorithms 1 and 2, last line.
    """
    instance("rule", rule, UpdateRule, "to be a rule of pv.updates", "Use pv.updates.sgd().")
    integer("after", after, least=0)

    def init(parameters: Parameters) -> State:
        return rule.init(parameters) | {"points": 0, "mean": parameters.zeros()}

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[ParameterStep, State]:
        own = {key: value for key, value in state.items() if key not in ("points", "mean")}
        move, own = rule.update(release, own, parameters, lr)
        points = state["points"] + 1
        point = parameters.read().add_(move.direction, alpha=move.length)
        mean = state["mean"].lerp(point, 1 / max(1, points - after))
        return move, own | {"points": points, "mean": mean}

    def final_parameters(state: State) -> Tensor | None:
        return state["mean"] if state["points"] else None

    return replace(rule, init=init, update=update, final_parameters=final_parameters)
