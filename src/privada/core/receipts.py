"""Receipts: that one release, or several alike, are paid for. Nothing is released without one."""

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from privada.core.errors import ArgumentError, LedgerError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_KEY = object()  # which an account has, and nobody has by accident


class Receipt:
    """Says that the charge for a release is durable, and which event was paid.

    Only a reservation of a ledger makes one. Noise spends it, and takes its multiplier from it, so
    that what is paid and what is added cannot differ.

    Attributes:
        event: what was paid.
        run, purpose: under which it is listed on the ledger.

    Guarantee: it is spent as often as was paid, in the process that paid. A fork can spend none,
    and only what is spent can be copied or pickled, as part of its release.

    Example:
        >>> import privada as pv, torch
        >>> from privada.accounting import events
        >>> event = events.gaussian(2.0)
        >>> receipt = pv.Ledger(None).charge({event: 1}, run="first").use(event)
        >>> clipped = pv.ClippedSum(torch.zeros(3), sensitivity=0.5)
        >>> pv.noise.GaussianNoise().release(clipped, receipt, batch_size=10).noise_std
        1.0
        >>> receipt
        Receipt(a release of run 'first' for training, made)
    """

    __slots__ = ("_left", "_process", "event", "purpose", "run")

    def __init__(self, key: object, event: "DpEvent", run: str, purpose: str, count: int) -> None:
        if key is not _KEY:
            raise LedgerError(
                "Cannot make a receipt: only a charge does. Use the one that a reservation of "
                "Ledger.charge gives."
            )
        self.event, self.run, self.purpose = event, run, purpose
        self._process = os.getpid()
        self._left = deque(range(count))  # popping is atomic: neither thread nor handler gets two

    @property
    def left(self) -> int:
        """How many releases it still pays for."""
        return len(self._left)

    def spend(self) -> None:
        """Use it up for one release.

        Raises:
            LedgerError: it was spent, or belongs to another process.
        """
        if os.getpid() != self._process:
            raise LedgerError(
                "Cannot spend a receipt in a forked process: the charge is its parent's. Charge "
                "the ledger here."
            )
        try:
            self._left.pop()
        except IndexError:
            raise LedgerError(
                f"Cannot spend {self!r} again: one charge pays for one release. Charge the ledger "
                "again."
            ) from None

    def __repr__(self) -> str:
        made = "not yet made" if self._left else "made"
        return f"Receipt(a release of run {self.run!r} for {self.purpose}, {made})"

    def __reduce_ex__(self, protocol: object) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._left:
            raise LedgerError(
                "Cannot copy a receipt or send it elsewhere before it is spent: one charge would "
                "pay for two releases. Charge the ledger again there."
            )
        return issue_receipt, (self.event, self.run, self.purpose, 0)


def issue_receipt(event: "DpEvent", run: str, purpose: str, count: int = 1) -> Receipt:
    """Return the receipt of a charge that is durable; for reservations alone."""
    return Receipt(_KEY, event, run, purpose, count)


def check_receipt(receipt: object) -> None:
    """Raise unless it is a receipt."""
    if not isinstance(receipt, Receipt):
        raise ArgumentError(
            f"Expected receipt to be the receipt of a charge, got {type(receipt).__name__}. Charge "
            "a ledger, and use what the charge returns."
        )
