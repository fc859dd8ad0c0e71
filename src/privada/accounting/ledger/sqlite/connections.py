"""Connections to SQLite, and what to do about its errors."""

import os
import sqlite3
from urllib.parse import quote

from privada.core.errors import LedgerError

SECONDS_FOR_A_LOCK = 60.0

# What to do about an error of SQLite: by its name where there is one, else by a word of its text.
_REMEDIES = {
    "SQLITE_READONLY_DBMOVED": "The file was deleted or replaced while it was open: put it back, "
    "or restore it from a copy, and open it again.",
    "SQLITE_IOERR_LOCK": "The file system cannot lock files, as network file systems often "
    "cannot: keep the ledger on a local disk. Nothing was released.",
    "not authorized": "This process was forked in the middle of that charge, which is its "
    "parent's. Nothing was released here; fork between charges.",
    "locked": "Another process holds it; wait for that one or stop it. If there is none, the file "
    "system cannot lock files: keep the ledger on a local disk.",
    "readonly": "Make the file and its folder writable, or give another path.",
    "full": "Free some space; nothing was released.",
    "I/O": "Check the disk; nothing was released.",
    "not a database": "It is another kind of file, or damaged: give the ledger's own path, "
    "or restore it from a copy.",
    "malformed": "It is damaged: restore it from a copy. Do not start a new one, which "
    "would forget what was spent.",
    "no such": "It is damaged: restore it from a copy. Do not start a new one, which would forget "
    "what was spent.",
    "unable to open": "Check that the folder exists and may be written.",
}


def malformed(what: str) -> sqlite3.DatabaseError:
    """Return the error of a file that is damaged."""
    return sqlite3.DatabaseError(f"malformed ({what})")


def in_words(error: Exception, doing: str, name: str) -> LedgerError:
    """Return an error of SQLite, or of the file system, with a remedy."""
    kind, text = getattr(error, "sqlite_errorname", ""), str(error)
    if isinstance(error, UnicodeDecodeError):
        text = "malformed (text in it cannot be read)"
    hints = (hint for key, hint in _REMEDIES.items() if key in kind or key in text)
    remedy = next(hints, "Check the disk; if the file is damaged, restore it from a copy.")
    return LedgerError(f"Cannot {doing} the ledger {name!r}: {text}. {remedy}")


def connect(path: str | None) -> sqlite3.Connection:
    """Return a connection to a file that exists, or to memory; never make a new file."""
    connection = sqlite3.connect(
        ":memory:" if path is None else f"file:{quote(os.fsencode(path))}?mode=rw",
        uri=path is not None,
        timeout=SECONDS_FOR_A_LOCK,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        # EXTRA also syncs the folder, so that a power cut cannot bring an old journal back;
        # the other takes writes past the disk's own cache where a plain sync does not
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA cell_size_check = ON")  # notice damaged pages as they are read
        # a file that somebody switched to WAL has locks that a fork would break
        connection.execute("PRAGMA journal_mode = DELETE")
    except BaseException:
        connection.close()
        raise
    return connection
