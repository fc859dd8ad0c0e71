"""An account in memory for what is charged elsewhere already."""

import threading
from collections.abc import Mapping

from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.budget import Budget
from privada.accounting.events import Tally
from privada.accounting.ledger.certification import Planned, tally_of
from privada.accounting.ledger.ledger import ROW, Ledger
from privada.accounting.reservations import Reservation
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
        super().__init__(None, dataset=dataset)
        self._allowance, self._one_at_a_time = tally_of(allowance), threading.RLock()

    def charge(
        self,
        charged: DpEvent | Mapping[DpEvent, int],
        *,
        run: str,
        purpose: str = "training",
        plan: Planned = None,
        limit: Budget | None = None,
        unit: str = ROW,
    ) -> Reservation:
        """Charge events that the allowance covers."""
        added = tally_of(charged)
        with self._one_at_a_time:
            if not self.totals() + added <= self._allowance:
                raise BudgetExceeded(
                    "Expected no more than what was paid for in advance, got a charge for "
                    f"{_in_words(added)} beyond it. Nothing was charged and no data was read."
                )
            return super().charge(
                added, run=run, purpose=purpose, plan=plan, limit=limit, unit=unit
            )


def _in_words(tally: Tally) -> str:
    return "; ".join(f"{count:,} x {events.describe(event)}" for event, count in tally.items())
