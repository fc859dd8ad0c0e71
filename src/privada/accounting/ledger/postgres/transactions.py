"""One transaction on a ledger in PostgreSQL: what it reads, and the rows to be added."""

from collections.abc import Hashable, Mapping

from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.ledger.postgres import journal, tables
from privada.accounting.ledger.postgres.journal import Contents, Row
from privada.accounting.ledger.storage import LARGEST_COUNT, Charge
from privada.core.errors import LedgerError


class PostgresTransaction:
    """What may be read and written while a transaction is open.

    It works on what the storage knows, which was brought up to date when the transaction began.
    Rows are sent to the server at its end.

    Args:
        contents: what the ledger holds.
        version: what changes when anyone else has written, or something failed.
        role: as whom the server knows this session.
        token: what no other transaction has.
    """

    def __init__(self, contents: Contents, version: Hashable, role: str, token: str) -> None:
        self._contents, self._version = contents, version
        self._role, self._token = role, token
        self._added: dict[tuple[str, str, DpEvent], int] = {}
        self.rows: list[Row] = []

    def version(self) -> Hashable:
        """Return what changes when anyone else has written, or when something failed."""
        return self._version

    def charges(self) -> list[Charge]:
        """Return the charges, oldest first."""
        added, found = dict(self._added), []
        for each in self._contents.charges():
            change = added.pop((each.run, each.purpose, each.event), None)
            if change is not None:
                last = self.rows[-1].at
                each = Charge(
                    each.run, each.purpose, each.event, each.count + change, each.first, last
                )
            found.append(each)
        for (run, purpose, event), count in added.items():
            at = self.rows[-1].at
            found.append(Charge(run, purpose, event, count, at, at))
        return found

    def published(self, label: str) -> str | None:
        """Return the digest that was published under a label, None if none was."""
        return self._noted(tables.PUBLISH, label) or self._contents.published.get(label)

    def leaseholder(self, label: str) -> str | None:
        """Return who took the last lease of a label, None if nobody did."""
        return self._noted(tables.LEASE, label) or self._contents.leases.get(label)

    def _noted(self, act: str, label: str) -> str | None:
        """Return what this transaction itself has noted last."""
        own = (row.value for row in reversed(self.rows) if (row.act, row.label) == (act, label))
        return next(own, None)

    def add(self, run: str, purpose: str, changes: Mapping[DpEvent, int]) -> None:
        """Add to the counts of a run."""
        for event, change in changes.items():
            key = run, purpose, event
            count = self._contents.count(*key) + self._added.get(key, 0)
            if not 0 <= count + change <= LARGEST_COUNT:
                raise LedgerError(
                    f"Cannot add {change:,} x {events.describe(event)} to run {run!r}, which has "
                    f"{count:,}: it would have less than none, or more than {LARGEST_COUNT:,}, the "
                    "most that a ledger can count. Nothing was charged or given back."
                )
            self._added[key] = self._added.get(key, 0) + change
            self.append(
                tables.CHARGE, run=run, purpose=purpose, event=events.encode(event), change=change
            )

    def publish(self, label: str, digest: str) -> str:
        """Store a digest under a label unless there is one; return the one that is there."""
        before = self.published(label)
        if before is None:
            self.append(tables.PUBLISH, label=label, value=digest)
        return digest if before is None else before

    def lease(self, label: str, holder: str) -> None:
        """Store who leases a label now, whoever did before."""
        self.append(tables.LEASE, label=label, value=holder)

    def append(self, act: str, *, at: str | None = None, **given: str | int) -> None:
        """Add a row to what is going to be written."""
        last: Row | Contents = self.rows[-1] if self.rows else self._contents
        fixed = {"act": act, "at": at or journal.now(), "role": self._role, "token": self._token}
        self.rows.append(Row.after(last.number, last.seal, **fixed, **given))
