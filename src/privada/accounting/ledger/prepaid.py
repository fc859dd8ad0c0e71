"""An account in memory for what is charged elsewhere already."""

from collections import Counter
from collections.abc import Mapping

from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.accountants import epsilon_of
from privada.accounting.events import Tally
from privada.accounting.ledger.certification import tally_of
from privada.accounting.ledger.counting import PLANNED, Charged, Counting, Planned
from privada.accounting.ledger.ledger import Ledger
from privada.accounting.ledger.storage import ReadTransaction, WriteTransaction
from privada.core.errors import BudgetExceeded


class Prepaid(Ledger):
    """An account in memory for what is charged elsewhere already, and not a release more.

    Args:
        allowance: what may be released.
        dataset: the name of the data set.

    Guarantee: a charge beyond the allowance raises, before any data is read.

    Example:
        >>> from privada.accounting import events
        >>> from privada.accounting.ledger import Prepaid
        >>> account = Prepaid({events.gaussian(2.0): 3}, "patients")
        >>> reservation = account.charge({events.gaussian(2.0): 3}, run="first")
        >>> reservation.purpose
        'training'
    """

    def __init__(self, allowance: Mapping[DpEvent, int], dataset: str) -> None:
        self._allowance = tally_of(allowance)
        super().__init__(None, dataset=dataset, kind=PLANNED)

    def _make_counting(self) -> Counting:
        return AllowanceCounting(self._allowance)


class AllowanceCounting:
    """Counts what was charged of an allowance, which is planned and paid for elsewhere.

    Args:
        allowance: what may be charged, under whichever names.
    """

    kind, accountant = PLANNED, "pld"

    def __init__(self, allowance: Tally) -> None:
        self._allowance = allowance
        self._charged = Charged(Counter(), {})

    def describe(self) -> str:
        """Return that it is paid for elsewhere."""
        return "planned: everything was declared and charged elsewhere"

    def refresh(self, transaction: ReadTransaction, charged: Charged) -> None:
        """Take what is stored."""
        self._charged = charged

    def admit(self, transaction: WriteTransaction, run: str, added: Tally, plan: Planned) -> None:
        """Raise unless the allowance covers a charge."""
        if not self._charged.totals + added <= self._allowance:
            raise BudgetExceeded(
                "Expected no more than what was paid for in advance, got a charge for "
                f"{_in_words(added)} beyond it. Nothing was charged and no data was read."
            )

    def add(self, run: str, changes: Mapping[DpEvent, int]) -> None:
        """Do nothing: the ledger counts what was charged."""

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of what was charged."""
        return self.price(+self._charged.totals, delta)

    def run_epsilon(self, run: str, delta: float) -> float:
        """Return the epsilon of what a run was charged."""
        return self.price(+self._charged.of(run), delta)

    def price(self, tally: Mapping[DpEvent, int], delta: float) -> float:
        """Return the epsilon by privacy loss distributions."""
        return epsilon_of(tally, delta)

    def cost(self, run: str, added: Tally, delta: float) -> float:
        """Return the epsilon of what was charged with `added`, infinity beyond the allowance."""
        after = self._charged.totals + added
        return self.price(after, delta) if after <= self._allowance else float("inf")


def _in_words(tally: Tally) -> str:
    return "; ".join(f"{count:,} x {events.describe(event)}" for event, count in tally.items())
