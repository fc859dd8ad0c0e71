"""What was charged, by what the ledger holds: said in errors, and of folders that hold one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from privada.accounting import Ledger, events
from privada.core.errors import LedgerError, PrivadaError


def count_charges(path: Path, run: str | None = None) -> int:
    """Return how many releases a ledger file holds, of one run if it is named; 0 without a file."""
    if not path.is_file():
        return 0
    with Ledger(path) as ledger:
        return sum(
            events.release_count({each.event: each.count})
            for each in ledger.charges()
            if run in (None, each.run)
        )


def holds_charges(path: Path) -> bool:
    """Return whether a ledger file holds charges; one that cannot be read counts as such."""
    try:
        return count_charges(path) > 0
    except LedgerError:
        return path.is_file()


@contextmanager
def telling_charges(path: Path | None, advice: str) -> Iterator[None]:
    """Add to an error what was charged before it arose, by what the ledger holds."""
    before = 0 if path is None else count_charges(path)
    try:
        yield
    except PrivadaError as error:
        charged = 0 if path is None else count_charges(path) - before
        if charged:
            error.args = (
                f"{error} {charged:,} releases were charged to {str(path)!r} before that, and stay "
                f"charged. {advice}",
            )
        raise
