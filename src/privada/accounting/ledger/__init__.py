"""The ledger, and where it is kept.

`ledger` asks a way of counting (`counting` says what one has to do; `planned` and `adaptive` are
the two kinds, `undecided` is for older files) whether a charge is allowed, and keeps it in a
storage (`storage` says what one has to do; `sqlite` is the default, `postgres` is for a team, and
`places` knows them by paths and URLs). `moving` brings a ledger from one to another. `prepaid` is
an account for what is charged elsewhere already.
"""

from privada.accounting.ledger.counting import ADAPTIVE, KINDS, PLANNED, Counting
from privada.accounting.ledger.ledger import PURPOSES, ROW, Ledger, all_rows_of, dataset_of
from privada.accounting.ledger.moving import move
from privada.accounting.ledger.places import (
    Place,
    exists,
    file_of,
    in_words,
    remove_unused,
    storage_at,
    trial_copy,
)
from privada.accounting.ledger.postgres import PostgresStorage, grants, is_url
from privada.accounting.ledger.prepaid import Prepaid
from privada.accounting.ledger.sqlite import SQLiteStorage
from privada.accounting.ledger.storage import (
    Busy,
    Charge,
    LedgerStorage,
    ReadTransaction,
    WriteTransaction,
)
from privada.accounting.reservations import Reservation

__all__ = [
    "ADAPTIVE",
    "KINDS",
    "PLANNED",
    "PURPOSES",
    "ROW",
    "Busy",
    "Charge",
    "Counting",
    "Ledger",
    "LedgerStorage",
    "Place",
    "PostgresStorage",
    "Prepaid",
    "ReadTransaction",
    "Reservation",
    "SQLiteStorage",
    "WriteTransaction",
    "all_rows_of",
    "dataset_of",
    "exists",
    "file_of",
    "grants",
    "in_words",
    "is_url",
    "move",
    "remove_unused",
    "storage_at",
    "trial_copy",
]
