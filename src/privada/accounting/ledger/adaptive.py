"""An adaptive ledger: whatever is charged next may depend on all releases before it."""

from collections import Counter
from collections.abc import Mapping

from dp_accounting import DpEvent

from privada.accounting.budget import Budget
from privada.accounting.events import Tally
from privada.accounting.filters import FILTER, FilterTotals, RenyiFilter
from privada.accounting.ledger.certification import whole_plan
from privada.accounting.ledger.counting import (
    ADAPTIVE,
    ORDERS_LABEL,
    Charged,
    Planned,
    exceeded,
)
from privada.accounting.ledger.storage import ReadTransaction, WriteTransaction
from privada.core import formatting
from privada.core.errors import ArgumentError, BudgetExceeded, LedgerError


class FilteredTally:
    """A tally that a filter holds to a budget.

    Args:
        filter: the orders and their weights.
        budget: what everything may cost, None for no limit.
        whose: the budget in words, for errors.
    """

    def __init__(self, filter: RenyiFilter, budget: Budget | None, whose: str) -> None:
        self._budget, self._whose = budget, whose
        self._counted = FilterTotals(filter)

    @property
    def budget(self) -> Budget | None:
        """What everything may cost."""
        return self._budget

    @property
    def filter(self) -> RenyiFilter:
        """The orders and their weights."""
        return self._counted.filter

    def add(self, changes: Mapping[DpEvent, int]) -> None:
        """Count changes."""
        self._counted.add(changes)

    def check(self, added: Tally) -> None:
        """Raise unless the totals with `added` have one relation and fit the budget."""
        if self._budget is None:
            self._counted.check(added)
            return
        after = self.epsilon_with(added, self._budget.delta)
        if not after <= self._budget.epsilon:
            spent = formatting.epsilon(self._counted.epsilon(self._budget.delta))
            raise BudgetExceeded(
                exceeded(self._budget, self._whose, spent, formatting.epsilon(after))
            )

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of the totals."""
        return self._counted.epsilon(delta)

    def epsilon_with(self, added: Tally, delta: float) -> float:
        """Return the epsilon of the totals with `added`."""
        return self._counted.epsilon_with(added, delta)


def stored_filter(text: str, name: str) -> RenyiFilter:
    """Return the filter that a ledger keeps; raise a LedgerError if its text is damaged."""
    try:
        return RenyiFilter.decode(text)
    except ArgumentError as error:
        raise LedgerError(
            f"Cannot use the ledger {name!r}: the orders of a filter that it keeps are damaged, or "
            "of a newer version. Restore it from a copy, or upgrade Privada."
        ) from error


class AdaptiveCounting:
    """Counts what was charged, by a Renyi filter.

    The filter's orders are fixed by the first charge, from the budget and what it is planned to be
    the start of: before anything was looked at.

    Args:
        budget: that of the ledger, None for no limit.
        name: that of the ledger, for errors.
        looked: whether something may have been looked at already: then the budget alone fixes the
            orders.

    Guarantee: that of `RenyiFilter`. A charge may be of any kind, and may depend on all releases
    before it, in whichever run; what was reserved and not used is given back.
    """

    kind, accountant = ADAPTIVE, FILTER

    def __init__(self, budget: Budget | None, name: str, *, looked: bool = False) -> None:
        self._budget, self._name, self._looked = budget, name, looked
        self._text: str | None = None
        self._charged = Charged(Counter(), {})
        self._use(RenyiFilter.for_budget(budget))

    def _use(self, filter: RenyiFilter) -> None:
        self._all = FilteredTally(filter, self._budget, f"the budget of ledger {self._name!r}")

    def describe(self) -> str:
        """Return what may be chosen."""
        return (
            "adaptive: each charge may be chosen in the light of earlier releases; counted by a "
            "Renyi filter"
        )

    def refresh(self, transaction: ReadTransaction, charged: Charged) -> None:
        """Read the filter's orders, and count anew: nothing is left of a charge that failed."""
        self._charged = charged
        text = None if self._looked else transaction.published(ORDERS_LABEL)
        filter = self._all.filter
        if text != self._text:
            default = RenyiFilter.for_budget(self._budget)
            filter = default if text is None else stored_filter(text, self._name)
        self._use(filter)
        self._all.add(charged.totals)
        self._text = text

    def admit(self, transaction: WriteTransaction, run: str, added: Tally, plan: Planned) -> None:
        """Raise unless the charge fits the budget; the first one fixes the filter's orders."""
        if self._text is None and not self._looked:
            held = +self._charged.totals  # by what did not say its orders
            typical = None if held else whole_plan(added, plan)
            filter = RenyiFilter.for_budget(self._budget, typical)
            self._text = transaction.publish(ORDERS_LABEL, filter.encode())
            self._use(stored_filter(self._text, self._name))
            self._all.add(held)
        self._all.check(added)

    def add(self, run: str, changes: Mapping[DpEvent, int]) -> None:
        """Count a charge, or what was given back."""
        self._all.add(changes)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of what was charged, valid at any time."""
        return self._all.epsilon(delta)

    def run_epsilon(self, run: str, delta: float) -> float:
        """Return the epsilon of what a run was charged, valid at any time."""
        return self.price(+self._charged.of(run), delta)

    def price(self, tally: Mapping[DpEvent, int], delta: float) -> float:
        """Return the epsilon by the ledger's filter."""
        return self._all.filter.epsilon(tally, delta)

    def cost(self, run: str, added: Tally, delta: float) -> float:
        """Return the epsilon of what was charged with `added`."""
        first = self._text is None and not self._looked and not +self._charged.totals
        if first:  # it would fix the filter's orders
            return RenyiFilter.for_budget(self._budget, added).epsilon(added, delta)
        return self._all.epsilon_with(added, delta)
