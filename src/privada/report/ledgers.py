"""What ledgers say: which runs share one, what is spent and what is left."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from privada.accounting import Budget, Ledger, Statement, events
from privada.accounting.filters import FILTER, RenyiFilter
from privada.accounting.ledger import ADAPTIVE, PLANNED, Charge
from privada.accounting.statement import NOT_COVERED
from privada.core.errors import ArgumentError, EventError
from privada.report.entries import Entry

# What the epsilon of a ledger is, by its kind.
EPSILON_IN_WORDS = {
    ADAPTIVE: "what was spent so far, valid at any time, also one chosen after looking",
    PLANNED: "that of everything declared, whether used or not",
}
_ONE_MODEL, _EVERYTHING = (
    "The trained model is",
    "Everything charged to {these}, taken together, is",
)
_OTHER_NOISE = (
    "The ledger knows what was charged, not where the noise came from: for runs that are not on "
    "this page, their own statements say whether it was secure."
)


@dataclass(frozen=True)
class LedgerSummary:
    """One ledger, and the runs on the page that are charged to it.

    `statement` has the words of the newest of them, or what the ledger says now. A summary
    of several `ledgers` is what `combined` returns.
    """

    statement: Statement
    entries: tuple[Entry, ...]
    ledgers: int = 1

    @property
    def private(self) -> bool:
        """Whether every run on the page kept its noise secret."""
        return self.statement.private and all(each.stated.private for each in self.entries)

    @property
    def budget(self) -> Budget | None:
        """What may be spent."""
        return self.statement.budget

    @property
    def promise(self) -> str:
        """What is promised, in words."""
        kept = [self.statement, *(each.stated for each in self.entries)]
        words = next((each for each in kept if not each.private), self.statement).promise()
        runs = {charge.run for charge in self.statement.charges}
        these = "this ledger" if self.ledgers == 1 else f"these {self.ledgers} ledgers"
        everything = _EVERYTHING.format(these=these)
        return words if len(runs) == 1 else words.replace(_ONE_MODEL, everything, 1)

    @property
    def meaning(self) -> str:
        """What the epsilon is, in words; none for a statement that does not say its kind."""
        said = self.statement
        return EPSILON_IN_WORDS.get(said.kind, "") if said.counting else ""

    def spent(self) -> float:
        """Return the epsilon of everything on the ledger, at the budget's delta.

        A statement at another delta does not say it. Then it is what the ledger said when the entry
        was made, or else an upper bound.
        """
        said, budget = self.statement, self.statement.budget
        if budget is None or budget.delta == said.delta:
            return said.epsilon
        known = [each.spent for each in self.entries if each.stated is said]
        if known and known[0] is not None:
            return known[0]
        if said.kind != ADAPTIVE:  # what was declared is not listed, but it fits the budget
            return budget.epsilon
        filter = RenyiFilter.for_budget(budget)
        return min(filter.epsilon(_totals(said.charges), budget.delta), budget.epsilon)


def summaries_of(entries: Sequence[Entry], ledger: Ledger | None) -> list[LedgerSummary]:
    """Return the ledgers that entries are charged to, in the entries' order.

    A ledger that is given comes first, as it is now. Entries share a ledger if they name the same
    one and the newest of their statements holds the charges of the others' runs: two files of one
    name are told apart, and so are two ledgers in memory.
    """
    found: list[LedgerSummary] = []
    left = list(entries)
    if ledger is not None:
        current = _as_it_is(ledger, left)
        found.append(current)
        left = _without(left, current.entries)
    while left:
        first = left[0].stated
        alike = [e for e in left if (e.stated.ledger, e.stated.dataset) == _place(first)]
        newest = max(alike, key=lambda each: _age(each.stated.charges))
        held = _held(newest.stated.charges)
        members = [each for each in alike if each is newest or (_own(each) and _own(each) <= held)]
        found.append(LedgerSummary(newest.stated, tuple(members)))
        left = _without(left, members)
    order = {id(entry): place for place, entry in enumerate(entries)}
    found.sort(key=lambda each: min((order[id(e)] for e in each.entries), default=-1))
    if ledger is not None:
        found.sort(key=lambda each: each is not current)
    return found


def combined(ledgers: Sequence[LedgerSummary]) -> LedgerSummary | None:
    """Return what all ledgers of a page cost as one; None if they protect different units.

    The promise holds for whoever is in the data of any of them: where they are about the same
    records it is the whole bill, and where they are not it is more than the bill. It is taken at
    the least of their deltas.
    """
    if len(ledgers) == 1:
        return ledgers[0]
    said = [summary.statement for summary in ledgers]
    if len({each.unit for each in said}) > 1:
        return None
    charges = tuple(charge for each in said for charge in each.charges)
    totals, delta = _totals(charges), min(each.delta for each in said)
    try:
        relation = events.common_relation(totals) if charges else said[0].relation
    except EventError:
        return None
    return LedgerSummary(
        replace(
            said[0],
            private=all(summary.private for summary in ledgers),
            dataset=", ".join(dict.fromkeys(each.dataset for each in said)),
            relation=relation,
            # nobody declared the runs of several ledgers together
            epsilon=RenyiFilter.for_budget(None).epsilon(totals, delta),
            accountant=FILTER,
            kind=ADAPTIVE,
            counting="several, whose charges are counted together by a Renyi filter",
            delta=delta,
            budget=None,
            charges=charges,
        ),
        tuple(entry for summary in ledgers for entry in summary.entries),
        len(ledgers),
    )


def _totals(charges: Sequence[Charge]) -> events.Tally:
    totals: events.Tally = Counter()
    for charge in charges:
        totals[charge.event] += charge.count
    return totals


def _without(entries: Sequence[Entry], some: Sequence[Entry]) -> list[Entry]:
    taken = {id(each) for each in some}
    return [each for each in entries if id(each) not in taken]


def _place(statement: Statement) -> tuple[str, str]:
    return statement.ledger, statement.dataset


def _age(charges: Sequence[Charge]) -> tuple[str, int]:
    return max((each.last for each in charges), default=""), sum(each.count for each in charges)


def _held(charges: Sequence[Charge]) -> Counter[tuple[object, ...]]:
    return Counter({(c.run, c.purpose, c.event, c.first): c.count for c in charges})


def _own(entry: Entry) -> Counter[tuple[object, ...]]:
    """Return what an entry's own run is charged; others' reserves may have been returned since."""
    run = entry.stated.run
    return _held([charge for charge in entry.stated.charges if charge.run == run])


def _as_it_is(ledger: Ledger, entries: Sequence[Entry]) -> LedgerSummary:
    """Return what a ledger says now, with the entries that are charged to it."""
    charges = ledger.charges()
    held = _held(charges)
    members = tuple(
        each
        for each in entries
        if each.stated.dataset == ledger.dataset and _own(each) and _own(each) <= held
    )
    if entries and not members:
        raise ArgumentError(
            f"Expected a ledger that holds the charges of a run on the page, got {ledger.name!r}, "
            "which holds none of them. Give the ledger that the runs were charged to."
        )
    if ledger.budget is None and not members:
        raise ArgumentError(
            f"Expected runs, or a ledger with a budget, got {ledger.name!r}, which has none and "
            "so no delta to take epsilon at. Give the folder of a run as well."
        )
    newest = max(members, key=lambda each: _age(each.stated.charges), default=None)
    like = _blank(ledger) if newest is None else newest.stated
    delta = like.delta if ledger.budget is None else ledger.budget.delta
    assumptions = like.assumptions
    if {charge.run for charge in charges} - {each.stated.run for each in members}:
        assumptions = (*assumptions, _OTHER_NOISE)
    return LedgerSummary(
        replace(
            like,
            epsilon=ledger.epsilon(delta),
            delta=delta,
            budget=ledger.budget,
            ledger=ledger.name,
            accountant=ledger.accountant,
            kind=ledger.kind,
            counting=ledger.describe(),
            charges=charges,
            relation=events.common_relation(ledger.totals()) if charges else like.relation,
            assumptions=assumptions,
        ),
        members,
    )


def _blank(ledger: Ledger) -> Statement:
    """Return a statement for a ledger alone."""
    assert ledger.budget is not None
    return Statement(
        private=True,
        dataset=ledger.dataset,
        unit="record",
        relation=events.ADD_OR_REMOVE,
        epsilon=0.0,
        delta=ledger.budget.delta,
        run="",
        run_epsilon=0.0,
        accountant=ledger.accountant,
        budget=ledger.budget,
        ledger=ledger.name,
        method="those of the runs that it lists",
        sampling="as each charge says",
        noise="as each run's own statement says",
        progress="as each run's own statement says",
        charges=(),
        assumptions=("What each run's own statement lists. This page has the ledger alone.",),
        not_covered=NOT_COVERED,
    )
