"""What a ledger asks of the place that holds its charges.

To add a storage, write one file with a class that has the methods of `LedgerStorage`, and let the
suite in tests/contracts/test_ledger_storages.py run it. Nothing here assumes a file, SQL or one
process.
"""

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from dp_accounting import DpEvent

from privada.core.errors import LedgerError

# The most releases of one kind that a run may have: the largest number of SQLite and PostgreSQL.
LARGEST_COUNT = (1 << 63) - 1


class Busy(LedgerError):
    """This very thread is in the middle of using the ledger, as a signal handler may find it."""


@dataclass(frozen=True)
class Charge:
    """The number of releases of one kind that one run was charged for one purpose.

    Attributes:
        run: the name of the run.
        purpose: what the releases are for, such as "training".
        event: what was released.
        count: how often.
        first, last: when the first and the last of them were charged, for people to read.

    Example:
        >>> import privada as pv
        >>> from privada.accounting import events
        >>> ledger = pv.Ledger(None)
        >>> paid = ledger.charge({events.gaussian(2.0): 3}, run="first", purpose="statistics")
        >>> (charge,) = ledger.charges()
        >>> charge.purpose, charge.count
        ('statistics', 3)
    """

    run: str
    purpose: str
    event: DpEvent
    count: int
    first: str
    last: str


class ReadTransaction(Protocol):
    """A ledger as it is at one moment."""

    def version(self) -> Hashable:
        """Return a value that is equal to the last one only if what is stored is as known here.

        It changes when anyone but this storage has written, and when a write here has failed.
        """
        ...

    def charges(self) -> list[Charge]:
        """Return all charges, oldest first; raise a LedgerError if any is damaged or missing."""
        ...

    def published(self, label: str) -> str | None:
        """Return the digest that was published under a label, None if none was."""
        ...

    def leaseholder(self, label: str) -> str | None:
        """Return who took the last lease of a label, None if nobody did."""
        ...


class WriteTransaction(ReadTransaction, Protocol):
    """A ledger that nobody else can write to meanwhile. All of it is stored at the end, or none."""

    def add(self, run: str, purpose: str, changes: Mapping[DpEvent, int]) -> None:
        """Add to the counts of a run. A refund adds negative numbers.

        Raises:
            LedgerError: a count would become negative, or more than the storage can count.
        """
        ...

    def publish(self, label: str, digest: str) -> str:
        """Store a digest under a label unless there is one; return the one that is there."""
        ...

    def lease(self, label: str, holder: str) -> None:
        """Store who leases a label now, whoever did before."""
        ...


@runtime_checkable
class LedgerStorage(Protocol):
    """Charges, and facts that never change, kept in one place.

    A storage is a value that says where: `SQLiteStorage("patients.ledger")`. Making it does
    nothing; a ledger opens it, and it serves that ledger alone.

    Guarantee, which the contract suite holds each storage to:

    1. When `writing` ends without an exception, all that was written in it is durable, and every
       process that reads from then on sees it. When it ends with one, nothing was written.
    2. Between the start of `writing` and its end nobody else writes, in whichever process or
       thread. What is read in it is what the writes are added to.
    3. What is stored and damaged is refused with a LedgerError, and never read as fewer charges.
    4. A forked child never ends or continues a transaction of its parent. It either works on by
       itself or is refused.
    5. In the middle of a transaction, whatever the same thread asks besides, as a signal handler
       would, is refused with `Busy`.
    """

    @property
    def name(self) -> str:
        """The place in words, for errors and statements."""
        ...

    @property
    def path(self) -> Path | None:
        """The file that holds it, None if there is none."""
        ...

    @property
    def durable(self) -> bool:
        """Whether charges outlive this process."""
        ...

    def open(self, new: Mapping[str, str] | None) -> Mapping[str, str]:
        """Open the ledger, or make one with the facts `new` if there is none; return its facts.

        The storage adds facts of its own: "id", which no other ledger has, and "created". Of
        several processes that make one at once, one does and the others get its facts. With None,
        none is made, and one that does not exist is an error.

        Raises:
            LedgerError: it cannot be opened, is damaged or newer, or this storage is open already.
        """
        ...

    def check_facts(self, facts: Mapping[str, str]) -> None:
        """Raise a LedgerError unless these are the facts of the ledger that was opened."""
        ...

    def reading(self, doing: str = "read") -> AbstractContextManager[ReadTransaction]:
        """See the ledger as it is at one moment. `doing` is a verb for errors."""
        ...

    def writing(self, doing: str) -> AbstractContextManager[WriteTransaction]:
        """Keep all others from writing; store everything at the end, durably, or nothing."""
        ...

    def in_use_here(self) -> bool:
        """Return whether this very thread is in the middle of using it: a signal handler may ask.

        A handler that waited for another thread then would wait for ever if that one waits for
        this one.
        """
        ...

    def for_another_process(self) -> "LedgerStorage":
        """Return a storage of the same ledger, not open, which can be pickled.

        Raises:
            LedgerError: another process could not see the charges.
        """
        ...

    def close(self) -> None:
        """Let go of what is open. What is not durable is gone; else, the next use opens it anew."""
        ...
