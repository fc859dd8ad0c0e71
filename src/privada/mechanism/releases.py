"""The releases of a run by number, known before the first."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from itertools import accumulate

from dp_accounting import DpEvent

from privada.accounting import events
from privada.accounting.events import Tally
from privada.core.errors import ArgumentError
from privada.noise import Schedule


class Releases:
    """The releases of a run, numbered from 0: preliminary ones, then those of each step.

    Args:
        steps: the number of steps.
        schedule: the relative noise of each step.
        queries: how many releases a step takes.
        preliminary: noise multipliers of releases over all records before the first step.

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
        schedule: Schedule,
        queries: Callable[[int], int],
        preliminary: tuple[float, ...] = (),
    ) -> None:
        if schedule.factors and len(schedule.factors) != steps:
            raise ArgumentError(
                f"Expected the noise schedule to have one factor for each of the {steps} "
                f"steps, got {len(schedule.factors)}."
            )
        self.steps, self._factors, self._preliminary = steps, schedule.factors, preliminary
        counts = (queries(step) for step in range(steps))
        self._starts = list(accumulate(counts, initial=len(preliminary)))

    @property
    def total(self) -> int:
        """The number of releases in all."""
        return self._starts[-1]

    def before(self, step: int) -> int:
        """Return how many releases there are before a step."""
        return self._starts[step]

    def factor(self, step: int) -> float:
        """Return the relative noise of a step."""
        return self._factors[step] if self._factors else 1.0

    def charges(
        self, event: Callable[[float], DpEvent], noise_multiplier: float, start: int, end: int
    ) -> Tally:
        """Return the events of releases `start` to `end`, the last one not included.

        `event` makes a step's event from its multiplier: `noise_multiplier` times its factor.
        """
        first = len(self._preliminary)
        found = Counter(events.gaussian(each) for each in self._preliminary[start:end])
        start = max(start, first)
        if not self._factors:
            if end > start:
                found[event(noise_multiplier)] += end - start
            return found
        step = bisect_right(self._starts, start) - 1
        while start < end:
            upto = min(end, self._starts[step + 1])
            found[event(noise_multiplier * self.factor(step))] += upto - start
            start, step = upto, step + 1
        return found
