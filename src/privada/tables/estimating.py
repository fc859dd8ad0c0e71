"""Bounds and classes of private columns, by queries that are charged before any value is read."""

import math
from collections.abc import Collection
from typing import Any

import numpy as np
from scipy.special import ndtri

from privada.accounting import Budget, Ledger, events
from privada.accounting.calibration import noise_multiplier as calibrated
from privada.clipping.histograms import histogram_sum
from privada.core.errors import ArgumentError, DataError
from privada.core.randomness import make_source
from privada.core.silence import silenced
from privada.core.validation import fraction, positive, probability
from privada.core.values import Release
from privada.noise import GaussianNoise
from privada.query.account import Account
from privada.tables.answers import Answers
from privada.tables.cells import MISSING
from privada.tables.ranges import BINS, bins_of, find_ranges
from privada.tables.schema import Schema
from privada.tables.table import Table

# The share of delta that is spent on the chance that a class of one record is told of, and the
# chance itself where no delta is known.
FAILURE_SHARE, _LEAST_FAILURE = 1e-3, 1e-12
# Releases are rounded to a lattice whose spacing is at most this share of the noise.
_SPACING = 1 / 32
# So many standard deviations above that threshold, a class is found but once in a thousand times.
_SURELY = 3.0
# With fewer records than so many standard deviations of the noise, most bounds are not found.
LEAST_RATIO = 3.0


def release_histograms(
    table: Table,
    schema: Schema,
    *,
    ledger: Ledger,
    noise_multiplier: float,
    run: str,
    seed: int | None = None,
) -> Release:
    """Return a release of the histograms of the columns whose bounds are to be estimated.

    Raises:
        BudgetExceeded: before any value is read.
        LedgerError: before any value is read.
    """
    event = events.gaussian(positive("noise_multiplier", noise_multiplier))
    noise = GaussianNoise(make_source(seed, "bounds"))
    receipt = Account(ledger, run=run, purpose="statistics").pay(event)
    # an exception would tell that a record is there: a cell that is no number counts as missing
    with silenced():
        columns = [table.numbers(name, schema.missing, lenient=True) for name in schema.pending]
        found = [bins_of(column) for column in columns]
    return noise.release(histogram_sum(found, BINS), receipt, 1)


def estimate_bounds(
    table: Table,
    schema: Schema,
    *,
    ledger: Ledger,
    noise_multiplier: float | None = None,
    budget: Budget | None = None,
    run: str = "bounds",
    outside: float = 0.005,
    seed: int | None = None,
    answers: Answers | None = None,
) -> Schema:
    """Return the schema with low and high where it says `bounds = "estimate"`, by a charged query.

    One Gaussian release over all records: for each such column, a histogram over bins that do not
    depend on the data, sign times powers of two. The run of bins that best explains a column is
    where its values are; bins beside it count from one to four standard deviations of the noise on,
    those far away from five. Bounds are the edges of bins such that about a share `outside` of the
    records is beyond each. So bounds are powers of two, and may be up to twice as wide as the
    values.

    Args:
        table: the private table.
        schema: what it is.
        ledger: what the query is charged to.
        noise_multiplier: the noise's standard deviation over the sensitivity, which is the square
            root of the number of columns. Give this or `budget`.
        budget: the cost of this query by itself, from which the multiplier is calibrated.
        run: the name under which it is charged, for the purpose "statistics".
        outside: the share of records that may be beyond each bound.
        seed: reproducible noise for experiments; then nothing is private.
        answers: where the answer is kept. If it is there already, nothing is read or charged.

    Guarantee: the charge is on the ledger, durably, before any value is read; adding or removing a
    record moves the histograms by at most the sensitivity that the noise is scaled to.

    Edge cases: without columns to estimate, nothing is read or charged. What is no number, or is
    missing, is not counted. A table with fewer records than three standard deviations of the noise
    is refused before the charge. A column of which nothing stands out of the noise gets the bounds
    of `default_bounds`, and `schema.defaulted` names it. A column of zeros gets 0 and 1. Numbers
    beyond 2^40 are clipped there.

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
    sigma, columns = _multiplier(noise_multiplier, budget), len(schema.pending)
    noise_std = sigma * math.sqrt(columns)
    question = bounds_question(schema, outside)
    answered = answers is not None and answers.has(question)
    if not answered and table.size < LEAST_RATIO * noise_std:
        raise DataError(
            f"Expected at least {LEAST_RATIO * noise_std:,.0f} records to find bounds of "
            f"{columns:,} columns in the noise, got {table.size:,}. Give low and high, estimate "
            f"with less noise, or take default_bounds. {_uncharged(ledger, run)}"
        )

    def pay_and_look() -> dict[str, tuple[float, float] | None]:
        release = release_histograms(
            table, schema, ledger=ledger, noise_multiplier=sigma, run=run, seed=seed
        )
        counts = release.value.numpy().reshape(columns, BINS)
        found = find_ranges(counts, noise_std, table.size, outside)
        return dict(zip(schema.pending, found, strict=True))

    if answers is None:
        return schema.with_bounds(pay_and_look())
    unknown = dict.fromkeys(schema.pending)
    return schema.with_bounds(
        answers.ask(question, pay_and_look, ledger=ledger, run=run, default=unknown)
    )


def bounds_question(schema: Schema, outside: float = 0.005) -> dict[str, Any]:
    """Return what is asked when bounds are estimated, as `Answers` know it."""
    return {"what": "bounds", "columns": list(schema.pending), "outside": outside}


def default_bounds(schema: Schema) -> Schema:
    """Return the schema with default bounds where it says `bounds = "estimate"`, for nothing.

    They are 2^20 either way on the log scale: too wide for most columns, so that little is left of
    their differences, but hardly any value is clipped. `schema.defaulted` names the columns.

    Guarantee: nothing is read.

    Example:
        >>> from privada.tables import Classes, Number, Schema, default_bounds
        >>> schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(bounds="estimate")})
        >>> default_bounds(schema).columns["age"]
        Number(low=-1048576.0, high=1048576.0, scale='log', missing='middle', bounds='default')
    """
    return schema.with_bounds(dict.fromkeys(schema.pending))


def _uncharged(ledger: Ledger, run: str) -> str:
    """Say that this was not charged, and what the run was charged for before."""
    before = sum(charge.count for charge in ledger.charges() if charge.run == run)
    if before == 0:
        return "Nothing was charged."
    return f"This was not charged; what run {run!r} was charged before stays charged."


def outstanding(failure: float) -> float:
    """Return how far out of the noise, in standard deviations, a class stands that is told of.

    One record more or less can make one class appear, or two where it is replaced. The noise on the
    count of either passes this with a probability of half the `failure`.
    """
    return -float(ndtri(probability("failure", failure) / 2)) + _SPACING


def least_records(noise_multiplier: float, failure: float = _LEAST_FAILURE) -> int:
    """Return how many records a class needs to be found, but for noise on that number.

    Example:
        >>> from privada.tables.estimating import least_records
        >>> least_records(10.0), least_records(10.0, failure=1e-9)
        (73, 63)
    """
    return math.ceil(1 + outstanding(failure) * positive("noise_multiplier", noise_multiplier))


def estimate_classes(
    table: Table,
    column: str,
    *,
    ledger: Ledger,
    noise_multiplier: float | None = None,
    budget: Budget | None = None,
    run: str = "classes",
    missing: Collection[str] = MISSING,
    seed: int | None = None,
    answers: Answers | None = None,
    failure: float | None = None,
) -> tuple[str, ...]:
    """Return the classes that stand out in a private column, sorted, by a charged query.

    One Gaussian release: how many records each class has. Those that do not stand far enough out of
    the noise are left out, so that a class that few records have stays hidden.

    Args:
        table: the private table.
        column: the column that holds the classes.
        ledger: what the query is charged to.
        noise_multiplier: the noise's standard deviation, in records. Give this or `budget`.
        budget: the cost of this query by itself, from which the multiplier is calibrated.
        run: the name under which it is charged, for the purpose "statistics".
        missing: the texts that stand for a missing value, which is not a class.
        seed: reproducible noise for experiments; then nothing is private.
        answers: where the answer is kept. If it is there already, nothing is read or charged.
        failure: the probability with which a class of one record may be told of, which is charged
            too; by default a thousandth of the budget's delta, or of the ledger's, else 1e-12.

    Guarantee: the charges are on the ledger, durably, before any value is read. Adding or removing
    a record moves one count by 1; if that makes a class appear or vanish, the class had one record,
    and it is told of with at most the probability that is charged as `events.Failure`.

    Edge cases: of records without a class nothing is told. A table in which two classes of one size
    would not stand out, but for one time in a thousand, is refused before the charge. If fewer than
    two stand out, that is what is returned.

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
    sigma = _multiplier(noise_multiplier, budget)
    if column not in table.names:
        known = f"one of {table.names}" if table.has_header else "a key of the records"
        raise ArgumentError(f"Expected column to be {known}, got {column!r}.")
    question = classes_question(column, missing)
    answered = answers is not None and answers.has(question)
    failure = _failure(budget, ledger) if failure is None else probability("failure", failure)
    needed = records_for_classes(sigma, failure=failure)
    if not answered and table.size < needed:
        raise DataError(
            f"Expected at least {needed:,} records to find the classes of {column!r} in the noise, "
            f"got {table.size:,}. Name the classes. {_uncharged(ledger, run)}"
        )

    def pay_and_look() -> list[str]:
        event, noise = events.gaussian(sigma), GaussianNoise(make_source(seed, "classes"))
        account = Account(ledger, run=run, purpose="statistics")
        receipt = account.pay(event, events.Failure(failure))
        with silenced():
            texts = [text if text not in missing else None for text in table.texts(column)]
        known = sorted({text for text in texts if text is not None})
        places = {text: place for place, text in enumerate(known)}
        found = np.array([places.get(text, -1) for text in texts], dtype=np.int64)
        release = noise.release(histogram_sum([found], len(known)), receipt, 1)
        shown = release.value.numpy() > 1 + outstanding(failure) * release.noise_std
        return [known[place] for place in np.flatnonzero(shown)]

    if answers is None:
        return tuple(pay_and_look())
    return tuple(answers.ask(question, pay_and_look, ledger=ledger, run=run))


def classes_question(column: str, missing: Collection[str] = MISSING) -> dict[str, Any]:
    """Return what is asked when classes are estimated, as `Answers` know it."""
    return {"what": "classes", "column": column, "missing": sorted(missing)}


def records_for_classes(
    noise_multiplier: float, classes: float = 2, failure: float = _LEAST_FAILURE
) -> int:
    """Return how many records a table needs so that classes of one size are found.

    Example:
        >>> from privada.tables.estimating import records_for_classes
        >>> records_for_classes(10.0), records_for_classes(10.0, classes=3)
        (206, 309)
    """
    surely = least_records(noise_multiplier, failure) + _SURELY * noise_multiplier
    return math.ceil(classes * surely)


def _failure(budget: Budget | None, ledger: Ledger) -> float:
    known = budget or ledger.budget
    return _LEAST_FAILURE if known is None else FAILURE_SHARE * known.delta


def _multiplier(noise_multiplier: float | None, budget: Budget | None) -> float:
    if (noise_multiplier is None) == (budget is None):
        raise ArgumentError(
            f"Expected one of noise_multiplier and budget, got noise_multiplier="
            f"{noise_multiplier!r}, budget={budget!r}."
        )
    if budget is not None:
        return calibrated(epsilon=budget.epsilon, delta=budget.delta, sampling_rate=1.0, steps=1)
    return positive("noise_multiplier", noise_multiplier)
