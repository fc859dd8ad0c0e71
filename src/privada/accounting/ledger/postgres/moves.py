"""A ledger in PostgreSQL that goes to another place, or arrives; or is accepted in its own."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from privada.accounting import events
from privada.accounting.ledger.moving import Closure, Holdings
from privada.accounting.ledger.postgres import tables
from privada.accounting.ledger.postgres.connections import telling
from privada.accounting.ledger.postgres.journal import Contents
from privada.accounting.ledger.postgres.session import Head, Session
from privada.accounting.ledger.postgres.transactions import PostgresTransaction
from privada.accounting.ledger.postgres.urls import LedgerURL
from privada.core.errors import LedgerError


class PostgresMoves:
    """The part of a storage in PostgreSQL that `MovableStorage` asks for."""

    _url: LedgerURL
    _session: Session
    _facts: dict[str, str]
    _contents: Contents | None

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """The place in words."""
            ...

        def open(self, new: Mapping[str, str] | None) -> Mapping[str, str]:
            """Open the ledger."""
            ...

        def reading(self, doing: str = "read") -> AbstractContextManager[PostgresTransaction]:
            """See the ledger as it is at one moment."""
            ...

        def _alone(self, doing: str) -> AbstractContextManager[None]: ...

        def _transaction(
            self, doing: str, *, write: bool, check: Callable[[Head], None]
        ) -> AbstractContextManager[PostgresTransaction]: ...

        def _create(
            self, facts: Mapping[str, str], fill: Callable[[PostgresTransaction], None]
        ) -> None: ...

        def _check(self, head: Head, doing: str) -> None: ...

        def _check_server(self, head: Head, doing: str) -> None: ...

        def _check_origin(self, head: Head, doing: str) -> None: ...

    def closure(self) -> Closure | None:
        """Return why the ledger is closed, None if it is not."""
        with self.reading():
            assert self._contents is not None
            return Closure.read(self._contents.state)

    def holdings(self) -> Holdings:
        """Return all that it holds, at one moment."""
        with self.reading() as transaction:
            return self._holdings(transaction)

    def _holdings(self, transaction: PostgresTransaction) -> Holdings:
        assert self._contents is not None
        published, leases = dict(self._contents.published), dict(self._contents.leases)
        return Holdings(dict(self._facts), tuple(transaction.charges()), published, leases)

    def receive(self, holdings: Holdings, closure: Closure) -> None:
        """Make a ledger with all of that, whole and closed, where there is none; open it."""

        def fill(draft: PostgresTransaction) -> None:
            for each in holdings.charges:
                row = {"run": each.run, "purpose": each.purpose, "event": events.encode(each.event)}
                draft.append(tables.CHARGE, at=each.first, change=each.count, **row)
                if each.last != each.first:  # the dates are those of the first and the last row
                    draft.append(tables.CHARGE, at=each.last, **row)
            for label, digest in holdings.published.items():
                draft.append(tables.PUBLISH, label=label, value=digest)
            for label, holder in holdings.leases.items():
                draft.append(tables.LEASE, label=label, value=holder)
            draft.append(tables.STATE, value=str(closure))

        with self._alone("create"):
            self._create(holdings.facts, fill)
        self.open(None)

    def discard(self) -> None:
        """Remove what is arriving and was never open. The storage is not open afterwards."""

        def check(head: Head) -> None:
            why = Closure.read(head.state)
            if why is None or why.moved:
                raise LedgerError(
                    f"Cannot remove the ledger {self.name!r}: it has arrived. Nothing was done."
                )

        self._remove(check)

    def remove_unused(self) -> None:
        """Remove a ledger that was never charged; leave one that was, or is not there."""
        with self._alone("remove"), telling("remove", self._url):
            there = tables.find(self._session.connected(), self._url.schema) is not None
        if not there:
            return
        self.open(None)
        with self.reading() as transaction:
            charged, version = bool(transaction.charges()), self._seen()

        def check(head: Head) -> None:
            if head.seal != version:
                raise LedgerError(
                    f"Cannot remove the ledger {self.name!r}: another process uses it. Nothing was "
                    "done."
                )

        if not charged:
            self._remove(check)

    def _seen(self) -> str:
        """Return the seal of the last row that is known."""
        assert self._contents is not None
        return self._contents.seal

    def _remove(self, check: Callable[[Head], None]) -> None:
        """Remove all of the ledger, if that is allowed while nobody else can write."""
        with self._alone("remove"), telling("remove", self._url):
            try:
                check(self._session.begin(write=True))
                dropped = f"DROP SCHEMA {tables.quoted(self._url.schema)} CASCADE"
                self._session.connected().execute(dropped.encode())
                self._session.commit(None)
                self._facts, self._contents = {}, None
            finally:
                self._session.end()

    def close_for(self, closure: Closure, holdings: Holdings) -> None:
        """Close the ledger durably, if it holds exactly that."""
        with self._transaction(
            "close", write=True, check=lambda head: self._check(head, "close")
        ) as transaction:
            if self._holdings(transaction) != holdings:
                raise LedgerError(
                    f"Cannot close the ledger {self.name!r}: it was charged in the meantime. "
                    "Nothing was done; try again."
                )
            transaction.append(tables.STATE, value=str(closure))

    def admit_charges(self, closure: Closure) -> None:
        """Open the ledger that is closed for that reason."""

        def check(head: Head) -> None:
            self._check_server(head, "open")
            self._check_origin(head, "open")
            if head.state != str(closure):
                raise LedgerError(
                    f"Cannot open the ledger {self.name!r}: it is not closed, or for another "
                    "reason. Nothing was done."
                )

        with self._transaction("open", write=True, check=check) as transaction:
            transaction.append(tables.STATE)

    def accept(self) -> bool:
        """Let a ledger be charged where it is now; return whether it was not.

        For one whose database was restored from a backup, copied or taken over by a standby. What
        was charged after the backup, or in the other copy, has to be charged here again.
        """
        found: list[Head] = []

        def check(head: Head) -> None:
            self._check_server(head, "accept")
            found.append(head)

        with self._transaction("accept", write=True, check=check) as transaction:
            changed = found[0].origin != found[0].here
            if changed:
                transaction.append(tables.ORIGIN, value=found[0].here)
        return changed
