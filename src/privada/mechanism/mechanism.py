"""What a run will do with private data, as one frozen value that knows its price."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from dp_accounting import DpEvent

from privada.accounting import Budget, epsilon_of
from privada.accounting.calibration import least_noise
from privada.accounting.events import Tally
from privada.clipping import Clipping
from privada.clipping.clips import THRESHOLD, checked
from privada.core.errors import ArgumentError
from privada.core.tensors import Parameters
from privada.core.validation import positive
from privada.mechanism.releases import Releases
from privada.noise import FollowingSchedule, Independent, Noise, Outlook, Schedule
from privada.participation import Participation, Sampler
from privada.participation.cyclic import steps_of_a_charge
from privada.preconditioning import Preconditioner

# How many events of single releases are kept.
_MOST_EVENTS = 4096


class _Controller(Protocol):
    def queries(self, step: int) -> int: ...


class Parts(Protocol):
    """What a mechanism has to know of a method."""

    @property
    def preconditioner(self) -> Preconditioner:
        """What gradients are scaled by before they are clipped."""

    @property
    def schedule(self) -> Schedule | FollowingSchedule:
        """The relative noise of each step, or how it follows from the releases so far."""

    @property
    def controller(self) -> _Controller:
        """How many releases a step takes."""


@dataclass(frozen=True)
class Mechanism:
    """Who takes part, what one unit can do at most, how much noise is added, and how often.

    Everything in it is known before the first look at the data, so that its price is too.

    Args:
        sampler: draws the units of a step, and says the event of a release over them.
        releases: how many releases each step makes, and the noise of each relative to the others.
        batch_size: the public expected number of units in a draw.
        clip: the clip norm, or the first one where it adapts.
        clipping: how one unit's gradient is bounded.
        noise: how the noise of one release depends on that of others.
        noise_multiplier: the noise's standard deviation over the sensitivity, where the schedule's
            factor is 1.
        unit: what the promise protects: "record", or another word for the rows of one person.

    Guarantee: `charges` are the events of all releases that a run of this mechanism makes; their
    epsilon bounds what all of them tell together. Where the noise follows the releases, `follows`
    is true and `charges` is a forecast: what is charged is found step by step, and counted by a
    filter.

    Example:
        >>> import privada as pv, torch
        >>> from privada.core.tensors import Parameters
        >>> from privada.mechanism import Mechanism
        >>> mechanism = Mechanism.of(
        ...     pv.methods.DPSGD(lr=0.1).parts(1000), Parameters(torch.nn.Linear(2, 1)), clip=1.0,
        ...     participation=pv.participation.Poisson(), units=50_000, batch_size=500, steps=1000,
        ... )
        >>> round(mechanism.calibrated(pv.Budget(1.0, 1e-6)).noise_multiplier, 3)
        1.563

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, arXiv 1607.00133,
    Algorithm 1.
    """

    sampler: Sampler
    releases: Releases
    batch_size: float
    clip: float = 1.0
    clipping: Clipping = THRESHOLD
    noise: Noise = field(default_factory=Independent)
    noise_multiplier: float = 1.0
    unit: str = "record"
    _events: dict[float, DpEvent] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", positive("batch_size", self.batch_size))
        positive("clip", self.clip)
        positive("noise_multiplier", self.noise_multiplier)
        checked(self.clipping).expected_terms(
            self.batch_size
        )  # which checks the size of micro-batches
        self.event(self.noise_multiplier)  # which checks that noise and sampling go together
        if self.follows and self.turns > 1:
            raise ArgumentError(
                f"Expected noise that is fixed beforehand with {self.sampler.describe()}, got "
                "noise that follows the releases: one charge pays for a turn of all parts, before "
                "their releases are made. Use Poisson sampling."
            )

    @classmethod
    def of(
        cls,
        parts: Parts,
        parameters: Parameters,
        *,
        participation: Participation,
        units: int,
        batch_size: float,
        steps: int,
        clip: float,
        clipping: Clipping = THRESHOLD,
        population: int | None = None,
        noise: Noise | None = None,
        unit: str = "record",
    ) -> "Mechanism":
        """Return the mechanism of a method on a number of units, with a multiplier of 1.

        Raises:
            ArgumentError: the batch size cannot be drawn or clipped as asked.
        """
        sampler = participation.among(units, batch_size, population)
        preliminary = parts.preconditioner.preliminary(parameters)
        outlook = Outlook(parameters.size, clip / batch_size, clip)
        queries = parts.controller.queries
        turns = steps_of_a_charge(sampler)
        relative = parts.preconditioner.feature_products
        releases = Releases(steps, parts.schedule, queries, preliminary, outlook, turns, relative)
        kind = Independent() if noise is None else noise
        return cls(sampler, releases, batch_size, clip, clipping, kind, unit=unit)

    @property
    def follows(self) -> bool:
        """Whether the noise follows the releases, so that what is charged is not known before."""
        return self.releases.following is not None

    @property
    def turns(self) -> int:
        """How many releases in a row one charge pays for: units take part in one of them."""
        return steps_of_a_charge(self.sampler)

    @property
    def sensitivity(self) -> float:
        """The most by which adding or removing one unit moves a clipped sum."""
        return self.clipping.sensitivity(self.clip)

    @property
    def terms(self) -> float:
        """The public expected number of terms of a clipped sum."""
        return self.clipping.expected_terms(self.batch_size)

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return what one release with so much noise is charged as."""
        known = self._events.get(noise_multiplier)
        if known is None:
            if len(self._events) >= _MOST_EVENTS:
                self._events.clear()
            known = self.noise.event(self.sampler, noise_multiplier)
            self._events[noise_multiplier] = known
        return known

    def multiplier(self, step: int) -> float:
        """Return the noise multiplier of a step, counted from 0."""
        return self.noise_multiplier * self.releases.factor(step)

    def event_from(self, release: int) -> DpEvent:
        """Return what the charge that pays for releases from one on is."""
        return self.event(self.noise_multiplier * self.releases.paid_factor(release))

    def charges(self, start: int = 0, end: int | None = None) -> Tally:
        """Return the events of releases `start` to `end`, the last one not included.

        Where units take part in turns, a turn begins with `start`.
        """
        last = self.releases.total if end is None else min(end, self.releases.total)
        return self.releases.charges(self.event, self.noise_multiplier, start, last)

    def charges_at(self, noise_multiplier: float) -> Tally:
        """Return the events of all releases, if the noise multiplier were another one."""
        return self.with_noise(noise_multiplier).charges()

    def epsilon(self, delta: float, paid: Tally | None = None) -> float:
        """Return the epsilon of all releases, and of what was paid before."""
        return epsilon_of(self.charges() + (paid or Counter()), delta)

    def with_noise(self, noise_multiplier: float) -> "Mechanism":
        """Return the same mechanism with another noise multiplier.

        What the clipping asks for beside the gradients gets its share of the noise.
        """
        clipping = self.clipping.calibrated(noise_multiplier, self.batch_size)
        return replace(self, noise_multiplier=noise_multiplier, clipping=clipping)

    def calibrated(self, budget: Budget, paid: Tally | None = None) -> "Mechanism":
        """Return the mechanism with the least noise that fits a budget, beside what was paid.

        Raises:
            ArgumentError: no noise is enough.
        """
        return self.with_noise(
            least_noise(
                lambda sigma: self.with_noise(sigma).epsilon(budget.delta, paid),
                budget.epsilon,
                str(budget),
            )
        )

    def affordable(self, budget: Budget, paid: Tally, start: int) -> int:
        """Return up to which release the budget reaches from release `start` on."""
        return last_within(
            lambda end: epsilon_of(paid + self.charges(start, end), budget.delta) <= budget.epsilon,
            start,
            self.releases.total,
        )


def last_within(fits: Callable[[int], bool], least: int, most: int) -> int:
    """Return the largest number that fits, of those above `least`; all below it fit as well."""
    low, high, tried = least, most + 1, most
    while high - low > 1:
        if fits(tried):
            low = tried
        else:
            high = tried
        tried = (low + high) // 2
    return low
