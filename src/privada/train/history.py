"""What is known of the steps of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import overload

from privada.train.charges import RunCharges


@dataclass(frozen=True)
class StepRecord:
    """What is known of one step: nothing in it comes from private data without noise.

    `epsilon` is that of everything charged up to this step, rounded up in long runs to one of
    some hundred values. On an adaptive ledger it is valid at any time. On a planned one it is a
    running figure, and the promise is that of the whole plan from the first step on.
    """

    step: int
    lr: float
    noise_multiplier: float
    epsilon: float


class History(Sequence[StepRecord]):
    """What is known of each step taken; epsilon never falls from one to the next.

    Making one costs nothing. Epsilon is computed when a step is looked at: exactly for the last
    one, and at some hundred points in all for the others, however many there are. It holds what
    was charged and no record; a copy or a pickle of it is a tuple.

    Example:
        >>> import privada as pv, torch
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=3, noise_multiplier=1.0,
        ...     delta=1e-3,
        ... ).fit()
        >>> [(each.step, each.lr) for each in trainer.history]
        [(1, 0.1), (2, 0.1), (3, 0.1)]
    """

    def __init__(self, charges: RunCharges, rates: Sequence[float], last: int) -> None:
        self._charges, self._rates, self._last = charges, rates, last
        self._first = last - len(rates)

    def __len__(self) -> int:
        return len(self._rates)

    @overload
    def __getitem__(self, place: int) -> StepRecord: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[StepRecord, ...]: ...

    def __getitem__(self, place: int | slice) -> StepRecord | tuple[StepRecord, ...]:
        places = range(len(self))[place]
        if isinstance(places, range):
            return tuple(self._at(each) for each in places)
        return self._at(places)

    def _at(self, place: int) -> StepRecord:
        number = self._first + place
        return StepRecord(
            step=number + 1,
            lr=self._rates[place],
            noise_multiplier=self._charges.multiplier(number),
            epsilon=self._exact if number + 1 == self._last else self._epsilons[place],
        )

    @cached_property
    def _exact(self) -> float:
        return self._charges.epsilon_after(self._last, exactly=True)

    @cached_property
    def _epsilons(self) -> list[float]:
        earlier = range(self._last - 1, self._first, -1)
        backwards = [self._exact, *(self._charges.epsilon_after(each) for each in earlier)]
        # what bounds more steps bounds fewer
        return list(accumulate(backwards, min))[::-1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[type, tuple[tuple[StepRecord, ...]]]:
        return tuple, (tuple(self),)

    def __repr__(self) -> str:
        return repr(tuple(self))
