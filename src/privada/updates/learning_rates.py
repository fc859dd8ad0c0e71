"""Learning rates: numbers, functions of the step, and the schedules of the papers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from privada.core.errors import ArgumentError
from privada.core.validation import integer, not_negative, positive, shown

LearningRate = float | Callable[[int], float]


def rate_of(lr: LearningRate, name: str = "lr") -> Callable[[int], float]:
    """Return a learning rate as a function of the step, counted from 0.

    A number is checked at once, a function at its first step and whenever it is used.
    """
    made = lr if isinstance(lr, type) else type(lr)
    if issubclass(made, torch.optim.lr_scheduler.LRScheduler):
        raise ArgumentError(
            f"Expected {name} to be a number or a function of the step, got {name}={shown(lr)}, "
            "which sets the rate of an optimiser. Write pv.updates.from_torch(lambda optimizer: "
            f"torch.optim.lr_scheduler.{made.__name__}(optimizer, ...), lr=0.1)."
        )
    if isinstance(lr, type) or not callable(lr):
        fixed = positive(name, lr, "Give a number, or a function of the step, counted from 0.")
        return lambda step: fixed
    return function_of_step(name, lr, 0)


def function_of_step(
    name: str,
    function: Callable[[int], float],
    first: int,
    check: Callable[[str, Any, str], float] = positive,
) -> Callable[[int], float]:
    """Return a function whose values are checked, beginning with its first."""
    remedy = f"Give a number, or a function of the step, counted from {first}, that returns one."
    if isinstance(function, type) or not callable(function):
        raise ArgumentError(
            f"Expected {name} to be a function of the step, got {name}={shown(function)}. {remedy}"
        )
    try:
        value = function(first)
    except Exception as error:
        raise ArgumentError(
            f"Expected {name} to be a function of the step, got one that raised "
            f"{type(error).__name__} ({error}) at step {first}. {remedy}"
        ) from error
    check(f"{name}({first})", value, remedy)
    return lambda step: check(f"{name}({step})", function(step), remedy)


def inverse_sqrt(lr: float) -> Callable[[int], float]:
    """Return lr / sqrt(t), t counting steps from 1.

    Args:
        lr: the learning rate of the first step.

    Returns:
        The learning rate as a function of the step, counted from 0.

    Example:
        >>> from privada.updates import inverse_sqrt
        >>> inverse_sqrt(0.5)(3)
        0.25

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Theorem 2.
    """
    lr = positive("lr", lr)
    return lambda step: lr / math.sqrt(step + 1)


def decaying(lr: float, a: float = 20.0, c: float = 1.0) -> Callable[[int], float]:
    """Return lr / sqrt(a + c t), t counting steps from 1.

    Args:
        lr: the numerator.
        a, c: constants of the divisor.

    Returns:
        The learning rate as a function of the step, counted from 0.

    Example:
        >>> from privada.updates import decaying
        >>> decaying(1.0, a=3.0)(0)
        0.5

    Reference: Wu et al. (2021), Adaptive Differentially Private Empirical Risk Minimization,
    arXiv 2110.07435, Sections 5.1 and 6, with a = 20 and c = 1.
    """
    lr, a, c = positive("lr", lr), not_negative("a", a), positive("c", c)
    return lambda step: lr / math.sqrt(a + c * (step + 1))


def cosine(lr: float, steps: int, last: float = 0.01) -> Callable[[int], float]:
    """Return half a period of a cosine, from lr down to `last` times lr over `steps` steps.

    Args:
        lr: the learning rate of the first step.
        steps: the number of steps.
        last: the last learning rate as a part of the first.

    Returns:
        The learning rate as a function of the step, counted from 0.

    Edge cases: after `steps` steps it stays where it is.

    Example:
        >>> from privada.updates import cosine
        >>> round(cosine(0.1, steps=101)(50), 4)
        0.0505

    Reference: Loshchilov and Hutter (2017), SGDR: Stochastic Gradient Descent with Warm Restarts.
    """
    lr, steps, last = positive("lr", lr), integer("steps", steps), positive("last", last)

    def at(step: int) -> float:
        done = min(1.0, step / max(1, steps - 1))
        return lr * (last + (1 - last) * (1 + math.cos(math.pi * done)) / 2)

    return at


@dataclass(frozen=True)
class Falling:
    """A learning rate that falls evenly; `falling` makes one."""

    lr: float
    steps: int

    def __call__(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        return self.lr * (1 - min(step, self.steps - 1) / self.steps)

    def __str__(self) -> str:
        return f"{self.lr:g} falling to 0 over {self.steps:,} steps"


def falling(lr: float, steps: int) -> Falling:
    """Return a learning rate that falls evenly, from lr at the first step towards 0 after the last.

    The last steps are short, so that their noise does not stay in the model. Over the whole run
    noise adds up to as much as at a constant rate of lr / sqrt(3).

    Args:
        lr: the learning rate of the first step.
        steps: the number of steps.

    Returns:
        The learning rate as a function of the step, counted from 0.

    Edge cases: after `steps` steps it stays at lr / steps.

    Example:
        >>> from privada.updates import falling
        >>> rate = falling(0.1, steps=4)
        >>> print(rate)
        0.1 falling to 0 over 4 steps
        >>> rate(0), rate(3)
        (0.1, 0.025)

    Reference: Defazio et al. (2023), Optimal Linear Decay Learning Rate Schedules and Further
    Refinements.
    """
    return Falling(positive("lr", lr), integer("steps", steps))


def warmed_up(lr: LearningRate, steps: int) -> Callable[[int], float]:
    """Return a learning rate that grows evenly over its first `steps` steps.

    Args:
        lr: a number or a function of the step.
        steps: the number of steps of the warm-up.

    Returns:
        The learning rate as a function of the step, counted from 0.

    Example:
        >>> from privada.updates import warmed_up
        >>> warmed_up(0.4, steps=4)(0)
        0.1

    Reference: Goyal et al. (2017), Accurate, Large Minibatch SGD, Section 2.2.
    """
    at, steps = rate_of(lr), integer("steps", steps)
    return lambda step: at(step) * min(1.0, (step + 1) / steps)


def from_torch(
    scheduler: Callable[[torch.optim.Optimizer], Any], lr: float
) -> Callable[[int], float]:
    """Return the learning rates that a scheduler of torch.optim.lr_scheduler gives.

    Schedulers that read a metric cannot be used: a metric on private data is not free.

    Args:
        scheduler: a function that returns a scheduler for a given optimiser.
        lr: the learning rate that it starts from.

    Returns:
        The learning rate as a function of the step, counted from 0.

    Example:
        >>> import torch
        >>> from privada.updates import from_torch
        >>> halved = from_torch(lambda o: torch.optim.lr_scheduler.StepLR(o, 10, gamma=0.5), lr=0.2)
        >>> halved(9), halved(10)
        (0.2, 0.1)
    """
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=positive("lr", lr))
    made, remedy = (
        None,
        ("Write lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10), or the like."),
    )
    if callable(scheduler) and not isinstance(scheduler, type):
        made = scheduler(optimizer)
    if not isinstance(made, torch.optim.lr_scheduler.LRScheduler) or isinstance(
        made, torch.optim.lr_scheduler.ReduceLROnPlateau
    ):
        raise ArgumentError(
            "Expected scheduler to be a function that makes a scheduler, one that looks at no "
            f"metric, from an optimiser, got scheduler={shown(scheduler)}. {remedy}"
        )
    found = [float(optimizer.param_groups[0]["lr"])]

    def at(step: int) -> float:
        while len(found) <= step:
            optimizer.step()
            made.step()
            found.append(float(optimizer.param_groups[0]["lr"]))
        return found[step]

    return at
