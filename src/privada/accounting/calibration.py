"""The public functions: what a plan costs, and what noise, steps or batch a budget affords."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

import numpy as np
from dp_accounting import DpEvent

from privada.accounting import events, pld, rdp
from privada.accounting.accountants import Accountant, accountant_of, epsilon_of, times
from privada.accounting.accountants.loss_distributions import on_a_grid
from privada.accounting.events import Tally
from privada.accounting.mixtures import SMALLEST_MULTIPLIER, SampledGaussian
from privada.accounting.orders import Vector
from privada.core.errors import ArgumentError
from privada.core.validation import one_of, positive, probability, rate

Numbers = SupportsFloat | Sequence[float]

# A calibrated run uses between this fraction and all of its budget.
_TIGHT = 1 - 5e-4
_MOST_NOISE = 1e9
# Of a search that starts from an estimate: the least noise that is tried, the stride to a bracket,
# how near to its target the estimate is solved, the flattest slope, and the most steps.
_LEAST_TRIED, _STRIDE, _NEAR, _FLATTEST, _MOST_STEPS = 1e-2, math.log(4), 0.01, -0.05, 8
# How many steps the close estimate is asked for, and how far from its target it is not believed.
_CLOSE_STEPS, _CLOSE_ENOUGH, _UNLIKELY = 3, 1e-4, 0.2
# By divergences a run costs more: one over this times as much, where it has many steps.
_TIGHTER = 0.925
# A schedule of more different factors is estimated by so many.
_FEW_FACTORS = 16


def _per_step(name: str, value: Numbers, check: Callable[[str, object], float]) -> list[float]:
    """Return one number, or the numbers of a sequence, each checked."""
    if isinstance(value, (str, bytes)):
        raise ArgumentError(
            f"Expected {name} to be a number or a sequence of numbers, got {value!r}."
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ArgumentError(
            f"Expected {name} to be a number or a sequence with one entry per step, got {value!r}."
        ) from error
    if array.ndim == 0:
        return [check(name, value)]
    if array.ndim > 1 or array.size == 0:
        raise ArgumentError(
            f"Expected {name} to be a number or a sequence with one entry per step, got an array "
            f"of shape {array.shape}."
        )
    entries = array.tolist()
    if array.dtype.kind not in "fiu":
        return [check(f"{name}[{i}]", entry) for i, entry in enumerate(entries)]
    # each different entry is checked where it comes first: a schedule may have millions of them
    checked: dict[float, float] = {}
    for i, entry in enumerate(entries):
        if entry not in checked:
            checked[entry] = check(f"{name}[{i}]", entry)
    return [checked[entry] for entry in entries]


def _fixed_size(sampling_rate: float, noise_multiplier: float) -> DpEvent:
    """Return the event of a fixed-size sample at a rate, rounded up to whole records."""
    population = 10**9
    return events.fixed_size(
        population, min(population, math.ceil(sampling_rate * population)), noise_multiplier
    )


_SAMPLING = {"poisson": events.poisson, "fixed-size": _fixed_size}


def plan(
    *,
    sampling_rate: Numbers,
    noise_multiplier: Numbers,
    steps: int | None = None,
    sampling: str = "poisson",
) -> Tally:
    """Return the tally of a run of sampled Gaussian steps.

    Each of the first two is one number for all steps or a sequence with one entry per step.
    """
    event = _SAMPLING[one_of("sampling", sampling, _SAMPLING)]
    rates = _per_step("sampling_rate", sampling_rate, rate)
    sigmas = _per_step("noise_multiplier", noise_multiplier, positive)
    length = max(len(rates), len(sigmas))
    if steps is None:
        if length == 1 and np.ndim(np.asarray(noise_multiplier)) == 0:
            raise ArgumentError(
                "Expected steps, got steps=None. Give the number of steps, or a sequence with one "
                "noise multiplier per step."
            )
        steps = length
    steps = times("steps", steps)
    for name, values in (("sampling_rate", rates), ("noise_multiplier", sigmas)):
        if len(values) not in (1, steps):
            raise ArgumentError(
                f"Expected {name} to have one entry per step, got {len(values)} entries for "
                f"steps={steps}."
            )
    if length == 1:
        return Counter({event(rates[0], sigmas[0]): steps})
    pairs = zip(
        rates * (steps if len(rates) == 1 else 1),
        sigmas * (steps if len(sigmas) == 1 else 1),
        strict=True,
    )
    return Counter({event(q, s): n for (q, s), n in Counter(pairs).items()})


def epsilon(
    *,
    sampling_rate: Numbers,
    noise_multiplier: Numbers,
    steps: int | None = None,
    delta: float,
    accountant: str | Accountant = "pld",
    sampling: str = "poisson",
) -> float:
    """Return the epsilon at `delta` of sampled Gaussian steps.

    `noise_multiplier` and `sampling_rate` are numbers, or sequences with one entry per step; the
    multiplier is the noise's standard deviation over the clip norm. `accountant` is "pld" (tight),
    "rdp", or "moments" (whole moments 1 to 32 with the first conversion, for comparison with old
    papers), or an `Accountant`.

    Guarantee: an upper bound, for adding or removing one record with Poisson sampling, for
    replacing one with "fixed-size". Many different multipliers are mixed from fewer, or grouped and
    rounded down, and never cost less for it: up to a quarter of a per cent more at up to four
    different rates, about half a per cent at more.

    Edge cases: `steps` may be left out when a sequence is given. A rate of 1 is full batch.

    Example:
        >>> import privada as pv
        >>> eps = pv.accounting.epsilon(
        ...     sampling_rate=256 / 60_000, noise_multiplier=1.1, steps=14_063, delta=1e-5
        ... )
        >>> round(eps, 2)
        2.38

    Reference: Koskela et al. (2020) for "pld"; Mironov et al. (2019) for "rdp"; Abadi et al.
    (2016) for "moments".
    """
    tally = plan(
        sampling_rate=sampling_rate,
        noise_multiplier=noise_multiplier,
        steps=steps,
        sampling=sampling,
    )
    return epsilon_of(tally, delta, accountant)


def _of_estimate(estimate: Callable[[float], float], target: float) -> tuple[float, float] | None:
    """Return the noise at which an estimate of the cost is a target, and the slope there.

    Both are in logarithms. None where the estimate does not fall steadily through the target.
    """

    def excess(x: float) -> float:
        value = estimate(math.exp(x))
        return math.log(value / target) if 0 < value < math.inf else math.copysign(99.0, value - 1)

    low = high = 0.0
    above = below = excess(0.0)
    while below > 0 and high < math.log(_MOST_NOISE):
        low, above, high = high, below, high + _STRIDE
        below = excess(high)
    while above <= 0 and low > math.log(_LEAST_TRIED):
        high, below, low = low, above, low - _STRIDE
        above = excess(low)
    if below > 0 or above <= 0:
        return None
    for _ in range(_MOST_STEPS):
        if min(abs(above), abs(below)) < _NEAR or high - low < 1e-9:
            break
        # the middle wherever the ends are too unlike each other for a straight line
        share = above / (above - below) if above - below < 3 else 0.5
        middle = low + min(0.9, max(0.1, share)) * (high - low)
        there = excess(middle)
        if there > 0:
            low, above = middle, there
        else:
            high, below = middle, there
    x, y = (low, above) if abs(above) < abs(below) else (high, below)
    slope = (excess(x + 0.05) - y) / 0.05
    return (x - y / slope, slope) if abs(y) < _NEAR and slope < _FLATTEST else None


@dataclass(frozen=True)
class Estimate:
    """About what steps cost at a multiplier: roughly in microseconds, closely in milliseconds.

    Guarantee: none. It is where `least_noise` starts. `close` is None where there is none.
    """

    rough: Callable[[float], float]
    close: Callable[[float], float] | None = None


def _nearer(
    start: tuple[float, float], aim: float, close: Callable[[float], float] | None
) -> tuple[float, float]:
    """Return the noise at which the close estimate has the target, and the slope there, in logs."""
    x, slope = start
    before: tuple[float, float] | None = None
    for _ in range(_CLOSE_STEPS if close is not None else 0):
        assert close is not None
        value = close(math.exp(x))
        if not _UNLIKELY < value / math.exp(aim) < 1 / _UNLIKELY:
            return start
        y = math.log(value)
        if before is not None and x != before[0]:
            slope = min((y - before[1]) / (x - before[0]), _FLATTEST)
        before = x, y
        x += (aim - y) / slope
        if abs(aim - y) < _CLOSE_ENOUGH:
            break
    return x, slope


def _from_estimate(
    cost: Callable[[float], float], target: float, estimate: Estimate
) -> float | None:
    """Return noise whose cost is the target but for half a per mille, or None if it is not met.

    Steps by secants in the logarithms, from where the estimate has the target.
    """
    start = _of_estimate(estimate.rough, target)
    if start is None:
        return None
    aim = math.log(target * (1 + _TIGHT) / 2)
    x, slope = _nearer(start, aim, estimate.close)
    before: tuple[float, float] | None = None
    for _ in range(_MOST_STEPS):
        sigma = math.exp(x)
        spent = cost(sigma)
        if target * _TIGHT <= spent <= target:
            return sigma
        if not 0 < spent < math.inf:
            return None
        y = math.log(spent)
        if before is not None and x != before[0]:
            slope = (y - before[1]) / (x - before[0])
        if not slope < _FLATTEST:
            return None
        before = x, y
        x += min(1.0, max(-1.0, (aim - y) / slope))
    return None


def least_noise(
    cost: Callable[[float], float],
    target: float,
    wanted: str,
    estimate: Estimate | None = None,
) -> float:
    """Return the least noise, to half a per mille of the target, at which `cost` is within it.

    `cost` falls as the noise grows. The search is a false-position method in the logarithms,
    where cost is nearly a straight line; it ends on the affordable side. `estimate` is about what
    `cost` is and takes less time: it says where to look first, and nothing else rests on it.
    """
    if estimate is not None:
        found = _from_estimate(cost, target, estimate)
        if found is not None:
            return found
    low, high = 0.0, 1.0
    low_cost, high_cost = math.inf, cost(1.0)
    while high_cost > target:
        low, low_cost = high, high_cost
        high *= min(4.0, max(1.2, 1.1 * high_cost / target))
        if high > _MOST_NOISE:
            raise ArgumentError(
                f"Expected a reachable {wanted}; no amount of noise reaches it. Allow a larger "
                "epsilon or delta."
            )
        high_cost = cost(high)
    while high_cost < target * _TIGHT and high - low > 1e-6 * high:
        if low_cost == math.inf:
            middle = high * max(0.25, min(0.9, high_cost / target))
        else:
            rise = math.log(target * (1 + _TIGHT) / 2 / max(high_cost, 1e-12)) / math.log(
                low_cost / max(high_cost, 1e-12)
            )
            middle = math.exp(
                math.log(high) + min(0.98, max(0.02, rise)) * (math.log(low) - math.log(high))
            )
        middle_cost = cost(middle)
        if middle_cost <= target:
            high, high_cost = middle, middle_cost
        else:
            low, low_cost = middle, middle_cost
        if high < 1e-3:
            break
    return high


def estimate(
    *, sampling_rate: float, steps: int, delta: float, sampling: str = "poisson"
) -> Estimate:
    """Return about what steps cost: by Renyi divergences, and on a coarse grid where one is used.

    Guarantee: none. It is where `least_noise` starts. By divergences, fixed-size sampling is taken
    for Poisson sampling with half the noise.
    """
    replacing = sampling == "fixed-size"
    half = 0.5 if replacing else 1.0

    def rough(sigma: float) -> float:
        divergence = rdp.sampled_gaussian(sampling_rate, half * sigma)
        return _TIGHTER * rdp.to_epsilon(steps * divergence, delta)

    def close(sigma: float) -> float:
        if half * sigma < SMALLEST_MULTIPLIER:
            return math.inf
        return pld.roughly(SampledGaussian(sampling_rate, half * sigma, replacing), steps, delta)

    some = {SampledGaussian(sampling_rate, 1.0, replacing): steps}
    return Estimate(rough, close if on_a_grid(some, delta) else None)


def _of_few(
    factors: Vector, *, sampling_rate: float, delta: float, sampling: str
) -> Callable[[float], float]:
    """Return about what a schedule costs at a multiplier: what one of few different factors does.

    The less noise there is, the more it matters how much, and the finer is the division.
    """
    logs = np.log(factors)
    places = np.sqrt((logs - logs.min()) / np.ptp(logs))
    cells = np.minimum(_FEW_FACTORS * places, _FEW_FACTORS - 1).astype(int)
    few: Counter[float] = Counter()
    for cell in np.unique(cells):
        inside = logs[cells == cell]
        mean = float(inside.mean())
        # of inverse squares the mean, which does not leave the range of numbers
        few[math.exp(mean - math.log(np.exp(2 * (mean - inside)).mean()) / 2)] += inside.size
    event = _SAMPLING[sampling]

    def cost(sigma: float) -> float:
        tally = {event(sampling_rate, sigma * factor): n for factor, n in few.items()}
        return epsilon_of(tally, delta)

    return cost


def _factor(name: str, value: object) -> float:
    """Return a factor whose product with any noise that is tried is a number greater than 0."""
    factor = positive(name, value)
    if not 1e-150 <= factor <= 1e150:
        raise ArgumentError(
            f"Expected {name} within [1e-150, 1e150], got {name}={value!r}. Scale the schedule: "
            "only the ratios of its factors matter."
        )
    return factor


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    accountant: str | Accountant = "pld",
    schedule: Sequence[float] | None = None,
    sampling: str = "poisson",
) -> float:
    """Return the noise multiplier with which a run costs at most `epsilon` at `delta`.

    With `schedule`, step t uses the returned multiplier times `schedule[t]`, and the whole
    schedule together fits the budget (the factors alpha_t of Wu et al. 2021).

    Guarantee: the cost of the returned multiplier is at most `epsilon`. It is at least 99.9% of it
    where the accountant's cost falls without jumps; near 0 by "rdp", and below the range of the
    grid by "pld", it jumps, and less of the budget is used.

    Example:
        >>> import privada as pv
        >>> sigma = pv.accounting.noise_multiplier(
        ...     epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=1000
        ... )
        >>> pv.accounting.epsilon(
        ...     sampling_rate=0.01, noise_multiplier=sigma, steps=1000, delta=1e-5
        ... ) <= 1.0
        True

    Reference: Wu et al. (2021), Adaptive Differentially Private Empirical Risk Minimization,
    arXiv 2110.07435, Section 4, for schedules; calibrated here by the tight accountant rather than
    by its equation (6).
    """
    positive("epsilon", epsilon)
    probability("delta", delta)
    rate("sampling_rate", sampling_rate)
    times("steps", steps)
    factors = np.ones(1)
    if schedule is not None:
        factors = np.array(_per_step("schedule", schedule, _factor))
    if schedule is not None and factors.shape != (steps,):
        raise ArgumentError(
            f"Expected schedule to have one factor for each of the {steps} steps, got an array of "
            f"shape {factors.shape}."
        )

    def cost(sigma: float) -> float:
        multipliers: Numbers = sigma if schedule is None else (sigma * factors).tolist()
        tally = plan(
            sampling_rate=sampling_rate,
            noise_multiplier=multipliers,
            steps=steps,
            sampling=sampling,
        )
        return epsilon_of(tally, delta, accountant)

    about: Estimate | None = None
    if schedule is None:
        about = estimate(sampling_rate=sampling_rate, steps=steps, delta=delta, sampling=sampling)
    elif np.unique(factors).size > _FEW_FACTORS:
        few = _of_few(factors, sampling_rate=sampling_rate, delta=delta, sampling=sampling)
        about = Estimate(few)
    start = about if accountant_of(accountant).slow else None
    return least_noise(cost, epsilon, f"epsilon={epsilon} at delta={delta}", start)


def _most(affordable: Callable[[int], bool], most: int) -> int:
    """Return the largest count up to `most` for which a monotone test holds, or 0."""
    low, high = 0, 1
    while high < most and affordable(high):
        low, high = high, min(most, 2 * high)
    if high == most and affordable(most):
        return most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if affordable(middle) else (low, middle)
    return low


def steps(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    noise_multiplier: float,
    accountant: str | Accountant = "pld",
    most: int = 100_000_000,
) -> int:
    """Return the largest number of steps that costs at most `epsilon` at `delta`.

    Edge cases: 0 when not even one step is affordable; never more than `most`.

    Example:
        >>> import privada as pv
        >>> pv.accounting.steps(epsilon=1.0, delta=1e-5, sampling_rate=0.01, noise_multiplier=4.0)
        11050
    """
    positive("epsilon", epsilon)
    event = events.poisson(
        rate("sampling_rate", sampling_rate), positive("noise_multiplier", noise_multiplier)
    )
    return _most(
        lambda n: epsilon_of({event: n}, delta, accountant) <= epsilon, times("most", most)
    )


def batch_size(
    *,
    epsilon: float,
    delta: float,
    population: int,
    noise_multiplier: float,
    steps: int,
    accountant: str | Accountant = "pld",
) -> int:
    """Return the largest expected batch size with which `steps` steps cost at most `epsilon`.

    Edge cases: 0 when not even a batch of one record is affordable.

    Example:
        >>> import privada as pv
        >>> pv.accounting.batch_size(
        ...     epsilon=1.0, delta=1e-5, population=60_000, noise_multiplier=2.0, steps=1000
        ... )
        925
    """
    positive("epsilon", epsilon)
    population = times("population", population)
    sigma, count = positive("noise_multiplier", noise_multiplier), times("steps", steps)

    def affordable(batch: int) -> bool:
        event = events.poisson(batch / population, sigma)
        return epsilon_of({event: count}, delta, accountant) <= epsilon

    return _most(affordable, population)
