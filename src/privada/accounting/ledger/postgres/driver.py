"""psycopg, loaded when a ledger in PostgreSQL is first used."""

from types import ModuleType

from privada.core.errors import LedgerError


def driver() -> ModuleType:
    """Return psycopg.

    Raises:
        LedgerError: it is not installed, or lacks the library of PostgreSQL.
    """
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError as error:
        raise LedgerError(
            "Cannot use a ledger in PostgreSQL: psycopg is not installed, or not whole. Run "
            "pip install 'privada[postgres]'."
        ) from error
    return psycopg
