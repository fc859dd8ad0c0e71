"""A ledger that goes to another place, so that its budget can be spent in one of them alone.

What a storage has to do for that is `MovableStorage`; `move` does it in three steps, each durable
before the next. The new place is filled and closed; the old one is closed; the new one is opened.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

from privada.accounting import events
from privada.accounting.ledger.storage import Charge, LedgerStorage
from privada.core.errors import LedgerError

_MOVED, _ARRIVING = "moved to", "arriving from"
_STATE = re.compile(rf"({_MOVED}|{_ARRIVING}) (.*) \(([0-9a-f]{{64}})\)")


@dataclass(frozen=True)
class Closure:
    """Why a ledger is closed: it was moved, or is not complete in its new place yet.

    Attributes:
        moved: whether it was moved; else it is arriving.
        place: the other place, in words.
        token: the digest of what was moved.
    """

    moved: bool
    place: str
    token: str

    def __str__(self) -> str:
        return f"{_MOVED if self.moved else _ARRIVING} {self.place} ({self.token})"

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Return what a storage has kept, None for a ledger that is open."""
        if not text:
            return None
        found = _STATE.fullmatch(text)
        if found is None:
            raise LedgerError(f"Cannot use a ledger that is closed by a later version: {text}.")
        return cls(found[1] == _MOVED, found[2], found[3])

    def in_words(self) -> str:
        """Return what it is and what to do."""
        if self.moved:
            return f"it was moved to {self.place!r}: use that one"
        return (
            f"it is arriving from {self.place!r} and not complete: run privada ledger copy from "
            "there again"
        )


@dataclass(frozen=True)
class Holdings:
    """All that a ledger holds, in whichever place."""

    facts: Mapping[str, str]
    charges: tuple[Charge, ...]
    published: Mapping[str, str]
    leases: Mapping[str, str]

    def token(self) -> str:
        """Return a digest of all of it."""
        charges = [
            (c.run, c.purpose, events.encode(c.event), c.count, c.first, c.last)
            for c in self.charges
        ]
        maps = [sorted(each.items()) for each in (self.facts, self.published, self.leases)]
        return hashlib.sha256(repr((charges, maps)).encode()).hexdigest()


@runtime_checkable
class MovableStorage(LedgerStorage, Protocol):
    """A storage from which and to which a ledger can be moved.

    Guarantee, which tests/contracts/test_moving.py holds each to: a ledger that is closed is
    charged by nobody, whichever process has it open and whichever version it is of. It may be read.
    """

    def exists(self) -> bool:
        """Return whether there is something at the place."""
        ...

    def closure(self) -> Closure | None:
        """Return why the ledger is closed, None if it is not."""
        ...

    def holdings(self) -> Holdings:
        """Return all that it holds, at one moment."""
        ...

    def receive(self, holdings: Holdings, closure: Closure) -> None:
        """Make a ledger with all of that, whole and closed, where there is none; open it."""
        ...

    def discard(self) -> None:
        """Remove what is arriving and was never open. The storage is not open afterwards."""
        ...

    def close_for(self, closure: Closure, holdings: Holdings) -> None:
        """Close the ledger durably.

        Raises:
            LedgerError: it is closed, or does not hold exactly that; nothing has changed.
        """
        ...

    def admit_charges(self, closure: Closure) -> None:
        """Open the ledger that is closed for that reason."""
        ...


def move(source: MovableStorage, target: MovableStorage) -> Holdings:
    """Move a ledger from one place to another, neither of which is open yet.

    Returns:
        What was moved.

    Guarantee: at no moment can charges be made in both places, and none is lost, whoever charges
    meanwhile and whenever this is killed. When it is, the same move finishes what was begun.

    Raises:
        LedgerError: there is nothing to move, or something else at the new place, or the ledger was
            moved elsewhere; neither place has changed.
    """
    source.open(None)
    why, held = source.closure(), source.holdings()
    if why is not None:
        return _finish(source, target, why)
    token = held.token()
    arriving, leaving = Closure(False, _place(source), token), Closure(True, _place(target), token)
    if not _has_arrived(source, target, arriving):
        target.receive(held, arriving)
    if target.holdings() != held:
        raise LedgerError(
            f"Cannot move the ledger {source.name!r}: {target.name!r} does not hold the same. It "
            "stays closed; check its disk, remove it, and try again. Nothing has changed."
        )
    source.close_for(leaving, held)
    target.admit_charges(arriving)
    return held


def _place(storage: LedgerStorage) -> str:
    """Return where a ledger is, from wherever one looks: a file's whole path.

    Raises:
        LedgerError: the other place could not keep that.
    """
    place = str(storage.path or storage.name)
    if not place.isprintable():
        raise LedgerError(
            f"Cannot move a ledger from or to {place!r}: that path has characters that cannot be "
            "printed. Rename it, or give another path. Nothing has changed."
        )
    return place


def _has_arrived(source: MovableStorage, target: MovableStorage, arriving: Closure) -> bool:
    """Return whether an earlier attempt has filled the new place with the same.

    One that did not get as far as to close the old place, which was charged since, is removed.
    """
    if not target.exists():
        return False
    facts = target.open(None)
    there = target.closure()
    if there is None or there.moved or facts != source.holdings().facts:
        raise LedgerError(
            f"Expected no ledger at {target.name!r}, got one. Give another name, or remove it if "
            "you are sure that it was never charged. Nothing has changed."
        )
    if there == arriving:
        return True
    target.discard()
    return False


def _finish(source: MovableStorage, target: MovableStorage, why: Closure) -> Holdings:
    """Finish a move that has closed the old place."""
    if not why.moved:
        raise LedgerError(f"Cannot move the ledger {source.name!r}: {why.in_words()}.")
    held = source.holdings()
    if why.place != _place(target):
        raise LedgerError(
            f"Cannot move the ledger {source.name!r} to {target.name!r}: {why.in_words()}."
        )
    if not target.exists():
        raise LedgerError(
            f"Cannot move the ledger {source.name!r}: it was moved to {target.name!r}, where there "
            "is none now. Restore that from a backup: it may have been charged since."
        )
    facts = target.open(None)
    there = target.closure()
    if facts != held.facts or (there is not None and (there.moved or there.token != why.token)):
        raise LedgerError(
            f"Cannot move the ledger {source.name!r}: it was moved to {target.name!r}, where there "
            "is another now. Restore the one that it was moved to."
        )
    if there is not None:
        target.admit_charges(there)
    return held
