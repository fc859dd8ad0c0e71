"""Whether charges fit a budget, asked once for a plan and not once for each charge."""

from collections import Counter
from collections.abc import Callable, Mapping

from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.accountants import epsilon_of
from privada.accounting.budget import Budget
from privada.accounting.events import Tally
from privada.core import formatting
from privada.core.errors import BudgetExceeded
from privada.core.validation import integer

# What a caller expects to charge from here on, or a function that returns it.
Planned = Mapping[DpEvent, int] | Callable[[], Mapping[DpEvent, int]] | None


def tally_of(charged: DpEvent | Mapping[DpEvent, int]) -> Tally:
    """Return how often each elementary event occurs in what is to be charged."""
    if isinstance(charged, DpEvent):
        return events.tally(charged)
    total: Tally = Counter()
    for event, count in charged.items():
        total.update(events.tally(event, integer("count", count, least=0)))
    return Counter({event: count for event, count in total.items() if count})


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
        planned = Counter(plan() if callable(plan) else plan or {})
        hopeful = self.totals + (added | planned)
        events.common_relation(hopeful)
        while budget is not None and not self._cost(hopeful) <= budget.epsilon:
            if hopeful == after:
                raise BudgetExceeded(
                    f"Expected the charge to fit {whose} (epsilon={budget.epsilon:g} at "
                    f"delta={budget.delta:g}), but {formatting.epsilon(self._cost(self.totals))} "
                    f"is spent and the charge would make it "
                    f"{formatting.epsilon(self._cost(after))}. Take fewer steps, more noise or a "
                    "smaller batch. Nothing was charged and no data was read."
                )
            hopeful = Counter({e: after[e] + (n - after[e]) // 2 for e, n in hopeful.items()})
        self._certified = hopeful
