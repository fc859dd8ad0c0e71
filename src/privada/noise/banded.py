"""Noise that is correlated between steps, so that much of it cancels in the sum of all releases."""

import math
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from dp_accounting import DpEvent
from numpy.typing import NDArray

from privada.core.errors import ArgumentError
from privada.core.randomness import RandomSource
from privada.core.receipts import Receipt
from privada.core.validation import integer, real
from privada.core.values import ClippedSum, Release
from privada.noise.gaussian import (
    GaussianNoise,
    add_given_noise_,
    fill_normals_,
    lattice_spacing,
    made_release,
    paid_std,
)
from privada.noise.independent import NoiseStream

# Fresh noise is larger by so much than it has to be: more than rounding takes from it.
_ROUNDING = 1 + 2.0**-20
# What noise that grows from step to step counts as, where the best coefficients are looked for.
_TOO_MUCH = 1e10


@runtime_checkable
class Correlated(Protocol):
    """A noise stream whose releases hang together, until it is told to begin anew.

    Example:
        >>> import privada as pv
        >>> from privada.core.randomness import SecureSource
        >>> isinstance(pv.noise.Banded(3).start(SecureSource()), pv.noise.Correlated)
        True
    """

    def restart(self) -> None:
        """Forget all earlier noise: releases from now on are independent of it."""

    def independent(self) -> NoiseStream:
        """Return noise for releases that are none of the steps'."""


class _Sampler(Protocol):
    def event(self, noise_multiplier: float) -> DpEvent: ...


@dataclass(frozen=True)
class Banded:
    """Gaussian noise that takes back part of what it added in the last `bands - 1` steps.

    Step t gets sigma C n_t, where n solves

        c_0 n_t + c_1 n_(t-1) + ... + c_(bands-1) n_(t-bands+1) = z_t

    with fresh standard normals z. The coefficients c have norm 1. They are the first of the power
    series of (1 - x)^(-1/2) (1 - momentum x)^(-1/2), or, with `steps`, those that leave the least
    noise over so many steps, up to a fifth less. Each release has more noise than an independent
    one, but sums of releases, which are what training moves by, have far less.

    Args:
        bands: over how many steps noise is correlated; 1 is independent noise.
        momentum: that of the update rule, whose steps weigh releases so.
        steps: for how many releases the coefficients are chosen; any number may be made.

    Guarantee: what a unit adds to one step shows in `bands` steps, with weights of norm 1. If each
    unit may take part in every `bands`-th step or less often, as in cyclic Poisson sampling, these
    do not overlap, and each part's turn is a Gaussian release at the paid noise multiplier. Other
    sampling is refused.

    Edge cases: a stream that begins anew, in a resumed run, is independent of all before. Where the
    clip norm changes, noise is taken back in proportion to it. `Release.noise_std` is that of the
    release by itself.

    Example:
        >>> import privada as pv, torch
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=8,
        ...     budget=pv.Budget(4.0, 1e-3), sampling=pv.participation.CyclicPoisson(4),
        ...     noise=pv.noise.Banded(4),
        ... ).fit()
        >>> trainer.epsilon() <= 4.0
        True

    Reference: Choquette-Choo et al. (2023), (Amplified) Banded Matrix Factorization,
    arXiv 2306.08153, Theorem 4; Kalinin and Lampert (2024), Banded Square Root Matrix
    Factorization, arXiv 2405.13763, for the coefficients.
    """

    bands: int
    momentum: float = 0.0
    steps: int | None = None

    def __post_init__(self) -> None:
        integer("bands", self.bands)
        if self.steps is not None:
            integer("steps", self.steps)
        momentum = real("momentum", self.momentum)
        if not 0 <= momentum < 1:
            raise ArgumentError(
                f"Expected momentum in [0, 1), got momentum={momentum:g}. Give that of the update "
                "rule, 0 if it has none."
            )

    @property
    def name(self) -> str:
        """What it is called in checkpoints."""
        given = "" if self.steps is None else f", steps={self.steps}"
        return f"banded({self.bands}, momentum={self.momentum:g}{given})"

    @cached_property
    def coefficients(self) -> NDArray[np.float64]:
        """The first column of C, of norm 1."""
        places = np.arange(1, self.bands)
        root = np.cumprod(np.concatenate([[1.0], (2 * places - 1) / (2 * places)]))
        found = np.convolve(root, root * self.momentum ** np.arange(self.bands))[: self.bands]
        if self.steps is not None and 1 < self.bands <= self.steps:
            found = _best(found, np.cumsum(self.momentum ** np.arange(self.steps)))
        return found / math.sqrt(float(found @ found))

    def event(self, sampler: _Sampler, noise_multiplier: float) -> DpEvent:
        """Return what the sampler says, if each unit's turns are at least `bands` steps apart.

        Raises:
            ArgumentError: they may be closer.
        """
        apart = getattr(sampler, "parts", 1)
        if apart < self.bands:
            raise ArgumentError(
                f"Expected sampling in which {self.bands} or more steps pass between two turns of "
                f"a record, for noise that is correlated over as many, got {sampler!r}. Use "
                f"sampling=pv.participation.CyclicPoisson({self.bands}), or "
                "noise=pv.noise.Independent()."
            )
        return sampler.event(noise_multiplier)

    def start(self, rng: RandomSource) -> "BandedNoise":
        """Return the noise of one run."""
        return BandedNoise(self, rng)

    def relative_stds(self, steps: int) -> NDArray[np.float64]:
        """Return the noise in the sum of the first t releases over that of one, for each t.

        With momentum, in what the rule has moved the parameters by after t steps, at a learning
        rate of 1.

        Example:
            >>> import privada as pv
            >>> pv.noise.Banded(1).relative_stds(4).round(2).tolist()
            [1.0, 1.41, 1.73, 2.0]
            >>> pv.noise.Banded(4).relative_stds(4).round(2).tolist()
            [1.22, 1.36, 1.44, 1.49]
        """
        weights = np.cumsum(self.momentum ** np.arange(steps))
        response = _divided(weights, self.coefficients)
        return np.sqrt(np.cumsum(response**2))


def _best(start: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients with the least mean square of the noise in weighted sums.

    With r the power series of `weights` over c, it is in proportion to |c|^2 sum_t (T - t) r_t^2;
    its derivative by c_k follows from that of r_t, which is -(r / c)_(t - k).
    """
    from scipy.optimize import minimize

    counts = np.arange(len(weights), 0, -1.0)
    start = start / math.sqrt(float(start @ start))

    def loss(others: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        c = np.concatenate([start[:1], others])
        with np.errstate(all="ignore"):
            response = _divided(weights, c)
            sensitive, weighted = _divided(response, c), counts * response
            total, square = float(weighted @ response), float(c @ c)
            slopes = [float(weighted[k:] @ sensitive[: len(weights) - k]) for k in range(1, len(c))]
        if not np.isfinite([total, *slopes]).all():  # noise that grows from step to step
            return _TOO_MUCH, np.zeros(len(others))
        return math.log(total) + math.log(square), (
            2 * c[1:] / square - 2 * np.array(slopes) / total
        )

    found = minimize(loss, start[1:], jac=True, method="L-BFGS-B")
    best = np.concatenate([start[:1], found.x])
    lasting = np.abs(np.roots(best[::-1])).min() > 1  # noise does not grow, however long a run is
    return best if lasting else start


def _divided(series: NDArray[np.float64], by: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quotient of two power series, as long as the first."""
    from scipy.signal import lfilter

    found: NDArray[np.float64] = lfilter([1.0], by, series)
    return found


class BandedNoise:
    """The banded noise of one run.

    Guarantee: that of `Banded`, for sums of which each unit is in one of `bands` in a row at most.
    What it keeps is never written: a copy and a pickle begin anew, and so does a forked child. To
    begin anew is always safe.

    Example:
        >>> import privada as pv
        >>> from privada.core.randomness import SecureSource
        >>> pv.noise.Banded(3).start(SecureSource()).secure
        True
    """

    def __init__(self, kind: Banded, rng: RandomSource) -> None:
        self.rng, self._kind = rng, kind
        self.restart()

    @property
    def secure(self) -> bool:
        """Whether the noise is unpredictable."""
        return self.rng.secure

    def describe(self) -> str:
        """Return the noise in words."""
        bands = self._kind.bands
        return f"{GaussianNoise(self.rng).describe()}; correlated over {bands} steps (banded)"

    def restart(self) -> None:
        """Forget all earlier noise."""
        self._process, self._made = os.getpid(), 0
        # the noise of the last releases, in units of what was paid for; rows are used in turn
        self._past: NDArray[np.float32] | None = None
        # what fresh noise counts for in the next releases, and the variance of one by itself
        self._response: list[float] = []
        self._variance = 0.0

    def independent(self) -> GaussianNoise:
        """Return noise for releases that are none of the steps'."""
        return GaussianNoise(self.rng)

    def __getstate__(self) -> dict[str, Any]:
        return {"_kind": self._kind, "rng": self.rng}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_kind"], state["rng"])  # type: ignore[misc]

    def release(self, clipped: ClippedSum, receipt: Receipt, batch_size: float) -> Release:
        """Return the clipped sum with correlated noise; the receipt is spent."""
        std = paid_std(clipped, receipt)
        size = clipped.value.numel()
        other = self._past is not None and self._past.shape[1] != size
        if other or os.getpid() != self._process:
            self.restart()
        receipt.spend()
        noise = torch.from_numpy(self._next(size) * np.float32(std))
        spacing = lattice_spacing(std / self._kind.coefficients[0])
        add_given_noise_(clipped.value, noise, spacing)
        return made_release(clipped, std * math.sqrt(self._variance), receipt, batch_size)

    def _next(self, size: int) -> NDArray[np.float32]:
        """Return the noise of the next release, in units of what was paid for."""
        first, *others = self._kind.coefficients / self._kind.coefficients[0]
        own = np.empty(size, np.float32)
        fresh = 1 / self._kind.coefficients[0]
        fill_normals_(torch.from_numpy(own), fresh * _ROUNDING, self.rng)
        if self._past is None:
            self._past = np.zeros((len(others), size), np.float32)
        newest = self._made % max(1, len(others))
        # those made before, the newest first
        order = [(newest - ago) % len(others) for ago in range(1, len(others) + 1)]
        weights = np.zeros(len(others), np.float32)
        weights[order] = others
        own -= weights @ self._past
        if others:
            self._past[newest] = own
        response = first * fresh if not self._made else 0.0
        response -= sum(c * r for c, r in zip(others, self._response, strict=False))
        self._response = [response, *self._response[: len(others) - 1]] if others else []
        self._variance = self._variance + response**2 if others else fresh**2
        self._made += 1
        return own
