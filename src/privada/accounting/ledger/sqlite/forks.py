"""Forks of a process that uses SQLite.

A fork waits until no thread is within SQLite, whose own locks and open transactions the child would
inherit with nobody to end them. It does not wait for ever: a child that was forked in the middle
all the same may use no ledger.
"""

import os
import threading
import time
import weakref
from typing import Protocol

from privada.accounting.ledger.sqlite import connections


class Forked(Protocol):
    """What has a lock that threads hold while they are within SQLite."""

    _lock: threading.RLock

    def used_by_some_thread(self) -> bool:
        """Return whether a thread is in the middle of using it."""
        ...

    def leave_parent(self) -> None:
        """In a child: leave what is open to the parent."""
        ...


_living: weakref.WeakSet[Forked] = weakref.WeakSet()
_forking = threading.RLock()
_held: list[list[Forked]] = []
_spoilt = False


def care_for(storage: Forked) -> None:
    """Have forks wait for a storage from now on, as long as it lives."""
    with _forking:
        _living.add(storage)


def let_forks_go_first() -> None:
    """Wait for a fork that waits: locks are not fair."""
    with _forking:
        pass


def spoilt() -> bool:
    """Return whether this process was forked in the middle of a use of SQLite."""
    return _spoilt


def _before_fork() -> None:
    _forking.acquire()
    until = time.monotonic() + connections.SECONDS_FOR_A_LOCK
    _held.append([])
    for storage in list(_living):
        if storage._lock.acquire(timeout=max(0.0, until - time.monotonic())):
            _held[-1].append(storage)


def _after_fork_in_parent() -> None:
    for storage in _held.pop():
        storage._lock.release()
    _forking.release()


def _after_fork_in_child() -> None:
    global _spoilt, _forking
    for storage in list(_living):
        _spoilt = _spoilt or storage.used_by_some_thread()
        storage.leave_parent()
    _held.clear()
    _forking = threading.RLock()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
