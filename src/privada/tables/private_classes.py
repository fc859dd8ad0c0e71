"""Classes of a private column, by a query that is charged before any value is read."""

import math
from collections.abc import Collection, Iterator
from typing import Any

from privada.accounting import Budget, Ledger
from privada.core.errors import ArgumentError, DataError
from privada.core.validation import positive, probability
from privada.query.classes import Coded, release_classes, threshold
from privada.query.histograms import HistogramQuery, statistics_units, unit_name
from privada.tables.answer_cache import AnswerCache
from privada.tables.cells import MISSING, canonical
from privada.tables.private_bounds import multiplier_of, uncharged
from privada.tables.spooling import SpooledTable, parts_of
from privada.tables.table import Table

# The share of delta that is spent on the chance that a class of one record is revealed, and the
# chance itself where no delta is known.
FAILURE_SHARE, _LEAST_FAILURE = 1e-3, 1e-12
# So many standard deviations above that threshold, a class is found but once in a thousand times.
_SURELY = 3.0


def least_records(noise_multiplier: float, failure: float = _LEAST_FAILURE) -> int:
    """Return how many records a class needs to be found, but for noise on that number.

    Example:
        >>> from privada.tables.private_classes import least_records
        >>> least_records(10.0), least_records(10.0, failure=1e-9)
        (73, 63)
    """
    return math.ceil(1 + threshold(failure) * positive("noise_multiplier", noise_multiplier))


def estimate_classes(
    table: Table | SpooledTable,
    column: str,
    *,
    ledger: Ledger,
    noise_multiplier: float | None = None,
    budget: Budget | None = None,
    run: str = "classes",
    missing: Collection[str] = MISSING,
    seed: int | None = None,
    answers: AnswerCache | None = None,
    failure: float | None = None,
    groups: Any = None,
    unit: str = "person",
) -> tuple[str, ...]:
    """Return the classes that are frequent enough in a private column, sorted, by a charged query.

    One Gaussian release: how many records each class has. Those that do not stand far enough out of
    the noise are left out, so that a class that few records have stays hidden.

    Args:
        table: the private table, in memory or in parts.
        column: the column that holds the classes.
        ledger: what the query is charged to.
        noise_multiplier: the noise's standard deviation, in records. Give this or `budget`.
        budget: the cost of this query by itself, from which the multiplier is calibrated.
        run: the name under which it is charged, for the purpose "statistics".
        missing: the texts that stand for a missing value, which is not a class.
        seed: reproducible noise for experiments; then nothing is private.
        answers: where the answer is kept. If it is there already, nothing is read or charged.
        failure: the probability with which a class of one record may be revealed, which is charged
            too; by default a thousandth of the budget's delta, or of the ledger's, else 1e-12.
        groups: one identifier for each row, where a person may have several: the query then counts
            one row of each person, chosen at random, and protects all rows of a person.
        unit: the name of what `groups` identifies.

    Returns:
        The classes, as texts.

    Guarantee: the charges are on the ledger, durably, before any value is read. Adding or removing
    a record moves one count by 1; if that makes a class appear or vanish, the class had one record,
    and it is revealed with at most the probability that is charged as `events.Failure`. With
    `groups`, the same holds for a person with any number of rows and classes, and the ledger is
    charged for all rows of a person.

    Edge cases: nothing is revealed of records without a class. A table in which two classes of one
    size would not stand out, but for one time in a thousand, is refused before the charge. If fewer
    than two stand out, that is what is returned. With `groups`, persons are counted where this says
    records, their number is treated as public, and a ledger that holds charges for single rows is
    refused.

    Raises:
        BudgetExceeded: before any value is read.

    Example:
        >>> import privada as pv
        >>> from privada.tables import Table, estimate_classes
        >>> table = Table({"sick": ["no", "yes"] * 2000 + ["Smith, at home"]})
        >>> ledger = pv.Ledger(None, pv.Budget(1.0, 1e-6), dataset="patients")
        >>> estimate_classes(table, "sick", ledger=ledger, noise_multiplier=20.0)
        ('no', 'yes')

    Reference: Korolova et al. (2009), Releasing Search Queries and Clicks Privately, Algorithm 1,
    for noisy counts above a threshold.
    """
    sigma = multiplier_of(noise_multiplier, budget)
    if column not in table.names:
        known = f"one of {table.names}" if table.has_header else "a key of the records"
        raise ArgumentError(f"Expected column to be {known}, got {column!r}.")
    units = statistics_units(table.size, groups)
    query = HistogramQuery(units, ledger, sigma, run=run, stream="classes", unit=unit, seed=seed)
    question = classes_question(column, missing, unit=unit if units.grouped else None)
    answered = answers is not None and answers.has(question)
    chance = _failure(budget, ledger) if failure is None else probability("failure", failure)
    needed = records_for_classes(sigma, failure=chance)
    if not answered and units.size < needed:
        raise DataError(
            f"Expected at least {needed:,} {query.counted} to find the classes of {column!r} in "
            f"the noise, got {units.size:,}. Name the classes. {uncharged(ledger, run)}"
        )

    def read() -> Iterator[Coded]:
        for part in parts_of(table, [column]):
            places, texts = part.coded(column)
            yield (
                places,
                [None if text is None or text in missing else canonical(text) for text in texts],
            )

    def pay_and_look() -> list[str]:
        return release_classes(query, read, chance)

    if answers is None:
        return tuple(pay_and_look())
    return tuple(answers.ask(question, pay_and_look, ledger=ledger, run=run))


def classes_question(
    column: str, missing: Collection[str] = MISSING, unit: str | None = None
) -> dict[str, Any]:
    """Return what is asked when classes are estimated, as `AnswerCache` know it.

    `unit` is the name of what has several rows, None where each row is protected.
    """
    asked = {"what": "classes", "column": column, "missing": sorted(missing)}
    return asked if unit is None else {**asked, "unit": unit_name(unit)}


def records_for_classes(
    noise_multiplier: float, classes: float = 2, failure: float = _LEAST_FAILURE
) -> int:
    """Return how many records a table needs so that classes of one size are found.

    Example:
        >>> from privada.tables.private_classes import records_for_classes
        >>> records_for_classes(10.0), records_for_classes(10.0, classes=3)
        (206, 309)
    """
    surely = least_records(noise_multiplier, failure) + _SURELY * noise_multiplier
    return math.ceil(classes * surely)


def _failure(budget: Budget | None, ledger: Ledger) -> float:
    known = budget or ledger.budget
    return _LEAST_FAILURE if known is None else FAILURE_SHARE * known.delta
