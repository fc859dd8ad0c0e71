"""A copy of what a ledger holds, to read from where the ledger itself is not."""

import contextlib
import threading
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from privada.accounting.ledger.counting import (
    DECLARATION_LABEL,
    ORDERS_LABEL,
    RUN_ORDERS_LABEL,
    UNIT_LABEL,
)
from privada.accounting.ledger.ledger import Ledger
from privada.accounting.ledger.storage import (
    Charge,
    LedgerStorage,
    ReadTransaction,
    WriteTransaction,
)
from privada.core.errors import LedgerError


@dataclass(frozen=True)
class Snapshot:
    """What a ledger held at one moment: facts, charges, and what it keeps beside them.

    Example:
        >>> import privada as pv
        >>> from privada.accounting.ledger.replica import ReplicaStorage, Snapshot
        >>> from privada.accounting import events
        >>> ledger = pv.Ledger(None, dataset="patients")
        >>> paid = ledger.charge(events.gaussian(10.0), run="first")
        >>> copy = pv.Ledger(ReplicaStorage(Snapshot.of(ledger)))
        >>> copy.dataset, copy.epsilon(1e-5) == ledger.epsilon(1e-5)
        ('patients', True)
    """

    facts: dict[str, str]
    charges: tuple[Charge, ...]
    published: dict[str, str]
    name: str
    durable: bool

    @classmethod
    def of(cls, ledger: Ledger) -> "Snapshot":
        """Return what a ledger holds."""
        storage = ledger._storage
        with storage.reading() as transaction:
            charges = tuple(transaction.charges())
            found = {}
            runs = dict.fromkeys(charge.run for charge in charges)
            for label in (UNIT_LABEL, ORDERS_LABEL, *map(RUN_ORDERS_LABEL.format, runs)):
                if (text := transaction.published(label)) is not None:
                    found[label] = text
            number = 1
            label = DECLARATION_LABEL.format(number)
            while (text := transaction.published(label)) is not None:
                found[label], number = text, number + 1
                label = DECLARATION_LABEL.format(number)
        return cls(dict(ledger._facts), charges, found, ledger.name, ledger.durable)


class _Reading:
    """One moment of a copy."""

    def __init__(self, held: Snapshot, version: int) -> None:
        self._held, self._version = held, version

    def version(self) -> Hashable:
        return self._version

    def charges(self) -> list[Charge]:
        return list(self._held.charges)

    def published(self, label: str) -> str | None:
        return self._held.published.get(label)

    def leaseholder(self, label: str) -> str | None:
        return None


class ReplicaStorage:
    """A copy of a ledger that is elsewhere, which can be read and never charged.

    Guarantee: whatever would write to it is refused. It says what the ledger held when the copy was
    made or last renewed: others may have charged more since.
    """

    path: Path | None = None

    def __init__(self, held: Snapshot) -> None:
        self._held, self._version = held, 0
        self.name, self.durable = held.name, held.durable
        self._lock = threading.RLock()

    def renew(self, held: Snapshot) -> None:
        """Take a newer copy of the same ledger."""
        self.check_facts(held.facts)
        with self._lock:
            self._held, self._version = held, self._version + 1

    def open(self, new: Mapping[str, str] | None) -> Mapping[str, str]:
        """Return the facts of the ledger that it is a copy of."""
        return self._held.facts

    def check_facts(self, facts: Mapping[str, str]) -> None:
        """Raise unless these are the facts of the ledger that it is a copy of."""
        if dict(facts) != self._held.facts:
            raise LedgerError(
                f"Expected a copy of the ledger {self.name!r}, got that of another ledger."
            )

    @contextlib.contextmanager
    def reading(self, doing: str = "read") -> Iterator[ReadTransaction]:
        """See the copy."""
        with self._lock:
            yield _Reading(self._held, self._version)

    def writing(self, doing: str) -> contextlib.AbstractContextManager[WriteTransaction]:
        """Refuse."""
        raise LedgerError(
            f"Cannot {doing} the ledger {self.name!r} from here: this is a copy to read, on a rank "
            "of a data-parallel run. Rank 0 alone has the ledger, and alone charges it."
        )

    def in_use_here(self) -> bool:
        """Return that it is not."""
        return False

    def for_another_process(self) -> LedgerStorage:
        """Return a copy of this copy."""
        return ReplicaStorage(self._held)

    def close(self) -> None:
        """Do nothing."""
