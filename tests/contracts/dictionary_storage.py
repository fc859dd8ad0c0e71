"""A storage of a ledger in a dictionary: all that one has to have, as an example.

Charges are gone with the process. Threads may share it; forks are refused.
"""

import contextlib
import copy
import os
import threading
from collections.abc import Hashable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from dp_accounting import DpEvent

from privada.accounting.ledger import Busy, Charge
from privada.core.errors import LedgerError


class Contents:
    """What is stored, and how often it was changed: also the transaction."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, DpEvent], Charge] = {}
        self.digests: dict[str, str] = {}
        self.holders: dict[str, str] = {}
        self.failures = 0

    def version(self) -> Hashable:
        return self.failures  # nobody else writes

    def charges(self) -> list[Charge]:
        return list(self.rows.values())

    def published(self, label: str) -> str | None:
        return self.digests.get(label)

    def leaseholder(self, label: str) -> str | None:
        return self.holders.get(label)

    def add(self, run: str, purpose: str, changes: Mapping[DpEvent, int]) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for event, change in changes.items():
            old = self.rows.get((run, purpose, event))
            count, first = (old.count, old.first) if old else (0, now)
            if not 0 <= count + change < 1 << 63:
                raise LedgerError(f"Cannot add {change} to {count}: the result cannot be counted.")
            self.rows[run, purpose, event] = Charge(run, purpose, event, count + change, first, now)

    def publish(self, label: str, digest: str) -> str:
        return self.digests.setdefault(label, digest)

    def lease(self, label: str, holder: str) -> None:
        self.holders[label] = holder


class DictionaryStorage:
    """Charges in a dictionary behind a lock. A transaction works on a copy."""

    name, durable = "a dictionary", False
    path: Path | None = None

    def __init__(self) -> None:
        self._contents: Contents | None = None
        self._facts: dict[str, str] = {}
        self._lock = threading.RLock()
        self._user: int | None = None
        self._process = os.getpid()

    def open(self, new: Mapping[str, str] | None) -> Mapping[str, str]:
        if new is None or self._facts:
            raise LedgerError("Cannot open a dictionary twice, or one that was never made.")
        created = datetime.now(UTC).isoformat(timespec="seconds")
        self._contents = Contents()
        self._facts = {**new, "id": os.urandom(8).hex(), "created": created}
        return self._facts

    def check_facts(self, facts: Mapping[str, str]) -> None:
        if facts != self._facts:
            raise LedgerError("Cannot open the dictionary: it is another ledger's.")

    @contextlib.contextmanager
    def _transaction(self, doing: str, keep: bool) -> Iterator[Contents]:
        if os.getpid() != self._process:
            raise LedgerError(f"Cannot {doing} a dictionary from a forked process.")
        with self._lock:
            if self._user is not None:
                raise Busy(f"Cannot {doing} a dictionary within a charge, as a signal handler.")
            if self._contents is None:
                raise LedgerError(f"Cannot {doing} a dictionary that is closed.")
            try:
                self._user = threading.get_ident()
                draft = copy.copy(self._contents)
                draft.rows, draft.digests = dict(draft.rows), dict(draft.digests)
                draft.holders = dict(draft.holders)
                yield draft
                if keep:
                    self._contents = draft
            except BaseException:
                self._contents.failures += 1
                raise
            finally:
                self._user = None

    def reading(self, doing: str = "read") -> contextlib.AbstractContextManager[Contents]:
        return self._transaction(doing, keep=False)

    def writing(self, doing: str) -> contextlib.AbstractContextManager[Contents]:
        return self._transaction(doing, keep=True)

    def in_use_here(self) -> bool:
        return self._user == threading.get_ident()

    def for_another_process(self) -> "DictionaryStorage":
        raise LedgerError("Cannot send a dictionary to another process: charges would be lost.")

    def close(self) -> None:
        if self.in_use_here():
            raise Busy("Cannot close a dictionary within a charge, as a signal handler.")
        self._contents = None
