"""What a ledger notes beside charges: which results were published, and who may publish one."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from privada.accounting.ledger.counting import (
    DECLARATION_LABEL,
    ORDERS_LABEL,
    RUN_ORDERS_LABEL,
    UNIT_LABEL,
)
from privada.accounting.ledger.storage import LedgerStorage, ReadTransaction
from privada.core.errors import ArgumentError, LedgerError
from privada.core.validation import printable_text


def _free_label(label: str) -> str:
    """Return a label under which something may be published: none of the ledger's own."""
    own = (UNIT_LABEL, ORDERS_LABEL, RUN_ORDERS_LABEL.format(".*"), DECLARATION_LABEL.format(".*"))
    if any(re.fullmatch(each, label) for each in own):
        raise ArgumentError(
            f"Expected a label for a result, got label={label!r}, under which a ledger keeps what "
            "it needs itself. Give another."
        )
    return label


class Publications:
    """The part of a ledger by which one result is published under a label, once."""

    _storage: LedgerStorage
    name: Any

    if TYPE_CHECKING:

        def _refresh(self, transaction: ReadTransaction) -> None: ...

    def lease(self, label: str) -> str:
        """Take over, durably, what is to be published under a label; return a token for it.

        Args:
            label: what is to be published.

        Returns:
            The token that `check_lease`, `while_leased` and `publish` ask for.

        Guarantee: whoever leased it before, in whichever process, can publish nothing more under
        the label. That does not depend on what either of them has found.

        Example:
            >>> import privada as pv
            >>> ledger = pv.Ledger(None)
            >>> first, second = ledger.lease("best model"), ledger.lease("best model")
            >>> ledger.check_lease("best model", second)
            >>> try:
            ...     ledger.check_lease("best model", first)
            ... except pv.LedgerError as error:
            ...     print("taken over" in str(error))
            True
        """
        label, token = printable_text("label", label), os.urandom(16).hex()
        with self._storage.writing("write to") as transaction:
            self._refresh(transaction)
            transaction.lease(label, token)
        return token

    def check_lease(self, label: str, token: str) -> None:
        """Raise unless nobody has taken a label over since `lease` returned this token."""
        with self._storage.reading() as transaction:
            self._refresh(transaction)
            self._check_lease(transaction, printable_text("label", label), token)

    @contextmanager
    def while_leased(self, label: str, token: str) -> Iterator[None]:
        """Let nobody, in any process, take a label over meanwhile; raise if somebody has.

        Nothing is written to the ledger, so that it does not tell how often this was used.
        """
        with self._storage.writing("use") as transaction:
            self._refresh(transaction)
            self._check_lease(transaction, printable_text("label", label), token)
            yield

    def _check_lease(self, transaction: ReadTransaction, label: str, token: str) -> None:
        if transaction.leaseholder(label) != token:
            raise LedgerError(
                f"Expected to be the only one at {label!r}, but ledger {self.name!r} says that it "
                "was taken over since, by another process or from a copy of its files. That one "
                "goes on; nothing was published here."
            )

    def publish(self, label: str, digest: str, *, lease: tuple[str, str] | None = None) -> None:
        """Note, durably, that the result with this digest is published under a label.

        Args:
            label: what is published.
            digest: a digest of the result.
            lease: a label that must still be leased, and the token that `lease` returned for it.

        Guarantee: under one label one result is ever published, by whichever process and from
        whichever copy of its files. To publish the same result again is allowed.

        Raises:
            LedgerError: another result was published under the label, or it was taken over.

        Example:
            >>> import privada as pv
            >>> ledger = pv.Ledger(None)
            >>> ledger.publish("best model", "0a1b")
            >>> ledger.published("best model")
            '0a1b'
        """
        label = _free_label(printable_text("label", label))
        digest = printable_text("digest", digest)
        with self._storage.writing("write to") as transaction:
            self._refresh(transaction)
            if lease is not None:
                self._check_lease(transaction, *lease)
            before = transaction.publish(label, digest)
        if before != digest:
            raise LedgerError(
                f"Expected {label!r} to be published once, but ledger {self.name!r} says that it "
                "was, with another result: from a copy of its files, or by another process. That "
                "result is the one that was paid for; start anew to pay for another."
            )

    def published(self, label: str) -> str | None:
        """Return the digest of what was published under a label, None if nothing was."""
        with self._storage.reading() as transaction:
            self._refresh(transaction)
            return transaction.published(printable_text("label", label))
