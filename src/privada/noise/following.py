"""Noise schedules that follow the training: the next multiplier from the releases so far.

They need a ledger on which a charge may depend on earlier releases: an adaptive one. To add one,
write a class with the members of `FollowingSchedule`; tests/contracts/test_following.py holds each
to what is said there.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from privada.core.errors import ArgumentError
from privada.core.validation import flag, fraction, integer, not_negative, positive
from privada.core.values import Release, State

# Multipliers are rounded to a lattice with so many points to each doubling, so that many steps
# share one and can be charged together. It is part of the lattice on which filters count.
POINTS_PER_DOUBLING = 64
# Of a forecast: each part is so much longer than all before it.
_GROWTH = 0.05
# How fast what is known of the gradient's norm forgets, for forecasts alone.
_MEMORY = 0.05
# By a forecast of falling gradients, they start to fall after this share of the steps.
_EARLY = 0.05
# The share of the clip norm that the average gradient is taken to have before anything is seen.
_FIRST_SHARE = 0.5


@dataclass(frozen=True)
class Outlook:
    """What is known of releases to come before they are made.

    Args:
        coordinates: how many a gradient has.
        std: the standard deviation of the noise in one of them, where the factor is 1.
        bound: the largest norm that the average gradient may have without noise.

    Example:
        >>> import privada as pv
        >>> pv.noise.Outlook(coordinates=100, std=0.5, bound=1.0).noise(factor=2.0)
        100.0
    """

    coordinates: int
    std: float
    bound: float

    def noise(self, factor: float) -> float:
        """Return the expected squared norm of the noise."""
        return self.coordinates * (self.std * factor) ** 2


@runtime_checkable
class FollowingSchedule(Protocol):
    """The relative noise of the next release, as a function of the releases so far.

    Guarantee: it sees releases alone. What it asks for is charged before it is used, on an
    adaptive ledger.

    Example:
        >>> import privada as pv
        >>> isinstance(pv.noise.follow_norm(), pv.noise.FollowingSchedule)
        True
    """

    def init(self) -> State:
        """Return the state before the first release: plain numbers and tensors."""

    def factor(self, state: State) -> float:
        """Return the relative noise of the next release."""

    def seen(self, release: Release, state: State) -> State:
        """Return the state after one more release."""

    def forecast(self, state: State, count: int, outlook: Outlook) -> list[tuple[int, float]]:
        """Return how many releases are expected at which factor, `count` in all.

        The first part is at the factor that the next one has. For planning alone: a wrong forecast
        costs accuracy, never privacy.
        """

    def paced(self, level: float, fitted: float) -> float:
        """Return the multiplier of the factor 1 to go on with.

        It is `level` so far. With `fitted`, budget and steps are forecast to end together.
        """


def on_lattice(noise_multiplier: float) -> float:
    """Return the nearest multiplier of those that following schedules use."""
    return float(
        2.0 ** (round(math.log2(noise_multiplier) * POINTS_PER_DOUBLING) / POINTS_PER_DOUBLING)
    )


def lengths(count: int) -> Iterator[int]:
    """Return the lengths of the parts of a forecast, short at first."""
    covered = 0
    while covered < count:
        length = min(count - covered, 1 + int(_GROWTH * covered))
        yield length
        covered += length


def _square(release: Release) -> float:
    """Return the squared norm of a release."""
    return float(release.gradient.square().sum(dtype=torch.float64))


def _signal(state: State, square: float, noise: float) -> float:
    """Return what is known of the squared norm without noise, after one more release."""
    found = max(0.0, square - noise)
    before = state["signal"]
    return found if before is None else before + _MEMORY * (found - before)


def _expected_signal(state: State, outlook: Outlook) -> float:
    known = state["signal"]
    return (_FIRST_SHARE * outlook.bound) ** 2 if known is None else min(known, outlook.bound**2)


@dataclass(frozen=True)
class FollowNorm:
    """Noise that grows as AdaGrad's steps get smaller: alpha_t^2 = b_t, found on the way.

    b_0^2 = `first`, and b_t^2 = b_(t-1)^2 + max(|v_t|^2, least) after release v_t. The multiplier
    of the next release is proportional to b_t^(1/2).

    Args:
        first: the start of b^2.
        least: the least that a release adds to b^2.
        denoised: whether the expected squared norm of the noise is subtracted from |v_t|^2. Else
            more noise makes b grow faster, which asks for more noise.

    Guarantee: that of every `FollowingSchedule`.

    Edge cases: a release that is not finite, from a model that has left the range of floats, adds
    nothing.

    Example:
        >>> import privada as pv
        >>> schedule = pv.noise.follow_norm(first=20.0)
        >>> schedule.factor(schedule.init())
        1.0

    Reference: Wu et al. (2021), Adaptive Differentially Private Empirical Risk Minimization,
    arXiv 2110.07435, Remark 4.1 and Section 5.2; its conclusion asks whether alpha_t can follow.
    """

    first: float = 20.0
    least: float = 1e-5
    denoised: bool = False

    def __post_init__(self) -> None:
        flag("denoised", self.denoised)
        positive("first", self.first)
        not_negative("least", self.least)

    def init(self) -> State:
        """Return b^2 at its start."""
        return {"total": self.first, "signal": None}

    def factor(self, state: State) -> float:
        """Return (b / b_0)^(1/2)."""
        return float((state["total"] / self.first) ** 0.25)

    def seen(self, release: Release, state: State) -> State:
        """Add the squared norm of the release."""
        square, noise = _square(release), release.noise_square
        if not math.isfinite(square):
            return state
        total = state["total"] + max(square - (noise if self.denoised else 0.0), self.least)
        return {"total": total, "signal": _signal(state, square, noise)}

    def forecast(self, state: State, count: int, outlook: Outlook) -> list[tuple[int, float]]:
        """Return how b grows if the gradient's norm stays as it is."""
        signal, total, found = _expected_signal(state, outlook), state["total"], []

        def gain(at: float) -> float:
            noise = 0.0 if self.denoised else outlook.noise((at / self.first) ** 0.25)
            return max(signal + noise, self.least)

        for length in lengths(count):
            middle = total + (length - 1) / 2 * gain(total)
            found.append((length, (middle / self.first) ** 0.25))
            total += length * gain(middle)
        return found

    def paced(self, level: float, fitted: float) -> float:
        """Return `fitted`: how noise is shared out over the steps matters, not its level."""
        return fitted


@dataclass(frozen=True)
class FollowMoment:
    """Noise that follows Adam's second moment: alpha_t^2 = b_t, with b_t^2 an average of |v|^2.

    m <- beta m + (1 - beta) |v_t|^2, and b_t^2 = m / (1 - beta^t). The multiplier of the next
    release is proportional to b_t^(1/2): it falls when the releases get smaller.

    Args:
        beta: the decay of the average.
        least, most: bounds on the factor, in units of the first.

    Guarantee: that of every `FollowingSchedule`.

    Edge cases: a release that is not finite is left out.

    Example:
        >>> import privada as pv
        >>> schedule = pv.noise.follow_moment(beta=0.99)
        >>> schedule.factor(schedule.init())
        1.0

    Reference: Wu et al. (2021), arXiv 2110.07435, Remark 4.1 and the conclusion; Kingma and Ba
    (2015), Adam, arXiv 1412.6980, for the moment.
    """

    beta: float = 0.999
    least: float = 0.25
    most: float = 4.0

    def __post_init__(self) -> None:
        fraction("beta", self.beta)
        _check_order(positive("least", self.least), positive("most", self.most))

    def init(self) -> State:
        """Return an average of nothing."""
        return {"moment": 0.0, "count": 0, "start": None, "signal": None}

    def factor(self, state: State) -> float:
        """Return (b / b_1)^(1/2), within bounds."""
        if not state["count"] or not state["start"]:
            return 1.0
        square = state["moment"] / (1 - self.beta ** state["count"])
        return float(min(max((square / state["start"]) ** 0.25, self.least), self.most))

    def seen(self, release: Release, state: State) -> State:
        """Take the squared norm of the release into the average."""
        square, noise = _square(release), release.noise_square
        if not math.isfinite(square):
            return state
        return {
            "moment": self.beta * state["moment"] + (1 - self.beta) * square,
            "count": state["count"] + 1,
            "start": square if state["start"] is None else state["start"],
            "signal": _signal(state, square, noise),
        }

    def forecast(self, state: State, count: int, outlook: Outlook) -> list[tuple[int, float]]:
        """Return how b falls if the gradient's squared norm falls as one over the steps."""
        seen, now, found, covered = state["count"], self.factor(state), [], 0
        signal, noise = _expected_signal(state, outlook), outlook.noise(now)
        start = seen + _EARLY * (seen + count)
        for length in lengths(count):
            later = start / (start + covered + (length - 1) / 2)
            factor = now * ((signal * later + noise) / (signal + noise)) ** 0.25
            found.append((length, min(max(factor, self.least), self.most)))
            covered += length
        return found

    def paced(self, level: float, fitted: float) -> float:
        """Return `fitted`: how noise is shared out over the steps matters, not its level."""
        return fitted


@dataclass(frozen=True)
class WhenDescentStops:
    """Less noise once the releases no longer agree on a direction.

    An average m of the releases says where descent goes. Each further release is compared with it:
    z = <v, m> / (std |m|) has a standard deviation of about 1, and a mean above 0 as long as the
    gradient points along m. When `window` of them add up to less than `least_agreement` times
    sqrt(window), what is left of the gradient is lost in the noise, and the multiplier shrinks.

    Args:
        shrink: what the multiplier is multiplied by.
        window: how many releases are judged together.
        least_agreement: in standard deviations.
        least: the least factor, in units of the first.
        beta: the decay of the average.

    Guarantee: that of every `FollowingSchedule`.

    Edge cases: a release that is not finite is left out. A batch of noise alone counts as one that
    does not agree.

    Example:
        >>> import privada as pv
        >>> schedule = pv.noise.when_descent_stops(shrink=0.8)
        >>> schedule.factor(schedule.init())
        1.0

    Reference: Lee and Kifer (2018), Concentrated Differentially Private Gradient Descent with
    Adaptive per-Iteration Privacy Budget, arXiv 1808.09501, Section 4: more budget where the noisy
    gradient is not a direction of descent. Theirs asks the data by a further query; here the
    releases are compared, which costs nothing.
    """

    shrink: float = 0.9
    window: int = 50
    least_agreement: float = 1.0
    least: float = 0.25
    beta: float = 0.95

    def __post_init__(self) -> None:
        fraction("shrink", self.shrink)
        fraction("beta", self.beta)
        integer("window", self.window)
        _check_order(positive("least", self.least), 1.0)
        if self.shrink == 0:
            raise ArgumentError(
                f"Expected shrink to be above 0, got shrink={self.shrink!r}. There is no release "
                "without noise."
            )

    def init(self) -> State:
        """Return no direction, and nothing judged."""
        return {
            "mean": None, "agreement": 0.0, "judged": 0, "factor": 1.0, "windows": 0, "stopped": 0
        }  # fmt: skip

    def factor(self, state: State) -> float:
        """Return what the multiplier has shrunk to."""
        return float(state["factor"])

    def seen(self, release: Release, state: State) -> State:
        """Compare a release with the average of those before it."""
        gradient, std, mean = release.gradient, release.gradient_std, state["mean"]
        if not bool(torch.isfinite(gradient).all()):
            return state
        if mean is None:
            return {**state, "mean": gradient.clone()}
        spread = float(torch.linalg.vector_norm(mean * std, dtype=torch.float64))
        along = float((gradient * mean).sum(dtype=torch.float64))
        agreement = state["agreement"] + (along / spread if spread > 0 else 0.0)
        mean = self.beta * mean + (1 - self.beta) * gradient
        found = {**state, "mean": mean, "agreement": agreement, "judged": state["judged"] + 1}
        return self._judged(found) if found["judged"] == self.window else found

    def _judged(self, state: State) -> State:
        """Return the state after a whole window, with less noise if descent has stopped."""
        stopped = state["agreement"] < self.least_agreement * math.sqrt(self.window)
        factor = state["factor"] * (self.shrink if stopped else 1)
        return {
            **state,
            "factor": max(self.least, factor),
            "agreement": 0.0,
            "judged": 0,
            "windows": state["windows"] + 1,
            "stopped": state["stopped"] + stopped,
        }

    def forecast(self, state: State, count: int, outlook: Outlook) -> list[tuple[int, float]]:
        """Return that the factor falls as often as it did so far, once in two windows at first."""
        rate = (state["stopped"] + 1) / (state["windows"] + 2) / self.window
        now, found, covered = self.factor(state), [], 0
        for length in lengths(count):
            fallen = now * self.shrink ** (rate * (covered + (length - 1) / 2))
            found.append((length, max(self.least, fallen)))
            covered += length
        return found

    def paced(self, level: float, fitted: float) -> float:
        """Return the smaller one: what is not needed is used, and what is needed is not spared.

        Where descent stops more often than forecast, the budget ends before the steps do.
        """
        return min(level, fitted)


def _check_order(least: float, most: float) -> None:
    if not least <= 1 <= most:
        raise ArgumentError(
            f"Expected least <= 1 <= most, got least={least!r}, most={most!r}: the first release "
            "has the factor 1."
        )


follow_norm = FollowNorm
"""Constructor of `FollowNorm`, as methods and examples spell it."""
follow_moment = FollowMoment
"""Constructor of `FollowMoment`, as methods and examples spell it."""
when_descent_stops = WhenDescentStops
"""Constructor of `WhenDescentStops`, as methods and examples spell it."""
