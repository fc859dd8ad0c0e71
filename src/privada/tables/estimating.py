"""Bounds and classes of private columns, by queries that are charged before any value is read."""

import math
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from privada.accounting import Budget, Ledger, events
from privada.accounting.calibration import noise_multiplier as calibrated
from privada.clipping.histograms import histogram_sum
from privada.core.errors import ArgumentError, DataError
from privada.core.randomness import make_bits
from privada.core.silence import silenced
from privada.core.validation import fraction, positive
from privada.core.values import Release
from privada.noise import GaussianNoise
from privada.tables.cells import MISSING
from privada.tables.schema import Schema
from privada.tables.table import Numbers, Table

# Bins are sign times [2^e, 2^(e+1)) for e from _LEAST on, and one for what is nearer to zero.
_LEAST, _POWERS = -24, 64
BINS = 2 * _POWERS + 1
# The chance, at most, that an empty bin is taken for one with records in it.
_FALSE_ALARM = 1e-5
# A class must stand so many standard deviations out of the noise, and one record more. That a
# class of one record does has a chance of 2e-28, which no delta in use can tell from zero.
_OUTSTANDING = 11.0


def bins_of(values: Numbers) -> NDArray[np.int64]:
    """Return the bin of each number, -1 for NaN; beyond the last bin counts as the last."""
    power = np.frexp(np.abs(values))[1].astype(np.int64) - 1 - _LEAST
    power = np.where(np.isinf(values), _POWERS, power)
    size = np.where((power < 0) | (values == 0), 0, np.clip(power, 0, _POWERS - 1) + 1)
    placed = _POWERS + np.where(values < 0, -size, size)
    return np.where(np.isnan(values), -1, placed)


def _edges(place: int) -> tuple[float, float]:
    """Return the least and the greatest number of a bin; zero for the one in the middle."""
    size = abs(place - _POWERS)
    if size == 0:
        return 0.0, 0.0
    near, far = 2.0 ** (size - 1 + _LEAST), 2.0 ** (size + _LEAST)
    return (near, far) if place > _POWERS else (-far, -near)


def _bounds(counts: Numbers, threshold: float, outside: float) -> tuple[float, float] | None:
    """Return bounds that leave a share of the records outside at each end, None if all is noise."""
    kept = np.where(counts > threshold, counts, 0.0)
    share = np.cumsum(kept) / max(kept.sum(), 1e-300)
    if not kept.any():
        return None
    first = int(np.argmax(share > outside))
    last = int(np.argmax(share >= 1 - outside))
    low, high = _edges(first)[0], _edges(max(first, last))[1]
    return (low, high) if low < high else (0.0, 1.0)


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
    noise = GaussianNoise(make_bits(seed, "bounds"))
    ledger.charge({event: 1}, run=run, purpose="statistics")
    # an exception would tell that a record is there: a cell that is no number counts as missing
    with silenced():
        columns = [table.numbers(name, schema.missing, lenient=True) for name in schema.pending]
        found = [bins_of(column) for column in columns]
    return noise.release(histogram_sum(found, BINS), noise_multiplier, 1)


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
) -> Schema:
    """Return the schema with low and high where it says `bounds = "estimate"`, by a charged query.

    One Gaussian release over all records: for each such column, a histogram over bins that do not
    depend on the data, sign times powers of two. Bins that noise alone could have filled are left
    out, and bounds are the edges of bins such that about a share `outside` of the records is beyond
    each. So bounds are powers of two, and may be up to twice as wide as the values.

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

    Guarantee: the charge is on the ledger, durably, before any value is read; adding or removing a
    record moves the histograms by at most the sensitivity that the noise is scaled to.

    Edge cases: without columns to estimate, nothing is read or charged. What is no number, or is
    missing, is not counted. A table with too few records for so many columns is refused before the
    charge, a column of which no bin stands out after it. A column of zeros gets 0 and 1. Numbers
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
    Private Confidence Intervals, Algorithm 1, for ranges from noisy histograms.
    """
    if not schema.pending:
        return schema
    schema.check(table.names)
    fraction("outside", outside, "A share such as 0.005.")
    sigma, columns = _multiplier(noise_multiplier, budget), len(schema.pending)
    # which noise alone, of a standard deviation of sigma sqrt(columns), does not reach
    threshold = sigma * math.sqrt(2 * columns * math.log(columns * BINS / _FALSE_ALARM))
    if table.size <= threshold:
        raise DataError(
            f"Expected more than {threshold:,.0f} records to find bounds of {columns:,} columns in "
            f"the noise, got {table.size:,}. Give low and high, or estimate with less noise. "
            "Nothing was charged."
        )
    release = release_histograms(
        table, schema, ledger=ledger, noise_multiplier=sigma, run=run, seed=seed
    )
    counts = release.value.numpy().reshape(columns, BINS)
    found = {}
    for name, column in zip(schema.pending, counts, strict=True):
        bounds = _bounds(column, threshold, outside)
        if bounds is None:
            raise DataError(
                f"Expected enough records to find bounds of {name!r} in the noise, got none that "
                "stands out. The query stays charged. Give low and high, or estimate with less "
                "noise."
            )
        found[name] = bounds
    return schema.with_bounds(found)


def least_records(noise_multiplier: float) -> int:
    """Return how many records a class needs to be found, but for noise on that number.

    Example:
        >>> from privada.tables.estimating import least_records
        >>> least_records(10.0)
        111
    """
    return math.ceil(1 + _OUTSTANDING * positive("noise_multiplier", noise_multiplier))


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
) -> tuple[str, ...]:
    """Return the classes that stand out in a private column, sorted, by a charged query.

    One Gaussian release: how many records each class has. Those with fewer than eleven standard
    deviations of the noise, and one record more, are left out, so that a class that few records
    have stays hidden.

    Args:
        table: the private table.
        column: the column that holds the classes.
        ledger: what the query is charged to.
        noise_multiplier: the noise's standard deviation, in records. Give this or `budget`.
        budget: the cost of this query by itself, from which the multiplier is calibrated.
        run: the name under which it is charged, for the purpose "statistics".
        missing: the texts that stand for a missing value, which is not a class.
        seed: reproducible noise for experiments; then nothing is private.

    Guarantee: the charge is on the ledger, durably, before any value is read. Adding or removing a
    record moves one count by 1; if that makes a class appear or vanish, the class had one record,
    and it is told of with a probability below 2e-28, the delta that is not on the ledger.

    Edge cases: of records without a class nothing is told. A table in which no two classes can have
    enough records is refused before the charge. If fewer than two stand out, that is what is
    returned.

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
        raise ArgumentError(f"Expected column to be one of {table.names}, got {column!r}.")
    if table.size < 2 * least_records(sigma):
        raise DataError(
            f"Expected at least {2 * least_records(sigma):,} records to find the classes of "
            f"{column!r} in the noise, got {table.size:,}. Name the classes. Nothing was charged."
        )
    event, noise = events.gaussian(sigma), GaussianNoise(make_bits(seed, "classes"))
    ledger.charge({event: 1}, run=run, purpose="statistics")
    with silenced():
        texts = [text if text not in missing else None for text in table.texts(column)]
    known = sorted({text for text in texts if text is not None})
    places = {text: place for place, text in enumerate(known)}
    found = np.array([places.get(text, -1) for text in texts], dtype=np.int64)
    release = noise.release(histogram_sum([found], len(known)), sigma, 1)
    counts = release.value.numpy()
    return tuple(known[k] for k in np.flatnonzero(counts > 1 + _OUTSTANDING * release.noise_std))


def _multiplier(noise_multiplier: float | None, budget: Budget | None) -> float:
    if (noise_multiplier is None) == (budget is None):
        raise ArgumentError(
            f"Expected one of noise_multiplier and budget, got noise_multiplier="
            f"{noise_multiplier!r}, budget={budget!r}."
        )
    if budget is not None:
        return calibrated(epsilon=budget.epsilon, delta=budget.delta, sampling_rate=1.0, steps=1)
    return positive("noise_multiplier", noise_multiplier)
