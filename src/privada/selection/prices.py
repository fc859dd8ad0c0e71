"""What choosing among candidates costs, known before any data is read."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dp_accounting import DpEvent

from privada.accounting import epsilon_of, events, rdp
from privada.accounting.calibration import Estimate, Numbers, estimate, least_noise, plan
from privada.accounting.events import Tally
from privada.accounting.repetition import checked_mean, liu_talwar, repeated
from privada.core import formatting
from privada.core.errors import ArgumentError
from privada.core.validation import not_negative, one_of, positive, probability

# The distributions of the number of runs, by their shape.
SHAPES = {"repeat-geometric": 1.0, "repeat-logarithmic": 0.0, "repeat-poisson": math.inf}
WAYS = ("compose-pld", "compose-rdp", "liu-talwar", *SHAPES)
# The family that the geometric and the logarithmic are members of; it has a shape.
NEGATIVE_BINOMIAL = "repeat-negative-binomial"
# Where Poisson stopping has no run at all more often than this, it is taken only if asked for.
_NO_RUN = 1e-3
_CONVERSIONS = {"tight": rdp.to_epsilon, "classic": rdp.classic_epsilon}


@dataclass(frozen=True)
class Price:
    """The cost of a whole selection in one way, training and choosing included.

    `how` is the way; `runs` the number of runs, expected where it is random; `released` what may
    be looked at afterwards; `cheapest` marks the least epsilon of a list.

    Example:
        >>> from privada.selection import Price
        >>> Price("liu-talwar", 1.5, 1e-6, 10, "the best model").epsilon
        1.5
    """

    how: str
    epsilon: float
    delta: float
    runs: float
    released: str
    cheapest: bool = False

    def __str__(self) -> str:
        mark = ", the cheapest" if self.cheapest else ""
        return (
            f"{self.how}: epsilon {formatting.epsilon(self.epsilon)} at delta "
            f"{formatting.delta(self.delta)} for {self.runs:g} "
            f"runs, {self.released} released{mark}"
        )


def often_no_run(how: str, candidates: float) -> bool:
    """Return whether a way has no run at all too often to be taken without being asked for."""
    return how == "repeat-poisson" and math.exp(-candidates) > _NO_RUN


def priced(how: str, epsilon: float, delta: float, candidates: float) -> Price:
    """Return the price of choosing among so many candidates in one way."""
    every = how.startswith("compose")
    return Price(
        how=how,
        epsilon=epsilon,
        delta=delta,
        runs=math.ceil(candidates) if every else float(candidates),
        released="all models" if every else "the best model alone",
    )


def cost_of(
    tally: Mapping[DpEvent, int],
    candidates: float,
    delta: float,
    how: str,
    conversion: str = "tight",
    shape: float | None = None,
) -> float:
    """Return the epsilon of choosing among runs of which each is charged as `tally`.

    Guarantee: an upper bound for the selection as a whole, as `price` says.
    """
    one_of("how", how, (*WAYS, NEGATIVE_BINOMIAL))
    law = SHAPES.get(how, 1.0) if shape is None else not_negative("shape", shape)
    convert = _CONVERSIONS[one_of("conversion", conversion, _CONVERSIONS)]
    candidates = checked_mean(candidates)
    if how == "compose-pld":
        return epsilon_of({event: n * math.ceil(candidates) for event, n in tally.items()}, delta)
    one = events.total_divergence(tally, events.common_relation(tally))
    if how == "compose-rdp":
        everything = math.ceil(candidates) * one
        common = conversion == "tight"  # so that the figure compares with other libraries'
        return rdp.to_epsilon(everything, delta, True) if common else convert(everything, delta)
    if how == "liu-talwar":
        return liu_talwar(lambda small: convert(one, small), candidates, delta)
    return convert(repeated(one, candidates, law), delta)


def noise_for(
    charges: Callable[[float], Tally],
    candidates: float,
    epsilon: float,
    delta: float,
    how: str,
    composed: Estimate,
) -> float:
    """Return the least noise with which choosing among runs, each charged as `charges`, fits.

    `composed` says about what all runs together cost at a multiplier, and is where the search for
    the noise starts under composition; the other ways are as fast as that estimate.

    Raises:
        ArgumentError: no noise is enough.
    """
    return least_noise(
        lambda sigma: cost_of(charges(sigma), candidates, delta, how),
        epsilon,
        f"epsilon {epsilon:g} at delta {delta:g} by {how}",
        composed if how == "compose-pld" else None,
    )


def in_each_way(tally: Mapping[DpEvent, int], candidates: float, delta: float) -> dict[str, float]:
    """Return what choosing among so many runs, each charged as `tally`, costs in each way."""
    return {how: cost_of(tally, candidates, delta, how) for how in WAYS}


def price(
    *,
    noise_multiplier: Numbers,
    sampling_rate: Numbers,
    steps: int | None = None,
    candidates: float,
    delta: float,
    conversion: str = "tight",
    sampling: str = "poisson",
    shape: float | None = None,
) -> list[Price]:
    """Return what a selection among private runs costs in each way, the cheapest first.

    The ways are "compose-pld" and "compose-rdp", "liu-talwar", "repeat-geometric",
    "repeat-logarithmic" and "repeat-poisson"; with `shape`, also "repeat-negative-binomial".

    Args:
        noise_multiplier: the noise of every step of a run, or of each.
        sampling_rate: the share of the records in a step, for all steps or for each.
        steps: the number of steps of a run.
        candidates: the number of runs for composition, after which all models may be looked at; the
            expected number for the ways that stop at random and release the best model alone.
        delta: where epsilon is reported.
        conversion: "tight", or "classic" to turn divergences into epsilon as older papers did.
        sampling: "poisson" or "fixed-size".
        shape: that of a truncated negative binomial number of runs: 1 is the geometric, 0 the
            logarithmic, and between them lie others.

    Returns:
        One `Price` for each way.

    Guarantee: each is an upper bound on the epsilon of the whole selection at `delta`. For the ways
    that stop at random candidates must be drawn independently, with replacement, and scores must
    be part of the runs: `select` sees to both. All of it is computed from public quantities.

    Edge cases: where candidates differ in cost, price the most expensive one.

    Example:
        >>> import privada as pv
        >>> prices = pv.selection.price(
        ...     noise_multiplier=4.0, sampling_rate=250 / 60_000, steps=2500, candidates=10,
        ...     delta=1e-6,
        ... )
        >>> prices[0].how, prices[0].cheapest
        ('repeat-logarithmic', True)

    Reference: Mohapatra et al. (2022), The Role of Adaptive Optimizers for Honest Private
    Hyperparameter Selection, arXiv 2111.04906, Section 3; Papernot and Steinke (2022),
    Hyperparameter Tuning with Renyi Differential Privacy, arXiv 2110.03620.
    """
    tally = plan(
        sampling_rate=sampling_rate,
        noise_multiplier=noise_multiplier,
        steps=steps,
        sampling=sampling,
    )
    delta = probability("delta", delta)
    ways = WAYS if shape is None else (*WAYS, NEGATIVE_BINOMIAL)
    costs = (
        cost_of(
            tally, candidates, delta, how, conversion, shape if how == NEGATIVE_BINOMIAL else None
        )
        for how in ways
    )
    found = sorted(zip(costs, ways, strict=True))
    return [
        replace(priced(how, epsilon, delta, candidates), cheapest=place == 0)
        for place, (epsilon, how) in enumerate(found)
    ]


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    candidates: float,
    how: str = "cheapest",
    sampling: str = "poisson",
) -> float:
    """Return the least noise for each run so that the whole selection is within (epsilon, delta).

    Args:
        epsilon, delta: what the whole selection may cost.
        sampling_rate, steps, candidates, sampling: as for `price`.
        how: one of the ways of `price`, or "cheapest" for the one that needs the least noise.

    Returns:
        The noise multiplier of every run.

    Raises:
        ArgumentError: no noise is enough, as for a tiny epsilon.

    Guarantee: `price` with this noise is at most `epsilon`, and above all but half a per mille of
    it.

    Example:
        >>> import privada as pv
        >>> sigma = pv.selection.noise_multiplier(
        ...     epsilon=1.0, delta=1e-6, sampling_rate=250 / 60_000, steps=2500, candidates=10
        ... )
        >>> 1.7 < sigma < 1.8
        True

    Reference: as for `price`.
    """
    positive("epsilon", epsilon)
    one_of("how", how, (*WAYS, "cheapest"))
    delta = probability("delta", delta)

    def charges(sigma: float) -> Tally:
        return plan(
            sampling_rate=sampling_rate, noise_multiplier=sigma, steps=steps, sampling=sampling
        )

    def least(way: str) -> float:
        about = estimate(
            sampling_rate=sampling_rate,
            steps=math.ceil(checked_mean(candidates)) * steps,
            delta=delta,
            sampling=sampling,
        )
        return noise_for(charges, candidates, epsilon, delta, way, about)

    if how != "cheapest":
        return least(how)
    reached, refused = [], None
    for way in WAYS:
        try:
            reached.append(least(way))
        except ArgumentError as error:  # no noise is enough for this way, as for a tiny epsilon
            refused = error
    if refused is not None and not reached:
        raise refused
    return min(reached)
