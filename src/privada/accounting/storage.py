"""The ledger's file: one SQLite database that processes, threads and forks may share."""

import contextlib
import ctypes
import errno
import functools
import hashlib
import os
import re
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from dp_accounting import DpEvent

from privada.accounting import events
from privada.core.errors import EventError, LedgerError

# Format 1 had no digest of all rows together and no seals on what was given out. It is read as it
# is, and brought to this format by the first write.
SCHEMA_VERSION = 2
_APPLICATION_ID = 0x50525644  # "PRVD"
_TO_WRITE = "BEGIN IMMEDIATE"
_SECONDS_FOR_A_LOCK = 60.0
# A draft is finished within milliseconds; one that is this much older than another is left over.
_SECONDS_FOR_A_DRAFT = 3600.0

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
# What was given out under a label, by its digest.
_GIVEN = """
CREATE TABLE given (
    label TEXT PRIMARY KEY, digest TEXT NOT NULL, seal TEXT NOT NULL
) WITHOUT ROWID;
"""
_GIVEN_1 = """
CREATE TABLE given (label TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID;
"""
_COUNTERS = ("rows", "releases", "content")
# Under which key the facts are sealed, by format: a process of an earlier one, which would not keep
# the digest of all rows, finds no seal and charges nothing.
_SEAL = {1: "seal", 2: "sealed"}
_MODULUS = 1 << 256
# The largest number of SQLite.
_LARGEST = (1 << 63) - 1

# What to do about an error of SQLite: by its name where there is one, else by a word of its text.
_REMEDIES = {
    "SQLITE_READONLY_DBMOVED": "The file was deleted or replaced while it was open: put it back, "
    "or restore it from a copy, and open it again.",
    "SQLITE_IOERR_LOCK": "The file system cannot lock files, as network file systems often "
    "cannot: keep the ledger on a local disk. Nothing was released.",
    "not authorized": "This process was forked in the middle of that charge, which is its "
    "parent's. Nothing was released here; fork between charges.",
    "locked": "Another process holds it; wait for that one or stop it. If there is none, the file "
    "system cannot lock files: keep the ledger on a local disk.",
    "readonly": "Make the file and its folder writable, or give another path.",
    "full": "Free some space; nothing was released.",
    "I/O": "Check the disk; nothing was released.",
    "not a database": "It is another kind of file, or damaged: give the ledger's own path, "
    "or restore it from a copy.",
    "malformed": "It is damaged: restore it from a copy. Do not start a new one, which "
    "would forget what was spent.",
    "no such": "It is damaged: restore it from a copy. Do not start a new one, which would forget "
    "what was spent.",
    "unable to open": "Check that the folder exists and may be written.",
}


class Busy(LedgerError):
    """This very thread is in the middle of using the ledger, as a signal handler may find it."""


@dataclass(frozen=True)
class Charge:
    """So many releases of one kind, charged to one run for one purpose.

    Example:
        >>> import privada as pv
        >>> from privada.accounting import events
        >>> ledger = pv.Ledger(None)
        >>> paid = ledger.charge({events.gaussian(2.0): 3}, run="first", purpose="statistics")
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


def _digest(*row: object) -> int:
    """Return a number for a row; the sum over all rows tells a lost, doubled or older one."""
    return int.from_bytes(hashlib.sha256(repr(row).encode()).digest(), "big")


def _malformed(what: str) -> sqlite3.DatabaseError:
    return sqlite3.DatabaseError(f"malformed ({what})")


def _tables(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    return connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_stat%' "
        "ORDER BY name"
    ).fetchall()


@functools.cache
def _expected_tables(*scripts: str) -> list[tuple[str, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript("".join(scripts))
        return _tables(connection)


def _format(connection: sqlite3.Connection) -> int:
    """Return the number of a ledger's format."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in _SEAL:
        raise _malformed("it has no format that there was")
    return int(version)


def _check_tables(connection: sqlite3.Connection) -> None:
    """Raise unless the tables are, word for word, those of a ledger."""
    old = _format(connection) == 1
    known = [(_SCHEMA,), (_SCHEMA, _GIVEN_1)] if old else [(_SCHEMA, _GIVEN)]
    if _tables(connection) not in [_expected_tables(*each) for each in known]:
        raise _malformed("its tables are not those of a ledger")


def _holding(label: str) -> str:
    return f"{label}, held by"


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


def _connect(path: str | None) -> sqlite3.Connection:
    """Return a connection to a file that exists, or to memory; never make a new file."""
    connection = sqlite3.connect(
        ":memory:" if path is None else f"file:{quote(path)}?mode=rw",
        uri=path is not None,
        timeout=_SECONDS_FOR_A_LOCK,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        # EXTRA also syncs the folder, so that a power cut cannot bring an old journal back;
        # the other takes writes past the disk's own cache where a plain sync does not
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA cell_size_check = ON")  # notice damaged pages as they are read
        # a file that somebody switched to WAL has locks that a fork would break
        connection.execute("PRAGMA journal_mode = DELETE")
    except BaseException:
        connection.close()
        raise
    return connection


def _write_schema(connection: sqlite3.Connection, facts: Mapping[str, str]) -> None:
    connection.executescript(_SCHEMA + _GIVEN)
    meta = {**facts, "id": os.urandom(8).hex(), "created": _now()}
    meta.update(dict.fromkeys(_COUNTERS, "0"))
    meta[_SEAL[SCHEMA_VERSION]] = _seal(*sorted(meta.items()))
    connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


class Storage:
    """Charges, and facts that never change, in one file or in memory.

    Everything is done within `reading` or `writing`, which keep other threads out; `writing` also
    keeps other processes out, and commits durably at its end or changes nothing.

    Args:
        path: the file, created whole if it does not exist; None for one in memory.
        facts: what a new file is to know of itself.
    """

    def __init__(self, path: str | os.PathLike[str] | None, facts: Mapping[str, str]) -> None:
        self.path = None if path is None else _checked(path)
        self.name = "in memory" if path is None else str(path)
        self.facts: dict[str, str] = {}
        self._lock = threading.RLock()
        self._user: int | None = None  # the thread within `reading` or `writing`
        self._connection: sqlite3.Connection | None = None
        self._epoch = 0
        self._place: tuple[int, int] | None = None  # the device and the number of the file
        self._left_behind = False
        with _forking:
            _living.add(self)
        with self._alone("open"):
            if self.path is None:
                self._connection = _connect(None)
                _write_schema(self._connection, facts)
            elif not self.path.exists():
                self._create(facts)
        self._open()

    # ------------------------------------------------------------------ opening

    def _create(self, facts: Mapping[str, str]) -> None:
        """Make the file whole in one step: a half-written ledger never stands at its path."""
        assert self.path is not None
        try:
            handle, name = tempfile.mkstemp(
                prefix=f".{self.path.name}.", suffix=".new", dir=self.path.parent
            )
            os.close(handle)
        except OSError as error:
            raise LedgerError(
                f"Cannot create the ledger {self.name!r}: {error.strerror}. "
                "Check that the folder exists and may be written."
            ) from error
        draft = Path(name)
        try:
            self._remove_old_drafts(draft)
            with contextlib.closing(_connect(str(draft))) as connection:
                _write_schema(connection, facts)
            with contextlib.suppress(FileExistsError):  # another process was first: use its file
                self._link(draft)
        except (sqlite3.Error, OSError) as error:
            raise self._error(error, "create") from error
        finally:
            with contextlib.suppress(OSError):
                draft.unlink()

    def _link(self, draft: Path) -> None:
        """Give a finished draft the ledger's name, unless that is taken: in one step."""
        assert self.path is not None
        try:
            os.link(draft, self.path)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            raise LedgerError(
                f"Cannot create the ledger {self.name!r}: its file system has no hard links "
                f"({error.strerror}), without which two processes could each make it. Keep the "
                "ledger on a local disk that has them, such as ext4, XFS, APFS or NTFS."
            ) from error

    def _drafts(self) -> list[Path]:
        """Return what creations of this ledger, under way or killed, have in its folder."""
        assert self.path is not None
        name = re.compile(rf"\.{re.escape(self.path.name)}\.[a-z0-9_]{{8}}\.new(-journal)?")
        return [each for each in self.path.parent.iterdir() if name.fullmatch(each.name)]

    def _remove_old_drafts(self, draft: Path) -> None:
        """Remove what killed creations left behind; both ages are by the file system's clock.

        A creation that is under way for so long after all finds its draft gone, and says so.
        """
        with contextlib.suppress(OSError):
            now = draft.stat().st_mtime
            for each in self._drafts():
                with contextlib.suppress(OSError):
                    if now - each.stat().st_mtime > _SECONDS_FOR_A_DRAFT:
                        each.unlink()

    def _remove_other_name(self) -> None:
        """Remove the draft's name of this very file, which a creation killed at its end leaves."""
        assert self.path is not None
        with contextlib.suppress(OSError):
            if self.path.stat().st_nlink > 1:
                for each in self._drafts():
                    if each.samefile(self.path):
                        each.unlink(missing_ok=True)

    def _open(self) -> None:
        """Check that this is a ledger and whole, and take its facts."""
        with self.reading("open") as connection:
            try:
                if self.path is not None and self.path.stat().st_size == 0:
                    raise LedgerError(
                        f"Cannot open the ledger {self.name!r}: the file is empty. It was cut "
                        "short; restore it from a copy."
                    )
            except OSError as error:
                raise LedgerError(f"Cannot open the ledger {self.name!r}: {error}.") from error
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
                raise _malformed(damage[0])
            self.facts = self._facts(connection)
        if self.path is not None:
            self._remove_other_name()

    def connection(self) -> sqlite3.Connection:
        """Return this process's connection, opened when it is first needed."""
        if self._connection is not None:
            return self._connection
        if _spoilt:
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
        if self.path is None or not self.path.exists():
            raise LedgerError(
                f"Cannot open the ledger {self.name!r}: it is closed or gone. "
                "Open it again, or restore the file from a copy."
            )
        place = self._find()
        connection = _connect(str(self.path))
        try:
            if self.facts:
                self.check_facts(self._facts(connection))
            if self._find() != place or self._place not in (None, place):
                raise LedgerError(self._replaced("open"))
        except BaseException:
            connection.close()
            raise
        self._connection, self._epoch, self._place = connection, self._epoch + 1, place
        return connection

    def _find(self) -> tuple[int, int] | None:
        """Return which file is at the path, whatever leads there."""
        assert self.path is not None
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _replaced(self, doing: str) -> str:
        return (
            f"Cannot {doing} the ledger {self.name!r}: another file is at its path, or none. The "
            "file was deleted or replaced while it was open: put it back, or restore it from a "
            "copy, and open it again."
        )

    def check_facts(self, facts: Mapping[str, str]) -> None:
        """Raise unless these are the facts of this very ledger."""
        if facts != self.facts:
            raise LedgerError(
                f"Cannot open the ledger {self.name!r}: another ledger has taken its place. Put "
                "back the one that was opened first, or restore it from a copy."
            )

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
        with _forking:  # let a fork that waits go first: locks are not fair
            pass
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
    def _transaction(self, begin: str, doing: str) -> Iterator[sqlite3.Connection]:
        with self._alone(doing):
            connection = None
            try:
                connection = self.connection()
                connection.execute(begin)
                if begin == _TO_WRITE:
                    if self.path is not None and self._find() != self._place:
                        raise LedgerError(self._replaced(doing))
                    self._refuse_write_ahead(connection, doing)
                    self._upgrade(connection)
                yield connection
                connection.execute("COMMIT")
            except BaseException as error:
                self._epoch += 1
                if connection is not None and connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                # the other is what comes of a name in the file that is no text
                if isinstance(error, (sqlite3.Error, UnicodeDecodeError)):
                    raise self._error(error, doing) from error
                raise

    def _refuse_write_ahead(self, connection: sqlite3.Connection, doing: str) -> None:
        """Raise if another program switched the file to a log beside it, which may get lost."""
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode == "wal":
            raise LedgerError(
                f"Cannot {doing} the ledger {self.name!r}: another program has switched it to "
                "write-ahead logging, with which a charge is not in the file at once. Close it "
                "wherever it is open, here too, and open it again. Nothing was written."
            )

    def reading(self, doing: str = "read") -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """See the file as it is at one moment."""
        return self._transaction("BEGIN", doing)

    def writing(self, doing: str) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """Hold the file's write lock; commit durably at the end, or change nothing.

        Raises where another file has come to the path, also through a link or a folder above it:
        what was charged to the one would not be known to who opens the other.
        """
        return self._transaction(_TO_WRITE, doing)

    def _error(self, error: Exception, doing: str) -> LedgerError:
        name, text = getattr(error, "sqlite_errorname", ""), str(error)
        if isinstance(error, UnicodeDecodeError):
            text = "malformed (text in it cannot be read)"
        hints = (hint for key, hint in _REMEDIES.items() if key in name or key in text)
        remedy = next(hints, "Check the disk; if the file is damaged, restore it from a copy.")
        return LedgerError(f"Cannot {doing} the ledger {self.name!r}: {text}. {remedy}")

    # ------------------------------------------------------------------ what is in it

    def version(self, connection: sqlite3.Connection) -> tuple[int, int]:
        """Return a mark that stays as it is while nobody but this storage has written.

        It also changes when something failed, and what was meant to be written was not.
        """
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        return self._epoch, version

    @staticmethod
    def _meta(connection: sqlite3.Connection) -> dict[str, str]:
        """Return the facts and the counters; raise if they are damaged."""
        key = _SEAL[_format(connection)]
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        seal = meta.pop(key, "")
        if not all(isinstance(key, str) for key in meta) or seal != _seal(*sorted(meta.items())):
            raise _malformed("its own facts do not match their seal")
        return meta

    @classmethod
    def _facts(cls, connection: sqlite3.Connection) -> dict[str, str]:
        meta = cls._meta(connection)
        return {key: value for key, value in meta.items() if key not in _COUNTERS}

    @classmethod
    def charges(cls, connection: sqlite3.Connection) -> list[Charge]:
        """Return the charges, oldest first; raise if anything is damaged or missing."""
        _check_tables(connection)
        found, meta, content = [], cls._meta(connection), 0
        for *fields, seal in connection.execute(
            "SELECT run, purpose, event, count, first, last, seal FROM charges ORDER BY id"
        ):
            if seal != _seal(*fields):
                raise _malformed("a charge does not match its seal")
            run, purpose, event, count, first, last = fields
            try:
                found.append(Charge(run, purpose, events.decode(event), count, first, last))
            except EventError as error:
                raise _malformed(str(error)) from error
            content += _digest("charges", *fields)
        held = {"rows": str(len(found)), "releases": str(sum(charge.count for charge in found))}
        if "content" in meta:
            for label, digest, seal in connection.execute("SELECT label, digest, seal FROM given"):
                if seal != _seal(label, digest):
                    raise _malformed("what was given out does not match its seal")
                content += _digest("given", label, digest)
            held["content"] = str(content % _MODULUS)
        if any(meta.get(key) != value for key, value in held.items()):
            raise _malformed("rows are missing, or are older than others")
        return found

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        """Bring a ledger of an earlier format to this one, within the write that needs it."""
        if _format(connection) == SCHEMA_VERSION:
            return
        self.charges(connection)  # whole, or nothing is sealed anew
        meta = self._meta(connection)
        charges = connection.execute("SELECT run, purpose, event, count, first, last FROM charges")
        content = sum(_digest("charges", *fields) for fields in charges)
        given = []
        if ("given",) in connection.execute("SELECT name FROM sqlite_master").fetchall():
            given = connection.execute("SELECT label, digest FROM given").fetchall()
            connection.execute("DROP TABLE given")
        connection.execute(_GIVEN)
        connection.executemany(
            "INSERT INTO given VALUES (?, ?, ?)", [(*each, _seal(*each)) for each in given]
        )
        content += sum(_digest("given", *each) for each in given)
        meta["content"] = str(content % _MODULUS)
        connection.execute("DELETE FROM meta")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        meta[_SEAL[SCHEMA_VERSION]] = _seal(*sorted(meta.items()))
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())

    def _count(
        self, connection: sqlite3.Connection, rows: int, releases: int, content: int
    ) -> None:
        """Add to the counters, having checked that they are of this very ledger."""
        meta = self._meta(connection)
        self.check_facts({key: value for key, value in meta.items() if key not in _COUNTERS})
        meta["rows"] = str(int(meta["rows"]) + rows)
        meta["releases"] = str(int(meta["releases"]) + releases)
        meta["content"] = str((int(meta["content"]) + content) % _MODULUS)
        key = _SEAL[SCHEMA_VERSION]
        meta[key] = _seal(*sorted(meta.items()))
        connection.executemany(
            "UPDATE meta SET value = ? WHERE key = ?",
            [(meta[each], each) for each in (*_COUNTERS, key)],
        )

    def add(
        self, connection: sqlite3.Connection, run: str, purpose: str, changes: Mapping[DpEvent, int]
    ) -> None:
        """Add to the counts of a run, and seal what was changed."""
        now, new, content = _now(), 0, 0
        for event, change in changes.items():
            key = run, purpose, events.encode(event)
            old = connection.execute(
                "SELECT count, first, last, seal FROM charges "
                "WHERE run = ? AND purpose = ? AND event = ?",
                key,
            ).fetchone()
            count, first = 0, now
            if old is None:
                new += 1
            else:
                count, first, last, seal = old
                if seal != _seal(*key, count, first, last):
                    raise _malformed("a charge does not match its seal")
                content -= _digest("charges", *key, count, first, last)
            if count + change > _LARGEST:
                raise LedgerError(
                    f"Cannot charge {change:,} x {events.describe(event)} to run {run!r}: it would "
                    f"have more than {_LARGEST:,}, the most that a ledger can count. Nothing was "
                    "charged; charge fewer."
                )
            if count + change < 0:
                raise LedgerError(
                    f"Cannot refund {-change} of {events.describe(event)} to run {run!r}: it was "
                    f"not charged that much."
                )
            fields = (*key, count + change, first, now)
            content += _digest("charges", *fields)
            connection.execute(
                "INSERT INTO charges (run, purpose, event, count, first, last, seal) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run, purpose, event) DO UPDATE SET "
                "count = excluded.count, last = excluded.last, seal = excluded.seal",
                (*fields, _seal(*fields)),
            )
        self._count(connection, new, sum(changes.values()), content)

    def give(self, connection: sqlite3.Connection, label: str, digest: str) -> str:
        """Note what is given out under a label, unless something was; return what that is."""
        before = self.given(connection, label)
        if before is None:
            self._note(connection, label, digest, None)
        return digest if before is None else before

    def hold(self, connection: sqlite3.Connection, label: str, holder: str) -> None:
        """Note who is at what will be given out under a label, whoever was before."""
        label = _holding(label)
        self._note(connection, label, holder, self.given(connection, label))

    def _note(
        self, connection: sqlite3.Connection, label: str, digest: str, before: str | None
    ) -> None:
        content = _digest("given", label, digest)
        content -= 0 if before is None else _digest("given", label, before)
        connection.execute(
            "INSERT OR REPLACE INTO given VALUES (?, ?, ?)", (label, digest, _seal(label, digest))
        )
        self._count(connection, 0, 0, content)

    @classmethod
    def holder(cls, connection: sqlite3.Connection, label: str) -> str | None:
        """Return who was the last to hold a label, None if nobody was."""
        return cls.given(connection, _holding(label))

    @staticmethod
    def given(connection: sqlite3.Connection, label: str) -> str | None:
        """Return the digest of what was given out under a label, None if nothing was."""
        sealed = _format(connection) > 1
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'given'").fetchone():
            return None
        column = "seal" if sealed else "''"
        found = connection.execute(
            f"SELECT digest, {column} FROM given WHERE label = ?", (label,)
        ).fetchone()
        if found is None:
            return None
        if sealed and found[1] != _seal(label, found[0]):
            raise _malformed("what was given out does not match its seal")
        return str(found[0])

    # ------------------------------------------------------------------ forks

    def _leave_parent(self) -> None:
        """In a child: leave the connection to its parent, and have no thread wait for another's."""
        connection = self._connection
        if connection is not None:
            # one more reference, for ever: to close it, even when the child ends, would roll back
            # what its parent may be doing
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
            if self._user in (None, threading.get_ident()):
                connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
        self._connection, self._left_behind = None, self._left_behind or self.path is None
        self._lock, self._user = threading.RLock(), None


# A fork waits until no thread is within SQLite, whose own locks and open transactions the child
# would inherit with nobody to end them. It does not wait for ever: a child that was forked in the
# middle all the same may use no ledger.
_living: weakref.WeakSet[Storage] = weakref.WeakSet()
_forking = threading.RLock()
_held: list[list[Storage]] = []
_spoilt = False


def _before_fork() -> None:
    _forking.acquire()
    until = time.monotonic() + _SECONDS_FOR_A_LOCK
    _held.append([])
    for storage in list(_living):
        if storage._lock.acquire(timeout=max(0.0, until - time.monotonic())):
            _held[-1].append(storage)


def _after_fork_in_parent() -> None:
    for storage in _held.pop():
        storage._lock.release()
    _forking.release()


def _after_fork_in_child() -> None:
    global _spoilt, _forking
    for storage in list(_living):
        _spoilt = _spoilt or storage._user is not None
        storage._leave_parent()
    _held.clear()
    _forking = threading.RLock()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
