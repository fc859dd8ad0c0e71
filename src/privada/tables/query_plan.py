"""Which charged queries a table needs before training, and how much of a budget they may cost."""

import math
from collections import Counter
from dataclasses import dataclass

from dp_accounting import DpEvent

from privada.accounting import Budget, events
from privada.accounting.calibration import noise_multiplier as calibrated
from privada.accounting.events import Tally
from privada.core.errors import DataError
from privada.core.validation import integer
from privada.tables.private_bounds import LEAST_RATIO
from privada.tables.private_classes import FAILURE_SHARE, records_for_classes

# The shares of epsilon that are tried, from the least on.
_SHARES = (0.1, 0.15, 0.2, 0.25, 0.3)
# With so many times as many records as the noise's standard deviation, nearly all bounds are found.
_ENOUGH = 16.0
# A share is enough for classes if three of one size would be found.
_CLASSES = 3


@dataclass(frozen=True)
class QueryPlan:
    """The queries that find the classes and the bounds of a table, all with the same noise.

    `classes` is the column of the classes, None if they are known. `bounds` are the columns whose
    bounds are asked for; `defaults` those for which that is hopeless and defaults are taken.

    Example:
        >>> import privada as pv
        >>> from privada.tables import plan_queries
        >>> asked = plan_queries(3000, pv.Budget(1.0, 1e-4), classes="sick", bounds=["age"])
        >>> asked.count, asked.share
        (2, 0.1)
    """

    classes: str | None
    bounds: tuple[str, ...]
    defaults: tuple[str, ...]
    share: float
    noise_multiplier: float
    failure: float

    @property
    def count(self) -> int:
        """How many queries there are."""
        return (self.classes is not None) + bool(self.bounds)

    def tally(self, *, classes: bool | None = None, bounds: bool | None = None) -> Tally:
        """Return what they are charged as, or what one of the two is."""
        asked = Counter[DpEvent]()
        if self.classes is not None if classes is None else classes:
            asked.update([events.gaussian(self.noise_multiplier), events.Failure(self.failure)])
        if bool(self.bounds) if bounds is None else bounds:
            asked.update([events.gaussian(self.noise_multiplier)])
        return asked


def plan_queries(
    records: int,
    budget: Budget,
    *,
    classes: str | None = None,
    bounds: tuple[str, ...] | list[str] = (),
    unit: str = "record",
) -> QueryPlan:
    """Return the queries for a table, with the least share of a budget that is enough for them.

    They cost a tenth of epsilon by themselves where there are many records, and up to three tenths
    where there are few. Bounds for which that is not enough are not asked for, at no cost.

    Args:
        records: how many records the table has, taken as public; how many persons, where queries
            protect all rows of a person.
        budget: what they and the training may cost together.
        classes: the column whose classes are not known.
        bounds: the columns whose bounds are not known.
        unit: the name of what is counted, for errors.

    Returns:
        The queries.

    Guarantee: no data is read. Nothing is charged.

    Edge cases: with too few records to find two classes, a `DataError` says so.

    Example:
        >>> import privada as pv
        >>> from privada.tables import plan_queries
        >>> many, few = (plan_queries(n, pv.Budget(1.0, 1e-4), bounds=["age"]) for n in (9000, 100))
        >>> many.share, few.share, few.bounds
        (0.1, 0.3, ('age',))
    """
    integer("records", records, least=0)
    columns = tuple(bounds)
    asked = (classes is not None) + bool(columns)
    share = sigma = 0.0
    failure = FAILURE_SHARE * budget.delta
    for share in _SHARES if asked else ():
        sigma = calibrated(
            epsilon=share * budget.epsilon,
            delta=(1 - FAILURE_SHARE) * budget.delta,
            sampling_rate=1.0,
            steps=asked,
        )
        found = records >= _ENOUGH * sigma * math.sqrt(len(columns))
        if found and (classes is None or records >= records_for_classes(sigma, _CLASSES, failure)):
            break
    if columns and records < LEAST_RATIO * sigma * math.sqrt(len(columns)):
        known = plan_queries(records, budget, classes=classes, unit=unit)
        return QueryPlan(classes, (), columns, known.share, known.noise_multiplier, failure)
    needed = records_for_classes(sigma, failure=failure) if classes is not None else 0
    if records < needed:
        raise DataError(
            f"Expected at least {needed:,} {unit}s to find the classes of "
            f"{classes!r} within {share:.0%} of {budget}, got {records:,}. Name the classes, or "
            "allow a larger epsilon."
        )
    return QueryPlan(classes, columns, (), share, sigma, failure)
