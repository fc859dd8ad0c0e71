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

import numpy as np
from numpy.typing import NDArray

from privada.accounting import Ledger
from privada.accounting.ledger import ROW, Charge
from privada.core.errors import ArgumentError, BudgetExceeded

Hashes = NDArray[np.uint64]

# Cells hashed at a time, and digests of rows and columns that are kept at most, the least of them.
_CELLS, _KEPT, _COLUMNS = 1 << 18, 1 << 20, 1 << 12
# Rows are seen again if more than this share of the smaller data, and more than one, is in both: a
# few rows may be equal by chance, and one record alone must not decide what is refused.
_SHARE = 0.01
# A column tells data apart if its value changes so often from row to row, and not in one direction.
_CHANGES = 64
_KEYS = np.frombuffer(os.urandom(32), np.uint64)
_FULL = np.uint64(2**64 - 1)


@dataclass(frozen=True, eq=False, repr=False)
class Digest:
    """What data looks like from afar: sorted digests of its rows, and of its columns.

    `limit` is the greatest digest that is kept. A row's digest depends on its values and their
    places, not on other rows; a column's on its values in their order, not on its place.
    """

    rows: Hashes
    columns: frozenset[int] = frozenset()
    limit: int = int(_FULL)

    def overlaps(self, other: "Digest") -> bool:
        """Return whether the two share rows, or a whole column, by more than chance."""
        if self.columns & other.columns:
            return True
        limit = np.uint64(min(self.limit, other.limit))
        few, many = sorted(
            (
                each.rows[: np.searchsorted(each.rows, limit, side="right")]
                for each in (self, other)
            ),
            key=len,
        )
        if not len(few):
            return False
        places = np.minimum(np.searchsorted(many, few), len(many) - 1)
        return bool(np.count_nonzero(many[places] == few) > max(1, _SHARE * len(few)))

    def joined(self, other: "Digest") -> "Digest":
        """Return the digest of both together."""
        rows = np.union1d(self.rows, other.rows)
        return _kept(rows, self.columns | other.columns, min(self.limit, other.limit))


def _kept(rows: Hashes, columns: frozenset[int], limit: int = int(_FULL)) -> Digest:
    rows = rows[: np.searchsorted(rows, np.uint64(limit), side="right")]
    if len(rows) > _KEPT:
        rows = rows[:_KEPT].copy()
        limit = int(rows[-1])
    return Digest(rows, columns, limit)


def _constants(count: int, key: np.uint64) -> Hashes:
    """Return an odd number for each place, by the finaliser of SplitMix64."""
    mixed = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((mixed ^ (mixed >> np.uint64(31))) | np.uint64(1))


def _cells(values: NDArray[np.float32]) -> Hashes:
    """Return a digest of each value, zero for zero, so that sparse rows are like dense ones."""
    bits = (values + np.float32(0)).view(np.uint32).astype(np.uint64)  # which makes -0 into 0
    bits *= _KEYS[2] | np.uint64(1)
    bits ^= bits >> np.uint64(32)
    return bits


_Sums = tuple[Hashes, Hashes, NDArray[np.int64], NDArray[np.int64]]


def _dense_sums(inputs: NDArray[np.float32], across: Hashes, down: Hashes) -> _Sums:
    """Return digests of rows and columns, and how often a column rises and falls, if seldom."""
    records, features = inputs.shape
    rows, columns = np.zeros(records, np.uint64), np.zeros(features, np.uint64)
    rises, falls = np.zeros((2, features), np.int64)
    step = max(1, _CELLS // max(1, features))
    for start in range(0, records, step):
        some = inputs[start : start + step]
        cells = _cells(some)
        columns += (cells * down[start : start + step, None]).sum(axis=0, dtype=np.uint64)
        cells *= across
        rows[start : start + step] = cells.sum(axis=1, dtype=np.uint64)
        if np.minimum(rises, falls).min(initial=_CHANGES) < _CHANGES:
            moved = np.diff(some, axis=0)
            rises, falls = rises + (moved > 0).sum(axis=0), falls + (moved < 0).sum(axis=0)
    return rows, columns, rises, falls


def _sparse_sums(inputs: Any, across: Hashes, down: Hashes) -> _Sums:
    """Return the same of a CSR matrix, in which each value that is not zero rises and falls."""
    turned = inputs.tocsc()
    filled = np.diff(turned.indptr).astype(np.int64)
    return _line_sums(inputs, across), _line_sums(turned, down), filled, filled


def _line_sums(compressed: Any, constants: Hashes) -> Hashes:
    """Return the digest of each row of a CSR matrix, of each column of a CSC matrix."""
    parts = _cells(compressed.data) * constants[compressed.indices]
    until = np.concatenate([np.zeros(1, np.uint64), np.cumsum(parts, dtype=np.uint64)])
    ends = compressed.indptr
    return np.asarray(until[ends[1:]] - until[ends[:-1]])


# A warning would tell that one record has a value that float32 has no room for.
@np.errstate(all="ignore")
def digest(inputs: Any, targets: NDArray[Any] | None = None) -> Digest:
    """Return the digest of an array of two dimensions, taken as float32, or of a CSR matrix.

    Targets count as one more column: the same people are known again by them, however the inputs
    were changed.

    Guarantee: the digests are keyed by this process alone, and never leave it. Values that float32
    has no room for count as infinite; nothing is said of them.
    """
    inputs = inputs.astype(np.float32, copy=False)
    across = _constants(inputs.shape[1], _KEYS[0])
    down = _constants(inputs.shape[0], _KEYS[1])
    sums = _sparse_sums if hasattr(inputs, "tocsc") else _dense_sums
    rows, columns, rises, falls = sums(inputs, across, down)
    telling = (rises + falls >= _CHANGES) & (rises > 0) & (falls > 0)
    found = np.unique(rows)
    known = frozenset(np.unique(columns[telling])[:_COLUMNS].tolist())
    if targets is not None:
        known |= digest(targets.reshape(-1, 1)).columns
    return _kept(found[found != 0], known)  # a row of zeros says nothing


@dataclass(eq=False)
class _Look:
    """Fits on one account: `charges` of an account of their own, or the name of a ledger."""

    digest: Digest
    families: frozenset[str]
    ledger: str | None
    name: str
    charges: tuple[Charge, ...] = field(default=())
    unit: str = ROW
    under_way: bool = True


_looks: list[_Look] = []
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


def forget() -> None:
    """Forget all fits, as a new process has: for tests, which stand for many processes."""
    with _lock:
        _looks.clear()
        _made.clear()


def _refuse_other_process() -> None:
    if multiprocessing.parent_process() is not None or os.getpid() != _home:
        raise ArgumentError(
            "Expected a ledger, got ledger=None in a process that another one started, as n_jobs= "
            "does: fits in several processes see nothing of each other, and without a ledger none "
            f"would count the others. {_REMEDY}"
        )


def _alike(seen: Digest, family: str, ledger: str | None = None) -> list[_Look]:
    """Return earlier looks at the same rows, or by the same family, on other accounts."""
    return [
        look
        for look in _looks
        if (look.ledger is None or look.ledger != ledger)
        and (family in look.families or look.digest.overlaps(seen))
    ]


def unpaid(seen: Digest, family: str) -> bool:
    """Return whether a ledger for these rows would first be charged for fits before it."""
    with _lock:
        return any(look.ledger is None for look in _alike(_with_relatives(seen), family))


@contextmanager
def counted(seen: Digest, family: str, ledger: Ledger, *, shared: bool) -> Iterator[list[str]]:
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
        seen = _with_relatives(seen)
        alike = _alike(seen, family, ledger.identity)
        if alike and not shared:
            raise ArgumentError(
                "Expected a ledger, got ledger=None for a fit on rows, or with targets, that were "
                "fitted before in this process, or of an estimator that was, or a clone of it: "
                "each fit looks at the data, and without a ledger none would count the others. "
                f"{_REMEDY}"
            )
        own = next((look for look in _looks if look.ledger == ledger.identity), None)
        if own is None:
            identity = ledger.identity if shared else None
            own = _Look(seen, frozenset({family}), identity, ledger.name)
            _looks.append(own)
        else:
            own.digest, own.families = own.digest.joined(seen), own.families | {family}
        if shared:
            own.under_way = False
    try:
        with _lock:
            for look in alike:
                if look.ledger is None and look in _looks:
                    _adopt(look, ledger, own)
        yield [look.name for look in alike if look.ledger and look.digest.overlaps(seen)]
    finally:
        with _lock:
            own.under_way = False
            own.charges = () if shared else ledger.charges()
            own.unit = ledger.unit or ROW
            if own in _looks and not (own.charges or (shared and ledger.totals())):
                _looks.remove(own)


def _adopt(look: _Look, ledger: Ledger, own: _Look) -> None:
    """Charge a ledger for what was fitted on an account of its own, which is then the ledger's."""
    if look.under_way:
        raise ArgumentError(
            "Expected no fit without a ledger to be under way on the same rows, got one in another "
            "thread. Give all of them the same ledger=."
        )
    try:
        while look.charges:
            charge, *rest = look.charges
            ledger.charge(
                {charge.event: charge.count},
                run=charge.run,
                purpose=charge.purpose,
                unit=look.unit,
            )
            look.charges = tuple(rest)
    except BudgetExceeded as error:
        raise BudgetExceeded(
            "Expected the ledger's budget to cover also what was fitted on the same rows before in "
            f"this process, with ledger=None: {error}"
        ) from error
    own.digest, own.families = own.digest.joined(look.digest), own.families | look.families
    _looks.remove(look)


def transformed(before: NDArray[Any], after: NDArray[Any]) -> None:
    """Note that rows were made of others, one of each, whichever of them are fitted."""
    old, new = digest(before), digest(after)
    with _lock:
        _made.append((old, new))


def _with_relatives(seen: Digest) -> Digest:
    """Return the digest with those of the rows that these were made of, and were made into."""
    left, found = list(_made), True
    while found:
        found = False
        for pair in list(left):
            if any(seen.overlaps(each) for each in pair):
                seen, found = seen.joined(pair[0]).joined(pair[1]), True
                left.remove(pair)
    return seen


class Kin:
    """What an estimator shares with its clones, wherever they are fitted."""

    def _kin(self) -> str:
        kin: str = self.__dict__.setdefault("_family", uuid.uuid4().hex)
        return kin

    def __sklearn_clone__(self) -> Self:
        copy: Self = super().__sklearn_clone__()  # type: ignore[misc]
        copy.__dict__["_family"] = self._kin()
        return copy
