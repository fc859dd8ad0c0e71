"""What was charged, by what the ledger holds: said in errors, and of folders that hold one."""

from privada.accounting import Ledger, events
from privada.accounting.ledger import Place, exists, file_of
from privada.core.errors import LedgerError


def has_ledger(place: Place) -> bool:
    """Return whether there is a ledger, by its path or URL."""
    file = file_of(place)
    return exists(place) if file is None else file.is_file()


def count_charges(place: Place, run: str | None = None) -> int:
    """Return how many releases a ledger holds, of one run if it is named; 0 if there is none."""
    if not has_ledger(place):
        return 0
    with Ledger(place) as ledger:
        return sum(
            events.release_count({each.event: each.count})
            for each in ledger.charges()
            if run in (None, each.run)
        )


def holds_charges(place: Place) -> bool:
    """Return whether a ledger holds charges; one that cannot be read counts as such."""
    try:
        return count_charges(place) > 0
    except LedgerError:
        file = file_of(place)
        return file is None or file.is_file()
