"""The storage of a ledger in an SQLite file, or in memory."""

import contextlib
import ctypes
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from privada.accounting.ledger.moving import Closure
from privada.accounting.ledger.sqlite import connections, files, forks, formats
from privada.accounting.ledger.sqlite.connections import malformed
from privada.accounting.ledger.sqlite.moves import SQLiteMoves
from privada.accounting.ledger.sqlite.rows import SQLiteTransaction
from privada.accounting.ledger.storage import Busy
from privada.core.errors import LedgerError

_TO_WRITE = "BEGIN IMMEDIATE"


class SQLiteStorage(SQLiteMoves):
    """Charges, and facts that never change, in one SQLite file or in memory.

    Args:
        path: the file, created whole when it is opened and does not exist; None for one in memory.

    Guarantee: that of `LedgerStorage`. The file may be shared by processes on one machine, whose
    file system locks files. Other threads wait; other processes wait for a minute.

    Edge cases: a file of an earlier format is read as it is. The first write brings it to the
    present format, in the same transaction; just before that, a copy is kept beside it, called
    `patients.ledger.format-1-` and eight digits. A newer format, another kind of file and damage
    are refused. In memory, a forked child is refused.

    Example:
        >>> import privada as pv
        >>> from privada.accounting import SQLiteStorage
        >>> ledger = pv.Ledger(SQLiteStorage(None), pv.Budget(1.0, 1e-5), dataset="patients")
        >>> ledger.name
        'in memory'
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else files.absolute(path)
        self._name = "in memory" if path is None else str(path)
        self._facts: dict[str, str] = {}
        self._lock = threading.RLock()
        self._user: int | None = None  # the thread within `reading` or `writing`
        self._connection: sqlite3.Connection | None = None
        self._epoch = 0
        self._place: tuple[int, int] | None = None  # the device and the number of the file
        self._left_behind = False
        forks.care_for(self)

    @property
    def name(self) -> str:
        """The path as it was given, for people to read."""
        return self._name

    @property
    def path(self) -> Path | None:
        """The file's absolute path, None in memory."""
        return self._path

    @property
    def durable(self) -> bool:
        """Whether there is a file."""
        return self._path is not None

    # ------------------------------------------------------------------ opening

    def open(self, new: Mapping[str, str] | None) -> Mapping[str, str]:
        """Open the ledger, or make one with the facts `new` if there is none; return its facts."""
        with self._alone("open"):
            if self._facts:
                raise LedgerError(
                    f"Cannot open the storage {self.name!r} again: it serves one ledger. Make "
                    "another storage of the same path."
                )
            if self._path is None:
                if new is None:
                    raise LedgerError("Cannot open a ledger in memory: only the one that makes it.")
                self._connection = connections.connect(None)
                formats.write_schema(self._connection, new)
            elif not self._path.exists():
                if new is None:
                    raise LedgerError(
                        f"Cannot open the ledger {self.name!r}: it is gone. Restore the file from "
                        "a copy."
                    )
                facts = dict(new)
                files.create(self._path, self.name, lambda made: formats.write_schema(made, facts))
        with self.reading("open") as transaction:
            self._facts = self._checked(transaction.connection)
        if self._path is not None:
            files.remove_other_name(self._path)
        return self._facts

    def _checked(self, connection: sqlite3.Connection) -> dict[str, str]:
        """Check that this is a ledger and whole; return its facts."""
        try:
            if self._path is not None and self._path.stat().st_size == 0:
                raise LedgerError(
                    f"Cannot open the ledger {self.name!r}: the file is empty. It was cut "
                    "short; restore it from a copy."
                )
        except OSError as error:
            raise LedgerError(f"Cannot open the ledger {self.name!r}: {error}.") from error
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != formats.APPLICATION_ID:
            raise LedgerError(
                f"Cannot open the ledger {self.name!r}: it is a database, but not a Privada "
                "ledger. Give the ledger's own path."
            )
        if version > formats.NEWEST_VERSION:
            raise LedgerError(
                f"Cannot open the ledger {self.name!r}: it has format {version}, this Privada "
                f"reads up to {formats.NEWEST_VERSION}. Upgrade Privada."
            )
        damage = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
        if damage != ["ok"]:
            raise malformed(damage[0])
        return formats.facts_in(formats.read_meta(connection))

    def connection(self) -> sqlite3.Connection:
        """Return this process's connection, opened when it is first needed."""
        if self._connection is not None:
            return self._connection
        if forks.spoilt():
            raise LedgerError(
                f"Cannot open the ledger {self.name!r}: this process was forked in the middle of "
                "a charge, which SQLite does not survive. Fork between charges, or start the "
                "process by spawning it."
            )
        if self._left_behind:
            raise LedgerError(
                "Cannot use a ledger in memory from a forked process: its charges would be "
                "lost. Give the ledger a path."
            )
        if self._path is None or not self._path.exists():
            raise LedgerError(
                f"Cannot open the ledger {self.name!r}: it is closed or gone. "
                "Open it again, or restore the file from a copy."
            )
        place = files.find(self._path)
        connection = connections.connect(str(self._path))
        try:
            if self._facts:
                self.check_facts(formats.facts_in(formats.read_meta(connection)))
            if files.find(self._path) != place or self._place not in (None, place):
                raise LedgerError(self._replaced("open"))
        except BaseException:
            connection.close()
            raise
        self._connection, self._epoch, self._place = connection, self._epoch + 1, place
        return connection

    def _replaced(self, doing: str) -> str:
        return (
            f"Cannot {doing} the ledger {self.name!r}: another file is at its path, or none. The "
            "file was deleted or replaced while it was open: put it back, or restore it from a "
            "copy, and open it again."
        )

    def check_facts(self, facts: Mapping[str, str]) -> None:
        """Raise unless these are the facts of this very ledger."""
        if facts != self._facts:
            raise LedgerError(
                f"Cannot open the ledger {self.name!r}: another ledger has taken its place. Put "
                "back the one that was opened first, or restore it from a copy."
            )

    def for_another_process(self) -> "SQLiteStorage":
        """Return a storage of the same file, not open, which can be pickled."""
        if self._path is None:
            raise LedgerError(
                "Cannot send a ledger in memory to another process: its charges would be lost. "
                "Give the ledger a path."
            )
        return SQLiteStorage(self._path)

    def __reduce__(self) -> tuple[type["SQLiteStorage"], tuple[str]]:
        return SQLiteStorage, (str(self.for_another_process().path),)

    def close(self) -> None:
        """Close the file. What is in memory is gone."""
        with self._alone("close"):
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # ------------------------------------------------------------------ one at a time

    def in_use_here(self) -> bool:
        """Return whether this very thread is in the middle of using it: a signal handler may ask.

        A handler that waited for another thread then would wait for ever, if that one waits for
        this one.
        """
        return self._user == threading.get_ident()

    @contextlib.contextmanager
    def _alone(self, doing: str) -> Iterator[None]:
        """Keep other threads out; refuse a signal handler that comes in the middle."""
        forks.let_forks_go_first()
        with self._lock:
            if self._user is not None:
                raise Busy(
                    f"Cannot {doing} the ledger {self.name!r} from within another charge, as a "
                    "signal handler would. Nothing was done; do it after that charge."
                )
            try:
                self._user = threading.get_ident()
                yield
            finally:
                self._user = None

    @contextlib.contextmanager
    def _transaction(
        self, begin: str, doing: str, *, closed: bool = False
    ) -> Iterator[SQLiteTransaction]:
        """Open a transaction; one that writes to a ledger that is closed, only if that is meant."""
        with self._alone(doing):
            connection = None
            try:
                connection = self.connection()
                connection.execute(begin)
                if begin == _TO_WRITE:
                    self._prepare_to_write(connection, doing, closed)
                yield SQLiteTransaction(connection, self.check_facts, self._epoch)
                connection.execute("COMMIT")
            except BaseException as error:
                self._epoch += 1
                if connection is not None and connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                # the other is what comes of a name in the file that is no text
                if isinstance(error, (sqlite3.Error, UnicodeDecodeError)):
                    raise connections.in_words(error, doing, self.name) from error
                raise

    def _prepare_to_write(self, connection: sqlite3.Connection, doing: str, closed: bool) -> None:
        """Check that the file is the one that was opened, and bring it to the present format."""
        if self._path is not None and files.find(self._path) != self._place:
            raise LedgerError(self._replaced(doing))
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode == "wal":
            raise LedgerError(
                f"Cannot {doing} the ledger {self.name!r}: another program has switched it to "
                "write-ahead logging, with which a charge is not in the file at once. Close it "
                "wherever it is open, here too, and open it again. Nothing was written."
            )
        found = formats.format_of(connection)
        if found is formats.CLOSED:
            why = Closure.read(formats.read_state(connection))
            if why is not None and not closed:
                raise LedgerError(f"Cannot {doing} the ledger {self.name!r}: {why.in_words()}.")
        elif found is not formats.CURRENT:
            assert self._path is not None
            formats.read_content(connection)  # damage is refused before anything is copied
            files.keep_copy(self._path, self.name, found.version)
            formats.upgrade(connection)

    def reading(self, doing: str = "read") -> AbstractContextManager[SQLiteTransaction]:
        """See the file as it is at one moment."""
        return self._transaction("BEGIN", doing)

    def writing(self, doing: str) -> AbstractContextManager[SQLiteTransaction]:
        """Hold the file's write lock; commit durably at the end, or change nothing.

        Raises where another file has come to the path, also through a link or a folder above it:
        what was charged to the one would not be known to who opens the other.
        """
        return self._transaction(_TO_WRITE, doing)

    # ------------------------------------------------------------------ forks

    def used_by_some_thread(self) -> bool:
        """Return whether a thread is in the middle of using it."""
        return self._user is not None

    def leave_parent(self) -> None:
        """In a child: leave the connection to its parent, and have no thread wait for another's."""
        connection = self._connection
        if connection is not None:
            # one more reference, for ever: to close it, even when the child ends, would roll back
            # what its parent may be doing
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
            if self._user in (None, threading.get_ident()):
                connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
        self._connection, self._left_behind = None, self._left_behind or self._path is None
        self._lock, self._user = threading.RLock(), None
