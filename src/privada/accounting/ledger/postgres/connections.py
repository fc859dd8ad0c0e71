"""Connections to PostgreSQL, and what to do about its errors."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from privada.accounting.ledger.postgres.driver import driver
from privada.accounting.ledger.postgres.urls import LedgerURL
from privada.core.errors import LedgerError

if TYPE_CHECKING:
    import psycopg

SECONDS_FOR_A_LOCK = 60.0
# How long a server that was there may be away, as it is while it starts anew.
SECONDS_FOR_A_SERVER = 60.0
_PAUSE = 0.2
_OLDEST = 130000

# So that a machine that is gone is noticed, unless the URL or the environment says otherwise.
_USUAL = {
    "connect_timeout": ("PGCONNECT_TIMEOUT", 10),
    "keepalives_idle": (None, 15),
    "keepalives_interval": (None, 5),
    "keepalives_count": (None, 4),
    "tcp_user_timeout": (None, 60_000),
    "fallback_application_name": (None, "privada"),
}

# What a transaction has for itself, whatever the role, the database or a pool has set: a server
# that notices a client that is gone, waits that end, and no time limit on working out a price.
_LOCAL = {
    "lock_timeout": f"{SECONDS_FOR_A_LOCK:.0f}s",
    "statement_timeout": "10min",
    "idle_in_transaction_session_timeout": "15min",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
    "tcp_user_timeout": "30s",
}

# What the server's triggers raise; the SQL has these codes too.
NOT_NEXT, CLOSED, TOO_MUCH, ONLY_GROWS = "PV001", "PV002", "PV003", "PV004"

_DAMAGED = (
    "It is damaged: restore it from a backup. Do not start a new one, which would forget what was "
    "spent."
)
_LOGIN = "Check the user and the password: in PGPASSWORD, ~/.pgpass or the URL."
_CERTIFICATES = "Check sslmode, sslrootcert and the certificates."
# What to do about an error: by the start of its code, or by a word of its text where it has none.
_BY_CODE = {
    "28": _LOGIN,
    "3D": "Make the database first, with createdb.",
    "25006": "It may only be read: connect to the primary, with a role that may write.",
    "25P": "It took longer than the server lets a transaction wait. Nothing was written.",
    "55P03": "Another process holds it; wait for that one or stop it.",
    "57014": "It took longer than the server allows, or somebody ended it. Nothing was written.",
    "42501": "Its owner gives a role what it needs to charge or read by the SQL of privada ledger "
    "grant; to make, copy or accept a ledger is for its owner.",
    "42": _DAMAGED,
    "53": "The server has no room for it: free some, or ask its administrator. Nothing was "
    "released.",
    "XX": _DAMAGED,
    "22P05": "Make the database with the encoding UTF8.",
    NOT_NEXT: "Something else writes to it at the same time without its lock, or the tables were "
    "changed. Nothing was written.",
    CLOSED: "Charge the ledger that it was moved to. Nothing was written.",
    TOO_MUCH: "A role may return what it has charged itself, once. Nothing was written.",
    ONLY_GROWS: "Rows are added to a ledger, never changed or removed.",
}
_BY_WORD = {
    "password": _LOGIN,
    "does not exist": "Make the database or the role first, or give the name of one that there is.",
    "resolve host": "Check the name of the host.",
    "starting up": "Wait until the server has started.",
    "certificate": _CERTIFICATES,
    "SSL": _CERTIFICATES,
}
_USUAL_REMEDY = "Check that the server runs and can be reached. Nothing was released."


def damaged(name: str, what: str) -> LedgerError:
    """Return the error of a ledger that does not hold what it should."""
    return LedgerError(
        f"Cannot use the ledger {name!r}: it is damaged ({what}). Restore it from a backup. Do not "
        "start a new one, which would forget what was spent."
    )


def in_words(error: Exception, doing: str, url: LedgerURL) -> LedgerError:
    """Return an error of PostgreSQL or psycopg with a remedy, and without passwords."""
    code = getattr(error, "sqlstate", None) or ""
    said = getattr(getattr(error, "diag", None), "message_primary", None) or str(error)
    text = " ".join(url.without_secrets(said).split()).rstrip(".")
    hints = [hint for key, hint in _BY_CODE.items() if code.startswith(key)]
    hints += [hint for word, hint in _BY_WORD.items() if not code and word in text]
    remedy = next(iter(hints), _USUAL_REMEDY)
    return LedgerError(f"Cannot {doing} the ledger {url.name!r}: {text}. {remedy}")


@contextmanager
def telling(doing: str, url: LedgerURL) -> Iterator[None]:
    """Say errors of PostgreSQL in words."""
    psycopg = driver()
    try:
        yield
    except psycopg.Error as error:
        raise in_words(error, doing, url) from None


def broken(connection: "psycopg.Connection[Any]") -> bool:
    """Return whether a connection can do nothing more."""
    return connection.closed or connection.broken


def _checked(connection: "psycopg.Connection[Any]", url: LedgerURL) -> None:
    version = connection.info.server_version
    if version < _OLDEST:
        raise LedgerError(
            f"Cannot open the ledger {url.name!r}: the server is PostgreSQL {version // 10_000}. "
            f"Expected {_OLDEST // 10_000} or later; upgrade it."
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise LedgerError(
            f"Cannot open the ledger {url.name!r}: its database has the encoding {encoding}. "
            "Make one with UTF8, as createdb --encoding=UTF8 --template=template0 does."
        )


def connect(url: LedgerURL, patience: float = 0.0) -> "psycopg.Connection[Any]":
    """Return a connection; try again for some seconds if the server is away."""
    loaded, until = driver(), time.monotonic() + patience
    usual = {
        name: value
        for name, (variable, value) in _USUAL.items()
        if name not in url.parameters and not (variable and os.environ.get(variable))
    }
    while True:
        try:
            # a pool may give each transaction another session: nothing is prepared or set for one
            made: psycopg.Connection[Any] = loaded.connect(
                url.conninfo,
                autocommit=True,
                prepare_threshold=None,
                client_encoding="utf8",
                **usual,
            )
        except loaded.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE)
            continue
        try:
            _checked(made, url)
        except BaseException:
            drop(made)
            raise
        return made


def drop(connection: "psycopg.Connection[Any]") -> None:
    """Close a connection, in whichever state it is; the server ends its transaction."""
    with suppress(Exception):
        connection.close()


def beginning(connection: "psycopg.Connection[Any]", *, write: bool) -> str:
    """Return the statements with which a transaction begins.

    The commit of one that writes waits for the disk, and for standbys that the server is told to
    wait for.
    """
    local = dict(_LOCAL)
    if connection.info.server_version >= 170000:
        local["transaction_timeout"] = "0"
    if not write:
        local.pop("lock_timeout")
    settings = [f"set_config('{name}', '{value}', true)" for name, value in local.items()]
    if not write:
        return f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT {', '.join(settings)}; "
    settings.append(
        "set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
        "WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)"
    )
    return f"BEGIN ISOLATION LEVEL READ COMMITTED; SELECT {', '.join(settings)}; "
