"""One transaction on a ledger's file: its rows, and the seals by which damage is noticed."""

import sqlite3
from collections.abc import Callable, Hashable, Mapping

from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.ledger.sqlite import formats
from privada.accounting.ledger.sqlite.connections import malformed
from privada.accounting.ledger.storage import LARGEST_COUNT, Charge
from privada.core.errors import EventError, LedgerError

HELD_BY = ", held by"


def _lease(label: str) -> str:
    """Return the label under which the holder of a lease is kept, the same in every format."""
    return f"{label}{HELD_BY}"


class SQLiteTransaction:
    """What may be read and written while a transaction is open.

    Args:
        connection: the connection that has the transaction open.
        check_facts: raises unless facts are those of the ledger that was opened.
        epoch: what changes whenever the connection does, or a transaction fails.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        check_facts: Callable[[Mapping[str, str]], None],
        epoch: int,
    ) -> None:
        self.connection, self._check_facts, self._epoch = connection, check_facts, epoch

    def version(self) -> Hashable:
        """Return what changes when anyone else has written, or when something failed."""
        (version,) = self.connection.execute("PRAGMA data_version").fetchone()
        return self._epoch, version

    def charges(self) -> list[Charge]:
        """Return the charges, oldest first; raise if anything is damaged or missing."""
        found = []
        for run, purpose, event, count, first, last in formats.read_content(
            self.connection
        ).charges:
            try:
                found.append(Charge(run, purpose, events.decode(event), count, first, last))
            except EventError as error:
                raise malformed(str(error)) from error
        return found

    def add(self, run: str, purpose: str, changes: Mapping[DpEvent, int]) -> None:
        """Add to the counts of a run, and seal what was changed."""
        now, new, content = formats.now(), 0, 0
        for event, change in changes.items():
            key = run, purpose, events.encode(event)
            old = self._counted(key)
            count, first = 0, now
            if old is None:
                new += 1
            else:
                count, first, last = old
                content -= formats.digest("charges", *key, count, first, last)
            _check_count(run, event, count, change)
            fields = (*key, count + change, first, now)
            content += formats.digest("charges", *fields)
            self.connection.execute(
                "INSERT INTO charges (run, purpose, event, count, first, last, seal) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run, purpose, event) DO UPDATE SET "
                "count = excluded.count, last = excluded.last, seal = excluded.seal",
                (*fields, formats.seal(*fields)),
            )
        self._count(new, sum(changes.values()), content)

    def _counted(self, key: tuple[str, str, str]) -> tuple[int, str, str] | None:
        """Return how much of an event a run was charged, since when and until when."""
        old = self.connection.execute(
            "SELECT count, first, last, seal FROM charges "
            "WHERE run = ? AND purpose = ? AND event = ?",
            key,
        ).fetchone()
        if old is None:
            return None
        count, first, last, seal = old
        if seal != formats.seal(*key, count, first, last):
            raise malformed("a charge does not match its seal")
        return count, first, last

    def _count(self, rows: int, releases: int, content: int) -> None:
        """Add to the counters, having checked that they are of this very ledger."""
        meta = formats.read_meta(self.connection)
        self._check_facts(formats.facts_in(meta))
        meta["rows"] = str(int(meta["rows"]) + rows)
        meta["releases"] = str(int(meta["releases"]) + releases)
        meta["content"] = str((int(meta["content"]) + content) % formats.MODULUS)
        formats.write_meta(self.connection, meta)

    def publish(self, label: str, digest: str) -> str:
        """Store a digest under a label unless there is one; return the one that is there."""
        before = self.published(label)
        if before is None:
            self._note(label, digest, None)
        return digest if before is None else before

    def lease(self, label: str, holder: str) -> None:
        """Store who leases a label now, whoever did before."""
        label = _lease(label)
        self._note(label, holder, self.published(label))

    def _note(self, label: str, digest: str, before: str | None) -> None:
        content = formats.digest("given", label, digest)
        content -= 0 if before is None else formats.digest("given", label, before)
        self.connection.execute(
            "INSERT OR REPLACE INTO given VALUES (?, ?, ?)",
            (label, digest, formats.seal(label, digest)),
        )
        self._count(0, 0, content)

    def leaseholder(self, label: str) -> str | None:
        """Return who took the last lease of a label, None if nobody did."""
        return self.published(_lease(label))

    def published(self, label: str) -> str | None:
        """Return the digest that was published under a label, None if none was."""
        found = formats.format_of(self.connection)
        if not found.has_published:
            return None
        column = "seal" if found.all_rows_together else "''"
        row = self.connection.execute(
            f"SELECT digest, {column} FROM given WHERE label = ?", (label,)
        ).fetchone()
        if row is None:
            return None
        if found.all_rows_together and row[1] != formats.seal(label, row[0]):
            raise malformed("what was published does not match its seal")
        return str(row[0])


def _check_count(run: str, event: DpEvent, count: int, change: int) -> None:
    if count + change > LARGEST_COUNT:
        raise LedgerError(
            f"Cannot charge {change:,} x {events.describe(event)} to run {run!r}: it would "
            f"have more than {LARGEST_COUNT:,}, the most that a ledger can count. Nothing was "
            "charged; charge fewer."
        )
    if count + change < 0:
        raise LedgerError(
            f"Cannot refund {-change} of {events.describe(event)} to run {run!r}: it was "
            f"not charged that much."
        )
