"""What choosing among candidates costs, known before any data is read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dp_accounting import DpEvent

from privada.accounting import epsilon_of, events, rdp
from privada.accounting.calibration import Numbers, estimate, least_noise, plan
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

    A run has `steps` steps of the given noise and sampling rate. `candidates` is the number of runs
    for composition, after which all models may be looked at, and the expected number for the ways
    that stop at random and release the best model alone. The ways are "compose-pld" and
    "compose-rdp", "liu-talwar", "repeat-geometric", "repeat-logarithmic" and "repeat-poisson";
    with `shape`, also "repeat-negative-binomial", a truncated negative binomial number of runs:
    shape 1 is the geometric, 0 the logarithmic, and between them lie others.

    Guarantee: each is an upper bound on the epsilon of the whole selection at `delta`. For the ways
    that stop at random candidates must be drawn independently, with replacement, and scores must
    be part of the runs: `select` sees to both. All of it is computed from public quantities.

    Edge cases: `conversion="classic"` turns divergences into epsilon as older papers did. Where
    candidates differ in cost, price the dearest.

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
    Hyperparameter Tuning with Renyi Differential Privacy.
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

    `how` is one of the ways of `price`, or "cheapest" for the one that needs the least noise.

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

    def least(way: str) -> float:
        def cost(sigma: float) -> float:
            tally = plan(
                sampling_rate=sampling_rate, noise_multiplier=sigma, steps=steps, sampling=sampling
            )
            return cost_of(tally, candidates, delta, way)

        about = None
        if way == "compose-pld":  # the others are as fast as the estimate
            about = estimate(
                sampling_rate=sampling_rate,
                steps=math.ceil(checked_mean(candidates)) * steps,
                delta=delta,
                sampling=sampling,
            )
        wanted = f"epsilon {epsilon:g} at delta {delta:g} by {way}"
        return least_noise(cost, epsilon, wanted, about)

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
