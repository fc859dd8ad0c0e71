"""Ledger files from outside: their content, opened twice, and processes that are killed."""

import contextlib
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from privada.accounting import Ledger
from tests.forks import limited


def content(path: Path) -> list[str]:
    """Return the whole database as text, by a connection of its own."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


@contextlib.contextmanager
def opened_twice(template: Path) -> Iterator[list[Ledger]]:
    """Open one new file twice, a copy of a template, without the wait for the disk."""
    path = template.with_name("used.ledger")
    shutil.copyfile(template, path)
    ledgers = [Ledger(path), Ledger(path)]
    for ledger in ledgers:
        ledger._storage.connection().execute("PRAGMA synchronous = OFF")
    try:
        yield ledgers
    finally:
        for ledger in ledgers:
            ledger.close()
        for each in path.parent.glob("used.ledger*"):
            each.unlink()


def killed_at(path: Path, statement: int, work: Callable[[Ledger], Any]) -> bool:
    """Work in a child that is killed before its so manieth statement; return whether it was.

    Pages reach the file before the commit.
    """
    child = os.fork()
    if child == 0:
        try:
            limited()
            ledger, seen = Ledger(path), [0]
            connection = ledger._storage.connection()
            connection.execute("PRAGMA cache_size = 1")

            def trace(_: str) -> None:
                seen[0] += 1
                if seen[0] == statement:
                    os.kill(os.getpid(), signal.SIGKILL)

            connection.set_trace_callback(trace)
            work(ledger)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0
