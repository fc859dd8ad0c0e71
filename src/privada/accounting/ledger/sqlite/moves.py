"""A ledger in a file that goes to another place, or arrives from one."""

import sqlite3
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from privada.accounting import events
from privada.accounting.ledger.moving import Closure, Holdings
from privada.accounting.ledger.sqlite import files, formats
from privada.accounting.ledger.sqlite.rows import HELD_BY, SQLiteTransaction
from privada.core.errors import LedgerError

_TO_WRITE = "BEGIN IMMEDIATE"


class SQLiteMoves:
    """The part of a storage in a file that `MovableStorage` asks for."""

    _path: Path | None
    _facts: dict[str, str]
    _place: tuple[int, int] | None
    _connection: sqlite3.Connection | None

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """The place in words."""
            ...

        def open(self, new: Mapping[str, str] | None) -> Mapping[str, str]:
            """Open the ledger."""
            ...

        def close(self) -> None:
            """Close the file."""
            ...

        def reading(self, doing: str = "read") -> AbstractContextManager[SQLiteTransaction]:
            """See the file as it is at one moment."""
            ...

        def _transaction(
            self, begin: str, doing: str, *, closed: bool = False
        ) -> AbstractContextManager[SQLiteTransaction]: ...

    def _file(self) -> Path:
        if self._path is None:
            raise LedgerError("Cannot move a ledger in memory: it is gone with its process.")
        return self._path

    def exists(self) -> bool:
        """Return whether there is something at the path."""
        return self._file().exists()

    def closure(self) -> Closure | None:
        """Return why the ledger is closed, None if it is not."""
        with self.reading() as transaction:
            return Closure.read(formats.read_state(transaction.connection))

    def holdings(self) -> Holdings:
        """Return all that it holds, at one moment."""
        with self.reading() as transaction:
            return _holdings(transaction)

    def receive(self, holdings: Holdings, closure: Closure) -> None:
        """Make a ledger with all of that, whole and closed, where there is none; open it."""
        charges = [
            (c.run, c.purpose, events.encode(c.event), c.count, c.first, c.last)
            for c in holdings.charges
        ]
        notes = [*holdings.published.items()]
        notes += [(f"{label}{HELD_BY}", holder) for label, holder in holdings.leases.items()]
        content = formats.Content(dict(holdings.facts), charges, notes)
        files.create(
            self._file(),
            self.name,
            lambda made: formats.write_content(made, content, str(closure)),
        )
        self.open(None)

    def discard(self) -> None:
        """Remove what is arriving and was never open. The storage is not open afterwards."""
        with self._transaction(_TO_WRITE, "remove", closed=True) as transaction:
            why = Closure.read(formats.read_state(transaction.connection))
            if why is None or why.moved:
                raise LedgerError(
                    f"Cannot remove the ledger {self.name!r}: it has arrived. Nothing was done."
                )
            self._file().unlink()
        self.close()
        self._facts, self._place = {}, None

    def close_for(self, closure: Closure, holdings: Holdings) -> None:
        """Close the ledger durably, if it holds exactly that."""
        self._file()
        with self._transaction(_TO_WRITE, "close") as transaction:
            if _holdings(transaction) != holdings:
                raise LedgerError(
                    f"Cannot close the ledger {self.name!r}: it was charged in the meantime. "
                    "Nothing was done; try again."
                )
            formats.write_state(transaction.connection, str(closure))

    def admit_charges(self, closure: Closure) -> None:
        """Open the ledger that is closed for that reason."""
        with self._transaction(_TO_WRITE, "open", closed=True) as transaction:
            if formats.read_state(transaction.connection) != str(closure):
                raise LedgerError(
                    f"Cannot open the ledger {self.name!r}: it is not closed, or for another "
                    "reason. Nothing was done."
                )
            formats.write_state(transaction.connection, "")


def _holdings(transaction: SQLiteTransaction) -> Holdings:
    content = formats.read_content(transaction.connection)
    notes = dict(content.published)
    held = {label for label in notes if label.endswith(HELD_BY)}
    return Holdings(
        content.facts,
        tuple(transaction.charges()),
        {label: digest for label, digest in notes.items() if label not in held},
        {label.removesuffix(HELD_BY): notes[label] for label in sorted(held)},
    )
