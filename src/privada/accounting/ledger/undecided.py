"""A ledger of an earlier version, which does not say of which kind it is."""

from collections import Counter
from collections.abc import Mapping

from dp_accounting import DpEvent

from privada.accounting.accountants import epsilon_of
from privada.accounting.budget import Budget
from privada.accounting.events import Tally
from privada.accounting.ledger.adaptive import AdaptiveCounting
from privada.accounting.ledger.certification import CertifiedTally
from privada.accounting.ledger.counting import ADAPTIVE, PLANNED, Charged, Planned, within
from privada.accounting.ledger.storage import ReadTransaction, WriteTransaction
from privada.core.errors import BudgetExceeded

_WHY = (
    "made by an earlier version, which composed its runs as if they had been planned together; "
    "they are counted by a Renyi filter now"
)


class UndecidedCounting:
    """Counts one run as a plan, and several by a filter, which they need.

    Args:
        budget: that of the ledger, None for no limit.
        name: that of the ledger, for errors.

    Guarantee: with several runs, that of `AdaptiveCounting`, for all that they were charged from
    the first one on. A budget that is then exceeded allows nothing more. With one run, its epsilon
    is that of what it was charged, and holds if it was not ended early by choice.
    """

    def __init__(self, budget: Budget | None, name: str) -> None:
        self._budget, self._name = budget, name
        self._filtered = AdaptiveCounting(budget, name, looked=True)
        self._single = CertifiedTally()
        self._charged = Charged(Counter(), {})

    def _several(self, run: str | None = None) -> bool:
        return len(set(self._charged.runs) | ({run} if run is not None else set())) > 1

    @property
    def kind(self) -> str:
        """Adaptive from the second run on."""
        return ADAPTIVE if self._several() else PLANNED

    @property
    def accountant(self) -> str:
        """The name of what computes the epsilon."""
        return self._filtered.accountant if self._several() else "pld"

    def describe(self) -> str:
        """Return what may be chosen, and that the ledger does not say it."""
        if self._several():
            return (
                f"adaptive: {_WHY}, which allows each to be chosen in the light of those before "
                "it; the epsilon was recomputed, and is larger than what that version said"
            )
        return "planned: made by an earlier version, for one run; with a second it is adaptive"

    def refresh(self, transaction: ReadTransaction, charged: Charged) -> None:
        """Take what is stored."""
        self._charged = charged
        self._filtered.refresh(transaction, charged)
        self._single.renew(charged.totals)

    def admit(self, transaction: WriteTransaction, run: str, added: Tally, plan: Planned) -> None:
        """Raise unless the charge fits the budget, by the filter if it is of a second run."""
        if self._several(run):
            try:
                self._filtered.admit(transaction, run, added, plan)
            except BudgetExceeded as error:
                raise BudgetExceeded(f"{error} The ledger was {_WHY}.") from error
        else:
            whose = f"the budget of ledger {self._name!r}"
            self._single.certify(added, plan, self._budget, whose)

    def add(self, run: str, changes: Mapping[DpEvent, int]) -> None:
        """Count a charge, or what was given back."""
        self._filtered.add(run, changes)
        self._single.renew(Counter(self._charged.totals))

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of what was charged."""
        if self._several():
            return self._filtered.epsilon(delta)
        return within(self._budget, self.price(self._charged.totals, delta), delta)

    def run_epsilon(self, run: str, delta: float) -> float:
        """Return the epsilon of what a run was charged."""
        return self.price(self._charged.of(run), delta)

    def price(self, tally: Mapping[DpEvent, int], delta: float) -> float:
        """Return the epsilon of a tally, by the filter if there are several runs."""
        if self._several():
            return self._filtered.price(tally, delta)
        return epsilon_of({event: n for event, n in tally.items() if n > 0}, delta)

    def cost(self, run: str, added: Tally, delta: float) -> float:
        """Return the epsilon of everything with `added`."""
        if self._several(run):
            return self._filtered.cost(run, added, delta)
        return epsilon_of(+self._charged.totals + added, delta)
