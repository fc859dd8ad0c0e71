"""The ledger: every charge against a data set, within a budget, durable before any release."""

import hashlib
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from privada.accounting.budget import Budget
from privada.accounting.events import Tally
from privada.accounting.filters import RenyiFilter
from privada.accounting.ledger.adaptive import AdaptiveCounting, FilteredTally, stored_filter
from privada.accounting.ledger.certification import CertifiedTally, tally_of, whole_plan
from privada.accounting.ledger.counting import (
    ADAPTIVE,
    KINDS,
    PLANNED,
    RUN_ORDERS_LABEL,
    UNIT_LABEL,
    Charged,
    Counting,
    Planned,
)
from privada.accounting.ledger.declarations import Declarations
from privada.accounting.ledger.former import FormerNames
from privada.accounting.ledger.moving import MovableStorage
from privada.accounting.ledger.places import storage_at
from privada.accounting.ledger.planned import PlannedCounting
from privada.accounting.ledger.postgres import PostgresStorage
from privada.accounting.ledger.publications import Publications
from privada.accounting.ledger.storage import (
    Charge,
    LedgerStorage,
    ReadTransaction,
    WriteTransaction,
)
from privada.accounting.ledger.undecided import UndecidedCounting
from privada.accounting.reservations import Reservation, issue
from privada.core.errors import ArgumentError, BudgetExceeded, LedgerError
from privada.core.validation import integer, one_of, printable_text, probability

PURPOSES = ("training", "tuning", "statistics", "validation")
# What a charge protects unless it says otherwise.
ROW = "row"


def all_rows_of(unit: str) -> str:
    """Return the unit of charges that protect all rows of a person, in the ledger's words."""
    return f"{unit} (all their rows)"


class Ledger(Publications, Declarations, FormerNames):
    """Every charge against one data set, kept in one place that outlives runs and crashes.

    A charge is committed durably before the release that it pays for; one that would exceed the
    budget is refused before any data is read. Processes may share the place: each charge is
    checked against everything charged so far, under a lock. A killed run stays charged for all
    that it had reserved.

    Args:
        path: the file, created if it does not exist; or the URL of a PostgreSQL database, such as
            "postgresql://user@host/database?ledger=patients", which machines may share; None keeps
            the ledger in memory, for this process alone. Or a storage, such as
            `SQLiteStorage(path)`: any `LedgerStorage`, which says where charges are kept and serves
            this ledger alone.
        budget: the most that may ever be charged. Fixed when the file is created; None leaves a
            new ledger without a limit, and takes an existing one's as it is.
        dataset: the name of the data set; an existing ledger of another name is refused. Defaults
            to the file's stem, or the name of the ledger in its database.
        kind: "adaptive" (the default for a new one), on which every charge may be chosen in the
            light of earlier releases, and which counts by a Renyi filter; or "planned", which
            allows what was declared before the first charge alone, and counts all of it by
            privacy loss distributions. Fixed when the file is created.

    Guarantee: at the budget's delta, the epsilon of all charges together never exceeds the
    budget's, whichever processes charge, whenever they are killed, and whatever releases led to
    what was charged next.

    Edge cases: a file that is not a ledger, is damaged, is of a newer version or belongs to another
    data set, a full disk and a read-only file each raise `LedgerError` before anything is released.
    A file of an earlier version is read as it is, and brought to the present format by the first
    write, in one transaction. A copy of the old file is kept beside it, called
    `patients.ledger.format-1-` and eight digits. One of before there were two kinds is planned as
    long as it has one run, and adaptive from the second on.

    Example:
        >>> import privada as pv
        >>> from privada.accounting import events
        >>> ledger = pv.accounting.Ledger(None, pv.Budget(1.0, 1e-5), dataset="patients")
        >>> reservation = ledger.charge({events.poisson(0.01, 4.0): 1000}, run="first")
        >>> round(ledger.epsilon(), 2)
        0.38

    Reference: docs/filters.md, with the proof.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | LedgerStorage | None,
        budget: Budget | None = None,
        *,
        dataset: str | None = None,
        kind: str | None = None,
    ) -> None:
        _check_budget("budget", budget)
        kind = None if kind is None else one_of("kind", kind, KINDS)
        dataset = None if dataset is None else printable_text("dataset", dataset)
        self._start(path if isinstance(path, LedgerStorage) else storage_at(path))
        self._facts = self._storage.open(
            {
                "dataset": dataset or _usual_dataset(self._storage),
                "epsilon": "none" if budget is None else repr(budget.epsilon),
                "delta": "none" if budget is None else repr(budget.delta),
                "kind": kind or ADAPTIVE,
            }
        )
        self._take_facts(budget, dataset, kind)

    def _start(self, storage: LedgerStorage) -> None:
        """Know nothing yet of what a storage holds."""
        self._storage = storage
        # what is here is read and written within the storage's `reading` and `writing` alone
        self._version: Hashable = object()  # which no storage returns
        self._unit: str | None = None
        self._charged = Charged(Counter(), {})
        self._limits: dict[str, CertifiedTally] = {}
        self._filters: dict[str, FilteredTally] = {}
        # what this process has charged and not given back, and what is still to be added to that
        self._own: dict[str, Tally] = {}
        self._committed: list[tuple[str, Tally]] = []
        self._process = os.getpid()

    def _take_facts(self, budget: Budget | None, dataset: str | None, kind: str | None) -> None:
        """Read the ledger that was opened, and refuse one that is not what was expected."""
        limit, delta = self._facts["epsilon"], self._facts["delta"]
        self.dataset = self._facts["dataset"]
        self.budget = None if limit == "none" else Budget(float(limit), float(delta))
        self._counting = self._make_counting()
        with self._storage.reading("open") as transaction:
            self._refresh(transaction)
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
        if kind is not None and kind != self.kind:
            raise LedgerError(
                f"Expected the ledger {self.name!r} to be {kind}, but it is {self.kind}, which "
                "was fixed when it was made. Open it without a kind to use it as it is, or make "
                "another."
            )

    def _make_counting(self) -> Counting:
        """Return how the charges of the ledger that was opened are counted."""
        kind = self._facts.get("kind")
        if kind is None:
            return UndecidedCounting(self.budget, self.name)
        known: dict[str, type[PlannedCounting] | type[AdaptiveCounting]]
        known = {PLANNED: PlannedCounting, ADAPTIVE: AdaptiveCounting}
        if kind not in known:
            raise LedgerError(
                f"Cannot open the ledger {self.name!r}: it is of the kind {kind!r}, and this "
                f"Privada knows {' and '.join(known)}. Upgrade Privada."
            )
        return known[kind](self.budget, self.name)

    @property
    def kind(self) -> str:
        """How charges are counted: "planned" or "adaptive"."""
        return self._counting.kind

    @property
    def adaptive(self) -> bool:
        """Whether what is charged next may be chosen in the light of earlier releases."""
        return self.kind == ADAPTIVE

    @property
    def accountant(self) -> str:
        """The name of what computes the epsilon: "pld", or "filter" on an adaptive ledger."""
        return self._counting.accountant

    def describe(self) -> str:
        """Return in words what may be chosen after a look, and how charges are counted."""
        return self._counting.describe()

    @property
    def path(self) -> Path | None:
        """The file's absolute path, None where there is no file."""
        return self._storage.path

    @property
    def durable(self) -> bool:
        """Whether charges outlive this process. A ledger in memory has none that do."""
        return self._storage.durable

    @property
    def closed(self) -> str | None:
        """Why nothing more can be charged to it, such as that it was moved; None if it can be."""
        if not self.durable or not isinstance(self._storage, MovableStorage):
            return None
        why = self._storage.closure()
        return None if why is None else why.in_words()

    @property
    def name(self) -> str:
        """The path as it was given, or the place in other words, for people to read.

        A URL is shown without user and password.
        """
        return self._storage.name

    @property
    def identity(self) -> str:
        """What no other ledger has; a copy of the file has it too.

        The first ledgers had no mark of their own; the digest of their facts stands for it.
        """
        facts = repr(sorted(self._facts.items())).encode()
        return self._facts.get("id") or hashlib.sha256(facts).hexdigest()[:16]

    def in_use_here(self) -> bool:
        """Return whether this very thread is in the middle of using it, as a signal handler may be.

        All else that a handler could ask of the ledger then is refused.
        """
        return self._storage.in_use_here()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._storage.for_another_process(), dict(self._facts))

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
        plan: Planned = None,
        limit: Budget | None = None,
        unit: str = ROW,
        adaptive: bool = False,
        returning: Iterable[Reservation] = (),
    ) -> Reservation:
        """Charge events, durably, before they run; return the reservation.

        Args:
            charged: an event, or how often each of several runs.
            run: the name under which the charge is listed.
            purpose: one of "training", "tuning", "statistics" and "validation".
            plan: everything the caller expects to charge from here on, this charge included, or a
                function that returns it. On a planned ledger without a declaration, the first
                charge declares it.
            limit: the run's own budget: all that the ledger holds under the run's name, for
                whichever purpose and by whichever process, may cost no more than that.
            unit: what one record of the charged events stands for: a row, or all rows of a person.
            adaptive: whether the run chooses what it is charged in the light of its own releases:
                its limit is then kept by a filter too.
            returning: reservations whose unused part is given back in the same moment.

        Returns:
            The reservation, which gives a receipt for each release.

        Guarantee: a ledger's charges are all for one unit, that of the first: costs for different
        units do not add up. When this returns, the charge survives a crash. When it raises, nothing
        was charged.

        Raises:
            BudgetExceeded: the ledger's budget, or the run's own, does not allow it. What was to be
                returned was.
            LedgerError: the file cannot be written, holds charges for another unit, or is a planned
                ledger for which this was not declared.
        """
        run, purpose = printable_text("run", run), one_of("purpose", purpose, PURPOSES)
        printable_text("unit", unit)
        _check_budget("limit", limit)
        added, refused = tally_of(charged), None
        with self._storage.writing("charge") as transaction:
            self._refresh(transaction)
            returned = [self._give_back(transaction, each) for each in returning]
            try:
                self._check_unit(unit)
                if added:
                    self._counting.admit(transaction, run, added, plan)
                if added and limit is not None and adaptive:
                    self._own_filter(transaction, run, added, plan, limit).check(added)
                elif added and limit is not None:
                    self._check_limit(run, added, plan, limit)
            except BudgetExceeded as error:
                if not any(returned):
                    raise
                refused = error
            else:
                if added:
                    self._add(transaction, run, purpose, added)
                if added and unit != ROW and self._unit is None:
                    transaction.publish(UNIT_LABEL, unit)
                    self._unit = unit
        if refused is not None:
            raise refused
        self._committed.append((run, added))
        return issue(self, run, purpose, added)

    def _add(
        self, transaction: WriteTransaction, run: str, purpose: str, changes: Mapping[DpEvent, int]
    ) -> None:
        transaction.add(run, purpose, changes)
        self._charged.add(run, changes)
        self._counting.add(run, changes)
        if run in self._filters:
            self._filters[run].add(changes)

    def _check_limit(self, run: str, added: Tally, plan: Planned, limit: Budget) -> None:
        """Raise unless a run with `added` keeps to its own budget, as it is planned."""
        certified = self._limits.setdefault(run, CertifiedTally())
        certified.renew(Counter(self._charged.of(run)))
        certified.certify(added, plan, limit, _own_budget(run))

    def _own_filter(
        self, transaction: WriteTransaction, run: str, added: Tally, plan: Planned, limit: Budget
    ) -> FilteredTally:
        """Return what holds an adaptive run to its own budget; its first charge fixes the orders.

        Where the run was charged before, something may have been looked at: then the budget alone
        fixes them.
        """
        if transaction.published(RUN_ORDERS_LABEL.format(run)) is None:
            looked = bool(+self._charged.of(run))
            typical = None if looked else whole_plan(added, plan)
            made = RenyiFilter.for_budget(limit, typical)
            transaction.publish(RUN_ORDERS_LABEL.format(run), made.encode())
        return self._filtered(transaction, run, limit)

    def _filtered(self, transaction: ReadTransaction, run: str, limit: Budget) -> FilteredTally:
        """Return what was charged to an adaptive run, by the filter that was fixed for it."""
        text = transaction.published(RUN_ORDERS_LABEL.format(run))
        assert text is not None
        known = self._filters.get(run)
        if known is None or known.budget != limit:
            filter = stored_filter(text, self.name)
            known = self._filters[run] = FilteredTally(filter, limit, _own_budget(run))
            known.add(self._charged.of(run))
        return known

    @property
    def unit(self) -> str | None:
        """What the charges protect: a row, or all rows of what it names; None before the first."""
        with self._storage.reading() as transaction:
            self._refresh(transaction)
            return self._held_unit()

    def _held_unit(self) -> str | None:
        held = any(count > 0 for count in self._charged.totals.values())
        return self._unit or (ROW if held else None)

    def check_unit(self, unit: str) -> None:
        """Raise if the ledger holds charges for another unit."""
        with self._storage.reading() as transaction:
            self._refresh(transaction)
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

        Args:
            reservation: what `charge` returned.

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
        with self._storage.writing("refund") as transaction:
            self._refresh(transaction)
            self._give_back(transaction, reservation)

    def _give_back(self, transaction: WriteTransaction, reservation: Reservation) -> bool:
        """Give back what is not used; return whether it was anything."""
        run, unused = reservation.run, reservation.take_back(self)
        self._add_up_own()
        self._own.setdefault(run, Counter()).subtract(unused)
        changes = {event: -count for event, count in unused.items()}
        self._add(transaction, run, reservation.purpose, changes)
        return bool(unused)

    def _refresh(self, transaction: ReadTransaction) -> None:
        """Read the totals again if anyone else has written since."""
        version = transaction.version()
        if version == self._version:
            return
        charged = Charged(Counter(), {})
        for charge in transaction.charges():
            charged.add(charge.run, {charge.event: charge.count})
        self._refuse_older(charged.runs)
        self._charged = charged
        self._filters.clear()  # nothing is left of a charge that failed
        self._unit = transaction.published(UNIT_LABEL)
        self._counting.refresh(transaction, charged)
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

    def affordable(self, event: DpEvent, most: int, run: str = "another run") -> int:
        """Return how many further `event`s of a run the budget allows, at most `most`.

        Example:
            >>> import privada as pv
            >>> from privada.accounting import events
            >>> pv.Ledger(None, pv.Budget(1.0, 1e-5)).affordable(events.gaussian(20.0), most=1000)
            23
        """
        low, high = 0, integer("most", most, least=0) + 1
        if self.budget is None:
            return most
        tried = most
        while high - low > 1:
            cost = self.cost(run, {event: tried})
            if cost <= self.budget.epsilon:
                low = tried
            else:
                high = tried
            tried = (low + high) // 2
        return low

    # ------------------------------------------------------------------ reading

    def charges(self) -> tuple[Charge, ...]:
        """Return everything charged, oldest first."""
        with self._storage.reading() as transaction:
            return tuple(charge for charge in transaction.charges() if charge.count)

    def runs(self) -> tuple[str, ...]:
        """Return the names of all runs that were charged, oldest first."""
        return tuple(dict.fromkeys(charge.run for charge in self.charges()))

    def run_epsilon(self, run: str, delta: float | None = None) -> float:
        """Return the epsilon of one run alone, as this ledger counts.

        On a planned ledger it is that of all that was declared for the run, on an adaptive one of
        what it was charged.
        """
        delta = self._delta(delta)
        with self._storage.reading() as transaction:
            self._refresh(transaction)
            return self._counting.run_epsilon(run, delta)

    def totals(self) -> Tally:
        """Return how often each event was charged."""
        with self._storage.reading() as transaction:
            self._refresh(transaction)
            return +self._charged.totals

    def epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon of everything on the ledger, at `delta` or at the budget's.

        On an adaptive ledger it is that of what was charged so far, and valid at any time, also one
        that was chosen in the light of releases. On a planned one it is that of all that was
        declared, from the first charge on.
        """
        delta = self._delta(delta)
        with self._storage.reading() as transaction:
            self._refresh(transaction)
            return self._counting.epsilon(delta)

    def price(self, tally: Mapping[DpEvent, int], delta: float | None = None) -> float:
        """Return the epsilon of a tally by itself, as this ledger counts."""
        delta = self._delta(delta)
        with self._storage.reading() as transaction:
            self._refresh(transaction)
            return self._counting.price(tally_of(tally), delta)

    def cost(self, run: str, added: Mapping[DpEvent, int], delta: float | None = None) -> float:
        """Return what the epsilon would be if a run were charged that much more; infinity if not.

        Nothing is charged.
        """
        delta = self._delta(delta)
        with self._storage.reading() as transaction:
            self._refresh(transaction)
            return self._counting.cost(run, tally_of(added), delta)

    def run_cost(self, run: str, added: Mapping[DpEvent, int], limit: Budget) -> float:
        """Return what an adaptive run would cost by itself if it were charged that much more.

        It is what `charge` with `adaptive` compares with the run's own budget, `limit`. Nothing is
        charged.
        """
        tally = tally_of(added)
        with self._storage.reading() as transaction:
            self._refresh(transaction)
            if transaction.published(RUN_ORDERS_LABEL.format(run)) is not None:
                return self._filtered(transaction, run, limit).epsilon_with(tally, limit.delta)
            own = +self._charged.of(run)
            orders = RenyiFilter.for_budget(limit, None if own else tally)
            return orders.epsilon(own + tally, limit.delta)

    def _delta(self, delta: float | None) -> float:
        if delta is not None:
            return probability("delta", delta)
        if self.budget is None:
            raise ArgumentError(
                "Expected delta, got delta=None. This ledger has no budget to take it from."
            )
        return self.budget.delta


def _check_budget(name: str, budget: Budget | None) -> None:
    if budget is not None and not isinstance(budget, Budget):
        raise ArgumentError(
            f"Expected {name} to be a Budget, got {name}={budget!r}. "
            "Write pv.Budget(epsilon, delta)."
        )


def _own_budget(run: str) -> str:
    return f"the own budget of run {run!r}"


def dataset_of(path: str | os.PathLike[str] | None) -> str:
    """Return the file's name as the name of a data set, if it can be one."""
    stem = Path(path).stem if isinstance(path, (str, os.PathLike)) else ""
    return stem if stem.isprintable() and stem else "unnamed data set"


def _usual_dataset(storage: LedgerStorage) -> str:
    """Return what a data set is called whose ledger nobody names."""
    if isinstance(storage, PostgresStorage):
        return storage.dataset
    return dataset_of(storage.path)


def _reopen(storage: LedgerStorage, facts: Mapping[str, str]) -> Ledger:
    """Return the ledger of a pickle; never start a new one, or take another, in its place."""
    ledger = Ledger.__new__(Ledger)
    ledger._start(storage)
    ledger._facts = storage.open(None)
    storage.check_facts(facts)
    ledger._take_facts(None, None, None)
    return ledger
