"""A connection of one storage: begun, committed, found out about, and made again when it breaks."""

import ctypes
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privada.accounting.ledger.postgres import connections, tables
from privada.accounting.ledger.postgres.connections import damaged
from privada.accounting.ledger.postgres.driver import driver
from privada.accounting.ledger.postgres.journal import Contents, Row
from privada.accounting.ledger.postgres.urls import LedgerURL
from privada.core.errors import LedgerError

if TYPE_CHECKING:
    import psycopg

# Rows that are read or written at once.
_MANY, _FEW = 5000, 500
_READ = ", ".join((*tables.COLUMNS, "seal", "key", "total"))
_WRITTEN = (*tables.COLUMNS, "seal")


@dataclass(frozen=True)
class Head:
    """Where a journal ends, and how the server is set, as `tables.head` asks for them.

    Attributes:
        number, seal: of the last row.
        state: why the ledger is closed, nothing if it is open.
        origin: where the data were when the ledger was made or accepted.
        role: as whom the server knows the session.
        standby, read_only, fsync, full_page_writes: how the server is set.
        here: where the data are.
    """

    number: int
    seal: str
    state: str
    origin: str
    role: str
    standby: bool
    read_only: str
    fsync: str
    full_page_writes: str
    here: str


class Session:
    """The connection of a storage, made when it is first needed.

    Args:
        url: where to.
    """

    def __init__(self, url: LedgerURL) -> None:
        self._url, self._schema = url, tables.quoted(url.schema)
        self._connection: psycopg.Connection[Any] | None = None
        # whether there was a connection once: then the server is waited for
        self._known = False

    # ------------------------------------------------------------------ the connection

    def connected(self) -> "psycopg.Connection[Any]":
        """Return the connection."""
        if self._connection is None:
            patience = connections.SECONDS_FOR_A_SERVER if self._known else 0.0
            self._connection, self._known = connections.connect(self._url, patience), True
        return self._connection

    def drop(self) -> None:
        """Close the connection; the server ends what it was doing."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connections.drop(connection)

    def leave_parent(self) -> None:
        """In a child: leave the connection to its parent, which a farewell would end."""
        if self._connection is not None:
            # one more reference, for ever: it is never closed here, not even when the child ends
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            self._connection = None

    def start(self, statements: str, *, write: bool) -> "psycopg.Cursor[Any]":
        """Begin a transaction; return the result of the last of some statements.

        Nothing was written yet: where the connection turns out to be broken, it is made again. So
        it is where two interrupts have left the last transaction open: what that one has written
        must not be committed with this one.
        """
        psycopg = driver()
        if self._connection is not None and not self._idle(self._connection):
            self.drop()
        fresh = self._connection is None
        connection = self.connected()
        try:
            return self._run(connection, statements, write)
        except psycopg.Error:
            if fresh or not connections.broken(connection):
                raise
        self.drop()
        return self._run(self.connected(), statements, write)

    def _run(
        self, connection: "psycopg.Connection[Any]", statements: str, write: bool
    ) -> "psycopg.Cursor[Any]":
        begun = connections.beginning(connection, write=write)
        cursor = connection.execute(f"{begun}{statements}".encode())
        while cursor.nextset():
            pass
        return cursor

    @staticmethod
    def _idle(connection: "psycopg.Connection[Any]") -> bool:
        """Return whether a connection is in the middle of nothing; one that broke is."""
        status = driver().pq.TransactionStatus
        return connection.pgconn.transaction_status in (status.IDLE, status.UNKNOWN)

    def end(self) -> None:
        """End a transaction that has written nothing, in whichever state it is."""
        psycopg, connection = driver(), self._connection
        if connection is None:
            return
        status = connection.pgconn.transaction_status
        idle = psycopg.pq.TransactionStatus
        if status == idle.IDLE:
            return
        try:
            if status not in (idle.INTRANS, idle.INERROR):
                raise psycopg.OperationalError
            connection.execute("ROLLBACK")
        except psycopg.Error:
            self.drop()

    # ------------------------------------------------------------------ a ledger's transactions

    def begin(self, *, write: bool) -> Head:
        """Begin a transaction, for writing once all others are kept out; return the head."""
        locked = tables.lock(self._url.schema) if write else ""
        return self._head(self.start(locked + tables.head(self._url.schema), write=write))

    def head(self) -> Head:
        """Return the head, within a transaction."""
        return self._head(self.connected().execute(tables.head(self._url.schema).encode()))

    def _head(self, cursor: "psycopg.Cursor[Any]") -> Head:
        rows = cursor.fetchall()
        if len(rows) != 1:
            raise damaged(self._url.name, "it does not say where its journal ends")
        return Head(*rows[0])

    def rows(self, after: int, last: int) -> Iterator[tuple[Any, ...]]:
        """Yield rows of the journal."""
        while True:
            query = (
                f"SELECT {_READ} FROM {self._schema}.journal WHERE number > {after:d} "
                f"AND number <= {last:d} ORDER BY number LIMIT {_MANY}"
            )
            some = self.connected().execute(query.encode()).fetchall()
            yield from some
            if len(some) < _MANY:
                return
            after = some[-1][0]

    def insert(self, rows: Sequence[Row]) -> None:
        """Write rows at the end of the journal."""
        place = f"{self._schema}.journal ({', '.join(_WRITTEN)})".replace("%", "%%")
        marks = f"({', '.join(['%s'] * len(_WRITTEN))})"
        for start in range(0, len(rows), _FEW):
            some = rows[start : start + _FEW]
            values = [value for row in some for value in row]
            query = f"INSERT INTO {place} VALUES {', '.join([marks] * len(some))}"
            written = self.connected().execute(query.encode(), values).rowcount
            if written != len(some):
                raise damaged(self._url.name, f"it took {written} rows of {len(some)}")

    def fill(self, contents: Contents, facts: Mapping[str, str], rows: Sequence[Row]) -> None:
        """Write all of a new ledger, before anything guards it.

        The trigger would take time that grows with the square of the rows of one transaction.
        """
        whole = []
        for row in rows:
            contents.add(row)
            whole.append((*row, *contents.beside(row)))
        end = (True, contents.number, contents.seal, contents.state, contents.origin)
        self._copy("facts (key, value)", facts.items())
        self._copy(f"journal ({_READ})", whole)
        self._copy("head (one, number, seal, state, origin)", [end])

    def _copy(self, place: str, rows: Iterable[Sequence[Any]]) -> None:
        query = f"COPY {self._schema}.{place} FROM STDIN"
        with self.connected().cursor().copy(query.encode()) as copy:
            for row in rows:
                copy.write_row(row)

    def commit(self, last: Row | None) -> None:
        """Commit, and find out whether the server did if the connection broke.

        Args:
            last: the last row that was written, None if there is none.
        """
        psycopg = driver()
        try:
            said = self.connected().execute("COMMIT").statusmessage
        except psycopg.Error:
            self.drop()
            if last is None or not self._was_committed(last):
                raise
            return
        if said != "COMMIT":
            raise LedgerError(
                f"Cannot write to the ledger {self._url.name!r}: the server said {said} to a "
                "commit. Nothing was written."
            )

    def _was_committed(self, last: Row) -> bool:
        """Return whether a row is there, once the transaction that wrote it has ended.

        That one holds the lock until then. If its row is not there when the lock is free, it will
        never be.
        """
        psycopg, until = driver(), time.monotonic() + connections.SECONDS_FOR_A_SERVER
        query = f"SELECT seal FROM {self._schema}.journal WHERE number = {last.number:d}"
        while True:
            try:
                found = self.start(tables.lock(self._url.schema) + query, write=True).fetchone()
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                found = None  # it would have made the ledger
            except psycopg.Error as error:
                self.drop()
                if time.monotonic() < until and not isinstance(
                    error, psycopg.errors.LockNotAvailable
                ):
                    continue
                raise LedgerError(
                    f"Cannot tell whether the ledger {self._url.name!r} was written to: the "
                    "connection broke in the middle, and cannot be made again. What was charged, "
                    "if it was, stays charged. Nothing was released."
                ) from None
            self.end()
            return found == (last.seal,)
