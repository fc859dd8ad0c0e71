"""What a method is: four independent parts and a clip norm."""

from dataclasses import dataclass, field, fields
from typing import ClassVar

from privada.core.validation import positive
from privada.geometry import Geometry, isotropic
from privada.noise import Schedule, constant
from privada.updates import Controller, Rule


@dataclass(frozen=True)
class Parts:
    """The four independent choices that make a method.

    Example:
        >>> import privada as pv
        >>> parts = pv.methods.Parts(rule=pv.updates.sgd(), controller=pv.updates.scheduled(0.1))
        >>> parts.geometry.scale is None, parts.schedule.factor(0)
        (True, 1.0)
    """

    rule: Rule
    controller: Controller
    geometry: Geometry = field(default_factory=isotropic)
    schedule: Schedule = field(default_factory=constant)


@dataclass(frozen=True)
class Method:
    """Base of the methods: a clip norm, and the parts that subclasses put together.

    A subclass is a frozen dataclass that sets `name` and implements `parts`.

    Guarantee: a method sees releases only, so whatever it computes is post-processing.

    Example:
        >>> from dataclasses import dataclass
        >>> import privada as pv
        >>> @dataclass(frozen=True)
        ... class Scaled(pv.methods.Method):
        ...     name = "scaled"
        ...     def parts(self):
        ...         return pv.methods.Parts(
        ...             rule=pv.updates.sgd(),
        ...             controller=pv.updates.scheduled(0.1),
        ...             geometry=pv.geometry.diagonal(2.0, source="a constant"),
        ...         )
        >>> Scaled(clip=0.5).describe()
        'scaled (clip=0.5)'
    """

    name: ClassVar[str] = ""
    clip: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", positive("clip", self.clip))
        self.parts()  # which checks the rest

    def parts(self) -> Parts:
        """Return the parts."""
        raise TypeError(f"{type(self).__name__} does not say what its parts are.")

    def describe(self) -> str:
        """Return the method and its settings in words."""
        settings = ", ".join(
            f"{f.name}={'a schedule' if callable(v) else v}"
            for f in fields(self)
            for v in [getattr(self, f.name)]
        )
        return f"{self.name} ({settings})"
