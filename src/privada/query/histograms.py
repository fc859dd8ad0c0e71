"""The histogram query: pay, choose at most one row of each unit, count, add noise, release."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TypeVar

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from privada.accounting import Ledger, events
from privada.accounting.ledger import ROW, all_rows_of
from privada.clipping.histograms import histogram_sum
from privada.core.errors import ArgumentError
from privada.core.randomness import make_source
from privada.core.silence import silenced
from privada.core.validation import positive, printable_text
from privada.core.values import ClippedSum, Release
from privada.data import Indices, Units, units_of
from privada.noise import GaussianNoise
from privada.query.account import Account

Bins = NDArray[np.int64]
# Returns, for the rows that it is given, the bin of each row in each histogram, some rows at a time
# in whatever order, and the number of bins of a histogram. It is called after the charge.
BinRows = Callable[[Indices], tuple[Iterable[Sequence[Bins]], int]]
_Block = TypeVar("_Block")


@dataclass(frozen=True)
class HistogramQuery:
    """What a histogram query is charged to and what it protects.

    Args:
        units: which rows belong to one unit, at most one row of each being looked at.
        ledger: what the query is charged to.
        noise_multiplier: the standard deviation of the noise over the sensitivity.
        run: the name under which it is charged, for the purpose "statistics".
        stream: the name of the query's random numbers, for seeds.
        unit: the name of a unit that may have several rows.
        seed: reproducible noise for experiments; then nothing is private.

    Guarantee: adding or removing a unit, with all its rows, moves the histograms by at most the
    square root of their number. The charge is durable before a row is chosen or read.

    Example:
        >>> import numpy as np, privada as pv
        >>> from privada.query.histograms import HistogramQuery, statistics_units
        >>> units = statistics_units(4, groups=["ann", "ann", "ann", "bob"])
        >>> ledger = pv.Ledger(None)
        >>> query = HistogramQuery(units, ledger, noise_multiplier=0.1, run="first", stream="ages")
        >>> found = query.release(lambda rows: ([[np.zeros(len(rows), np.int64)]], 1))
        >>> round(float(found.value[0])), ledger.unit  # two persons
        (2, 'person (all their rows)')
    """

    units: Units
    ledger: Ledger
    noise_multiplier: float
    run: str
    stream: str
    unit: str = "person"
    seed: int | None = None

    def __post_init__(self) -> None:
        positive("noise_multiplier", self.noise_multiplier)
        if self.units.rows_per_unit != 1:
            raise ArgumentError(
                "Expected units of which one row is looked at, got rows_per_unit="
                f"{self.units.rows_per_unit}. Make them with statistics_units."
            )

    @property
    def charged_unit(self) -> str:
        """What one unit of the charged event is, as the ledger knows it."""
        return all_rows_of(unit_name(self.unit)) if self.units.grouped else ROW

    @property
    def counted(self) -> str:
        """What is counted, in words."""
        return f"{unit_name(self.unit)}s" if self.units.grouped else "records"

    def release(self, bins: BinRows, *beside: DpEvent) -> Release:
        """Pay, look at one row of each unit, and return the histograms with noise.

        Args:
            bins: what bin each of some rows is in. A row's bins follow from that row alone.
            beside: what else is charged, such as a probability of failing.

        Raises:
            BudgetExceeded: before any row is read.
            LedgerError: before any row is read.
        """
        noise = GaussianNoise(make_source(self.seed, self.stream))
        choice = make_source(self.seed, f"{self.stream}: rows")
        account = Account(self.ledger, run=self.run, purpose="statistics", unit=self.charged_unit)
        receipt = account.pay(events.gaussian(self.noise_multiplier), *beside)
        rows, _ = self.units.rows(np.arange(self.units.size), choice)
        with silenced():  # a warning would tell that a record is there
            blocks, count = bins(rows)
            total = _sum_over(blocks, count, len(rows))
        return noise.release(total, receipt, 1)


def _sum_over(blocks: Iterable[Sequence[Bins]], count: int, rows: int) -> ClippedSum:
    """Return the histograms of some rows, of which there is one of each unit."""
    counted: list[int] = []

    def sums() -> Iterator[ClippedSum]:
        for columns in blocks:
            counted.append(len(columns[0]))
            if any(len(column) != counted[-1] for column in columns):
                raise ArgumentError("Expected one bin in each histogram for a row, got others.")
            yield histogram_sum(columns, count)

    total = reduce(add, sums())
    if sum(counted) != rows:
        raise ArgumentError("Expected one bin for each row that was chosen, got others.")
    return total


def chosen_of_blocks(
    rows: Indices, blocks: Iterable[tuple[int, _Block]]
) -> Iterator[tuple[Indices, _Block]]:
    """Yield each block of rows with the places in it of those rows that were chosen.

    Args:
        rows: the numbers of the chosen rows.
        blocks: how many rows each block has, and the block. They follow each other.

    Example:
        >>> import numpy as np
        >>> from privada.query.histograms import chosen_of_blocks
        >>> blocks, rows = [(2, "ab"), (0, ""), (3, "cde")], np.array([4, 0])
        >>> [(places.tolist(), block) for places, block in chosen_of_blocks(rows, blocks)]
        [([0], 'ab'), ([], ''), ([2], 'cde')]
    """
    ordered, done = np.sort(rows), 0
    for size, block in blocks:
        first, last = np.searchsorted(ordered, [done, done + size])
        yield ordered[first:last] - done, block
        done += size


def unit_name(unit: str) -> str:
    """Return the name of a unit with several rows: a record has one, so its name is not used."""
    return "person" if printable_text("unit", unit) == "record" else unit


def statistics_units(rows: int, groups: object = None) -> Units:
    """Return the units of a query that looks at one row of each, chosen afresh at random.

    Raises:
        ArgumentError: there is not one identifier for each row.

    Example:
        >>> from privada.query.histograms import statistics_units
        >>> statistics_units(3).size, statistics_units(3, groups=["ann", "ann", "bob"]).size
        (3, 2)
    """
    return units_of(rows, groups, None if groups is None else 1)
