"""Bounds of private columns, by one query that is charged before any value is read."""

import math

import numpy as np
from numpy.typing import NDArray

from privada.accounting import Budget, Ledger, events
from privada.accounting.calibration import noise_multiplier as calibrated
from privada.clipping.histograms import histogram_sum
from privada.core.errors import ArgumentError, DataError
from privada.core.randomness import make_bits
from privada.core.validation import fraction, positive
from privada.core.values import Release
from privada.noise import GaussianNoise
from privada.tables.schema import Schema
from privada.tables.table import Numbers, Table

# Bins are sign times [2^e, 2^(e+1)) for e from _LEAST on, and one for what is nearer to zero.
_LEAST, _POWERS = -24, 64
BINS = 2 * _POWERS + 1
# The chance, at most, that an empty bin is taken for one with records in it.
_FALSE_ALARM = 1e-5


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
    found = [bins_of(table.numbers(name, schema.missing, lenient=True)) for name in schema.pending]
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
    missing, is not counted. A column of which no bin stands out is refused, after the charge. A
    column of zeros gets 0 and 1. Numbers beyond 2^40 are clipped there.

    Raises:
        BudgetExceeded: before any value is read.

    Example:
        >>> import numpy as np, privada as pv
        >>> from privada.tables import Classes, Number, Schema, Table, estimate_bounds
        >>> schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(bounds="estimate")})
        >>> table = Table({"age": np.arange(4000) % 50 + 20, "sick": ["no", "yes"] * 2000})
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
    release = release_histograms(
        table,
        schema,
        ledger=ledger,
        noise_multiplier=_multiplier(noise_multiplier, budget),
        run=run,
        seed=seed,
    )
    counts = release.value.numpy().reshape(len(schema.pending), BINS)
    threshold = release.noise_std * math.sqrt(2 * math.log(counts.size / _FALSE_ALARM))
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


def _multiplier(noise_multiplier: float | None, budget: Budget | None) -> float:
    if (noise_multiplier is None) == (budget is None):
        raise ArgumentError(
            f"Expected one of noise_multiplier and budget, got noise_multiplier="
            f"{noise_multiplier!r}, budget={budget!r}."
        )
    if budget is not None:
        return calibrated(epsilon=budget.epsilon, delta=budget.delta, sampling_rate=1.0, steps=1)
    return positive("noise_multiplier", noise_multiplier)
