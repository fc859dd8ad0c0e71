"""Whether charges fit a budget, asked once for a plan and not once for each charge."""

from collections import Counter
from collections.abc import Mapping

from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.accountants import epsilon_of
from privada.accounting.budget import Budget
from privada.accounting.events import Tally
from privada.accounting.ledger.counting import Planned, exceeded
from privada.core import formatting
from privada.core.errors import BudgetExceeded
from privada.core.validation import integer


def tally_of(charged: DpEvent | Mapping[DpEvent, int]) -> Tally:
    """Return how often each elementary event occurs in what is to be charged."""
    if isinstance(charged, DpEvent):
        return events.tally(charged)
    total: Tally = Counter()
    for event, count in charged.items():
        total.update(events.tally(event, integer("count", count, least=0)))
    return Counter({event: count for event, count in total.items() if count})


def whole_plan(added: Tally, plan: Planned) -> Tally:
    """Return all that is expected to be charged from here on, and at least what is added now."""
    return tally_of((plan() if callable(plan) else plan) or {}) | added


class CertifiedTally:
    """A tally that is held to a budget.

    Costs grow with counts, so what fits certifies all that it contains: the expensive question is
    asked once for a plan, not once for each charge.
    """

    def __init__(self) -> None:
        self.totals: Tally = Counter()
        self._certified: Tally = Counter()  # contains the totals, or nothing
        self._budget: Budget | None = None

    def renew(self, totals: Tally) -> None:
        """Take what others have charged as well."""
        self.totals = totals
        if not totals <= self._certified:
            self._certified = Counter()

    @property
    def certified(self) -> Tally:
        """What was found to fit, which contains the totals; nothing if it is not known."""
        return self._certified

    def _cost(self, tally: Tally) -> float:
        assert self._budget is not None
        return epsilon_of(tally, self._budget.delta)

    def certify(self, added: Tally, plan: Planned, budget: Budget | None, whose: str) -> None:
        """Raise unless the totals with `added` have one relation and fit the budget."""
        if budget != self._budget:
            self._budget, self._certified = budget, Counter()
        if all(self.totals[event] + n <= self._certified[event] for event, n in added.items()):
            return
        after = self.totals + added
        events.common_relation(after)
        hopeful = self.totals + whole_plan(added, plan)
        events.common_relation(hopeful)
        while budget is not None and not self._cost(hopeful) <= budget.epsilon:
            if hopeful == after:
                spent = formatting.epsilon(self._cost(self.totals))
                reached = formatting.epsilon(self._cost(after))
                raise BudgetExceeded(exceeded(budget, whose, spent, reached))
            hopeful = Counter({e: after[e] + (n - after[e]) // 2 for e, n in hopeful.items()})
        self._certified = hopeful
