"""The account: the one place where looks at private records are paid for."""

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from dp_accounting import DpEvent

from privada.accounting import Budget, Ledger, Reservation
from privada.accounting.ledger import ROW, Busy
from privada.core.errors import BudgetExceeded, LedgerError
from privada.core.ranks import refuse_others
from privada.core.receipts import Receipt

# What the next so many releases will be charged as, all that are left for -1.
Ahead = Callable[[int], Mapping[DpEvent, int]]

# Durable commits may take this share of a run's time; blocks of charges grow until they do.
_SHARE_OF_TIME = 0.01
LARGEST_BLOCK = 64
_IN_THE_MIDDLE = (
    "Cannot use an account from within one of its own charges, as a signal handler would. Nothing "
    "was done; do it after the step."
)


class Account:
    """Pays for releases of one run: reserves charges on a ledger and hands out receipts.

    Args:
        ledger: what is charged.
        run, purpose: under which charges are listed.
        limit: the run's own budget, within that of the ledger.
        unit: what one record of the charged events stands for.
        adaptive: whether the run chooses what it is charged in the light of its own releases. Its
            limit is then kept by a filter, and what is reserved for other events than the next one
            is given back with the next charge.
        on_any_rank: whether it may be made on other ranks of torch.distributed than the first.

    Guarantee: a receipt is given out after its charge is durable, and once. What a crash leaves of
    a block stays charged. A copy, a pickle or a fork of an account owns no part of a block and pays
    for itself.

    Example:
        >>> import privada as pv
        >>> from privada.accounting import events
        >>> from privada.query.account import Account
        >>> ledger = pv.Ledger(None, dataset="patients")
        >>> account = Account(ledger, run="first", purpose="statistics")
        >>> account.pay(events.gaussian(10.0))
        Receipt(a release of run 'first' for statistics, not yet made)
        >>> sum(ledger.totals().values())
        1
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        run: str,
        purpose: str = "training",
        limit: Budget | None = None,
        unit: str = ROW,
        adaptive: bool = False,
        on_any_rank: bool = False,
    ) -> None:
        if not on_any_rank:
            refuse_others(f"queries for {purpose}")
        self.ledger, self.run, self._purpose, self._unit = ledger, run, purpose, unit
        self._limit, self._adaptive = limit, adaptive
        self._drop_reservations()

    def _drop_reservations(self) -> None:
        """Own no reserved charges: what a copy of this account holds is not its to use."""
        self._reservations: list[Reservation] = []
        self._lock = threading.RLock()
        self._busy = False
        self._block, self._last_commit = 1, 0.0
        _living.add(self)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_reservations"], state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._drop_reservations()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the account: other threads wait, and a signal handler in the middle is refused."""
        # a handler that waited for the lock while it keeps the lock's owner from the ledger would
        # wait for ever
        if self.ledger.in_use_here():
            raise Busy(_IN_THE_MIDDLE)
        with (lock := self._lock):
            if self._busy:
                raise Busy(_IN_THE_MIDDLE)
            try:
                self._busy = True
                yield
            finally:
                self._busy = False
                forked = self._lock is not lock
                if forked:
                    self._drop_reservations()
            if forked:
                raise LedgerError(
                    "Cannot go on with a charge in the middle of which a signal handler forked: "
                    "it is the parent's. Nothing was released here; ask again."
                )

    def pay(self, event: DpEvent, *beside: DpEvent, ahead: Ahead | None = None) -> Receipt:
        """Return the receipt of one reserved charge, reserving a block of them if need be.

        `beside` is what else the release costs, such as a probability of failing; it is charged in
        the same moment and cannot be returned. `ahead` says what the next so many releases will
        be, this one included, all that are left for -1; charges are then made in small blocks.

        Raises:
            BudgetExceeded: nothing was charged.
            LedgerError: nothing was charged, or the file cannot be written.
        """
        if not beside:
            return self.pay_in_turns(event, 1, ahead)[0]
        with self._held():
            reservation = self.charge(Counter([event, *beside]))
            for each in beside:
                reservation.use(each)
            return reservation.use(event)

    def pay_in_turns(
        self, event: DpEvent, turns: int, ahead: Ahead | None = None
    ) -> tuple[Receipt, ...]:
        """Return a receipt for each of `turns` releases, of which every unit is in one at most.

        They are charged as one. `ahead` is as for `pay`.

        Raises:
            BudgetExceeded: nothing was charged.
            LedgerError: nothing was charged, or the file cannot be written.
        """
        with self._held():
            for held in self._reservations:
                if held.covers(event):
                    return held.use_in_turns(event, turns)
            return self._reserve(event, ahead).use_in_turns(event, turns)

    def _reserve(self, event: DpEvent, ahead: Ahead | None) -> Reservation:
        started = time.perf_counter()
        reservation = self._charge_block(event, ahead)
        now = time.perf_counter()
        self._reservations = [each for each in self._reservations if each.unused] + [reservation]
        if self._last_commit and now - started > _SHARE_OF_TIME * (now - self._last_commit):
            self._block = min(LARGEST_BLOCK, 2 * self._block)
        elif now - started < _SHARE_OF_TIME / 4 * (now - self._last_commit):
            self._block = max(1, self._block // 2)
        self._last_commit = now
        return reservation

    def _charge_block(self, event: DpEvent, ahead: Ahead | None) -> Reservation:
        """Charge the next block of the plan, or as much of it as the budget still allows."""
        upcoming = ahead or (lambda count: {event: 1})
        size, returning = self._block, self._outdated()
        while True:
            block = Counter(upcoming(size))
            if block[event] == 0:  # not what was planned: pay for this one alone
                block = Counter({event: 1})
            try:
                return self.charge(block, lambda: upcoming(-1), returning)
            except BudgetExceeded:
                returning = ()  # which were returned all the same
                if sum(block.values()) == 1:
                    raise
                size //= 2

    def _outdated(self) -> tuple[Reservation, ...]:
        """Take, of an adaptive run, what is reserved and will not be used any more."""
        if not self._adaptive:
            return ()
        held, self._reservations = self._reservations, []
        return tuple(held)

    def charge(
        self,
        charged: DpEvent | Mapping[DpEvent, int],
        plan: Callable[[], Mapping[DpEvent, int]] | None = None,
        returning: Iterable[Reservation] = (),
    ) -> Reservation:
        """Charge events to the run, durably, and return the reservation.

        For what is paid for as a whole, such as a search; `pay` is for single releases. What is
        not used of `returning` is given back in the same moment.
        """
        return self.ledger.charge(
            charged,
            run=self.run,
            purpose=self._purpose,
            plan=plan,
            limit=self._limit,
            unit=self._unit,
            adaptive=self._adaptive,
            returning=returning,
        )

    def refund_unused(self) -> None:
        """Return the charges that were reserved and not used.

        In the middle of a charge, where a signal handler may find itself, it does nothing: what is
        not used stays reserved, for the queries to come or for the next time.
        """
        with suppress(Busy), self._held():
            reservations, self._reservations = self._reservations, []
            for each in reservations:
                self.ledger.refund(each)


_living: weakref.WeakSet[Account] = weakref.WeakSet()


def _drop_all() -> None:
    """In a forked child, while it has one thread: what is reserved is its parent's."""
    for account in list(_living):
        account._drop_reservations()


os.register_at_fork(after_in_child=_drop_all)
