"""How the clip norm of the next release follows from the releases before it.

A control has a state of plain numbers, which checkpoints hold. It may ask for further coordinates
of the clipped sum: statistics of the units' norms, which get noise and are paid for with the rest.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from privada.core.errors import ArgumentError
from privada.core.validation import fraction, integer, positive
from privada.core.values import Release

State = dict[str, float]

# How far from the first clip norm an adaptive one may go.
_FARTHEST = 1e4


@runtime_checkable
class NormControl(Protocol):
    """How the clip norm follows from releases.

    Guarantee: it sees releases only, so the clip norms are post-processing. A unit adds at most
    `sensitivity(clip)` to a sum with its extra coordinates, if its gradient adds at most `clip`.
    """

    @property
    def coordinates(self) -> int:
        """How many extra coordinates a clipped sum has."""

    def init(self, clip: float) -> State:
        """Return the first state, given the clip norm to start with."""

    def norm(self, state: State) -> float:
        """Return the clip norm of the next release."""

    def seen(self, release: Release, state: State) -> State:
        """Return the state after a release."""

    def statistics(self, norms: Tensor, clip: float) -> Tensor:
        """Return the extra coordinates of some units, given the norms of whitened gradients.

        A unit whose norm is not finite adds nothing, as if it were absent.
        """

    def sensitivity(self, clip: float) -> float:
        """Return how much one unit adds at most, if its gradient adds at most `clip`."""

    def calibrated(self, noise_multiplier: float, batch_size: float) -> Self:
        """Return the same, with its share of the noise found."""

    def describe(self) -> str:
        """Return the control in words."""


@dataclass(frozen=True)
class Constant:
    """One clip norm for all releases."""

    @property
    def coordinates(self) -> int:
        """None."""
        return 0

    def init(self, clip: float) -> State:
        """Return the clip norm."""
        return {"clip": positive("clip", clip)}

    def norm(self, state: State) -> float:
        """Return the clip norm."""
        return state["clip"]

    def seen(self, release: Release, state: State) -> State:
        """Return the state as it is."""
        return state

    def statistics(self, norms: Tensor, clip: float) -> Tensor:
        """Return none."""
        return norms.new_zeros(0)

    def sensitivity(self, clip: float) -> float:
        """Return the clip norm."""
        return clip

    def calibrated(self, noise_multiplier: float, batch_size: float) -> Self:
        """Return the control as it is."""
        return self

    def describe(self) -> str:
        """Return the name."""
        return "constant"


@dataclass(frozen=True)
class InTurns(Constant):
    """Clip norms by turns of releases, all known beforehand: (releases, clip norm) each."""

    turns: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        remedy = "Give pairs of a number of releases and a clip norm, such as (100, 0.5)."
        if not self.turns:
            raise ArgumentError(f"Expected at least one turn, got none. {remedy}")
        for turn in self.turns:
            if not isinstance(turn, tuple) or len(turn) != 2:
                raise ArgumentError(f"Expected a turn to be a pair, got {turn!r}. {remedy}")
        checked = [(integer("steps", n, remedy=remedy), positive("norm", c)) for n, c in self.turns]
        object.__setattr__(self, "turns", tuple(checked))

    def init(self, clip: float) -> State:
        """Return that no release has been seen. The turns say the clip norms, `clip` does not."""
        return {"seen": 0}

    def norm(self, state: State) -> float:
        """Return the clip norm of the turn."""
        place = state["seen"] % sum(steps for steps, _ in self.turns)
        for steps, norm in self.turns:
            if place < steps:
                return norm
            place -= steps
        raise AssertionError("a place beyond all turns")

    def seen(self, release: Release, state: State) -> State:
        """Return the state with one more release counted."""
        return {"seen": state["seen"] + 1}

    def describe(self) -> str:
        """Return the turns."""
        pairs = ", ".join(f"({steps}, {norm:g})" for steps, norm in self.turns)
        return f"in_turns({pairs})"


@dataclass(frozen=True)
class Adaptive:
    """The clip norm follows a quantile of the units' norms, by a noisy count of short ones.

    `ratio` is the size of a unit's part of the count, in clip norms: kappa = ratio C.
    """

    quantile: float
    rate: float
    count_noise: float
    ratio: float = 1.0

    def __post_init__(self) -> None:
        median = "The paper's 0.5 is the median."
        positive("quantile", fraction("quantile", self.quantile, median), median)
        positive("rate", self.rate, remedy="The paper's 0.2 serves for most models.")
        positive("count_noise", self.count_noise, remedy="It is a share of the batch, as 0.05.")
        positive("ratio", self.ratio)

    @property
    def coordinates(self) -> int:
        """One: the count."""
        return 1

    def init(self, clip: float) -> State:
        """Return the clip norm to start with."""
        return {"clip": positive("clip", clip), "first": clip}

    def norm(self, state: State) -> float:
        """Return the clip norm of the next release."""
        return state["clip"]

    def seen(self, release: Release, state: State) -> State:
        """Return the state with the clip norm that the noisy count leads to."""
        if release.statistics is None or release.statistics.numel() != 1:
            raise ArgumentError(
                "Expected a release with the noisy count of short gradients, got one without. Make "
                "the clipped sum by an engine with this clipping."
            )
        clip, first = state["clip"], state["first"]
        count = float(release.statistics) / (self.ratio * clip)
        # a share beyond these is noise, which would move the clip norm by leaps in small batches
        share = min(max(0.5 + count / release.batch_size, 0.0), 1.0)
        # in logarithms, in which nothing overflows
        log = math.log(clip) - self.rate * (share - self.quantile)
        room = math.log(_FARTHEST)
        log = min(max(log, math.log(first) - room), math.log(first) + room)
        return {"clip": math.exp(log), "first": first}

    def statistics(self, norms: Tensor, clip: float) -> Tensor:
        """Return the sum of kappa (b - 1/2), with b = 1 for a norm of at most `clip`, else 0."""
        finite = torch.isfinite(norms)
        centred = (finite & (norms <= clip)).double() - finite.double() / 2
        return centred.sum()[None] * (self.ratio * clip)

    def sensitivity(self, clip: float) -> float:
        """Return |(clip, kappa / 2)|, the norm of a unit's gradient and count together."""
        return clip * math.sqrt(1 + self.ratio**2 / 4)

    def calibrated(self, noise_multiplier: float, batch_size: float) -> Self:
        """Return the control whose count has noise of count_noise x batch_size.

        The noise in the count has a standard deviation of z sqrt(1 / ratio^2 + 1/4). A ratio above
        one would take too much from the gradient; where it would take one, the count is noisier.
        """
        positive("noise_multiplier", noise_multiplier)
        positive("batch_size", batch_size)
        inverse_square = (self.count_noise * batch_size / noise_multiplier) ** 2 - 0.25
        ratio = 1.0 if inverse_square <= 1 else 1 / math.sqrt(inverse_square)
        return replace(self, ratio=ratio)

    def describe(self) -> str:
        """Return the settings."""
        return (
            f"adaptive(quantile={self.quantile:g}, rate={self.rate:g}, "
            f"count_noise={self.count_noise:g})"
        )


CONSTANT = Constant()


def checked_control(control: Any) -> NormControl:
    """Return `control` if it is one."""
    if isinstance(control, type) or not isinstance(control, NormControl):
        raise ArgumentError(
            f"Expected control to say how the clip norm follows from releases, got "
            f"control={control!r}. Use in_turns(...) or adaptive() of privada.clipping."
        )
    return control
