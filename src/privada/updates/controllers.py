"""Step-size controllers: how many releases an iteration takes, and how far it goes."""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from privada.core.errors import ArgumentError
from privada.core.tensors import Parameters
from privada.core.validation import flag, integer, one_of, positive
from privada.core.values import Release, State
from privada.updates.learning_rates import LearningRate, rate_of
from privada.updates.rules import UpdateRule


class Controller(Protocol):
    """How a step of a method queries gradients and sets its learning rate."""

    def queries(self, step: int) -> int:
        """Return how many releases an iteration takes."""

    def init(self, parameters: Parameters) -> State:
        """Return the first state."""

    def iterate(
        self,
        query: Callable[[], Release],
        rule: UpdateRule,
        parameters: Parameters,
        rule_state: State,
        state: State,
        step: int,
    ) -> tuple[State, State, float]:
        """Move the parameters; return the rule's state, this one's, and the learning rate."""


class Scheduled:
    """One release per step, with a given learning rate.

    Args:
        lr: the learning rate, a positive number or a function of the step, counted from 0, that
            returns one.

    Example:
        >>> from privada.updates import scheduled
        >>> scheduled(lambda step: 1 / (1 + step)).rate(3)
        0.25
    """

    def __init__(self, lr: LearningRate) -> None:
        self.rate = rate_of(lr)

    def queries(self, step: int) -> int:
        """Return one."""
        return 1

    def init(self, parameters: Parameters) -> State:
        """Return no state."""
        return {}

    def iterate(
        self,
        query: Callable[[], Release],
        rule: UpdateRule,
        parameters: Parameters,
        rule_state: State,
        state: State,
        step: int,
    ) -> tuple[State, State, float]:
        """Query once and apply the rule."""
        lr = self.rate(step)
        move, rule_state = rule.update(query(), rule_state, parameters, lr)
        parameters.add_(*move)
        return rule_state, state, lr


scheduled = Scheduled
"""Constructor of `Scheduled`, as methods and examples spell it."""


def doubling_error(full: Tensor, halves: Tensor) -> float:
    """Return the distance between a full step's end and that of two half steps.

    Coordinates beyond 1 count relatively (Koskela and Honkela 2020, equation (4.1)).
    """
    gap = (full - halves).div_(full.abs().clamp_(min=1))
    return float(torch.linalg.vector_norm(gap, dtype=torch.float64))


class StepDoubling:
    """A learning rate that is adapted during training: one full step against two half steps.

    An iteration takes two releases, at the parameters and at the half step. Where the full step
    and the two half steps end far apart, the learning rate falls; otherwise it grows.

    Args:
        lr: the first learning rate.
        tolerance: the error to aim at; None for sqrt(d / 2T), for d parameters and T `steps`.
        steps: the number of iterations T, needed without `tolerance`.
        follow: "halves" to go on from the two half steps, so that both releases move the model, as
            the authors' code does; "full" to go on from the full step, as Algorithm 2 is printed.
        least, most: bounds on the factor by which the rate changes.
        power: the factor is (tolerance / error)^power; by default 1/2 for "halves", as in the
            authors' code, and 1 for "full", as printed.
        accept: whether a step whose error is above the tolerance is undone.
        freeze: after how many iterations the rate stays as it is, each iteration then taking one
            release; None for never.
        epoch, decay: after `freeze`, the rate is divided by 1 + decay k in the k-th epoch of
            `epoch` steps; by default as many as one pass over the records has.

    Guarantee: errors and rates come from releases alone, so they cost nothing beyond the two
    releases of an iteration.

    Edge cases: an error of zero counts as a small one. An error that is not a number, from a model
    that has left the range of floats, lowers the rate. When the second release is refused, the
    parameters are put back to where the iteration began.

    Example:
        >>> from privada.updates import step_doubling
        >>> step_doubling(0.1, tolerance=1.0).queries(0)
        2

    Reference: Koskela and Honkela (2020), Learning Rate Adaptation for Differentially Private
    Learning, arXiv 1809.03832, Algorithm 2, equations (4.1) and (5.1), Section 4.2.
    """

    def __init__(
        self,
        lr: float,
        tolerance: float | None = None,
        *,
        steps: int | None = None,
        follow: str = "halves",
        least: float = 0.9,
        most: float = 1.1,
        power: float | None = None,
        accept: bool = False,
        freeze: int | None = None,
        epoch: int | None = None,
        decay: float = 0.1,
    ) -> None:
        self._lr = positive("lr", lr)
        self._tolerance = None if tolerance is None else positive("tolerance", tolerance)
        self._steps = None if steps is None else integer("steps", steps)
        if self._tolerance is None and self._steps is None:
            raise ArgumentError(
                "Expected tolerance or steps, got neither. Give the error to aim at, or the number "
                "of iterations T for sqrt(d / 2T)."
            )
        self._follow = one_of("follow", follow, ("halves", "full"))
        self._least, self._most = positive("least", least), positive("most", most)
        if self._least > self._most:
            raise ArgumentError(f"Expected least <= most, got least={least}, most={most}.")
        default = 0.5 if self._follow == "halves" else 1.0
        self._power = default if power is None else positive("power", power)
        self._accept = flag("accept", accept)
        self._freeze = None if freeze is None else integer("freeze", freeze, least=0)
        self._epoch = None if epoch is None else integer("epoch", epoch)
        self._decay = positive("decay", decay)

    def queries(self, step: int) -> int:
        """Return two, and one once the rate is frozen."""
        return 2 if self._freeze is None or step < self._freeze else 1

    def tolerance_of(self, parameters: Parameters) -> float:
        """Return the error that is aimed at."""
        if self._tolerance is not None:
            return self._tolerance
        assert self._steps is not None
        return math.sqrt(parameters.size / (2 * self._steps))

    def init(self, parameters: Parameters) -> State:
        """Return the first learning rate."""
        if self._freeze is not None and not (self._epoch or parameters.epoch):
            raise ArgumentError(
                f"Expected epoch with freeze={self._freeze}, got epoch=None. Give the number of "
                "steps after which the frozen rate decays further."
            )
        return {"lr": self._lr}

    def iterate(
        self,
        query: Callable[[], Release],
        rule: UpdateRule,
        parameters: Parameters,
        rule_state: State,
        state: State,
        step: int,
    ) -> tuple[State, State, float]:
        """Query twice, move, and set the next learning rate."""
        if self._freeze is not None and step >= self._freeze:
            ordinary = Scheduled(self._frozen(state["lr"], parameters, step))
            return ordinary.iterate(query, rule, parameters, rule_state, state, step)
        lr, before = state["lr"], parameters.read()
        first = query()
        move, full_state = rule.update(first, rule_state, parameters, lr)
        full = before.add(move.direction, alpha=move.length)
        move, half_state = rule.update(first, rule_state, parameters, lr / 2)
        parameters.add_(*move)
        try:
            second = query()
        except BaseException:
            parameters.write_(before)
            raise
        move, half_state = rule.update(second, half_state, parameters, lr / 2)
        parameters.add_(*move)
        error = doubling_error(full, parameters.read())
        tolerance = self.tolerance_of(parameters)
        if self._accept and not error <= tolerance:
            parameters.write_(before)
            next_state = rule_state
        elif self._follow == "full":
            parameters.write_(full)
            next_state = full_state
        else:
            next_state = half_state
        return next_state, {"lr": lr * self._factor(error, tolerance)}, lr

    def _factor(self, error: float, tolerance: float) -> float:
        """Return by what the learning rate is multiplied."""
        if error == 0:
            return self._most
        if not math.isfinite(error):
            return self._least
        wanted: float = (tolerance / error) ** self._power
        return min(max(wanted, self._least), self._most)

    def _frozen(self, lr: float, parameters: Parameters, step: int) -> float:
        """Return the learning rate of an ordinary step, which falls from epoch to epoch."""
        epoch = self._epoch or parameters.epoch
        assert self._freeze is not None
        assert epoch is not None
        return lr / (1 + self._decay * (1 + (step - self._freeze) // epoch))


step_doubling = StepDoubling
"""Constructor of `StepDoubling`, as methods and examples spell it."""
