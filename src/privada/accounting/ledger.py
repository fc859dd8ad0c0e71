"""The ledger: every charge against a data set, within a budget, durable before any release."""

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.accountants import epsilon_of
from privada.accounting.budget import Budget
from privada.accounting.events import Tally
from privada.accounting.reservations import Reservation, issue
from privada.accounting.storage import Charge, Storage
from privada.core import formatting
from privada.core.errors import ArgumentError, BudgetExceeded, LedgerError
from privada.core.validation import integer, one_of, printable_text

__all__ = ["PURPOSES", "Charge", "Ledger", "Reservation"]

PURPOSES = ("training", "tuning", "statistics", "validation")
# What a charge protects unless it says otherwise, and the label under which another unit is noted.
ROW = "row"
_UNIT = "the unit of privacy"

Plan = Mapping[DpEvent, int] | Callable[[], Mapping[DpEvent, int]] | None


def all_rows_of(unit: str) -> str:
    """Return the unit of charges that protect all rows of a person, in the ledger's words."""
    return f"{unit} (all their rows)"


class _Account:
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

    def certify(self, added: Tally, plan: Plan, budget: Budget | None, whose: str) -> None:
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


class Ledger:
    """Every charge against one data set, kept in one file that outlives runs and crashes.

    A charge is committed durably before the release that it pays for; one that would exceed the
    budget is refused before any data is read. Processes may share the file: each charge is
    checked against everything charged so far, under a lock. A killed run stays charged for all
    that it had reserved.

    Args:
        path: the file, created if it does not exist; None keeps the ledger in memory, for this
            process alone.
        budget: the most that may ever be charged. Fixed when the file is created; None leaves a
            new ledger without a limit, and takes an existing one's as it is.
        dataset: the name of the data set; an existing ledger of another name is refused. Defaults
            to the file's stem.

    Guarantee: at the budget's delta, the epsilon of all charges together never exceeds the
    budget's, whichever processes charge, and whenever they are killed.

    Edge cases: a file that is not a ledger, is damaged, is of a newer version or belongs to another
    data set, a full disk and a read-only file each raise `LedgerError` before anything is released.

    Example:
        >>> import privada as pv
        >>> from privada.accounting import events
        >>> ledger = pv.accounting.Ledger(None, pv.Budget(1.0, 1e-5), dataset="patients")
        >>> reservation = ledger.charge({events.poisson(0.01, 4.0): 1000}, run="first")
        >>> round(ledger.epsilon(), 2)
        0.27
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        budget: Budget | None = None,
        *,
        dataset: str | None = None,
    ) -> None:
        _check_budget("budget", budget)
        dataset = None if dataset is None else printable_text("dataset", dataset)
        self._storage = Storage(
            path,
            {
                "dataset": dataset or dataset_of(path),
                "epsilon": "none" if budget is None else repr(budget.epsilon),
                "delta": "none" if budget is None else repr(budget.delta),
            },
        )
        # what is here is read and written within the storage's `reading` and `writing` alone
        self._version: tuple[int, int] | None = None
        self._unit: str | None = None
        self._all = _Account()
        self._runs: dict[str, _Account] = {}
        # what this process has charged and not given back, and what is still to be added to that
        self._own: dict[str, Tally] = {}
        self._committed: list[tuple[str, Tally]] = []
        self._process = os.getpid()
        with self._storage.reading("open") as connection:
            self._refresh(connection)
        self._take_facts(self._storage.facts, budget, dataset)

    def _take_facts(
        self, facts: Mapping[str, str], budget: Budget | None, dataset: str | None
    ) -> None:
        limited = facts["epsilon"] != "none"
        self.dataset = facts["dataset"]
        self.budget = Budget(float(facts["epsilon"]), float(facts["delta"])) if limited else None
        if dataset is not None and dataset != self.dataset:
            raise LedgerError(
                f"Expected the ledger of data set {dataset!r}, got {self.name!r}, which belongs "
                f"to {self.dataset!r}. Give that data set's own ledger."
            )
        if budget is not None and budget != self.budget:
            raise LedgerError(
                f"Expected the ledger {self.name!r} to have {budget}, but it was created with "
                f"{self.budget or 'no limit'}. Open it without a budget to use the one it has."
            )

    @property
    def path(self) -> Path | None:
        """The file's absolute path, or None for a ledger in memory."""
        return self._storage.path

    @property
    def name(self) -> str:
        """The path as it was given, for people to read."""
        return self._storage.name

    @property
    def identity(self) -> str:
        """What no other ledger has; a copy of the file has it too."""
        return self._storage.facts["id"]

    def in_use_here(self) -> bool:
        """Return whether this very thread is in the middle of using it, as a signal handler may be.

        All else that a handler could ask of the ledger then is refused.
        """
        return self._storage.in_use_here()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None:
            raise LedgerError(
                "Cannot send a ledger in memory to another process: its charges would be lost. "
                "Give the ledger a path."
            )
        return _reopen, (str(self.path), self._storage.facts)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ledger":
        return self  # a ledger is the authority on its data set; there is only one

    def __repr__(self) -> str:
        return f"Ledger({self.name!r}, {self.budget!r}, dataset={self.dataset!r})"

    def close(self) -> None:
        """Close the file. A ledger in memory is gone."""
        self._storage.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ charging

    def charge(
        self,
        charged: DpEvent | Mapping[DpEvent, int],
        *,
        run: str,
        purpose: str = "training",
        plan: Plan = None,
        limit: Budget | None = None,
        unit: str = ROW,
    ) -> Reservation:
        """Charge events, durably, before they run; return the reservation.

        `plan` is everything the caller expects to charge from here on, this charge included, or a
        function that returns it: if all of it fits the budget, later charges within it are not
        computed again. `limit` is the run's own budget: all that the ledger holds under the run's
        name, for whichever purpose and by whichever process, may cost no more than that. `unit` is
        what one record of the charged events stands for: a row, or all rows of a person.

        Guarantee: a ledger's charges are all for one unit, that of the first: costs for different
        units do not add up. When this returns, the charge survives a crash. When it raises, nothing
        was charged.

        Raises:
            BudgetExceeded: the ledger's budget, or the run's own, does not allow it.
            LedgerError: the file cannot be written, or holds charges for another unit.
        """
        run, purpose = printable_text("run", run), one_of("purpose", purpose, PURPOSES)
        printable_text("unit", unit)
        _check_budget("limit", limit)
        added = _tally(charged)
        with self._storage.writing("charge") as connection:
            self._refresh(connection)
            self._check_unit(unit)
            own = self._runs.setdefault(run, _Account())
            self._all.certify(added, plan, self.budget, f"the budget of ledger {self.name!r}")
            if limit is not None:
                own.certify(added, plan, limit, f"the own budget of run {run!r}")
            if unit != ROW and self._unit is None:
                self._storage.give(connection, _UNIT, unit)
            self._storage.add(connection, run, purpose, added)
            self._all.totals.update(added)
            own.totals.update(added)
        self._unit = None if unit == ROW else unit
        self._committed.append((run, added))
        return issue(self, run, purpose, added)

    @property
    def unit(self) -> str | None:
        """What the charges protect: a row, or all rows of what it names; None before the first."""
        with self._storage.reading() as connection:
            self._refresh(connection)
            return self._held_unit()

    def _held_unit(self) -> str | None:
        return self._unit or (ROW if +self._all.totals else None)

    def check_unit(self, unit: str) -> None:
        """Raise if the ledger holds charges for another unit."""
        with self._storage.reading() as connection:
            self._refresh(connection)
            self._check_unit(unit)

    def _check_unit(self, unit: str) -> None:
        held = self._held_unit()
        if held not in (None, unit):
            raise LedgerError(
                f"Expected charges for each {held}, as ledger {self.name!r} holds them, got one "
                f"for each {unit}: costs for different units do not add up. Use one ledger for "
                "each unit of privacy. Nothing was charged and no data was read."
            )

    def refund(self, reservation: Reservation) -> None:
        """Give back what was charged and, as its reservation says, certainly never used.

        Guarantee: what was used stays charged. When this raises because the file cannot be written,
        everything stays charged and the reservation is worth nothing.

        Raises:
            LedgerError: the reservation is another ledger's or another process's, or was returned.
        """
        if not isinstance(reservation, Reservation):
            raise ArgumentError(
                "Expected reservation to be what Ledger.charge returned, got "
                f"reservation={reservation!r}. A charge can be given back by whoever has made it "
                "alone."
            )
        if not reservation.unused:
            reservation.take_back(self)
            return
        with self._storage.writing("refund") as connection:
            self._refresh(connection)
            run, unused = reservation.run, reservation.take_back(self)
            changes = {event: -count for event, count in unused.items()}
            self._add_up_own()
            self._own.setdefault(run, Counter()).subtract(unused)
            self._storage.add(connection, run, reservation.purpose, changes)
            self._all.totals.subtract(unused)
            self._runs[run].totals.subtract(unused)

    def _refresh(self, connection: sqlite3.Connection) -> None:
        """Read the totals again if anyone else has written since."""
        version = self._storage.version(connection)
        if version == self._version:
            return
        totals: Tally = Counter()
        runs: dict[str, Tally] = {run: Counter() for run in self._runs}
        for charge in self._storage.charges(connection):
            totals[charge.event] += charge.count
            runs.setdefault(charge.run, Counter())[charge.event] += charge.count
        self._refuse_older(runs)
        self._all.renew(totals)
        self._unit = self._storage.given(connection, _UNIT)
        for run, own in runs.items():
            self._runs.setdefault(run, _Account()).renew(own)
        self._version = version

    def _add_up_own(self) -> None:
        """Add up what this process has charged. A fork's parent may still give back its own."""
        if self._process != os.getpid():
            self._own, self._committed, self._process = {}, [], os.getpid()
        while self._committed:
            run, added = self._committed.pop()
            self._own.setdefault(run, Counter()).update(added)

    def _refuse_older(self, runs: Mapping[str, Tally]) -> None:
        """Raise if the file knows less than this process has charged: nobody else gives it back."""
        self._add_up_own()
        if not all(own <= runs.get(run, Counter()) for run, own in self._own.items()):
            raise LedgerError(
                f"Cannot go on with the ledger {self.name!r}: it has lost charges that were made "
                "here, as when an older copy is written over it. Put back what was there, and open "
                "it again. Nothing more was charged or released."
            )

    def hold(self, label: str) -> str:
        """Take over, durably, what is to be given out under a label; return a proof for `give`.

        Guarantee: whoever held it before, in whichever process, can give out nothing more under
        the label. That does not depend on what either of them has found.
        """
        label, proof = printable_text("label", label), os.urandom(16).hex()
        with self._storage.writing("write to") as connection:
            self._refresh(connection)
            self._storage.hold(connection, label, proof)
        return proof

    def check_held(self, label: str, proof: str) -> None:
        """Raise unless nobody has taken a label over since `hold` returned this proof."""
        with self._storage.reading() as connection:
            self._refresh(connection)
            self._refuse_former(connection, printable_text("label", label), proof)

    @contextmanager
    def while_held(self, label: str, proof: str) -> Iterator[None]:
        """Let nobody, in any process, take a label over meanwhile; raise if somebody has.

        Nothing is written to the ledger, so that it does not tell how often this was used.
        """
        with self._storage.writing("use") as connection:
            self._refresh(connection)
            self._refuse_former(connection, printable_text("label", label), proof)
            yield

    def _refuse_former(self, connection: sqlite3.Connection, label: str, proof: str) -> None:
        if self._storage.holder(connection, label) != proof:
            raise LedgerError(
                f"Expected to be the only one at {label!r}, but ledger {self.name!r} says that it "
                "was taken over since, by another process or from a copy of its files. That one "
                "goes on; nothing was given out here."
            )

    def give(self, label: str, digest: str, *, held: tuple[str, str] | None = None) -> None:
        """Note, durably, that the result with this digest is given out under a label.

        `held` is a label that must still be held, and the proof that `hold` returned for it.

        Guarantee: under one label one result is ever given out, by whichever process and from
        whichever copy of its files. To give out the same result again is allowed.

        Raises:
            LedgerError: another result was given out under the label, or it was taken over.
        """
        label, digest = printable_text("label", label), printable_text("digest", digest)
        with self._storage.writing("write to") as connection:
            self._refresh(connection)
            if held is not None:
                self._refuse_former(connection, *held)
            before = self._storage.give(connection, label, digest)
        if before != digest:
            raise LedgerError(
                f"Expected {label!r} to be given out once, but ledger {self.name!r} says that it "
                "was, with another result: from a copy of its files, or by another process. That "
                "result is the one that was paid for; start anew to pay for another."
            )

    def given(self, label: str) -> str | None:
        """Return the digest of what was given out under a label, None if nothing was."""
        with self._storage.reading() as connection:
            self._refresh(connection)
            return self._storage.given(connection, printable_text("label", label))

    def affordable(self, event: DpEvent, most: int) -> int:
        """Return how many further `event`s the budget allows, at most `most`."""
        low, high = 0, integer("most", most, least=0) + 1
        if self.budget is None:
            return most
        totals, tried = self.totals(), most
        while high - low > 1:
            cost = epsilon_of(totals + Counter({event: tried}), self.budget.delta)
            if cost <= self.budget.epsilon:
                low = tried
            else:
                high = tried
            tried = (low + high) // 2
        return low

    # ------------------------------------------------------------------ reading

    def charges(self) -> tuple[Charge, ...]:
        """Return everything charged, oldest first."""
        with self._storage.reading() as connection:
            return tuple(charge for charge in self._storage.charges(connection) if charge.count)

    def totals(self) -> Tally:
        """Return how often each event was charged."""
        with self._storage.reading() as connection:
            self._refresh(connection)
            return +self._all.totals

    def epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon of everything charged, at `delta` or at the budget's."""
        if delta is None:
            if self.budget is None:
                raise ArgumentError(
                    "Expected delta, got delta=None. This ledger has no budget to take it from."
                )
            delta = self.budget.delta
        cost = epsilon_of(self.totals(), delta)
        if self.budget is not None and delta == self.budget.delta:
            # Every charge was found to fit by some upper bound. This one may come from another
            # grid and be a hair looser; the smaller of two upper bounds is one.
            cost = min(cost, self.budget.epsilon)
        return cost


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
        self._allowance, self._one_at_a_time = _tally(allowance), threading.RLock()

    def charge(
        self,
        charged: DpEvent | Mapping[DpEvent, int],
        *,
        run: str,
        purpose: str = "training",
        plan: Plan = None,
        limit: Budget | None = None,
        unit: str = ROW,
    ) -> Reservation:
        """Charge events that the allowance covers."""
        added = _tally(charged)
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


def _check_budget(name: str, budget: Budget | None) -> None:
    if budget is not None and not isinstance(budget, Budget):
        raise ArgumentError(
            f"Expected {name} to be a Budget, got {name}={budget!r}. "
            "Write pv.Budget(epsilon, delta)."
        )


def dataset_of(path: str | os.PathLike[str] | None) -> str:
    """Return the file's name as the name of a data set, if it can be one."""
    stem = Path(path).stem if isinstance(path, (str, os.PathLike)) else ""
    return stem if stem.isprintable() and stem else "unnamed data set"


def _tally(charged: DpEvent | Mapping[DpEvent, int]) -> Tally:
    if isinstance(charged, DpEvent):
        return events.tally(charged)
    total: Tally = Counter()
    for event, count in charged.items():
        total.update(events.tally(event, integer("count", count, least=0)))
    return Counter({event: count for event, count in total.items() if count})


def _reopen(path: str, facts: Mapping[str, str]) -> Ledger:
    """Return the ledger of a pickle; never start a new one, or take another, in its place."""
    if not Path(path).exists():
        raise LedgerError(
            f"Cannot open the ledger {path!r}: it is gone. Restore the file from a copy."
        )
    ledger = Ledger(path)
    ledger._storage.check_facts(facts)
    return ledger
