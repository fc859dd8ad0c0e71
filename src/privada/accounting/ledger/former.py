"""Former names of a ledger's methods, which work for one minor version."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from privada.core.deprecation import renamed

if TYPE_CHECKING:
    from privada.accounting.ledger.ledger import Ledger


class FormerNames:
    """The methods of a ledger by their former names."""

    def hold(self: Any, label: str) -> str:
        """Call `lease`."""
        renamed("Ledger.hold", "Ledger.lease")
        ledger: Ledger = self
        return ledger.lease(label)

    def check_held(self: Any, label: str, proof: str) -> None:
        """Call `check_lease`."""
        renamed("Ledger.check_held", "Ledger.check_lease")
        ledger: Ledger = self
        ledger.check_lease(label, proof)

    def while_held(self: Any, label: str, proof: str) -> AbstractContextManager[None]:
        """Call `while_leased`."""
        renamed("Ledger.while_held", "Ledger.while_leased")
        ledger: Ledger = self
        return ledger.while_leased(label, proof)

    def give(self: Any, label: str, digest: str, *, held: tuple[str, str] | None = None) -> None:
        """Call `publish`."""
        renamed("Ledger.give", "Ledger.publish")
        ledger: Ledger = self
        ledger.publish(label, digest, lease=held)

    def given(self: Any, label: str) -> str | None:
        """Call `published`."""
        renamed("Ledger.given", "Ledger.published")
        ledger: Ledger = self
        return ledger.published(label)
