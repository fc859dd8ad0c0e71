"""The ledger: every charge against a data set, in one SQLite file, durable before any release."""

import contextlib
import hashlib
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
from urllib.parse import quote

from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.accountants import epsilon_of
from privada.accounting.budget import Budget
from privada.accounting.events import Tally
from privada.core.errors import ArgumentError, BudgetExceeded, EventError, LedgerError
from privada.core.validation import one_of, whole, words

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
    seal TEXT NOT NULL,
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


def _seal(*fields: object) -> str:
    """Return a digest of some fields, by which damage to the file is noticed."""
    return hashlib.sha256(repr(fields).encode()).hexdigest()[:32]


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
        dataset = None if dataset is None else words("dataset", dataset)
        self.path = None if path is None else self._checked(path)
        self._given = "in memory" if path is None else str(path)
        self._lock, self._lock_pid = threading.RLock(), os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._pid = os.getpid()
        self._totals: Tally = Counter()
        self._version: int | None = None
        self._certified: Tally = Counter()
        if self.path is None:
            self._connection = self._connect(None)
            self._write_schema(self._connection, budget, dataset or "unnamed data set")
        elif not self.path.exists():
            self._create(budget, dataset)
        self._open(budget, dataset)

    # ------------------------------------------------------------------ the file

    @staticmethod
    def _checked(path: str | os.PathLike[str]) -> Path:
        """Return the absolute path, so that a change of folder does not change the ledger."""
        if str(path) == ":memory:":
            raise LedgerError("Expected a path, got ':memory:'. Give None for one in memory.")
        try:
            absolute = Path(path).absolute()
            absolute.stat()
        except FileNotFoundError:
            pass
        except NotADirectoryError as error:
            raise LedgerError(
                f"Cannot open the ledger {str(path)!r}: {error.strerror}. "
                "Check that the folder exists and may be written."
            ) from error
        except (OSError, ValueError, TypeError) as error:
            raise LedgerError(
                f"Cannot open the ledger {str(path)!r}: {error}. Give the path of a file that "
                "may be written."
            ) from error
        return absolute

    @property
    def name(self) -> str:
        """The path as it was given, for people to read."""
        return self._given

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
        if "readonly" in text and self.path is not None and not self.path.exists():
            remedy = "The file is gone: restore it from a copy."
        return LedgerError(f"Cannot {doing} the ledger {self.name!r}: {text}. {remedy}".rstrip())

    @staticmethod
    def _connect(path: str | None) -> sqlite3.Connection:
        """Return a connection to a file that exists, or to memory; never make a new file."""
        connection = sqlite3.connect(
            ":memory:" if path is None else f"file:{quote(path)}?mode=rw",
            uri=path is not None,
            timeout=_SECONDS_FOR_A_LOCK,
            isolation_level=None,
            check_same_thread=False,
        )
        # EXTRA also syncs the folder, so that a power cut cannot bring an old journal back;
        # the other takes writes past the disk's own cache where a plain sync does not
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA fullfsync = ON")
        return connection

    @staticmethod
    def _write_schema(connection: sqlite3.Connection, budget: Budget | None, dataset: str) -> None:
        connection.executescript(_SCHEMA)
        fields = {
            "dataset": dataset,
            "epsilon": "none" if budget is None else repr(budget.epsilon),
            "delta": "none" if budget is None else repr(budget.delta),
            "created": _now(),
            "rows": "0",
            "releases": "0",
        }
        fields["seal"] = _seal(*sorted(fields.items()))
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
                f"Cannot create the ledger {self.name!r}: {error.strerror}. "
                "Check that the folder exists and may be written."
            ) from error
        try:
            connection = self._connect(draft)
            with contextlib.closing(connection):
                self._write_schema(connection, budget, dataset or self._stem())
            with contextlib.suppress(FileExistsError):  # another process was first: use its file
                os.link(draft, self.path)
        except (sqlite3.Error, OSError) as error:
            raise self._error(error, "create") from error
        finally:
            with contextlib.suppress(OSError):
                Path(draft).unlink()

    def _stem(self) -> str:
        """Return the file's name as the name of a data set, if it can be one."""
        stem = "" if self.path is None else self.path.stem
        return stem if stem.isprintable() and stem else "unnamed data set"

    def _open(self, budget: Budget | None, dataset: str | None) -> None:
        try:
            connection = self._live()
            if self.path is not None and self.path.stat().st_size == 0:
                raise LedgerError(
                    f"Cannot open the ledger {self.name!r}: the file is empty. It was cut short; "
                    "restore it from a copy."
                )
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if application != _APPLICATION_ID:
                raise LedgerError(
                    f"Cannot open the ledger {self.name!r}: it is a database, but not a Privada "
                    "ledger. Give the ledger's own path."
                )
            if version > SCHEMA_VERSION:
                raise LedgerError(
                    f"Cannot open the ledger {self.name!r}: it has format {version}, this Privada "
                    f"reads up to {SCHEMA_VERSION}. Upgrade Privada."
                )
            damage = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
            if damage != ["ok"]:
                raise self._error(sqlite3.DatabaseError(f"malformed ({damage[0]})"), "open")
            self._refresh(connection)
            meta = self._meta(connection)
        except sqlite3.Error as error:
            raise self._error(error, "open") from error
        except (OSError, EventError, ValueError, KeyError) as error:
            raise LedgerError(f"Cannot open the ledger {self.name!r}: {error}.") from error
        self.dataset: str = meta["dataset"]
        self.budget: Budget | None = (
            None
            if meta["epsilon"] == "none"
            else Budget(float(meta["epsilon"]), float(meta["delta"]))
        )
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
        if self._connection is None:
            if self.path is None or not self.path.exists():
                raise LedgerError(
                    f"Cannot open the ledger {self.name!r}: it is closed or gone. "
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
        return _reopen, (str(self.path),)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ledger":
        return self  # a ledger is the authority on its data set; there is only one

    def __repr__(self) -> str:
        return f"Ledger({self.name!r}, {self.budget!r}, dataset={self.dataset!r})"

    def close(self) -> None:
        """Close the file. A ledger in memory is gone."""
        with self._hold():
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
                self._connection, self._version = None, None

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _hold(self) -> Iterator[None]:
        """Keep other threads out. A fork may have copied the lock while a thread held it."""
        if self._lock_pid != os.getpid():
            self._lock, self._lock_pid = threading.RLock(), os.getpid()
        with self._lock:
            yield

    def _idle(self, doing: str) -> sqlite3.Connection:
        """Return the connection; refuse a signal handler that comes in the middle of a charge."""
        connection = self._live()
        if connection.in_transaction:
            raise LedgerError(
                f"Cannot {doing} the ledger {self.name!r} from within another charge, as a "
                "signal handler would. Nothing was done; do it after that charge."
            )
        return connection

    @contextlib.contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        """Hold the file's write lock; commit durably at the end, or change nothing."""
        with self._hold():
            connection = self._idle(doing)
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except BaseException as error:
                self._version = None
                if connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise self._error(error, doing) from error
                raise

    @staticmethod
    def _meta(connection: sqlite3.Connection) -> dict[str, str]:
        """Return the ledger's own facts; raise if they are damaged."""
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        seal = meta.pop("seal", "")
        if seal != _seal(*sorted(meta.items())):
            raise sqlite3.DatabaseError("malformed (its own facts do not match their seal)")
        return meta

    @staticmethod
    @contextlib.contextmanager
    def _snapshot(connection: sqlite3.Connection) -> Iterator[None]:
        """Let several statements see the file as it is at one moment."""
        if connection.in_transaction:
            yield
            return
        try:
            connection.execute("BEGIN")
            yield
        finally:
            if connection.in_transaction:
                connection.execute("COMMIT")

    @classmethod
    def _rows(cls, connection: sqlite3.Connection) -> list[Charge]:
        """Return the charges, oldest first; raise if any is damaged or missing."""
        found = []
        with cls._snapshot(connection):
            meta = cls._meta(connection)
            rows = connection.execute(
                "SELECT run, purpose, event, count, first, last, seal FROM charges ORDER BY id"
            ).fetchall()
        for *fields, seal in rows:
            if seal != _seal(*fields):
                raise sqlite3.DatabaseError("malformed (a charge does not match its seal)")
            run, purpose, event, count, first, last = fields
            found.append(Charge(run, purpose, events.decode(event), count, first, last))
        held = str(len(found)), str(sum(charge.count for charge in found))
        if held != (meta["rows"], meta["releases"]):
            raise sqlite3.DatabaseError("malformed (charges are missing)")
        return found

    def _refresh(self, connection: sqlite3.Connection) -> None:
        """Read the totals again if another process has written since."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            totals: Tally = Counter()
            for charge in self._rows(connection):
                totals[charge.event] += charge.count
            self._totals, self._version, self._certified = +totals, version, Counter()

    @classmethod
    def _add(
        cls, connection: sqlite3.Connection, run: str, purpose: str, changes: Mapping[DpEvent, int]
    ) -> None:
        """Add to the counts of a run, and seal what was changed."""
        now, new = _now(), 0
        for event, change in changes.items():
            key = run, purpose, events.encode(event)
            old = connection.execute(
                "SELECT count, first FROM charges WHERE run = ? AND purpose = ? AND event = ?", key
            ).fetchone()
            count, first = old or (0, now)
            new += old is None
            if count + change < 0:
                raise LedgerError(
                    f"Cannot refund {-change} of {events.describe(event)} to run {run!r}: it was "
                    f"not charged that much."
                )
            fields = (*key, count + change, first, now)
            connection.execute(
                "INSERT INTO charges (run, purpose, event, count, first, last, seal) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run, purpose, event) DO UPDATE SET "
                "count = excluded.count, last = excluded.last, seal = excluded.seal",
                (*fields, _seal(*fields)),
            )
        meta = cls._meta(connection)
        meta["rows"] = str(int(meta["rows"]) + new)
        meta["releases"] = str(int(meta["releases"]) + sum(changes.values()))
        meta["seal"] = _seal(*sorted(meta.items()))
        connection.executemany(
            "UPDATE meta SET value = ? WHERE key = ?",
            [(meta[key], key) for key in ("rows", "releases", "seal")],
        )

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
        run, purpose = words("run", run), one_of("purpose", purpose, PURPOSES)
        added = self._tally(charged)
        with self._transaction("charge") as connection:
            self._refresh(connection)
            self._certify(added, plan)
            self._add(connection, run, purpose, added)
            self._totals.update(added)

    def refund(self, unused: Mapping[DpEvent, int], *, run: str, purpose: str = "training") -> None:
        """Take back charges that were reserved and certainly never used."""
        run, purpose = words("run", run), one_of("purpose", purpose, PURPOSES)
        given = self._tally(unused)
        if not given:
            return
        with self._transaction("refund") as connection:
            self._refresh(connection)
            self._add(connection, run, purpose, {e: -n for e, n in given.items()})
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
        if not cost <= self.budget.epsilon:
            spent = self._cost(self._totals)
            raise BudgetExceeded(
                f"Expected the charge to fit the budget of ledger {self.name!r} "
                f"(epsilon={self.budget.epsilon:g} at delta={self.budget.delta:g}), but "
                f"{spent:.4g} is spent and the charge would make it {cost:.4g}. Take fewer steps, "
                "more noise or a smaller batch. Nothing was charged and no data was read."
            )
        self._certified = after

    def affordable(self, event: DpEvent, most: int) -> int:
        """Return how many further `event`s the budget allows, at most `most`."""
        low, high = 0, whole("most", most, least=0) + 1
        if self.budget is None:
            return most
        totals, tried = self.totals(), most
        while high - low > 1:
            if self._cost(totals + Counter({event: tried})) <= self.budget.epsilon:
                low = tried
            else:
                high = tried
            tried = (low + high) // 2
        return low

    # ------------------------------------------------------------------ reading

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._hold():
            connection = self._idle("read")
            try:
                yield connection
            except sqlite3.Error as error:
                raise self._error(error, "read") from error

    def charges(self) -> tuple[Charge, ...]:
        """Return everything charged, oldest first."""
        with self._reading() as connection:
            return tuple(charge for charge in self._rows(connection) if charge.count)

    def totals(self) -> Tally:
        """Return how often each event was charged."""
        with self._reading() as connection:
            self._refresh(connection)
            return +self._totals

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


def _reopen(path: str) -> Ledger:
    """Return the ledger of a pickle; never start a new one in its place."""
    if not Path(path).exists():
        raise LedgerError(
            f"Cannot open the ledger {path!r}: it is gone. Restore the file from a copy."
        )
    return Ledger(path)
