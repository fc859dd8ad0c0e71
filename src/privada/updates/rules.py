"""Update rules: pure functions of releases only."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from privada.core.tensors import Parameters
from privada.core.validation import fraction, instance
from privada.core.values import Release
from privada.updates.projections import Projection, checked_onto

# Plain numbers, strings and tensors, so that a checkpoint can hold it without code.
State = dict[str, Any]


class Move(NamedTuple):
    """What a rule adds to the parameters: `length` times `direction`.

    Example:
        >>> import torch
        >>> from privada.updates import Move
        >>> Move(torch.ones(2), -0.5).length
        -0.5
    """

    direction: Tensor
    length: float = 1.0


Update = Callable[[Release, State, Parameters, float], tuple[Move, State]]


def nothing(parameters: Parameters) -> State:
    """Return the state of a rule that keeps none."""
    return {}


def as_it_is(state: State) -> Tensor | None:
    """Return None: the answer of a rule is where the parameters are at the end."""
    return None


@dataclass(frozen=True)
class Rule:
    """How a release moves the parameters.

    `init(parameters)` returns the first state; `update(release, state, parameters, lr)` returns
    the move and the next state; `answer(state)` returns the parameters that the whole run stands
    for, if these are not the last ones. `source` says what else it uses, which the statement
    repeats.

    Guarantee: a rule sees releases only, so whatever it does is post-processing.

    Example:
        >>> from privada.updates import Move, Rule
        >>> sign = Rule(lambda parameters: {}, lambda release, state, parameters, lr: (
        ...     Move(release.gradient.sign(), -lr), state))
    """

    init: Callable[[Parameters], State]
    update: Update
    answer: Callable[[State], Tensor | None] = as_it_is
    source: str = ""


def sgd(onto: Projection | None = None) -> Rule:
    """Return plain gradient descent: the step is -lr times the released gradient.

    Edge cases: with `onto`, each point is projected on that set.

    Example:
        >>> import torch
        >>> from privada.updates import sgd
        >>> sgd().init(None)
        {}

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1.
    """
    onto = checked_onto(onto)

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[Move, State]:
        return within(onto, parameters, Move(*release.move(-lr))), state

    return Rule(nothing, update)


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
    ) -> tuple[Move, State]:
        moment = decay * state["moment"] + release.gradient
        return Move(moment, -lr), {"moment": moment}

    return Rule(lambda parameters: {"moment": parameters.zeros()}, update)


def within(
    onto: Projection | None, parameters: Parameters, move: Move, metric: Tensor | None = None
) -> Move:
    """Return the move that ends where the projection of the given one's end is.

    The projection is the nearest point in the norm sqrt(sum_j metric_j x_j^2), the ordinary one by
    default.
    """
    if onto is None:
        return move
    before = parameters.read()
    point = before.add(move.direction, alpha=move.length)
    return Move(onto.project(point, metric).sub_(before))


def averaged(rule: Rule) -> Rule:
    """Return a rule whose answer is the mean of all points that it reached.

    The model is trained as before; when the run ends, it becomes the mean. The first point, where
    training started, is not in it.

    Guarantee: points are post-processing of releases, and so is their mean.

    Example:
        >>> from privada.updates import averaged, sgd
        >>> rule = averaged(sgd())

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization (004),
    Algorithms 1 and 2, last line.
    """
    instance("rule", rule, Rule, "to be a rule of pv.updates", "Use pv.updates.sgd().")

    def init(parameters: Parameters) -> State:
        return rule.init(parameters) | {"points": 0, "mean": parameters.zeros()}

    def update(
        release: Release, state: State, parameters: Parameters, lr: float
    ) -> tuple[Move, State]:
        own = {key: value for key, value in state.items() if key not in ("points", "mean")}
        move, own = rule.update(release, own, parameters, lr)
        points = state["points"] + 1
        point = parameters.read().add_(move.direction, alpha=move.length)
        return move, own | {"points": points, "mean": state["mean"].lerp(point, 1 / points)}

    def answer(state: State) -> Tensor | None:
        return state["mean"] if state["points"] else None

    return replace(rule, init=init, update=update, answer=answer)
