"""Bounds of private columns, by a query that is charged before any value is read."""

import math
from collections.abc import Iterator
from typing import Any

from privada.accounting import Budget, Ledger
from privada.accounting.calibration import noise_multiplier as calibrated
from privada.core.errors import ArgumentError, DataError
from privada.core.validation import fraction, positive
from privada.query.bounds import BINS, Numbers, release_bounds
from privada.query.histograms import HistogramQuery, statistics_units, unit_name
from privada.tables.answer_cache import AnswerCache
from privada.tables.persons import person_numbers
from privada.tables.ranges import find_ranges
from privada.tables.schema import Schema
from privada.tables.spooling import SpooledTable, parts_of
from privada.tables.table import Table

# With fewer records than so many standard deviations of the noise, most bounds are not found.
LEAST_RATIO = 3.0


def estimate_bounds(
    table: Table | SpooledTable,
    schema: Schema,
    *,
    ledger: Ledger,
    noise_multiplier: float | None = None,
    budget: Budget | None = None,
    run: str = "bounds",
    outside: float = 0.005,
    seed: int | None = None,
    answers: AnswerCache | None = None,
    groups: Any = None,
    unit: str = "person",
) -> Schema:
    """Return the schema with low and high where it says `bounds = "estimate"`, by a charged query.

    One Gaussian release over all records: for each such column, a histogram over bins that do not
    depend on the data, sign times powers of two. The run of bins that best explains a column is
    where its values are; bins beside it count from one to four standard deviations of the noise on,
    those far away from five. Bounds are the edges of bins such that about a share `outside` of the
    records is beyond each. So bounds are powers of two, and may be up to twice as wide as the
    values.

    Args:
        table: the private table, in memory or in parts.
        schema: what it is.
        ledger: what the query is charged to.
        noise_multiplier: the noise's standard deviation over the sensitivity, which is the square
            root of the number of columns. Give this or `budget`.
        budget: the cost of this query by itself, from which the multiplier is calibrated.
        run: the name under which it is charged, for the purpose "statistics".
        outside: the share of records that may be beyond each bound.
        seed: reproducible noise for experiments; then nothing is private.
        answers: where the answer is kept. If it is there already, nothing is read or charged.
        groups: one identifier for each row, where a person may have several: the query then counts
            one row of each person, chosen at random, and protects all rows of a person. By
            default those of the schema's `Person` column, if it has one.
        unit: the name of what `groups` identifies.

    Returns:
        The schema with bounds.

    Guarantee: the charge is on the ledger, durably, before any value is read; adding or removing a
    record moves the histograms by at most the sensitivity that the noise is scaled to. With
    `groups`, so does adding or removing a person with any number of rows, and the ledger is charged
    for all rows of a person.

    Edge cases: without columns to estimate, nothing is read or charged. What is no number, or is
    missing, is not counted. A table with fewer records than three standard deviations of the noise
    is refused before the charge. A column of which nothing stands out of the noise gets the bounds
    of `default_bounds`, and `schema.defaulted` names it. A column of zeros gets 0 and 1. Numbers
    beyond 2^40 are clipped there. With `groups`, persons are counted where this says records, their
    number is treated as public, and a ledger that holds charges for single rows is refused.

    Raises:
        BudgetExceeded: before any value is read.

    Example:
        >>> import numpy as np, privada as pv
        >>> from privada.tables import Classes, Number, Schema, Table, estimate_bounds
        >>> schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(bounds="estimate")})
        >>> table = Table({"age": np.arange(40_000) % 50 + 20, "sick": ["no", "yes"] * 20_000})
        >>> ledger = pv.Ledger(None, pv.Budget(1.0, 1e-6), dataset="patients")
        >>> found = estimate_bounds(table, schema, ledger=ledger, noise_multiplier=20.0)
        >>> found.columns["age"].low, found.columns["age"].high
        (16.0, 128.0)

    Reference: Dwork and Lei (2009), Differential Privacy and Robust Statistics, Section 3, for
    bins that do not depend on the data; Karwa and Vadhan (2018), Finite Sample Differentially
    Private Confidence Intervals, Algorithm 1, for ranges from noisy histograms; docs/decisions/0013
    for how bins are looked at together.
    """
    if not schema.pending:
        return schema
    schema.check(table.names, has_header=table.has_header)
    fraction("outside", outside, "A share such as 0.005.")
    sigma, columns = multiplier_of(noise_multiplier, budget), len(schema.pending)
    if groups is None and schema.person is not None:
        groups = person_numbers(table, schema.person, schema.missing)
    units = statistics_units(table.size, groups)
    query = HistogramQuery(units, ledger, sigma, run=run, stream="bounds", unit=unit, seed=seed)
    question = bounds_question(schema, outside, unit=unit if units.grouped else None)
    if answers is None or not answers.has(question):
        _refuse_few(query, columns)

    def pay_and_look() -> dict[str, tuple[float, float] | None]:
        release = release_bounds(query, lambda: _lenient(table, schema))
        counts = release.value.numpy().reshape(columns, BINS)
        found = find_ranges(counts, release.noise_std, units.size, outside)
        return dict(zip(schema.pending, found, strict=True))

    if answers is None:
        return schema.with_bounds(pay_and_look())
    unknown = dict.fromkeys(schema.pending)
    return schema.with_bounds(
        answers.ask(question, pay_and_look, ledger=ledger, run=run, default=unknown)
    )


def _lenient(table: Table | SpooledTable, schema: Schema) -> Iterator[list[Numbers]]:
    """Yield the columns to estimate; a cell that is no number is missing: an error would tell."""
    for part in parts_of(table, schema.pending):
        yield [schema.numbers(part, name, lenient=True) for name in schema.pending]


def _refuse_few(query: HistogramQuery, columns: int) -> None:
    needed = LEAST_RATIO * query.noise_multiplier * math.sqrt(columns)
    if query.units.size < needed:
        raise DataError(
            f"Expected at least {needed:,.0f} {query.counted} to find bounds of {columns:,} "
            f"columns in the noise, got {query.units.size:,}. Give low and high, estimate with "
            f"less noise, or take default_bounds. {uncharged(query.ledger, query.run)}"
        )


def bounds_question(
    schema: Schema, outside: float = 0.005, unit: str | None = None
) -> dict[str, Any]:
    """Return what is asked when bounds are estimated, as `AnswerCache` know it.

    `unit` is the name of what has several rows, None where each row is protected.
    """
    asked = {"what": "bounds", "columns": list(schema.pending), "outside": outside}
    return asked if unit is None else {**asked, "unit": unit_name(unit)}


def default_bounds(schema: Schema) -> Schema:
    """Return the schema with default bounds where it says `bounds = "estimate"`, for nothing.

    They are 2^20 either way on the log scale: too wide for most columns, so that little is left of
    their differences, but hardly any value is clipped. `schema.defaulted` names the columns.

    Guarantee: nothing is read.

    Example:
        >>> from privada.tables import Classes, Number, Schema, default_bounds
        >>> schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(bounds="estimate")})
        >>> found = default_bounds(schema).columns["age"]
        >>> found.low, found.high, found.scale, found.bounds
        (-1048576.0, 1048576.0, 'log', 'default')
    """
    return schema.with_bounds(dict.fromkeys(schema.pending))


def uncharged(ledger: Ledger, run: str) -> str:
    """Say that this was not charged, and what the run was charged for before."""
    before = sum(charge.count for charge in ledger.charges() if charge.run == run)
    if before == 0:
        return "Nothing was charged."
    return f"This was not charged; what run {run!r} was charged before stays charged."


def multiplier_of(noise_multiplier: float | None, budget: Budget | None) -> float:
    """Return the noise multiplier that is given, or the one that a budget pays for."""
    if (noise_multiplier is None) == (budget is None):
        raise ArgumentError(
            f"Expected one of noise_multiplier and budget, got noise_multiplier="
            f"{noise_multiplier!r}, budget={budget!r}."
        )
    if budget is not None:
        return calibrated(epsilon=budget.epsilon, delta=budget.delta, sampling_rate=1.0, steps=1)
    return positive("noise_multiplier", noise_multiplier)
