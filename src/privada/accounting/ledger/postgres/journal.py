"""The journal of a ledger: what its rows come to, and the seals that make them one chain."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.ledger.postgres import tables
from privada.accounting.ledger.postgres.connections import damaged
from privada.accounting.ledger.storage import Charge
from privada.core.errors import EventError


def now() -> str:
    """Return the time, for people to read."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def first_seal(facts: Mapping[str, str]) -> str:
    """Return the seal before the first row: the digest of the facts."""
    return tables.digest("facts", *(text for item in sorted(facts.items()) for text in item))


class Row(NamedTuple):
    """A row of the journal, as `tables.COLUMNS` names its columns."""

    number: int
    act: str
    run: str
    purpose: str
    event: str
    change: int
    label: str
    value: str
    at: str
    role: str
    token: str
    seal: str

    @classmethod
    def after(cls, number: int, seal: str, **given: Any) -> "Row":
        """Return the row that comes next, sealed."""
        fields = dict.fromkeys(tables.COLUMNS, "") | {"number": number + 1, "change": 0} | given
        row = cls(**fields, seal="")
        return row._replace(seal=row.sealed(seal))

    def sealed(self, before: str) -> str:
        """Return its seal, if it is what was written after another seal."""
        return tables.digest(before, *map(str, self[:-1]))


@dataclass
class _Count:
    count: int
    first: str
    last: str


class Contents:
    """What a journal comes to, up to one of its rows.

    Args:
        name: that of the ledger, for errors.
        facts: those of the ledger, which the first seal is made of.
    """

    def __init__(self, name: str, facts: Mapping[str, str]) -> None:
        self._name = name
        self.number, self.seal = 0, first_seal(facts)
        self.state, self.origin = "", ""
        self.published: dict[str, str] = {}
        self.leases: dict[str, str] = {}
        self._counts: dict[tuple[str, str, str], _Count] = {}
        self._by_role: dict[tuple[str, ...], int] = {}
        self._events: dict[str, DpEvent] = {}
        self._keys: dict[tuple[str, tuple[str, ...]], bytes] = {}

    def take(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Count rows of the server: the columns, the seal, the key and the total of its role.

        Raises:
            LedgerError: one is missing, altered, doubled or out of its place.
        """
        for *fields, key, total in rows:
            row = Row(*fields)
            if row.number != self.number + 1 or row.seal != row.sealed(self.seal):
                raise damaged(
                    self._name, f"row {self.number + 1} of its journal is not what it was"
                )
            self.add(row)
            if (key, total) != self.beside(row):
                raise damaged(self._name, f"row {row.number} of its journal adds up wrongly")

    def beside(self, row: Row) -> tuple[bytes, int]:
        """Return what the server keeps beside the row that came last: its key and a total."""
        owner = _owner(row) if row.act == tables.CHARGE else (row.label,)
        key = self._keys.get((row.act, owner))
        if key is None:
            key = self._keys[row.act, owner] = bytes.fromhex(tables.digest(row.act, *owner))
        return key, self._by_role.get(owner, 0)

    def add(self, row: Row) -> None:
        """Count the next row."""
        if row.act == tables.CHARGE:
            key = row.run, row.purpose, row.event
            known = self._counts.setdefault(key, _Count(0, row.at, row.at))
            known.count, known.last = known.count + row.change, row.at
            owner = _owner(row)
            self._by_role[owner] = self._by_role.get(owner, 0) + row.change
            if known.count < 0:
                raise damaged(self._name, "more was given back than charged")
        elif row.act == tables.PUBLISH:
            self.published[row.label] = row.value
        elif row.act == tables.LEASE:
            self.leases[row.label] = row.value
        elif row.act == tables.STATE:
            self.state = row.value
        else:
            self.origin = row.value
        self.number, self.seal = row.number, row.seal

    def count(self, run: str, purpose: str, event: DpEvent) -> int:
        """Return how often a run was charged for an event."""
        known = self._counts.get((run, purpose, events.encode(event)))
        return 0 if known is None else known.count

    def charges(self) -> Iterator[Charge]:
        """Return the charges, oldest first."""
        for (run, purpose, text), known in self._counts.items():
            event = self._events.get(text)
            if event is None:
                try:
                    event = self._events[text] = events.decode(text)
                except EventError as error:
                    raise damaged(self._name, str(error)) from error
            yield Charge(run, purpose, event, known.count, known.first, known.last)


def _owner(row: Row) -> tuple[str, ...]:
    return row.role, row.run, row.purpose, row.event
