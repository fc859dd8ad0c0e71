"""Step-size controllers: how many releases an iteration takes, and how far it goes."""

from collections.abc import Callable
from typing import Protocol

from privada.core.tensors import Parameters
from privada.core.validation import positive
from privada.core.values import Release
from privada.updates.rules import Rule, State

LearningRate = float | Callable[[int], float]


class Controller(Protocol):
    """One iteration of a method."""

    @property
    def queries(self) -> int:
        """How many releases an iteration takes, at the most."""

    def init(self) -> State:
        """Return the first state."""

    def iterate(
        self,
        query: Callable[[], Release],
        rule: Rule,
        parameters: Parameters,
        rule_state: State,
        state: State,
        step: int,
    ) -> tuple[State, State, float]:
        """Move the parameters; return the rule's state, this one's, and the learning rate."""


class scheduled:
    """One release an iteration, with a learning rate that is a number or a function of the step.

    Edge cases: a function is called with the step, counted from 0, and must return a positive
    number.

    Example:
        >>> from privada.updates import scheduled
        >>> scheduled(lambda step: 1 / (1 + step)).rate(3)
        0.25
    """

    def __init__(self, lr: LearningRate) -> None:
        self._lr = lr if callable(lr) else positive("lr", lr)

    @property
    def queries(self) -> int:
        """One."""
        return 1

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return positive("lr", self._lr(step)) if callable(self._lr) else self._lr

    def init(self) -> State:
        """Return no state."""
        return {}

    def iterate(
        self,
        query: Callable[[], Release],
        rule: Rule,
        parameters: Parameters,
        rule_state: State,
        state: State,
        step: int,
    ) -> tuple[State, State, float]:
        """Query once and apply the rule."""
        lr = self.rate(step)
        change, rule_state = rule.update(query(), rule_state, parameters, lr)
        parameters.add_(change)
        return rule_state, state, lr
