"""A planned ledger: everything is declared before the first look."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.accountants import epsilon_of
from privada.accounting.budget import Budget
from privada.accounting.events import Tally
from privada.accounting.ledger.certification import CertifiedTally, whole_plan
from privada.accounting.ledger.counting import (
    DECLARATION_LABEL,
    PLANNED,
    Charged,
    Planned,
    within,
)
from privada.accounting.ledger.storage import ReadTransaction, WriteTransaction
from privada.core.errors import BudgetExceeded, LedgerError

REMEDY = (
    "What is chosen after a look at the data needs an adaptive ledger: make one by "
    "pv.Ledger(path, budget), or privada ledger FILE --new EPSILON --delta DELTA, and give it to "
    "every run. Runs that are known beforehand can be "
    "declared together, by Ledger.declare, before the first of them starts."
)


class PlannedCounting:
    """Counts what was declared, by privacy loss distributions, whether it was all used or not.

    Args:
        budget: that of the ledger, None for no limit.
        name: that of the ledger, for errors.

    Guarantee: all charges were declared before the first of them, so that their number, noise and
    sampling depend on no release. The epsilon is that of all that was declared, from the first
    charge on: then it does not matter why a run ended early.
    """

    kind, accountant = PLANNED, "pld"

    def __init__(self, budget: Budget | None, name: str) -> None:
        self._budget, self._name = budget, name
        self._texts: dict[str, tuple[str, Tally]] = {}
        self._declared: dict[str, Tally] = {}
        # runs that were planned anew, and what was declared before: of them, and in all
        self.interrupted: set[str] = set()
        self._former: dict[str, list[Tally]] = {}
        self._former_sums: list[Tally] = []
        self._charged = Charged(Counter(), {})

    def describe(self) -> str:
        """Return what may be chosen."""
        return (
            "planned: everything was declared before the first look, and counts whether it was "
            "used or not"
        )

    # ------------------------------------------------------------------ what is declared

    def refresh(self, transaction: ReadTransaction, charged: Charged) -> None:
        """Read the declarations."""
        self._charged, self._declared, number = charged, {}, 1
        self.interrupted.clear()
        self._former.clear()
        self._former_sums.clear()
        while (text := transaction.published(DECLARATION_LABEL.format(number))) is not None:
            if text not in self._texts:
                self._texts[text] = self._decoded(text)
            self._take(*self._texts[text])
            number += 1

    def _decoded(self, text: str) -> tuple[str, Tally]:
        try:
            return _decode(text)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise LedgerError(
                f"Cannot use the ledger {self._name!r}: a declaration of its runs is damaged, or "
                "of a newer version. Restore it from a copy, or upgrade Privada."
            ) from error

    def _take(self, run: str, tally: Tally) -> None:
        """Take a declaration; a later one of the same run stands in its place."""
        if run in self._declared:
            self.interrupted.add(run)
            self._former.setdefault(run, []).append(self._declared[run])
            self._former_sums.append(self._sum())
        self._declared[run] = tally

    def _sum(self) -> Tally:
        return _total(self._declared)

    @property
    def declared(self) -> dict[str, Tally]:
        """What each run may be charged in all."""
        return {run: Counter(tally) for run, tally in self._declared.items()}

    def declare(self, transaction: WriteTransaction, plans: Mapping[str, Tally]) -> None:
        """Publish what runs are going to be charged, if they fit the budget together.

        Raises:
            BudgetExceeded: they do not.
            LedgerError: something was charged already.
        """
        if self._charged.runs:
            raise LedgerError(
                f"Expected runs to be declared before the first look, got {', '.join(plans)} for "
                f"ledger {self._name!r}, on which {', '.join(self._charged.runs)} was charged. "
                f"{REMEDY} Nothing was declared."
            )
        again = [run for run in plans if run in self._declared]
        if again:
            raise LedgerError(
                f"Expected runs that are not declared yet, got {', '.join(again)}, which ledger "
                f"{self._name!r} holds. Declare each run once. Nothing was declared."
            )
        self._certify(self._sum(), _total(plans), None)
        self._publish(transaction, plans)

    def replan(self, transaction: WriteTransaction, run: str, remaining: Tally) -> None:
        """Declare anew what an interrupted run is still going to be charged.

        It may be charged that much more from now on. What was declared before still counts: epsilon
        is that of the dearer plan, so that nobody can make a plan cheaper.

        Raises:
            BudgetExceeded: it does not fit.
            LedgerError: the run was not declared, and something was charged already.
        """
        if run not in self._declared:
            self.declare(transaction, {run: remaining})
            return
        plan = self._charged.of(run) + remaining
        if plan <= self._declared[run]:
            return
        self._certify(_total({**self._declared, run: Counter()}), plan, None)
        self._publish(transaction, {run: plan})

    def _certify(self, held: Tally, added: Tally, plan: Planned) -> Tally:
        """Raise unless `added` fits the budget with what is held; return what of a plan does."""
        certified = CertifiedTally()
        certified.renew(held)
        certified.certify(added, plan, self._budget, f"the budget of ledger {self._name!r}")
        return certified.certified

    def _publish(self, transaction: WriteTransaction, plans: Mapping[str, Tally]) -> None:
        number = 1
        while transaction.published(DECLARATION_LABEL.format(number)) is not None:
            number += 1
        for place, (run, tally) in enumerate(plans.items(), start=number):
            transaction.publish(DECLARATION_LABEL.format(place), _encode(run, tally))
            self._take(run, tally)

    # ------------------------------------------------------------------ charges

    def admit(self, transaction: WriteTransaction, run: str, added: Tally, plan: Planned) -> None:
        """Raise unless the charge was declared; the first one declares itself and its plan."""
        if not self._charged.runs and not self._declared:
            self._declare_first(transaction, run, added, plan)
        self.check(run, added)

    def check(self, run: str, added: Tally) -> None:
        """Raise unless a charge was declared.

        Raises:
            BudgetExceeded: it is beyond what was declared for the run.
            LedgerError: the run was not declared.
        """
        declared = self._declared.get(run)
        if declared is None:
            known = ", ".join(map(repr, self._declared)) or "nothing"
            raise LedgerError(
                f"Expected a run that was declared before the first look, as ledger "
                f"{self._name!r} is a planned one, got run={run!r} where {known} was declared. "
                f"{REMEDY} Nothing was charged and no data was read."
            )
        charged = self._charged.of(run)
        beyond = [event for event, n in added.items() if charged[event] + n > declared[event]]
        if beyond:
            raise BudgetExceeded(
                f"Expected run {run!r} to keep to what was declared before the first look, as "
                f"ledger {self._name!r} is a planned one, got a charge beyond it: "
                f"{declared[beyond[0]]:,} x {events.describe(beyond[0])} was declared. {REMEDY} "
                "Nothing was charged and no data was read."
            )

    def _declare_first(
        self, transaction: WriteTransaction, run: str, added: Tally, plan: Planned
    ) -> None:
        whole = whole_plan(added, plan)
        # of a plan that does not fit, as much as does
        self._publish(transaction, {run: whole & self._certify(Counter(), added, whole)})

    def add(self, run: str, changes: Mapping[DpEvent, int]) -> None:
        """Do nothing: what is declared counts, whether it is charged or not."""

    # ------------------------------------------------------------------ what it costs

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of what was declared, 0 before the first charge."""
        if not self._charged.runs:
            return 0.0
        return within(self._budget, self._dearest([self._sum(), *self._former_sums], delta), delta)

    def _dearest(self, plans: list[Tally], delta: float) -> float:
        return max(self.price(each, delta) for each in plans)

    def run_epsilon(self, run: str, delta: float) -> float:
        """Return the epsilon of what was declared for a run, 0 before its first charge."""
        if run not in self._charged.runs:
            return 0.0
        return self._dearest([self._declared[run], *self._former.get(run, [])], delta)

    def price(self, tally: Mapping[DpEvent, int], delta: float) -> float:
        """Return the epsilon by privacy loss distributions."""
        return epsilon_of(tally, delta)

    def cost(self, run: str, added: Tally, delta: float) -> float:
        """Return the epsilon of what is declared, and of what may still be."""
        declared = self._declared.get(run)
        if declared is None and not self._charged.runs:
            return self.price(_total({**self._declared, run: added}), delta)
        if self._charged.of(run) + added <= (declared or Counter()):
            return within(
                self._budget, self._dearest([self._sum(), *self._former_sums], delta), delta
            )
        return float("inf")


def _total(tallies: Mapping[str, Tally]) -> Tally:
    total: Tally = Counter()
    for tally in tallies.values():
        total.update(tally)
    return total


def _encode(run: str, tally: Tally) -> str:
    counts = [[events.encode(event), count] for event, count in tally.items() if count]
    return json.dumps({"run": run, "counts": counts})


def _decode(text: str) -> tuple[str, Tally]:
    fields: dict[str, Any] = json.loads(text)
    counts = {events.decode(event): int(count) for event, count in fields["counts"]}
    return fields["run"], Counter(counts)
