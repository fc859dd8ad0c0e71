"""The ledger of a team: in a PostgreSQL database that machines may share."""

from privada.accounting.ledger.postgres.grants import grants
from privada.accounting.ledger.postgres.storage import PostgresStorage
from privada.accounting.ledger.postgres.urls import is_url

__all__ = ["PostgresStorage", "grants", "is_url"]
