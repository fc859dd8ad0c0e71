"""The ledger: every charge against a data set, in one SQLite file, durable before any release."""

import contextlib
import os
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.accountants import epsilon_of
from privada.accounting.budget import Budget
from privada.accounting.events import Tally
from privada.core.errors import ArgumentError, BudgetExceeded, EventError, LedgerError
from privada.core.validation import one_of, whole

PURPOSES = ("training", "tuning", "statistics", "validation")
SCHEMA_VERSION = 1
_APPLICATION_ID = 0x50525644  # "PRVD"
_SECONDS_FOR_A_LOCK = 60.0

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE charges (
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    purpose TEXT NOT NULL,
    event TEXT NOT NULL,
    count INTEGER NOT NULL CHECK (count >= 0),
    first TEXT NOT NULL,
    last TEXT NOT NULL,
    UNIQUE (run, purpose, event)
);
"""


@dataclass(frozen=True)
class Charge:
    """So many releases of one kind, charged to one run for one purpose.

    Example:
        >>> import privada as pv
        >>> from privada.accounting import events
        >>> ledger = pv.Ledger(None)
        >>> ledger.charge({events.gaussian(2.0): 3}, run="first", purpose="statistics")
        >>> (charge,) = ledger.charges()
        >>> charge.purpose, charge.count
        ('statistics', 3)
    """

    run: str
    purpose: str
    event: DpEvent
    count: int
    first: str
    last: str


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# Connections that a fork carried into a child: closing one there could disturb its parent.
_orphans: list[sqlite3.Connection] = []


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
        >>> ledger.charge({events.poisson(0.01, 4.0): 1000}, run="first")
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
        if budget is not None and not isinstance(budget, Budget):
            raise ArgumentError(
                f"Expected budget to be a Budget, got budget={budget!r}. "
                "Write pv.Budget(epsilon, delta)."
            )
        self.path = None if path is None else Path(path)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = os.getpid()
        self._totals: Tally = Counter()
        self._version: int | None = None
        self._certified: Tally = Counter()
        if self.path is None:
            self._connection = self._connect(":memory:")
            self._write_schema(self._connection, budget, dataset or "unnamed data set")
        elif not self.path.exists():
            self._create(budget, dataset)
        self._open(budget, dataset)

    # ------------------------------------------------------------------ the file

    @property
    def _name(self) -> str:
        return "in memory" if self.path is None else str(self.path)

    def _error(self, error: Exception, doing: str) -> LedgerError:
        text = str(error)
        remedies = {
            "locked": "Another process holds it; wait for that one or stop it.",
            "readonly": "Make the file and its folder writable, or give another path.",
            "full": "Free some space; nothing was released.",
            "I/O": "Check the disk; nothing was released.",
            "not a database": "It is another kind of file, or damaged: give the ledger's own path, "
            "or restore it from a copy.",
            "malformed": "It is damaged: restore it from a copy. Do not start a new one, which "
            "would forget what was spent.",
            "unable to open": "Check that the folder exists and may be written.",
        }
        remedy = next((hint for word, hint in remedies.items() if word in text), "")
        return LedgerError(f"Cannot {doing} the ledger {self._name!r}: {text}. {remedy}".rstrip())

    @staticmethod
    def _connect(target: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            target, timeout=_SECONDS_FOR_A_LOCK, isolation_level=None, check_same_thread=False
        )
        # EXTRA also syncs the folder, so that a power cut cannot bring an old journal back
        connection.execute("PRAGMA synchronous = EXTRA")
        return connection

    @staticmethod
    def _write_schema(connection: sqlite3.Connection, budget: Budget | None, dataset: str) -> None:
        connection.executescript(_SCHEMA)
        fields = {
            "dataset": dataset,
            "epsilon": None if budget is None else repr(budget.epsilon),
            "delta": None if budget is None else repr(budget.delta),
            "created": _now(),
        }
        connection.executemany("INSERT INTO meta VALUES (?, ?)", fields.items())
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _create(self, budget: Budget | None, dataset: str | None) -> None:
        """Make the file whole in one step: a half-written ledger never stands at its path."""
        assert self.path is not None
        try:
            handle, draft = tempfile.mkstemp(
                prefix=f".{self.path.name}.", suffix=".new", dir=self.path.parent
            )
            os.close(handle)
        except OSError as error:
            raise LedgerError(
                f"Cannot create the ledger {self._name!r}: {error.strerror}. "
                "Check that the folder exists and may be written."
            ) from error
        try:
            connection = self._connect(draft)
            with contextlib.closing(connection):
                self._write_schema(connection, budget, dataset or self.path.stem)
            with contextlib.suppress(FileExistsError):  # another process was first: use its file
                os.link(draft, self.path)
        except (sqlite3.Error, OSError) as error:
            raise self._error(error, "create") from error
        finally:
            with contextlib.suppress(OSError):
                Path(draft).unlink()

    def _open(self, budget: Budget | None, dataset: str | None) -> None:
        try:
            connection = self._live()
            if self.path is not None and self.path.stat().st_size == 0:
                raise LedgerError(
                    f"Cannot open the ledger {self._name!r}: the file is empty. It was cut short; "
                    "restore it from a copy."
                )
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if application != _APPLICATION_ID:
                raise LedgerError(
                    f"Cannot open the ledger {self._name!r}: it is a database, but not a Privada "
                    "ledger. Give the ledger's own path."
                )
            if version > SCHEMA_VERSION:
                raise LedgerError(
                    f"Cannot open the ledger {self._name!r}: it has format {version}, this Privada "
                    f"reads up to {SCHEMA_VERSION}. Upgrade Privada."
                )
            damage = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
            if damage != ["ok"]:
                raise self._error(sqlite3.DatabaseError(f"malformed ({damage[0]})"), "open")
            meta = dict(connection.execute("SELECT key, value FROM meta"))
            self._refresh(connection)
        except sqlite3.Error as error:
            raise self._error(error, "open") from error
        except (OSError, EventError) as error:
            raise LedgerError(f"Cannot open the ledger {self._name!r}: {error}.") from error
        self.dataset: str = meta["dataset"]
        self.budget: Budget | None = (
            None
            if meta["epsilon"] is None
            else Budget(float(meta["epsilon"]), float(meta["delta"]))
        )
        if dataset is not None and dataset != self.dataset:
            raise LedgerError(
                f"Expected the ledger of data set {dataset!r}, got {self._name!r}, which belongs "
                f"to {self.dataset!r}. Give that data set's own ledger."
            )
        if budget is not None and budget != self.budget:
            raise LedgerError(
                f"Expected the ledger {self._name!r} to have {budget}, but it was created with "
                f"{self.budget or 'no limit'}. Open it without a budget to use the one it has."
            )

    def _live(self) -> sqlite3.Connection:
        """Return this process's connection, a new one after a fork."""
        if self._pid != os.getpid():
            if self.path is None:
                raise LedgerError(
                    "Cannot use a ledger in memory from a forked process: its charges would be "
                    "lost. Give the ledger a path."
                )
            if self._connection is not None:
                _orphans.append(self._connection)
            self._connection, self._version, self._pid = None, None, os.getpid()
            self._lock = threading.RLock()
        if self._connection is None:
            if self.path is None or not self.path.exists():
                raise LedgerError(
                    f"Cannot open the ledger {self._name!r}: it is closed or gone. "
                    "Open it again, or restore the file from a copy."
                )
            self._connection = self._connect(str(self.path))
        return self._connection

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None:
            raise LedgerError(
                "Cannot send a ledger in memory to another process: its charges would be lost. "
                "Give the ledger a path."
            )
        return Ledger, (self.path, self.budget)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ledger":
        return self  # a ledger is the authority on its data set; there is only one

    def __repr__(self) -> str:
        return f"Ledger({self._name!r}, {self.budget!r}, dataset={self.dataset!r})"

    def close(self) -> None:
        """Close the file. A ledger in memory is gone."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
                self._connection = None

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        """Hold the file's write lock; commit durably at the end, or change nothing."""
        connection = self._live()
        with self._lock:
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    self._version = None
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._error(error, doing) from error

    def _refresh(self, connection: sqlite3.Connection) -> None:
        """Read the totals again if another process has written since."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            rows = connection.execute("SELECT event, SUM(count) FROM charges GROUP BY event")
            self._totals = Counter({events.decode(text): count for text, count in rows if count})
            self._version = version
            self._certified = Counter()

    # ------------------------------------------------------------------ charging

    def charge(
        self,
        charged: DpEvent | Mapping[DpEvent, int],
        *,
        run: str,
        purpose: str = "training",
        plan: Mapping[DpEvent, int] | Callable[[], Mapping[DpEvent, int]] | None = None,
    ) -> None:
        """Charge events, durably, before they run.

        `plan` is everything the caller expects to charge from here on, this charge included, or a
        function that returns it: if all of it fits the budget, later charges within it are not
        computed again.

        Guarantee: when this returns, the charge survives a crash. When it raises, nothing was
        charged.

        Raises:
            BudgetExceeded: the budget does not allow it.
            LedgerError: the file cannot be written.
        """
        one_of("purpose", purpose, PURPOSES)
        added = self._tally(charged)
        with self._transaction("charge") as connection:
            self._refresh(connection)
            self._certify(added, plan)
            now = _now()
            connection.executemany(
                "INSERT INTO charges (run, purpose, event, count, first, last) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (run, purpose, event) "
                "DO UPDATE SET count = count + excluded.count, last = excluded.last",
                [(run, purpose, events.encode(e), n, now, now) for e, n in added.items()],
            )
            self._totals.update(added)

    def refund(self, unused: Mapping[DpEvent, int], *, run: str, purpose: str = "training") -> None:
        """Take back charges that were reserved and certainly never used."""
        given = self._tally(unused)
        if not given:
            return
        with self._transaction("refund") as connection:
            self._refresh(connection)
            for event, count in given.items():
                done = connection.execute(
                    "UPDATE charges SET count = count - ? "
                    "WHERE run = ? AND purpose = ? AND event = ? AND count >= ?",
                    (count, run, purpose, events.encode(event), count),
                )
                if done.rowcount != 1:
                    raise LedgerError(
                        f"Cannot refund {count} of {events.describe(event)} to run {run!r}: it was "
                        "not charged that much."
                    )
            self._totals.subtract(given)

    @staticmethod
    def _tally(charged: DpEvent | Mapping[DpEvent, int]) -> Tally:
        if isinstance(charged, DpEvent):
            return events.tally(charged)
        total: Tally = Counter()
        for event, count in charged.items():
            total.update(events.tally(event, whole("count", count, least=0)))
        return Counter({event: count for event, count in total.items() if count})

    def _cost(self, totals: Tally) -> float:
        assert self.budget is not None
        return epsilon_of(totals, self.budget.delta)

    def _certify(
        self,
        added: Tally,
        plan: Mapping[DpEvent, int] | Callable[[], Mapping[DpEvent, int]] | None,
    ) -> None:
        """Raise unless the totals with `added` fit the budget.

        Costs grow with counts, so what fits certifies all that it contains: the expensive question
        is asked once for a plan, not once for each charge.
        """
        if all(self._totals[e] + n <= self._certified[e] for e, n in added.items()):
            return
        after = self._totals + added
        events.common_relation(after)
        if self.budget is None:
            return
        planned = Counter(plan() if callable(plan) else plan or {})
        hopeful = self._totals + (added | planned)
        while hopeful != after:
            if self._cost(hopeful) <= self.budget.epsilon:
                self._certified = hopeful
                return
            hopeful = Counter({e: after[e] + (n - after[e]) // 2 for e, n in hopeful.items()})
        cost = self._cost(after)
        if cost > self.budget.epsilon:
            spent = self._cost(self._totals)
            raise BudgetExceeded(
                f"Expected the charge to fit the budget of ledger {self._name!r} "
                f"(epsilon={self.budget.epsilon:g} at delta={self.budget.delta:g}), but "
                f"{spent:.4g} is spent and the charge would make it {cost:.4g}. Take fewer steps, "
                "more noise or a smaller batch. Nothing was charged and no data was read."
            )
        self._certified = after

    def affordable(self, event: DpEvent, most: int) -> int:
        """Return how many further `event`s the budget allows, at most `most`."""
        with self._transaction("read") as connection:
            self._refresh(connection)
            if self.budget is None:
                return most
            low, high = 0, whole("most", most, least=0) + 1
            tried = most
            while high - low > 1:
                if self._cost(self._totals + Counter({event: tried})) <= self.budget.epsilon:
                    low = tried
                else:
                    high = tried
                tried = (low + high) // 2
            return low

    # ------------------------------------------------------------------ reading

    def charges(self) -> tuple[Charge, ...]:
        """Return everything charged, oldest first."""
        try:
            with self._lock:
                rows = self._live().execute(
                    "SELECT run, purpose, event, count, first, last FROM charges "
                    "WHERE count > 0 ORDER BY id"
                )
                return tuple(Charge(r, p, events.decode(e), n, f, t) for r, p, e, n, f, t in rows)
        except sqlite3.Error as error:
            raise self._error(error, "read") from error

    def totals(self) -> Tally:
        """Return how often each event was charged."""
        connection = self._live()
        try:
            with self._lock:
                self._refresh(connection)
                return Counter(self._totals)
        except sqlite3.Error as error:
            raise self._error(error, "read") from error

    def epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon of everything charged, at `delta` or at the budget's."""
        if delta is None:
            if self.budget is None:
                raise ArgumentError(
                    "Expected delta, got delta=None. This ledger has no budget to take it from."
                )
            delta = self.budget.delta
        totals = self.totals()
        return epsilon_of(totals, delta)
