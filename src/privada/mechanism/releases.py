"""The releases of a run by number, known before the first."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from itertools import accumulate

from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.events import Tally
from privada.core.errors import ArgumentError
from privada.core.validation import positive
from privada.core.values import State
from privada.noise import FollowingSchedule, Outlook, Schedule
from privada.noise.following import POINTS_PER_DOUBLING, on_lattice
from privada.participation.cyclic import charges_for

# The levels of noise that are tried where it follows the releases.
LEVELS_PER_DOUBLING = POINTS_PER_DOUBLING


class Releases:
    """The releases of a run, numbered from 0: preliminary ones, then those of each step.

    Args:
        steps: the number of steps.
        schedule: the relative noise of each step.
        queries: how many releases a step takes.
        preliminary: noise multipliers of releases over all records before the first step.
        relative: whether those are factors of the run's own noise multiplier.
        outlook: what is known of releases whose noise follows others, at a multiplier of 1.
        turns: how many releases in a row one charge pays for, over parts of the data that share no
            unit. They have the same noise: the least that the schedule has for one of them.

    Guarantee: with a fixed schedule, all charges are known before the first release. With one that
    follows the releases, `charges` is a forecast.

    Example:
        >>> from privada.mechanism import Releases
        >>> from privada.noise import constant
        >>> releases = Releases(10, constant(), lambda step: 2)
        >>> releases.total, releases.before(3)
        (20, 6)
    """

    def __init__(
        self,
        steps: int,
        schedule: Schedule | FollowingSchedule,
        queries: Callable[[int], int],
        preliminary: tuple[float, ...] = (),
        outlook: Outlook | None = None,
        turns: int = 1,
        relative: bool = False,
    ) -> None:
        self.following = None if isinstance(schedule, Schedule) else schedule
        self._outlook = outlook or Outlook(coordinates=1, std=0.0, bound=1.0)
        factors = schedule.factors if isinstance(schedule, Schedule) else ()
        if factors and len(factors) != steps:
            raise ArgumentError(
                f"Expected the noise schedule to have one factor for each of the {steps} "
                f"steps, got {len(factors)}."
            )
        self.steps, self._factors, self._preliminary = steps, factors, preliminary
        self._turns, self.relative = turns, relative
        counts = (queries(step) for step in range(steps))
        self._starts = list(accumulate(counts, initial=len(preliminary)))

    @property
    def total(self) -> int:
        """The number of releases in all."""
        return self._starts[-1]

    def before(self, step: int) -> int:
        """Return how many releases there are before a step."""
        return self._starts[step]

    def step_of(self, release: int) -> int:
        """Return the step that a release belongs to."""
        return bisect_right(self._starts, release) - 1

    def preliminary(self, noise: float, noise_multiplier: float) -> float:
        """Return the noise multiplier of a release before the first step, from what asks for it."""
        return noise * noise_multiplier if self.relative else noise

    def factor(self, step: int) -> float:
        """Return the relative noise of a step."""
        return self._factors[step] if self._factors else 1.0

    def paid_factor(self, release: int) -> float:
        """Return the relative noise of the releases that one charge pays for, from one on."""
        if not self._factors:
            return 1.0
        last = min(release + self._turns, self.total) - 1
        return min(self._factors[self.step_of(release) : self.step_of(max(release, last)) + 1])

    def charges(
        self, event: Callable[[float], DpEvent], noise_multiplier: float, start: int, end: int
    ) -> Tally:
        """Return the events of releases `start` to `end`, the last one not included.

        `event` makes a step's event from its multiplier: `noise_multiplier` times its factor.
        """
        first = len(self._preliminary)
        found = Counter(
            events.gaussian(self.preliminary(each, noise_multiplier))
            for each in self._preliminary[start:end]
        )
        start = max(start, first)
        if self.following is not None:
            ahead = self.forecast(event, noise_multiplier, self.following.init(), end - start)
            return found + ahead
        if not self._factors:
            if end > start:
                found[event(noise_multiplier)] += charges_for(end - start, self._turns)
            return found
        if self._turns > 1:
            for first in range(start, end, self._turns):
                found[event(noise_multiplier * self.paid_factor(first))] += 1
            return found
        step = self.step_of(start)
        while start < end:
            upto = min(end, self._starts[step + 1])
            found[event(noise_multiplier * self.factor(step))] += upto - start
            start, step = upto, step + 1
        return found

    def coarser(self, points_per_doubling: int) -> "Releases":
        """Return the same releases with factors rounded down to so many in each doubling."""
        rounded = copy(self)
        rounded._factors = tuple(
            2.0 ** (math.floor(math.log2(each) * points_per_doubling) / points_per_doubling)
            for each in self._factors
        )
        return rounded

    def following_multiplier(self, level: float, state: State) -> float:
        """Return the noise multiplier of the next release, where it follows from a state."""
        assert self.following is not None
        return on_lattice(level * positive("factor", self.following.factor(state)))

    def forecast(
        self, event: Callable[[float], DpEvent], level: float, state: State, count: int
    ) -> Tally:
        """Return what the next releases are expected to be charged as, for planning alone.

        `level` is the multiplier where the factor is 1, `state` that of the following schedule.
        """
        found: Tally = Counter()
        assert self.following is not None
        outlook = replace(self._outlook, std=level * self._outlook.std)
        for length, factor in self.following.forecast(state, max(0, count), outlook):
            found[event(on_lattice(level * factor))] += length
        return found
