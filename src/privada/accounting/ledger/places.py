"""Where ledgers are kept: what a path or a URL stands for."""

import os
from pathlib import Path

from privada.accounting.ledger.moving import Closure
from privada.accounting.ledger.postgres import PostgresStorage
from privada.accounting.ledger.postgres.urls import LedgerURL, is_url
from privada.accounting.ledger.sqlite import SQLiteStorage

Place = str | os.PathLike[str]


def storage_at(place: Place | None) -> SQLiteStorage | PostgresStorage:
    """Return the storage of a ledger: in a file, by its path; in PostgreSQL, by its URL; in memory.

    Example:
        >>> from privada.accounting.ledger import storage_at
        >>> storage_at(None).name, storage_at("patients.ledger").name
        ('in memory', 'patients.ledger')
    """
    return PostgresStorage(str(place)) if is_url(place) else SQLiteStorage(place)


def exists(place: Place) -> bool:
    """Return whether there is a ledger at a path or a URL, or anything else.

    Raises:
        LedgerError: the server of a URL cannot be asked.
    """
    if not is_url(place):
        return Path(place).exists()
    storage = PostgresStorage(str(place))
    try:
        return storage.exists()
    finally:
        storage.close()


def in_words(place: Place) -> str:
    """Return a path or a URL as it may be shown: a URL without user and password."""
    return LedgerURL.read(str(place)).name if is_url(place) else str(place)


def trial_copy(place: Place, path: Path) -> None:
    """Copy a ledger that is not a file to a file, to try what would be charged; it is thrown away.

    To let a ledger live on elsewhere, use `move`.
    """
    storage, copy = storage_at(place), SQLiteStorage(path)
    storage.open(None)
    try:
        held = storage.holdings()
    finally:
        storage.close()
    closure = Closure(False, storage.name, held.token())
    copy.receive(held, closure)
    copy.admit_charges(closure)
    copy.close()


def remove_unused(place: Place) -> None:
    """Remove a ledger, if there is one, that was never charged."""
    if is_url(place):
        PostgresStorage(str(place)).remove_unused()
    else:
        Path(place).unlink(missing_ok=True)


def file_of(place: Place | None) -> Path | None:
    """Return the path of a ledger that is a file, None of one that is not."""
    return None if place is None or is_url(place) else Path(place)
