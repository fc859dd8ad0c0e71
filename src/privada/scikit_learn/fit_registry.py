"""Which rows were fitted in this process, and on which account.

An estimator without a ledger has an account of its own, which knows of no other fit. So that a
second fit on the same rows is not free, whoever calls it, each fit leaves digests of its rows here.
"""

import multiprocessing
import os
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from numpy.typing import NDArray

from privada.accounting import Ledger
from privada.accounting.ledger import ROW, Charge
from privada.core.errors import ArgumentError, BudgetExceeded
from privada.scikit_learn.row_digests import Digest, digest


@dataclass(eq=False)
class _FitRecord:
    """Fits on one account: `charges` of an account of their own, or the name of a ledger."""

    digest: Digest
    families: frozenset[str]
    ledger: str | None
    name: str
    charges: tuple[Charge, ...] = field(default=())
    unit: str = ROW
    under_way: bool = True


_records: list[_FitRecord] = []
# The last transformations of rows: a pipeline has just made them when it fits its last step.
_made: deque[tuple[Digest, Digest]] = deque(maxlen=8)
_lock = threading.RLock()
_home = os.getpid()


def _new_lock() -> None:
    """In a forked child, while it has one thread: nobody here holds the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)

_REMEDY = (
    "Give ledger= a ledger with a budget for all of them together, such as "
    "ledger=pv.Ledger('name.ledger', pv.Budget(epsilon, delta)); for other people's records, give "
    "each data set a ledger of its own. To choose settings, pv.selection.select is much cheaper."
)


def forget_fits() -> None:
    """Forget all fits, as a new process has: for tests, which stand for many processes."""
    with _lock:
        _records.clear()
        _made.clear()


def _refuse_other_process() -> None:
    if multiprocessing.parent_process() is not None or os.getpid() != _home:
        raise ArgumentError(
            "Expected a ledger, got ledger=None in a process that another one started, as n_jobs= "
            "does: fits in several processes see nothing of each other, and without a ledger none "
            f"would count the others. {_REMEDY}"
        )


def _alike(seen: Digest, family: str, ledger: str | None = None) -> list[_FitRecord]:
    """Return earlier looks at the same rows, or by the same family, on other accounts."""
    return [
        earlier
        for earlier in _records
        if (earlier.ledger is None or earlier.ledger != ledger)
        and (family in earlier.families or earlier.digest.overlaps(seen))
    ]


def has_unpaid_fits(seen: Digest, family: str) -> bool:
    """Return whether a ledger for these rows would first be charged for fits before it."""
    with _lock:
        return any(earlier.ledger is None for earlier in _alike(_with_transforms(seen), family))


@contextmanager
def record_fit(seen: Digest, family: str, ledger: Ledger, *, shared: bool) -> Iterator[list[str]]:
    """Note a fit for as long as it runs, and for good if it was charged; yield other ledgers.

    Args:
        seen: the digest of the rows.
        family: what an estimator and its clones have in common.
        ledger: the account that it is charged to.
        shared: whether that is a ledger on which fits add up, and not one of its own.

    Yields:
        The names of other ledgers that hold fits on some of these rows.

    Guarantee: a fit on an account of its own is refused if its rows, or its family, were fitted
    before in this process. On a ledger, what was fitted before on accounts of their own is charged
    first.
    """
    with _lock:
        if not shared:
            _refuse_other_process()
        seen = _with_transforms(seen)
        alike = _alike(seen, family, ledger.identity)
        if alike and not shared:
            raise ArgumentError(
                "Expected a ledger, got ledger=None for a fit on rows, or with targets, that were "
                "fitted before in this process, or of an estimator that was, or a clone of it: "
                "each fit looks at the data, and without a ledger none would count the others. "
                f"{_REMEDY}"
            )
        own = next((earlier for earlier in _records if earlier.ledger == ledger.identity), None)
        if own is None:
            identity = ledger.identity if shared else None
            own = _FitRecord(seen, frozenset({family}), identity, ledger.name)
            _records.append(own)
        else:
            own.digest, own.families = own.digest.joined(seen), own.families | {family}
        if shared:
            own.under_way = False
    try:
        with _lock:
            for earlier in alike:
                if earlier.ledger is None and earlier in _records:
                    _adopt(earlier, ledger, own)
        yield [
            earlier.name for earlier in alike if earlier.ledger and earlier.digest.overlaps(seen)
        ]
    finally:
        with _lock:
            own.under_way = False
            own.charges = () if shared else ledger.charges()
            own.unit = ledger.unit or ROW
            if own in _records and not (own.charges or (shared and ledger.totals())):
                _records.remove(own)


def _adopt(earlier: _FitRecord, ledger: Ledger, own: _FitRecord) -> None:
    """Charge a ledger for what was fitted on an account of its own, which is then the ledger's."""
    if earlier.under_way:
        raise ArgumentError(
            "Expected no fit without a ledger to be under way on the same rows, got one in another "
            "thread. Give all of them the same ledger=."
        )
    try:
        while earlier.charges:
            charge, *rest = earlier.charges
            ledger.charge(
                {charge.event: charge.count},
                run=charge.run,
                purpose=charge.purpose,
                unit=earlier.unit,
            )
            earlier.charges = tuple(rest)
    except BudgetExceeded as error:
        raise BudgetExceeded(
            "Expected the ledger's budget to cover also what was fitted on the same rows before in "
            f"this process, with ledger=None: {error}"
        ) from error
    own.digest, own.families = own.digest.joined(earlier.digest), own.families | earlier.families
    _records.remove(earlier)


def record_transform(before: NDArray[Any], after: NDArray[Any]) -> None:
    """Note that rows were made of others, one of each, whichever of them are fitted."""
    old, new = digest(before), digest(after)
    with _lock:
        _made.append((old, new))


def _with_transforms(seen: Digest) -> Digest:
    """Return the digest with those of the rows that these were made of, and were made into."""
    left, found = list(_made), True
    while found:
        found = False
        for pair in list(left):
            if any(seen.overlaps(each) for each in pair):
                seen, found = seen.joined(pair[0]).joined(pair[1]), True
                left.remove(pair)
    return seen


class CloneFamily:
    """What an estimator shares with its clones, wherever they are fitted."""

    def _family_id(self) -> str:
        family: str = self.__dict__.setdefault("_family", uuid.uuid4().hex)
        return family

    def __sklearn_clone__(self) -> Self:
        copy: Self = super().__sklearn_clone__()  # type: ignore[misc]
        copy.__dict__["_family"] = self._family_id()
        return copy
