"""The ledger: every charge against a data set, within a budget, durable before any release."""

import hashlib
import os
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from privada.accounting.accountants import epsilon_of
from privada.accounting.budget import Budget
from privada.accounting.events import Tally
from privada.accounting.ledger.certification import CertifiedTally, Planned, tally_of
from privada.accounting.ledger.former import FormerNames
from privada.accounting.ledger.sqlite import SQLiteStorage
from privada.accounting.ledger.storage import Charge, LedgerStorage, ReadTransaction
from privada.accounting.reservations import Reservation, issue
from privada.core.errors import ArgumentError, LedgerError
from privada.core.validation import integer, one_of, printable_text

PURPOSES = ("training", "tuning", "statistics", "validation")
# What a charge protects unless it says otherwise, and the label under which another unit is noted.
ROW = "row"
_UNIT = "the unit of privacy"


def all_rows_of(unit: str) -> str:
    """Return the unit of charges that protect all rows of a person, in the ledger's words."""
    return f"{unit} (all their rows)"


class Ledger(FormerNames):
    """Every charge against one data set, kept in one file that outlives runs and crashes.

    A charge is committed durably before the release that it pays for; one that would exceed the
    budget is refused before any data is read. Processes may share the file: each charge is
    checked against everything charged so far, under a lock. A killed run stays charged for all
    that it had reserved.

    Args:
        path: the file, created if it does not exist; None keeps the ledger in memory, for this
            process alone. Or a storage, such as `SQLiteStorage(path)`: any `LedgerStorage`, which
            says where charges are kept and serves this ledger alone.
        budget: the most that may ever be charged. Fixed when the file is created; None leaves a
            new ledger without a limit, and takes an existing one's as it is.
        dataset: the name of the data set; an existing ledger of another name is refused. Defaults
            to the file's stem.

    Guarantee: at the budget's delta, the epsilon of all charges together never exceeds the
    budget's, whichever processes charge, and whenever they are killed.

    Edge cases: a file that is not a ledger, is damaged, is of a newer version or belongs to another
    data set, a full disk and a read-only file each raise `LedgerError` before anything is released.
    A file of an earlier version is read as it is, and brought to the present format by the first
    write, in one transaction. A copy of the old file is kept beside it, called
    `patients.ledger.format-1-` and eight digits.

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
        path: str | os.PathLike[str] | LedgerStorage | None,
        budget: Budget | None = None,
        *,
        dataset: str | None = None,
    ) -> None:
        _check_budget("budget", budget)
        dataset = None if dataset is None else printable_text("dataset", dataset)
        self._start(path if isinstance(path, LedgerStorage) else SQLiteStorage(path))
        self._facts = self._storage.open(
            {
                "dataset": dataset or dataset_of(self._storage.path),
                "epsilon": "none" if budget is None else repr(budget.epsilon),
                "delta": "none" if budget is None else repr(budget.delta),
            }
        )
        self._take_facts(budget, dataset)

    def _start(self, storage: LedgerStorage) -> None:
        """Know nothing yet of what a storage holds."""
        self._storage = storage
        # what is here is read and written within the storage's `reading` and `writing` alone
        self._version: Hashable = object()  # which no storage returns
        self._unit: str | None = None
        self._all = CertifiedTally()
        self._runs: dict[str, CertifiedTally] = {}
        # what this process has charged and not given back, and what is still to be added to that
        self._own: dict[str, Tally] = {}
        self._committed: list[tuple[str, Tally]] = []
        self._process = os.getpid()

    def _take_facts(self, budget: Budget | None, dataset: str | None) -> None:
        """Read the ledger that was opened, and refuse one that is not what was expected."""
        with self._storage.reading("open") as transaction:
            self._refresh(transaction)
        limit, delta = self._facts["epsilon"], self._facts["delta"]
        self.dataset = self._facts["dataset"]
        self.budget = None if limit == "none" else Budget(float(limit), float(delta))
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
        """The file's absolute path, None where there is no file."""
        return self._storage.path

    @property
    def durable(self) -> bool:
        """Whether charges outlive this process. A ledger in memory has none that do."""
        return self._storage.durable

    @property
    def name(self) -> str:
        """The path as it was given, or the place in other words, for people to read."""
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
        added = tally_of(charged)
        with self._storage.writing("charge") as transaction:
            self._refresh(transaction)
            self._check_unit(unit)
            own = self._runs.setdefault(run, CertifiedTally())
            self._all.certify(added, plan, self.budget, f"the budget of ledger {self.name!r}")
            if limit is not None:
                own.certify(added, plan, limit, f"the own budget of run {run!r}")
            if unit != ROW and self._unit is None:
                transaction.publish(_UNIT, unit)
            transaction.add(run, purpose, added)
            self._all.totals.update(added)
            own.totals.update(added)
        self._unit = None if unit == ROW else unit
        self._committed.append((run, added))
        return issue(self, run, purpose, added)

    @property
    def unit(self) -> str | None:
        """What the charges protect: a row, or all rows of what it names; None before the first."""
        with self._storage.reading() as transaction:
            self._refresh(transaction)
            return self._held_unit()

    def _held_unit(self) -> str | None:
        return self._unit or (ROW if +self._all.totals else None)

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
            run, unused = reservation.run, reservation.take_back(self)
            changes = {event: -count for event, count in unused.items()}
            self._add_up_own()
            self._own.setdefault(run, Counter()).subtract(unused)
            transaction.add(run, reservation.purpose, changes)
            self._all.totals.subtract(unused)
            self._runs[run].totals.subtract(unused)

    def _refresh(self, transaction: ReadTransaction) -> None:
        """Read the totals again if anyone else has written since."""
        version = transaction.version()
        if version == self._version:
            return
        totals: Tally = Counter()
        runs: dict[str, Tally] = {run: Counter() for run in self._runs}
        for charge in transaction.charges():
            totals[charge.event] += charge.count
            runs.setdefault(charge.run, Counter())[charge.event] += charge.count
        self._refuse_older(runs)
        self._all.renew(totals)
        self._unit = transaction.published(_UNIT)
        for run, own in runs.items():
            self._runs.setdefault(run, CertifiedTally()).renew(own)
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

    def lease(self, label: str) -> str:
        """Take over, durably, what is to be published under a label; return a token for it.

        Args:
            label: what is to be published.

        Returns:
            The token that `check_lease`, `while_leased` and `publish` ask for.

        Guarantee: whoever leased it before, in whichever process, can publish nothing more under
        the label. That does not depend on what either of them has found.

        Example:
            >>> import privada as pv
            >>> ledger = pv.Ledger(None)
            >>> first, second = ledger.lease("best model"), ledger.lease("best model")
            >>> ledger.check_lease("best model", second)
            >>> try:
            ...     ledger.check_lease("best model", first)
            ... except pv.LedgerError as error:
            ...     print("taken over" in str(error))
            True
        """
        label, token = printable_text("label", label), os.urandom(16).hex()
        with self._storage.writing("write to") as transaction:
            self._refresh(transaction)
            transaction.lease(label, token)
        return token

    def check_lease(self, label: str, token: str) -> None:
        """Raise unless nobody has taken a label over since `lease` returned this token."""
        with self._storage.reading() as transaction:
            self._refresh(transaction)
            self._check_lease(transaction, printable_text("label", label), token)

    @contextmanager
    def while_leased(self, label: str, token: str) -> Iterator[None]:
        """Let nobody, in any process, take a label over meanwhile; raise if somebody has.

        Nothing is written to the ledger, so that it does not tell how often this was used.
        """
        with self._storage.writing("use") as transaction:
            self._refresh(transaction)
            self._check_lease(transaction, printable_text("label", label), token)
            yield

    def _check_lease(self, transaction: ReadTransaction, label: str, token: str) -> None:
        if transaction.leaseholder(label) != token:
            raise LedgerError(
                f"Expected to be the only one at {label!r}, but ledger {self.name!r} says that it "
                "was taken over since, by another process or from a copy of its files. That one "
                "goes on; nothing was published here."
            )

    def publish(self, label: str, digest: str, *, lease: tuple[str, str] | None = None) -> None:
        """Note, durably, that the result with this digest is published under a label.

        Args:
            label: what is published.
            digest: a digest of the result.
            lease: a label that must still be leased, and the token that `lease` returned for it.

        Guarantee: under one label one result is ever published, by whichever process and from
        whichever copy of its files. To publish the same result again is allowed.

        Raises:
            LedgerError: another result was published under the label, or it was taken over.

        Example:
            >>> import privada as pv
            >>> ledger = pv.Ledger(None)
            >>> ledger.publish("best model", "0a1b")
            >>> ledger.published("best model")
            '0a1b'
        """
        label, digest = printable_text("label", label), printable_text("digest", digest)
        with self._storage.writing("write to") as transaction:
            self._refresh(transaction)
            if lease is not None:
                self._check_lease(transaction, *lease)
            before = transaction.publish(label, digest)
        if before != digest:
            raise LedgerError(
                f"Expected {label!r} to be published once, but ledger {self.name!r} says that it "
                "was, with another result: from a copy of its files, or by another process. That "
                "result is the one that was paid for; start anew to pay for another."
            )

    def published(self, label: str) -> str | None:
        """Return the digest of what was published under a label, None if nothing was."""
        with self._storage.reading() as transaction:
            self._refresh(transaction)
            return transaction.published(printable_text("label", label))

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
        with self._storage.reading() as transaction:
            return tuple(charge for charge in transaction.charges() if charge.count)

    def totals(self) -> Tally:
        """Return how often each event was charged."""
        with self._storage.reading() as transaction:
            self._refresh(transaction)
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


def _reopen(storage: LedgerStorage, facts: Mapping[str, str]) -> Ledger:
    """Return the ledger of a pickle; never start a new one, or take another, in its place."""
    ledger = Ledger.__new__(Ledger)
    ledger._start(storage)
    ledger._facts = storage.open(None)
    storage.check_facts(facts)
    ledger._take_facts(None, None)
    return ledger
