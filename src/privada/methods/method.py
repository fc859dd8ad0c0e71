"""What a method is: four independent parts, and how gradients are bounded."""

from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

from privada.clipping import Clipping, threshold
from privada.core.deprecation import renamed_argument
from privada.core.errors import ArgumentError
from privada.core.validation import instance, positive, shown
from privada.noise import FollowingSchedule, Schedule, constant
from privada.preconditioning import Preconditioner, isotropic
from privada.updates import Controller, UpdateRule
from privada.updates.learning_rates import Falling


@renamed_argument("geometry", "preconditioner")
@dataclass(frozen=True)
class Parts:
    """The four independent parts of a method.

    Args:
        rule: how a release moves the parameters, one of `pv.updates`.
        controller: how many releases a step takes, and the learning rate.
        preconditioner: the scales in which gradients are clipped and noised; none by default.
        schedule: the noise of each step in units of the noise multiplier, fixed beforehand or
            following from the releases; constant by default.

    Example:
        >>> import privada as pv
        >>> parts = pv.methods.Parts(rule=pv.updates.sgd(), controller=pv.updates.scheduled(0.1))
        >>> parts.preconditioner, parts.schedule.factor(0)
        (isotropic, 1.0)
    """

    rule: UpdateRule
    controller: Controller
    preconditioner: Preconditioner = field(default_factory=isotropic)
    schedule: Schedule | FollowingSchedule = field(default_factory=constant)

    def __post_init__(self) -> None:
        instance(
            "rule", self.rule, UpdateRule, "to be a rule of pv.updates", "Use pv.updates.sgd()."
        )
        if isinstance(self.controller, type) or not hasattr(self.controller, "iterate"):
            raise ArgumentError(
                "Expected controller to be one of pv.updates, got "
                f"controller={shown(self.controller)}. Use pv.updates.scheduled(lr)."
            )
        instance(
            "preconditioner",
            self.preconditioner,
            Preconditioner,
            "to be one of pv.preconditioning",
            "Use pv.preconditioning.diagonal(scales), or moments.ellipsoid(1/2).",
        )
        check_schedule(self.schedule)


def check_schedule(schedule: object) -> None:
    """Raise unless it is a noise schedule."""
    if isinstance(schedule, type) or not isinstance(schedule, (Schedule, FollowingSchedule)):
        raise ArgumentError(
            f"Expected schedule to be a noise schedule of pv.noise, got schedule={shown(schedule)}."
            " Use pv.noise.constant(), or pv.noise.follow_norm()."
        )


@dataclass(frozen=True)
class Method:
    """Base class of the methods: a clip norm, and the parts that a subclass combines.

    A subclass is a frozen dataclass that sets `name` and implements `parts(steps)`, where `steps`
    is the number of steps of the run. docs/own_method.md builds one from the parts of three papers.

    Args:
        clip: the largest norm that one example's gradient may keep.
        clipping: how it is bounded: `pv.clipping.threshold()`, `automatic()`, `ellipsoid()` or
            `microbatches(size)`.
        schedule: the noise of each step in units of the noise multiplier, in place of the method's
            own: `pv.noise.Schedule(factors)` with one factor for each step, or one that follows
            from the releases, `pv.noise.follow_norm()`, `follow_moment()` or
            `when_descent_stops()`, which needs an adaptive ledger.

    Guarantee: a method sees releases only, so whatever it computes is post-processing.

    Example:
        >>> from dataclasses import dataclass
        >>> import privada as pv
        >>> @dataclass(frozen=True)
        ... class Scaled(pv.methods.Method):
        ...     name = "scaled"
        ...     def parts(self, steps):
        ...         return pv.methods.Parts(
        ...             rule=pv.updates.sgd(),
        ...             controller=pv.updates.scheduled(0.1),
        ...             preconditioner=pv.preconditioning.diagonal(2.0, source="a constant"),
        ...         )
        >>> Scaled(clip=0.5).describe()
        'scaled (clip=0.5)'
    """

    name: ClassVar[str] = ""
    clip: float = field(default=1.0, kw_only=True)
    clipping: Clipping = field(default_factory=threshold, kw_only=True)
    schedule: Schedule | FollowingSchedule | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", positive("clip", self.clip))
        if not isinstance(self.clipping, Clipping):
            raise ArgumentError(
                "Expected clipping to be one of pv.clipping, got "
                f"clipping={shown(self.clipping)}. Use "
                "pv.clipping.threshold()."
            )
        if self.schedule is not None:
            check_schedule(self.schedule)
        self.parts(1)  # which checks the rest

    def parts_of(self, steps: int) -> Parts:
        """Return the parts of a run, with the noise schedule that was asked for."""
        parts = self.parts(steps)
        return parts if self.schedule is None else replace(parts, schedule=self.schedule)

    def parts(self, steps: int) -> Parts:
        """Return the parts of a run of `steps` steps."""
        raise TypeError(f"{type(self).__name__} does not implement parts(steps).")

    def describe(self) -> str:
        """Return the method and its settings in words."""
        settings = ", ".join(
            f"{each.name}={_in_words(value)}"
            for each in fields(self)
            if (value := getattr(self, each.name)) is not None
            and (each.name, value) != ("clipping", threshold())
        )
        return f"{self.name} ({settings})"


def _in_words(value: object) -> str:
    """Return a setting in words; what is not a setting but data is not shown."""
    if callable(value) and not isinstance(value, Falling):
        return "a schedule"
    own = isinstance(value, int | float | str) or type(value).__module__.startswith("privada")
    return str(value) if own else "data"
