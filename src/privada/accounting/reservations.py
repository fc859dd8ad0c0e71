"""Reservations: what a ledger gives for a charge, and the only thing for which it gives one back.

Using one up gives a receipt for each release, which is what noise asks for.
"""

import os
import threading
from collections import Counter
from typing import NoReturn

from dp_accounting import DpEvent

from privada.accounting.events import Tally, describe
from privada.core.errors import LedgerError
from privada.core.receipts import Receipt, issue_receipt
from privada.core.validation import integer

_KEY = object()  # which a ledger has, and nobody has by accident


class Reservation:
    """Says that a charge is durable, what was paid for, and how much of it is not used yet.

    Only a ledger makes one. Whoever holds it gets by `use` a receipt for each release that it pays
    for, and may return what is not used by `Ledger.refund`, once.

    Attributes:
        run, purpose: under which the charge is listed.
        paid: how often each event was charged.

    Guarantee: what was used is never given back, nor is anything given back twice. A reservation
    belongs to its ledger and its process: a copy, a pickle and a fork have none.

    Edge cases: threads may share one. A signal handler in the middle of a use may return it, which
    ends that use, and may not use it. A reservation that is dropped leaves its charge as it is.

    Example:
        >>> import privada as pv
        >>> from privada.accounting import events
        >>> ledger, event = pv.Ledger(None), events.gaussian(2.0)
        >>> reservation = ledger.charge({event: 3}, run="first")
        >>> reservation.use(event)
        Receipt(a release of run 'first' for training, not yet made)
        >>> reservation
        Reservation(3 releases of run 'first' for training, 2 of them not used)
        >>> ledger.refund(reservation)
        >>> sum(ledger.totals().values())
        1
    """

    __slots__ = ("_issuer", "_lock", "_process", "_unused", "_using", "paid", "purpose", "run")

    def __init__(self, key: object, issuer: object, run: str, purpose: str, paid: Tally) -> None:
        if key is not _KEY:
            raise LedgerError(
                "Cannot make a reservation: only a charge does. Use the one that Ledger.charge "
                "returns."
            )
        self.run, self.purpose, self.paid = run, purpose, Counter(paid)
        self._issuer, self._process, self._lock = issuer, os.getpid(), threading.RLock()
        self._unused: Tally | None = Counter(paid)
        self._using = False

    @property
    def unused(self) -> Tally:
        """What may still be used, or returned: nothing once it was returned."""
        with self._lock:
            return +(self._unused or Counter())

    def covers(self, event: DpEvent) -> bool:
        """Return whether it pays for one more of an event."""
        held = self._unused
        return held is not None and held[event] > 0

    def use(self, event: DpEvent, count: int = 1) -> Receipt:
        """Return a receipt for releases that are about to be made.

        Raises:
            LedgerError: it does not pay for them, or was returned; nothing was used.
        """
        if type(count) is not int or count < 1:
            count = integer("count", count)
        self._check_process("use")
        with self._lock:
            if self._using:  # by this very thread: both would find the same count
                raise LedgerError(
                    f"Cannot use {self!r} from within another use, as a signal handler would. "
                    "Nothing was used; do it after that use."
                )
            try:
                self._using = True
                self._take(event, count)
            finally:
                self._using = False
        return issue_receipt(event, self.run, self.purpose, count)

    def use_in_turns(self, event: DpEvent, turns: int) -> tuple[Receipt, ...]:
        """Return one receipt for each of several releases over parts that share no unit.

        One charge pays for all of them: a unit is in one part, and so in one of the releases.

        Raises:
            LedgerError: it does not pay for one more, or was returned; nothing was used.
        """
        if type(turns) is not int or turns < 1:
            turns = integer("turns", turns)
        receipt = self.use(event)
        if turns == 1:
            return (receipt,)
        others = (issue_receipt(event, self.run, self.purpose) for _ in range(turns - 1))
        return receipt, *others

    def _take(self, event: DpEvent, count: int) -> None:
        held = self._unused
        if held is None:
            raise self._returned("use")
        if held[event] < count:
            raise LedgerError(
                f"Expected a reservation of {count} x {describe(event)}, got one that has "
                f"{held[event]} of it left. Charge the ledger first."
            )
        held[event] -= count
        if self._unused is not held:  # a signal handler returned it in the middle
            raise self._returned("use")

    def take_back(self, issuer: object) -> Tally:
        """Return what is not used, for its ledger to give back; from then on nothing is left."""
        self._check_process("return")
        if issuer is not self._issuer:
            raise LedgerError(
                f"Cannot return {self!r}: another ledger gave it. Return it to that one."
            )
        with self._lock:
            held, self._unused = self._unused, None
            if held is None:
                raise self._returned("return")
            return +held

    def _check_process(self, doing: str) -> None:
        if os.getpid() != self._process:
            raise LedgerError(
                f"Cannot {doing} a reservation in a forked process: the charge is its parent's. "
                "Charge the ledger here."
            )

    def _returned(self, doing: str) -> LedgerError:
        return LedgerError(f"Cannot {doing} {self!r}: it was returned. Charge the ledger again.")

    def __repr__(self) -> str:
        left = sum(self.unused.values())
        words = "returned" if self._unused is None else f"{left} of them not used"
        count = sum(self.paid.values())
        return f"Reservation({count} releases of run {self.run!r} for {self.purpose}, {words})"

    def _stay(self) -> NoReturn:
        raise LedgerError(
            "Cannot copy a reservation or send it elsewhere: one charge would be used or returned "
            "twice. Charge the ledger again there."
        )

    def __copy__(self) -> NoReturn:
        self._stay()

    def __deepcopy__(self, memo: object) -> NoReturn:
        self._stay()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self._stay()


def issue(issuer: object, run: str, purpose: str, paid: Tally) -> Reservation:
    """Return the reservation of a charge that is durable; for ledgers alone."""
    return Reservation(_KEY, issuer, run, purpose, paid)
