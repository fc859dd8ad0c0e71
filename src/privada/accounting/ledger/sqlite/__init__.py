"""The ledger's file: one SQLite database that processes, threads and forks may share."""

from privada.accounting.ledger.sqlite.storage import SQLiteStorage

__all__ = ["SQLiteStorage"]
