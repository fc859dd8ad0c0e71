"""The tables of a ledger's file in every format there was, and the way to the present one.

What the formats differ in:

| user_version | tables | sealed |
|---|---|---|
| 1 | meta, charges | nothing |
| 1 | meta, charges | each charge; the facts and the numbers of rows and releases |
| 1 | meta, charges, given | as before, and `given` is not |
| 2 | meta, charges, given | each row; the facts, the numbers and the sum of all rows' digests |
| 3 | meta, charges, given | as before; the facts of a new ledger say of which kind it is |
| 4 | meta, charges, given | as before, of a ledger that is closed, and why: no version charges it |

Earlier formats are read as they are, and brought to the present one by the first write.
"""

import contextlib
import functools
import hashlib
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from privada.accounting.ledger.sqlite.connections import malformed

SCHEMA_VERSION, NEWEST_VERSION = 3, 4
APPLICATION_ID = 0x50525644  # "PRVD"
COUNTERS = ("rows", "releases", "content")
# Why a ledger is closed: in one of format 4 alone.
STATE = "state"
MODULUS = 1 << 256

_META = "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID"
# SQLite keeps this text, line breaks included, and it is compared with what is in a file.
_CHARGES = """CREATE TABLE charges (
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    purpose TEXT NOT NULL,
    event TEXT NOT NULL,
    count INTEGER NOT NULL CHECK (count >= 0),
    first TEXT NOT NULL,
    last TEXT NOT NULL,
    seal TEXT NOT NULL,
    UNIQUE (run, purpose, event)
)"""
_CHARGES_UNSEALED = _CHARGES.replace("    seal TEXT NOT NULL,\n", "")
# Digests that were published under a label, and who leases one: the table has its first name.
_GIVEN = """CREATE TABLE given (
    label TEXT PRIMARY KEY, digest TEXT NOT NULL, seal TEXT NOT NULL
) WITHOUT ROWID"""
_GIVEN_UNSEALED = "CREATE TABLE given (label TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID"


@dataclass(frozen=True)
class Format:
    """One format of the file.

    Attributes:
        version: its number in the file.
        tables: the statements that make its tables.
        seal: the key of the seal of the facts; None if nothing is sealed. It differs between
            versions, so that a process of an earlier one, which would not keep the digest of all
            rows or count as the kind of the ledger asks for, finds no seal and charges nothing.
    """

    version: int
    tables: tuple[str, ...]
    seal: str | None

    @property
    def has_published(self) -> bool:
        """Whether there is a table of what was published and leased."""
        return len(self.tables) > 2

    @property
    def all_rows_together(self) -> bool:
        """Whether each row is sealed and the sum of all rows' digests is kept."""
        return self.version > 1


CURRENT = Format(SCHEMA_VERSION, (_META, _CHARGES, _GIVEN), "sealed with its kind")
CLOSED = Format(NEWEST_VERSION, CURRENT.tables, "sealed and closed")
_EARLIER = (
    Format(1, (_META, _CHARGES_UNSEALED), None),
    Format(1, (_META, _CHARGES), "seal"),
    Format(1, (_META, _CHARGES, _GIVEN_UNSEALED), "seal"),
    Format(2, (_META, _CHARGES, _GIVEN), "sealed"),
)
_FORMATS = (CURRENT, CLOSED, *_EARLIER)
_UNSEALED_FACTS = {"dataset", "epsilon", "delta", "created"}


def now() -> str:
    """Return the time, for people to read."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def seal(*fields: object) -> str:
    """Return a digest of some fields, by which damage to the file is noticed."""
    return hashlib.sha256(repr(fields).encode()).hexdigest()[:32]


def digest(*row: object) -> int:
    """Return a number for a row; the sum over all rows tells a lost, doubled or older one."""
    return int.from_bytes(hashlib.sha256(repr(row).encode()).digest(), "big")


def _tables(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    return connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_stat%' "
        "ORDER BY name"
    ).fetchall()


@functools.cache
def _expected_tables(statements: tuple[str, ...]) -> list[tuple[str, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements:
            connection.execute(statement)
        return _tables(connection)


def format_of(connection: sqlite3.Connection, *, thorough: bool = False) -> Format:
    """Return the format of a ledger.

    If `thorough`, raise unless the tables are, word for word, those of the format. Earlier formats
    are told apart by their tables, so they always are.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in {each.version for each in _FORMATS}:
        raise malformed("it has no format that there was")
    if version == CURRENT.version and not thorough:
        return CURRENT
    found = _tables(connection)
    for each in _FORMATS:
        if each.version == version and found == _expected_tables(each.tables):
            return each
    raise malformed("its tables are not those of a ledger")


def write_schema(connection: sqlite3.Connection, facts: Mapping[str, str]) -> None:
    """Make an empty ledger."""
    write_content(connection, Content({**facts, "id": os.urandom(8).hex(), "created": now()}))


def write_content(connection: sqlite3.Connection, content: "Content", state: str = "") -> None:
    """Make a ledger that holds something; it is closed if a state says why."""
    for statement in CURRENT.tables:
        connection.execute(statement)
    _write_rows(connection, content)
    write_meta(connection, content.meta())
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    if state:
        write_state(connection, state)


def _write_rows(connection: sqlite3.Connection, content: "Content") -> None:
    connection.executemany(
        "INSERT INTO charges (run, purpose, event, count, first, last, seal) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(*fields, seal(*fields)) for fields in content.charges],
    )
    connection.executemany(
        "INSERT INTO given VALUES (?, ?, ?)",
        [(*fields, seal(*fields)) for fields in content.published],
    )


def write_meta(
    connection: sqlite3.Connection, meta: Mapping[str, str], found: Format = CURRENT
) -> None:
    """Write the facts and the counters, sealed."""
    sealed = {**meta, str(found.seal): seal(*sorted(meta.items()))}
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", sealed.items())


def write_state(connection: sqlite3.Connection, state: str) -> None:
    """Close a ledger of the present format, or open one that is closed if the state is empty."""
    meta = read_meta(connection)
    meta.pop(STATE, None)
    after = CLOSED if state else CURRENT
    connection.execute("DELETE FROM meta")
    write_meta(connection, {**meta, STATE: state} if state else meta, after)
    connection.execute(f"PRAGMA user_version = {after.version}")


def read_state(connection: sqlite3.Connection) -> str:
    """Return why a ledger is closed, nothing if it is not."""
    return read_meta(connection).get(STATE, "")


def read_meta(connection: sqlite3.Connection, found: Format | None = None) -> dict[str, str]:
    """Return the facts and the counters; raise if they are damaged."""
    found = found or format_of(connection)
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    if found.seal is None:
        return _unsealed_facts(meta)
    kept = meta.pop(found.seal, "")
    if not all(isinstance(key, str) for key in meta) or kept != seal(*sorted(meta.items())):
        raise malformed("its own facts do not match their seal")
    return meta


def _unsealed_facts(meta: dict[str, Any]) -> dict[str, str]:
    """Return the facts of the first format, where no budget was NULL."""
    facts = {key: "none" if value is None else value for key, value in meta.items()}
    if set(facts) != _UNSEALED_FACTS or not all(isinstance(each, str) for each in facts.values()):
        raise malformed("its own facts are not those of a ledger")
    return facts


def facts_in(meta: Mapping[str, str]) -> dict[str, str]:
    """Return the facts without the counters, and without why the ledger is closed."""
    return {key: value for key, value in meta.items() if key not in (*COUNTERS, STATE)}


@dataclass(frozen=True)
class Content:
    """All that a ledger holds: facts, charges, and what was published or is leased."""

    facts: dict[str, str]
    charges: list[tuple[str, str, str, int, str, str]] = field(default_factory=list)
    published: list[tuple[str, str]] = field(default_factory=list)

    def meta(self) -> dict[str, str]:
        """Return the facts and the counters."""
        content = sum(digest("charges", *fields) for fields in self.charges)
        content += sum(digest("given", *fields) for fields in self.published)
        releases = sum(count for _, _, _, count, _, _ in self.charges)
        counters = (len(self.charges), releases, content % MODULUS)
        return {**self.facts, **dict(zip(COUNTERS, map(str, counters), strict=True))}


def read_content(connection: sqlite3.Connection) -> Content:
    """Return all that a ledger of any format holds; raise if anything is damaged or missing."""
    found = format_of(connection, thorough=True)
    meta = read_meta(connection, found)
    column = "''" if found.seal is None else "seal"
    charges = []
    for *fields, kept in connection.execute(
        f"SELECT run, purpose, event, count, first, last, {column} FROM charges ORDER BY id"
    ):
        if found.seal is not None and kept != seal(*fields):
            raise malformed("a charge does not match its seal")
        if not isinstance(fields[3], int):
            raise malformed("a count is not a number")
        charges.append((fields[0], fields[1], fields[2], fields[3], fields[4], fields[5]))
    content = Content(facts_in(meta), charges, _read_published(connection, found))
    counted = content.meta()
    if found.seal is None:
        return content
    checked = COUNTERS if found.all_rows_together else COUNTERS[:2]
    if any(meta.get(key) != counted[key] for key in checked):
        raise malformed("rows are missing, or are older than others")
    return content


def _read_published(connection: sqlite3.Connection, found: Format) -> list[tuple[str, str]]:
    if not found.has_published:
        return []
    column = "seal" if found.all_rows_together else "''"
    rows = []
    for label, value, kept in connection.execute(f"SELECT label, digest, {column} FROM given"):
        if found.all_rows_together and kept != seal(label, value):
            raise malformed("what was published does not match its seal")
        rows.append((label, value))
    return rows


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring a ledger to the present format, within the transaction that needs it.

    Guarantee: it holds the same facts, charges and published digests, or an error is raised.
    """
    before = read_content(connection)  # whole, or nothing is sealed anew
    names = connection.execute("SELECT name FROM sqlite_master WHERE sql NOT NULL").fetchall()
    for (name,) in names:
        connection.execute(f"DROP TABLE {name}")
    for statement in CURRENT.tables:
        connection.execute(statement)
    write_meta(connection, before.meta())
    _write_rows(connection, before)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    if read_content(connection) != before:
        raise malformed("it cannot be brought to the present format")
