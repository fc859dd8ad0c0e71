"""How a ledger counts its charges: as a plan that was declared, or by a filter.

To add a way of counting, write a class with the members of `Counting`, let `Ledger` make it, and
let the suite in tests/contracts/test_countings.py run it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dp_accounting import DpEvent

from privada.accounting.budget import Budget
from privada.accounting.events import Tally
from privada.accounting.ledger.storage import ReadTransaction, WriteTransaction

PLANNED, ADAPTIVE = "planned", "adaptive"
KINDS = (PLANNED, ADAPTIVE)

# Under which labels a ledger keeps what it needs itself: the unit where it is not a row, the orders
# of filters, and what was declared.
UNIT_LABEL = "the unit of privacy"
ORDERS_LABEL, RUN_ORDERS_LABEL = "the filter's orders", "the orders of run {}"
DECLARATION_LABEL = "declaration {}"

# What a caller expects to charge from here on, or a function that returns it.
Planned = Mapping[DpEvent, int] | Callable[[], Mapping[DpEvent, int]] | None


@dataclass(frozen=True)
class Charged:
    """What a ledger holds: how often each run was charged for each event, 0 if all was returned.

    `totals` is the sum over the runs.
    """

    totals: Tally
    runs: dict[str, Tally]

    def of(self, run: str) -> Tally:
        """Return what a run was charged."""
        return self.runs.get(run, Tally())

    def add(self, run: str, changes: Mapping[DpEvent, int]) -> None:
        """Add to what a run was charged; negative numbers are given back."""
        own = self.runs.setdefault(run, Tally())
        for event, count in changes.items():
            self.totals[event] += count
            own[event] += count


class Counting(Protocol):
    """What a ledger's charges cost together, and which further ones are allowed.

    Guarantee, which tests/contracts/test_countings.py holds each to: as long as `admit` has raised
    for no charge that was then made, `epsilon` at the budget's delta is at most the budget's, and
    it is an upper bound on the epsilon of everything charged, for the choices that the kind
    allows. It never falls but by what is given back.
    """

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        ...

    @property
    def accountant(self) -> str:
        """The name of what computes the epsilon."""
        ...

    def describe(self) -> str:
        """Return in words what may be chosen, and what the epsilon is of."""
        ...

    def refresh(self, transaction: ReadTransaction, charged: Charged) -> None:
        """Take what is stored, which others may have changed."""
        ...

    def admit(self, transaction: WriteTransaction, run: str, added: Tally, plan: Planned) -> None:
        """Raise unless a charge is allowed; it is added next. May publish what is to be kept.

        Raises:
            BudgetExceeded: it does not fit.
            LedgerError: it is not one that the kind allows.
        """
        ...

    def add(self, run: str, changes: Mapping[DpEvent, int]) -> None:
        """Count a charge that was admitted, or what was given back."""
        ...

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of everything on the ledger."""
        ...

    def run_epsilon(self, run: str, delta: float) -> float:
        """Return the epsilon of one run alone."""
        ...

    def price(self, tally: Mapping[DpEvent, int], delta: float) -> float:
        """Return the epsilon of a tally, counted in this way."""
        ...

    def cost(self, run: str, added: Tally, delta: float) -> float:
        """Return the epsilon of everything if a run were charged that much more.

        Infinity where the kind does not allow it.
        """
        ...


def exceeded(budget: Budget, whose: str, spent: str, after: str) -> str:
    """Return the words for a charge that does not fit a budget."""
    return (
        f"Expected the charge to fit {whose} (epsilon={budget.epsilon:g} at "
        f"delta={budget.delta:g}), but {spent} is spent and the charge would make it {after}. "
        "Take fewer steps, more noise or a smaller batch. Nothing was charged and no data was read."
    )


def within(budget: Budget | None, epsilon: float, delta: float) -> float:
    """Return the epsilon of what was found to fit a budget: no more than that, at its delta.

    It was found by some upper bound. Another one may come from another grid and be a hair looser;
    the smaller of two upper bounds is one.
    """
    return epsilon if budget is None or delta != budget.delta else min(epsilon, budget.epsilon)
