"""The storage of a ledger in a PostgreSQL database."""

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from privada.accounting.ledger.moving import Closure
from privada.accounting.ledger.postgres import forks, journal, tables
from privada.accounting.ledger.postgres.connections import damaged, telling
from privada.accounting.ledger.postgres.journal import Contents
from privada.accounting.ledger.postgres.moves import PostgresMoves
from privada.accounting.ledger.postgres.session import Head, Session
from privada.accounting.ledger.postgres.transactions import PostgresTransaction
from privada.accounting.ledger.postgres.urls import LedgerURL
from privada.accounting.ledger.storage import Busy
from privada.core.errors import LedgerError

_FORMAT = "format"


class PostgresStorage(PostgresMoves):
    """Charges, and facts that never change, in a PostgreSQL database that machines may share.

    Args:
        url: what libpq reads, such as "postgresql://user@host:5432/database", and `ledger=name`
            among its parameters if the database has several. Passwords are better kept in
            ~/.pgpass or PGPASSWORD.

    Guarantee: that of `LedgerStorage`, for all machines that reach the database. When `writing`
    ends, the commit is on the server's disk, and on those of its synchronous standbys. Whoever
    writes holds a lock, which ends with its transaction, also when its machine dies; and the server
    takes nothing that does not continue what is stored. A connection that breaks during a commit is
    made again to find out what became of it: a charge is made or not, never twice and never lost.

    Edge cases: a server with `fsync = off`, a standby, and a ledger whose database was restored
    from a backup, copied, or taken over by a standby may be read and not charged. A connection that
    is found broken before anything was written is made anew, for up to a minute. Passwords are
    never shown; a pickle holds the URL as it was given.

    Example:
        >>> from privada.accounting import PostgresStorage
        >>> PostgresStorage("postgresql://ana:secret@db.example:5432/clinic?ledger=patients").name
        'postgresql://db.example:5432/clinic?ledger=patients'
    """

    def __init__(self, url: str) -> None:
        self._url = LedgerURL.read(url)
        self._session = Session(self._url)
        self._facts: dict[str, str] = {}
        self._contents: Contents | None = None
        self._lock = threading.RLock()
        self._user: int | None = None  # the thread within `reading` or `writing`
        self._epoch, self._foreign = 0, 0
        self._life = 0  # changes in a forked child
        self._forked_within = self._warned = False
        forks.care_for(self)

    def __del__(self) -> None:
        if session := getattr(self, "_session", None):
            session.drop()

    @property
    def name(self) -> str:
        """Host, database and ledger, without user and password."""
        return self._url.name

    @property
    def path(self) -> Path | None:
        """None: there is no file."""
        return None

    @property
    def durable(self) -> bool:
        """True: the server keeps charges."""
        return True

    @property
    def dataset(self) -> str:
        """What a data set is called whose ledger this is, if nobody says otherwise."""
        return self._url.ledger or self._url.database

    # ------------------------------------------------------------------ opening

    def exists(self) -> bool:
        """Return whether there is a ledger, or what is left of one."""
        with self._alone("open"), telling("open", self._url):
            return self._find() is not None

    def _find(self) -> int | None:
        return tables.find(self._session.connected(), self._url.schema)

    def open(self, new: Mapping[str, str] | None) -> Mapping[str, str]:
        """Open the ledger, or make one with the facts `new` if there is none; return its facts."""
        with self._alone("open"):
            if self._facts:
                raise LedgerError(
                    f"Cannot open the storage {self.name!r} again: it serves one ledger. Make "
                    "another storage of the same URL."
                )
            with telling("open", self._url):
                missing = self._find() is None
            if missing and new is None:
                raise LedgerError(
                    f"Cannot open the ledger {self.name!r}: there is none in that database. "
                    "Check the URL and its ledger=, or restore it from a backup."
                )
            if missing and new is not None:
                facts = {**new, "id": os.urandom(8).hex(), "created": journal.now()}
                self._create(facts)
            self._load()
        return self._facts

    def _create(
        self,
        facts: Mapping[str, str],
        fill: Callable[[PostgresTransaction], None] = lambda _: None,
    ) -> None:
        """Make a ledger, whole, unless another process was first."""
        facts = {**facts, _FORMAT: str(tables.FORMAT)}
        schema = self._url.schema
        with telling("create", self._url):
            try:
                self._session.start(tables.lock(schema), write=True)
                if self._find() is not None:
                    return
                connection = self._session.connected()
                tables.make(connection, schema)
                row = connection.execute(
                    f"SELECT session_user::text, {tables.origin(schema)}".encode()
                ).fetchone()
                assert row is not None
                contents = Contents(self.name, facts)
                draft = PostgresTransaction(contents, None, row[0], os.urandom(16).hex())
                draft.append(tables.ORIGIN, value=row[1])
                fill(draft)
                self._session.fill(contents, facts, draft.rows)
                tables.guard(connection, schema)
                self._session.commit(draft.rows[-1])
            finally:
                self._session.end()

    def _load(self) -> None:
        """Read the whole ledger and check it, as it is at one moment."""
        with telling("open", self._url):
            try:
                self._session.start("SELECT 1", write=False)
                oid = self._find()
                if oid is None:
                    raise damaged(self.name, "it is gone")
                connection, schema = self._session.connected(), tables.quoted(self._url.schema)
                tables.check(connection, self._url.schema, oid, self.name)
                facts = dict(connection.execute(f"SELECT key, value FROM {schema}.facts".encode()))
                self._check_format(facts.get(_FORMAT, ""))
                contents = Contents(self.name, facts)
                kept = {key: value for key, value in facts.items() if key != _FORMAT}
                if self._facts and kept != self._facts:
                    self.check_facts(kept)
                self._contents = contents
                self._catch_up(self._session.head())
                self._facts = kept
            except BaseException:
                self._contents = None
                raise
            finally:
                self._session.end()

    def _check_format(self, text: str) -> None:
        if not text.isdecimal():
            raise damaged(self.name, "its own facts are not those of a ledger")
        if int(text) > tables.FORMAT:
            raise LedgerError(
                f"Cannot open the ledger {self.name!r}: it has format {text}, this Privada reads "
                f"up to {tables.FORMAT}. Upgrade Privada."
            )

    def _catch_up(self, head: Head) -> None:
        """Read what others have written since; raise if what was there is not."""
        contents = self._contents
        assert contents is not None
        if (head.number, head.seal) == (contents.number, contents.seal):
            return
        if head.number <= contents.number:
            raise damaged(
                self.name,
                "it has lost rows that were there, as when an older copy is put in its place",
            )
        try:
            contents.take(self._session.rows(contents.number, head.number))
            if (head.number, head.seal) != (contents.number, contents.seal):
                raise damaged(self.name, "rows of its journal are missing")
            if (head.state, head.origin) != (contents.state, contents.origin):
                raise damaged(self.name, "its head does not say what its journal does")
        except BaseException:
            self._contents = None  # half of it was read: the next use reads all
            raise
        self._foreign += 1

    def check_facts(self, facts: Mapping[str, str]) -> None:
        """Raise unless these are the facts of this very ledger."""
        if facts != self._facts:
            raise LedgerError(
                f"Cannot open the ledger {self.name!r}: another ledger has taken its place. Put "
                "back the one that was opened first, or restore it from a backup."
            )

    def for_another_process(self) -> "PostgresStorage":
        """Return a storage of the same URL, not open, which can be pickled."""
        return PostgresStorage(self._url.text)

    def __reduce__(self) -> tuple[type["PostgresStorage"], tuple[str]]:
        return PostgresStorage, (self._url.text,)

    def close(self) -> None:
        """Close the connection."""
        with self._alone("close"):
            self._session.drop()

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
        with self._lock:
            if self._forked_within:
                raise self._forked(doing)
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

    def _forked(self, doing: str) -> LedgerError:
        return LedgerError(
            f"Cannot {doing} the ledger {self.name!r}: this process was forked in the middle of a "
            "charge, which is its parent's. Nothing was released here; fork between charges."
        )

    @contextlib.contextmanager
    def _transaction(
        self, doing: str, *, write: bool, check: Callable[[Head], None]
    ) -> Iterator[PostgresTransaction]:
        with self._alone(doing):
            life = self._life
            try:
                with telling(doing, self._url):
                    if self._contents is None:
                        self._reload()
                    head = self._session.begin(write=write)
                    self._catch_up(head)
                check(head)
                assert self._contents is not None
                version = self._epoch, self._foreign
                transaction = PostgresTransaction(
                    self._contents, version, head.role, os.urandom(16).hex()
                )
                yield transaction
                if self._life != life:
                    raise self._forked(doing)
                with telling(doing, self._url):
                    self._finish(transaction, write)
            except BaseException:
                self._epoch += 1
                self._session.end()
                raise

    def _reload(self) -> None:
        """Read all of it again, in a child or after damage was found."""
        if not self._facts:
            raise LedgerError(f"Cannot use the ledger {self.name!r}: it was not opened.")
        self._foreign += 1
        self._load()

    def _finish(self, transaction: PostgresTransaction, write: bool) -> None:
        """Send what was written, and commit it."""
        if not write:
            self._session.end()
            return
        rows = transaction.rows
        self._session.insert(rows)
        self._session.commit(rows[-1] if rows else None)
        contents, self._contents = self._contents, None  # an interrupt leaves none half counted
        assert contents is not None
        for row in rows:
            contents.add(row)
        self._contents = contents

    def reading(self, doing: str = "read") -> AbstractContextManager[PostgresTransaction]:
        """See the ledger as it is at one moment."""
        return self._transaction(doing, write=False, check=lambda _: None)

    def writing(self, doing: str) -> AbstractContextManager[PostgresTransaction]:
        """Keep all others from writing; store everything at the end, durably, or nothing."""
        return self._transaction(doing, write=True, check=lambda head: self._check(head, doing))

    def _check(self, head: Head, doing: str) -> None:
        """Raise unless what is written will last, and counts."""
        self._check_server(head, doing)
        self._check_origin(head, doing)
        if (why := Closure.read(head.state)) is not None:
            raise LedgerError(f"Cannot {doing} the ledger {self.name!r}: {why.in_words()}.")

    def _check_server(self, head: Head, doing: str) -> None:
        reason = ""
        if head.standby:
            reason = "the server is a standby, which may only be read. Connect to the primary"
        elif head.read_only == "on":
            reason = (
                "transactions may only read there (default_transaction_read_only is on, for the "
                "role, the database or the server). Connect where they may write"
            )
        elif head.fsync != "on":
            reason = (
                "the server runs with fsync = off, and may forget charges when it crashes. Set "
                "fsync = on"
            )
        if reason:
            raise LedgerError(
                f"Cannot {doing} the ledger {self.name!r}: {reason}. Nothing was written."
            )
        if head.full_page_writes != "on" and not self._warned:
            self._warned = True
            warnings.warn(
                f"The server of the ledger {self.name!r} runs with full_page_writes = off. Unless "
                "its file system writes pages whole, as ZFS does, a crash may damage the ledger.",
                stacklevel=2,
            )

    def _check_origin(self, head: Head, doing: str) -> None:
        if head.origin != head.here:
            raise LedgerError(
                f"Cannot {doing} the ledger {self.name!r}: its database was restored from a "
                "backup, copied, or taken over by a standby since it was charged. Charges may be "
                "missing, or another server may be charged as well. See to that, and then let its "
                "owner run privada ledger accept. Nothing was written."
            )

    # ------------------------------------------------------------------ forks

    def leave_parent(self) -> None:
        """In a child: leave the connection to its parent, and what another thread was reading."""
        self._session.leave_parent()
        self._forked_within = self._forked_within or self._user == threading.get_ident()
        self._contents = None
        self._life, self._epoch = self._life + 1, self._epoch + 1
        self._lock, self._user = threading.RLock(), None
