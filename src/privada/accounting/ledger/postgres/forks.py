"""Forks of a process that has a ledger in PostgreSQL open.

A connection belongs to the process that made it: a word or a farewell from a child would end, or
become a part of, what its parent is doing. So a child leaves its parent's connections as they are.
"""

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """What has a connection."""

    def leave_parent(self) -> None:
        """In a child: leave what is open to the parent."""
        ...


_living: weakref.WeakSet[Forked] = weakref.WeakSet()


def care_for(storage: Forked) -> None:
    """Have a storage leave its connection behind in children, as long as it lives."""
    _living.add(storage)


def _after_fork_in_child() -> None:
    for storage in list(_living):
        storage.leave_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
