"""Releases in turns: who is in which part, what pays for a turn, and noise that is correlated."""

import os
from collections import deque

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from privada.core.randomness import RandomSource
from privada.core.receipts import Receipt
from privada.noise import Correlated, NoiseStream
from privada.participation import Cyclic, Sampler
from privada.query.account import Account, Ahead


class Turns:
    """Releases that follow one another over parts of the data that take turns.

    Args:
        sampler: deals the units.
        noise: what adds noise; one that is correlated begins anew with each stretch.
        rng: what parts are dealt and units are drawn with.

    Guarantee: in one stretch of releases every unit stays in its part, parts follow one another,
    and each release has a receipt of its own, of a charge that pays for one turn of all parts. A
    stretch ends whenever a release does not follow the last one that was paid for, such as one
    that is repeated, and in a forked process. Then the parts are dealt anew, correlated noise
    begins anew, and a new turn is paid for. So a unit is in at most one release of a charge, and no
    noise is shared by releases of two stretches.

    Reference: Choquette-Choo et al. (2023), (Amplified) Banded Matrix Factorization,
    arXiv 2306.08153, Algorithm 2.
    """

    def __init__(self, sampler: Cyclic, noise: NoiseStream, rng: RandomSource) -> None:
        self._sampler, self._noise, self._rng = sampler, noise, rng
        self.end()

    def end(self) -> None:
        """End the stretch: what is left of its turn is not used any more."""
        self._process = os.getpid()
        self._first = self._next = -1
        self._receipts: deque[Receipt] = deque()
        self._dealt: Sampler | None = None

    def with_noise(self, noise: NoiseStream) -> "Turns":
        """Return turns that begin anew, with other noise."""
        return Turns(self._sampler, noise, self._rng)

    def __reduce__(self) -> tuple[type["Turns"], tuple[Cyclic, NoiseStream, RandomSource]]:
        return Turns, (self._sampler, self._noise, self._rng)

    def pay(self, number: int, event: DpEvent, account: Account, ahead: Ahead | None) -> Receipt:
        """Return the receipt of a release, paying for a turn of all parts where one begins.

        Raises:
            BudgetExceeded: nothing was charged.
            LedgerError: nothing was charged, or the ledger cannot be written.
        """
        if not self._follows(number):
            self.end()
            self._first = number
        self._next = -1  # until it is paid for
        if not self._receipts:
            self._receipts.extend(account.pay_in_turns(event, self._sampler.parts, ahead))
        if self._dealt is None:
            self._dealt = self._sampler.deal(self._rng)
            if isinstance(self._noise, Correlated):
                self._noise.restart()
        self._next = number + 1
        return self._receipts.popleft()

    def _follows(self, number: int) -> bool:
        """Return whether a release follows the last one that was paid for."""
        return number == self._next and os.getpid() == self._process

    def paid_until(self, number: int) -> int:
        """Return where the turn ends that release `number` is in the middle of."""
        return number + (len(self._receipts) if self._follows(number) else 0)

    def draw(self, number: int) -> NDArray[np.int64]:
        """Return the units of a release that was paid for."""
        assert self._dealt is not None
        return self._dealt.draw(number - self._first, self._rng)
