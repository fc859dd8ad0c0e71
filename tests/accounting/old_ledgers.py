"""Ledger files as every earlier version wrote them, by the SQL of that version."""

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

Row = tuple[str, str, str, int, str, str]

META = "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;"
CHARGES = """
CREATE TABLE charges (
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    purpose TEXT NOT NULL,
    event TEXT NOT NULL,
    count INTEGER NOT NULL CHECK (count >= 0),
    first TEXT NOT NULL,
    last TEXT NOT NULL,
    seal TEXT NOT NULL,
    UNIQUE (run, purpose, event)
);
"""
CHARGES_WITHOUT_SEALS = """
CREATE TABLE charges (
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    purpose TEXT NOT NULL,
    event TEXT NOT NULL,
    count INTEGER NOT NULL CHECK (count >= 0),
    first TEXT NOT NULL,
    last TEXT NOT NULL,
    UNIQUE (run, purpose, event)
);
"""
GIVEN_WITHOUT_SEALS = """
CREATE TABLE IF NOT EXISTS given (label TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID;
"""
GIVEN = """
CREATE TABLE given (
    label TEXT PRIMARY KEY, digest TEXT NOT NULL, seal TEXT NOT NULL
) WITHOUT ROWID;
"""

WHEN = "2026-11-15T12:00:00+00:00"
LATER = "2026-11-16T09:30:00+00:00"
# The texts of all kinds of events that a version wrote, as it wrote them.
TEXTS = (
    '{"kind": "poisson", "noise_multiplier": 4.0, "sampling_rate": 0.01}',
    '{"kind": "gaussian", "noise_multiplier": 20.0}',
    '{"kind": "parallel", "parts": [[[{"kind": "gaussian", "noise_multiplier": 30.0}, 2]], '
    '[[{"kind": "poisson", "noise_multiplier": 4.0, "sampling_rate": 0.01}, 3]]]}',
    '{"candidates": [[[{"kind": "poisson", "noise_multiplier": 4.0, "sampling_rate": 0.01}, 5]]], '
    '"kind": "selected", "mean": 4.0, "shape": 1.0}',
    '{"candidates": [[[{"kind": "gaussian", "noise_multiplier": 40.0}, 1]]], '
    '"kind": "selected", "mean": 2.5, "shape": "poisson"}',
)
FIXED_SIZE = '{"batch_size": 10, "kind": "fixed-size", "noise_multiplier": 4.0, "population": 1000}'
# before floats were written as such, a whole multiplier was a whole number
WHOLE_NUMBER = '{"kind": "gaussian", "noise_multiplier": 20}'

ROWS: tuple[Row, ...] = (
    ("first", "training", TEXTS[0], 300, WHEN, LATER),
    ("second", "tuning", TEXTS[1], 3, WHEN, WHEN),
    ("second", "training", TEXTS[0], 70, LATER, LATER),
    ("returned", "statistics", TEXTS[1], 0, LATER, LATER),  # charged and given back
)
# What one run was charged, for two purposes.
ONE_RUN: tuple[Row, ...] = (
    ("first", "training", TEXTS[0], 300, WHEN, LATER),
    ("first", "tuning", TEXTS[1], 3, WHEN, WHEN),
)
PUBLISHED = (("search", "0a1b"), ("search, held by", "c2d3"))


def seal(*fields: object) -> str:
    return hashlib.sha256(repr(fields).encode()).hexdigest()[:32]


def number(*row: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(row).encode()).digest(), "big")


def write(
    path: Path,
    script: str,
    meta: dict[str, str | None],
    rows: list[tuple[object, ...]],
    version: int,
) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.executescript(script)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        marks = ", ".join("?" * len(rows[0])) if rows else ""
        if rows:
            columns = ("run", "purpose", "event", "count", "first", "last", "seal")[: len(rows[0])]
            names = ", ".join(columns)
            connection.executemany(f"INSERT INTO charges ({names}) VALUES ({marks})", rows)
        connection.execute(f"PRAGMA application_id = {0x50525644}")
        connection.execute(f"PRAGMA user_version = {version}")


def facts(epsilon: float | None) -> dict[str, str]:
    limited = epsilon is not None
    return {
        "dataset": "patients",
        "epsilon": repr(epsilon) if limited else "none",
        "delta": repr(1e-5) if limited else "none",
        "created": WHEN,
    }


def unsealed(path: Path, rows: tuple[Row, ...] = ROWS, epsilon: float | None = 1.0) -> None:
    """The first version: nothing is sealed, and no budget is NULL."""
    meta = {key: None if value == "none" else value for key, value in facts(epsilon).items()}
    write(path, META + CHARGES_WITHOUT_SEALS, meta, list(rows), 1)


def sealed_with(path: Path, known: dict[str, str], rows: tuple[Row, ...], script: str) -> None:
    counters = {"rows": str(len(rows)), "releases": str(sum(row[3] for row in rows))}
    meta: dict[str, str | None] = {**known, **counters}
    meta["seal"] = seal(*sorted(meta.items()))
    write(path, META + script, meta, [(*row, seal(*row)) for row in rows], 1)


def sealed(path: Path, rows: tuple[Row, ...] = ROWS, epsilon: float | None = 1.0) -> None:
    """Rows and facts have seals; a ledger has no mark of its own."""
    sealed_with(path, facts(epsilon), rows, CHARGES)


def marked(path: Path, rows: tuple[Row, ...] = ROWS, epsilon: float | None = 1.0) -> None:
    """A ledger has a mark of its own."""
    sealed_with(path, {**facts(epsilon), "id": "00112233aabbccdd"}, rows, CHARGES)


def published(path: Path, rows: tuple[Row, ...] = ROWS, epsilon: float | None = 1.0) -> None:
    """Results of searches are noted, in a table that is made when it is first needed."""
    marked(path, rows, epsilon)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.executescript(GIVEN_WITHOUT_SEALS)
        connection.executemany("INSERT INTO given VALUES (?, ?)", PUBLISHED)


def all_together(path: Path, rows: tuple[Row, ...] = ROWS, epsilon: float | None = 1.0) -> None:
    """Format 2: everything is sealed, and the digests of all rows are added up."""
    content = sum(number("charges", *row) for row in rows)
    content += sum(number("given", *each) for each in PUBLISHED)
    meta: dict[str, str | None] = {
        **facts(epsilon),
        "id": "00112233aabbccdd",
        "rows": str(len(rows)),
        "releases": str(sum(row[3] for row in rows)),
        "content": str(content % (1 << 256)),
    }
    meta["sealed"] = seal(*sorted(meta.items()))
    write(path, META + CHARGES + GIVEN, meta, [(*row, seal(*row)) for row in rows], 2)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        noted = [(*each, seal(*each)) for each in PUBLISHED]
        connection.executemany("INSERT INTO given VALUES (?, ?, ?)", noted)


EARLIER: dict[str, Callable[..., None]] = {
    "unsealed": unsealed,
    "sealed": sealed,
    "marked": marked,
    "published": published,
    "all together": all_together,
}
