"""Targets: what is to be predicted, one of some classes or a number between bounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from privada.core.validation import one_of, printable_text
from privada.tables.bounds import Numbers, check_bounds, from_unit_interval, to_unit_interval
from privada.tables.cells import listed_texts


@dataclass(frozen=True)
class Classes:
    """A target that is one of some classes: its number, in the order of the list.

    Args:
        column: the column that holds it.
        classes: all of them, at least two.
        others: what becomes of a record with none of these: "refuse", or "leave-out".

    Edge cases: how many records are left out is private. Where they are, give the trainer the
    number of all as `population`.

    Example:
        >>> from privada.tables import Classes
        >>> Classes("income", ["<=50K", ">50K"]).restore([1, 0])
        ['>50K', '<=50K']
    """

    column: str
    classes: Sequence[str]
    others: str = "refuse"

    def __post_init__(self) -> None:
        printable_text("column", self.column)
        one_of("others", self.others, ("refuse", "leave-out"))
        remedy = "List every class that there can be; a single one leaves nothing to learn."
        object.__setattr__(self, "classes", listed_texts("classes", self.classes, 2, remedy))

    def restore(self, numbers: Any) -> list[str]:
        """Return the classes of some numbers."""
        return [self.classes[int(number)] for number in numbers]


@dataclass(frozen=True)
class Range:
    """A target that is a number between bounds, mapped to [-1, 1].

    Args:
        column: the column that holds it.
        low, high: the bounds. A value beyond them counts as the bound that it passed.
        scale: "linear", or "log" for sign(x) log(1 + |x|) before mapping.
        bounds: as for `Number`.

    Example:
        >>> from privada.tables import Range
        >>> price = Range("price", low=0, high=1000)
        >>> price.restore(price.unit([250.0, 9999.0]))
        array([ 250., 1000.])
    """

    column: str
    low: float | None = None
    high: float | None = None
    scale: str = "linear"
    bounds: str = "given"

    def __post_init__(self) -> None:
        printable_text("column", self.column)
        check_bounds(self.low, self.high, self.bounds, self.scale)

    def unit(self, values: Any) -> Numbers:
        """Return values clipped to the bounds and mapped to [-1, 1]."""
        return to_unit_interval(values, self.low, self.high, self.scale)

    def restore(self, values: Any) -> Numbers:
        """Return the numbers that values in [-1, 1] stand for; beyond these, the bounds."""
        return from_unit_interval(values, self.low, self.high, self.scale)


Target = Classes | Range
