"""Noise schedules: how the multiplier changes from step to step, fixed before the first."""

from dataclasses import dataclass

from privada.core.errors import ArgumentError
from privada.core.validation import positive, shown


@dataclass(frozen=True)
class Schedule:
    """The factor by which each step's noise multiplier differs from the calibrated one.

    `factors` is empty for a constant schedule, else it has one entry per step.

    Guarantee: fixed before the first step, so the whole schedule can be charged for in advance.

    Example:
        >>> from privada.noise import Schedule
        >>> Schedule((1.0, 1.5)).factor(1)
        1.5

    Reference: Wu et al. (2021), Adaptive Differentially Private Empirical Risk Minimization,
    arXiv 2110.07435, Algorithm 1.
    """

    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.factors, (tuple, list)):
            raise ArgumentError(
                f"Expected factors to be a tuple of numbers, got factors={shown(self.factors)}. "
                "Give one for each step, or none for noise that stays the same."
            )
        checked = tuple(positive("factors", each) for each in self.factors)
        object.__setattr__(self, "factors", checked)

    def factor(self, step: int) -> float:
        """Return the factor of a step, counted from 0."""
        return self.factors[step] if self.factors else 1.0


def constant() -> Schedule:
    """Return the schedule in which every step has the same noise multiplier.

    Example:
        >>> from privada.noise import constant
        >>> constant().factor(12)
        1.0
    """
    return Schedule()
