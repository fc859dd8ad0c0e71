"""What runs are going to be charged on a planned ledger, declared before the first look."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dp_accounting import DpEvent

from privada.accounting.events import Tally
from privada.accounting.ledger.certification import tally_of
from privada.accounting.ledger.counting import Counting
from privada.accounting.ledger.planned import PlannedCounting
from privada.accounting.ledger.storage import LedgerStorage, ReadTransaction
from privada.core.validation import printable_text


class Declarations:
    """The part of a ledger by which runs are declared; it does nothing on an adaptive one."""

    _storage: LedgerStorage
    _counting: Counting

    if TYPE_CHECKING:

        def _refresh(self, transaction: ReadTransaction) -> None: ...

    def declare(self, plans: Mapping[str, DpEvent | Mapping[DpEvent, int]]) -> None:
        """Declare what runs are going to be charged, before the first look.

        Args:
            plans: for the name of each run, all that it will be charged.

        Guarantee: on a planned ledger, what was declared is all that can ever be charged, and all
        of it fits the budget. An adaptive one needs no declaration and keeps none.

        Edge cases: a run that is alone on a planned ledger is declared by its first charge, with
        the plan that it comes with.

        Raises:
            BudgetExceeded: the budget does not allow all of it; nothing was declared.
            LedgerError: something was charged already; nothing was declared.

        Example:
            >>> import privada as pv
            >>> from privada.accounting import events
            >>> ledger = pv.Ledger(None, pv.Budget(1.0, 1e-5), kind="planned")
            >>> ledger.declare({"a": {events.gaussian(9.0): 2}, "b": {events.gaussian(9.0): 1}})
            >>> reservation = ledger.charge(events.gaussian(9.0), run="b")
            >>> round(ledger.epsilon(), 2)  # of all that was declared
            0.7
        """
        tallies = {printable_text("run", run): tally_of(plan) for run, plan in plans.items()}
        counting = self._counting
        if not isinstance(counting, PlannedCounting):
            return
        with self._storage.writing("declare runs on") as transaction:
            self._refresh(transaction)
            counting.declare(transaction, tallies)

    def replan(self, run: str, remaining: Mapping[DpEvent, int]) -> None:
        """Declare anew what a run is still going to be charged, after an interruption.

        What a crash has lost stays charged, so that the first plan is too short. On an adaptive
        ledger it does nothing.

        Guarantee: that of a planned ledger, as long as interruptions do not depend on the data;
        the statement of the run says so.

        Raises:
            BudgetExceeded: the budget does not allow it; the first plan holds.
        """
        counting = self._counting
        if isinstance(counting, PlannedCounting):
            with self._storage.writing("declare runs on") as transaction:
                self._refresh(transaction)
                counting.replan(transaction, printable_text("run", run), tally_of(remaining))

    def check_declared(self, run: str) -> None:
        """Raise if the ledger is a planned one of other runs.

        Raises:
            LedgerError: it is.
        """
        counting = self._counting
        if isinstance(counting, PlannedCounting):
            with self._storage.reading() as transaction:
                self._refresh(transaction)
                if counting.declared:
                    counting.check(printable_text("run", run), Counter())

    def interrupted(self, run: str) -> bool:
        """Return whether a run on a planned ledger was planned anew after an interruption."""
        counting = self._counting
        with self._storage.reading() as transaction:
            self._refresh(transaction)
            return isinstance(counting, PlannedCounting) and run in counting.interrupted

    def declared(self, run: str) -> Tally | None:
        """Return what was declared for a run; None on a ledger that asks for no declaration."""
        counting = self._counting
        if not isinstance(counting, PlannedCounting):
            return None
        with self._storage.reading() as transaction:
            self._refresh(transaction)
            return counting.declared.get(run, Counter())
