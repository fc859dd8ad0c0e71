"""Ellipsoids from the second moments of gradients: known, from public examples, or private."""

import math
from typing import Any

import torch
from torch import Tensor

from privada.core.errors import ArgumentError
from privada.core.public_examples import as_public
from privada.core.tensors import Parameters
from privada.core.validation import integer, positive, printable_text
from privada.core.values import State
from privada.preconditioning.diagonal import (
    Ask,
    DiagonalScaling,
    FromState,
    Scales,
    check_values,
    flat_values,
)


class Moments:
    """Where the root mean squares sigma_j of per-example gradients come from.

    `ellipsoid` returns the preconditioner with scales sigma_j^exponent. There are three kinds:
    `known_moments`, `public_moments` and `private_second_moments`.

    Guarantee: moments come from public data, or from releases that are charged.

    Example:
        >>> import privada as pv
        >>> pv.preconditioning.known_moments(1.0).ellipsoid(exponent=0.5)
        second moments given by the user and declared public

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Section 3.
    """

    source: str = ""

    def preliminary(self, parameters: Parameters) -> tuple[float, ...]:
        """Return the noise multipliers of the releases that `find` queries."""
        return ()

    def check(self, parameters: Parameters) -> None:
        """Raise if the moments do not fit the model."""

    def find(self, parameters: Parameters, ask: Ask) -> Tensor:
        """Return the moments as one vector."""
        raise TypeError(f"{type(self).__name__} does not implement find(parameters, ask).")

    def ellipsoid(self, exponent: float, floor: float = 1e-3, restores: bool = True) -> "Ellipsoid":
        """Return the preconditioner with scales sigma_j^exponent, restored or not."""
        return Ellipsoid(self, exponent, floor, restores)

    def __repr__(self) -> str:
        return self.source


class Ellipsoid(FromState):
    """Scales sigma_j^exponent; the clip norm is the radius B_0.

    Edge cases: moments below `floor` times the largest count as that.
    """

    def __init__(self, moments: Moments, exponent: float, floor: float, restores: bool) -> None:
        super().__init__(restores, moments.source)
        self._moments, self._exponent = moments, positive("exponent", exponent)
        self._floor = positive("floor", floor)

    def preliminary(self, parameters: Parameters) -> tuple[float, ...]:
        """Return the noise multipliers of the releases that the moments take."""
        return self._moments.preliminary(parameters)

    def init(self, parameters: Parameters) -> State:
        """Return no state; raise if the moments do not fit the model."""
        self._moments.check(parameters)
        return {}

    def prepare(self, state: State, parameters: Parameters, ask: Ask) -> State:
        """Return the state with the scales."""
        found = self._moments.find(parameters, ask)
        least = self._floor * float(found.max())
        if not least > 0:
            raise ArgumentError(
                f"Expected second moments of which one is positive, got a largest of "
                f"{float(found.max())}. Estimate them where gradients do not vanish."
            )
        return {"scale": found.clamp(min=least).pow_(self._exponent)}

    def at(self, state: State, parameters: Parameters) -> tuple[DiagonalScaling, State]:
        """Return the same scaling for every release."""
        return self.scaling_of(state), state


class KnownMoments(Moments):
    """Root mean squares of gradients that are known, or declared, without the private data.

    Args:
        sigma: a number, a vector over all trainable parameters, or a map from parameter names to
            tensors.
        source: where they come from, in words that the statement repeats.

    Guarantee: that of the preconditioner, provided that they do not depend on the private data.

    Example:
        >>> import torch, privada as pv
        >>> moments = pv.preconditioning.known_moments(torch.tensor([1.0, 0.25]))

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Section 3.
    """

    def __init__(
        self,
        sigma: Scales,
        source: str = "second moments given by the user and declared public",
    ) -> None:
        check_values("sigma", sigma)
        self._sigma, self.source = sigma, printable_text("source", source)

    def check(self, parameters: Parameters) -> None:
        """Raise if there are not as many moments as parameters."""
        flat_values("sigma", self._sigma, parameters)

    def find(self, parameters: Parameters, ask: Ask) -> Tensor:
        """Return the moments as they were given."""
        return flat_values("sigma", self._sigma, parameters).clone()


known_moments = KnownMoments
"""Constructor of `KnownMoments`, as methods and examples spell it."""


class PublicMoments(Moments):
    """Root mean squares of the gradients of public examples, where training starts.

    Args:
        public: a `pv.Public`, or data.
        source: where they come from, in words that the statement repeats.

    Guarantee: no private record is read; that the examples are public is declared.

    Example:
        >>> import numpy as np, privada as pv
        >>> moments = pv.preconditioning.public_moments((np.zeros((40, 3)), np.zeros(40)))

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Section 6.2.
    """

    def __init__(
        self, public: Any, source: str = "second moments of gradients of examples declared public"
    ) -> None:
        self._public, self.source = as_public(public), source

    def check(self, parameters: Parameters) -> None:
        """Raise if the model does not accept the examples."""
        parameters.try_public(self._public)

    def find(self, parameters: Parameters, ask: Ask) -> Tensor:
        """Return the moments at the parameters as they are."""
        return parameters.public_squares(self._public, 0).sqrt_()


public_moments = PublicMoments
"""Constructor of `PublicMoments`, as methods and examples spell it."""


class PrivateSecondMoments(Moments):
    """Root mean squares of the private gradients where training starts, by charged releases.

    Round t = 1, 2, ... releases the averages of squared coordinates, cut at (4 r D log r)^2 with
    D = largest / 2^(t-1); coordinates whose average reaches (largest / 2^(t+1))^2 are settled at
    largest / 2^t, and those left at the end at largest / 2^rounds.

    Args:
        noise_multiplier: of each round. The paper's is T sqrt(log(T / delta)) / epsilon.
        rounds: T; None for (3/2) log2 of the number of parameters.
        ratio: r, the ratio of the moments of higher order to the second.
        largest: a bound on the largest moment that is known without the data.

    Guarantee: each round is a Gaussian release over all records, of sensitivity
    (4 r D log r)^2 sqrt(d), charged before it is made; with enough records every moment is found
    to a factor of two with high probability.

    Edge cases: the rounds are part of the run's budget: the noise of the steps is calibrated so
    that all of it fits. A ratio of 1 would cut everything to zero and is refused.

    Example:
        >>> import privada as pv
        >>> moments = pv.preconditioning.private_second_moments(noise_multiplier=50.0)

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Algorithm 3 and Theorem 3.
    """

    def __init__(
        self,
        noise_multiplier: float,
        *,
        rounds: int | None = None,
        ratio: float = math.e,
        largest: float = 1.0,
    ) -> None:
        self._noise = positive("noise_multiplier", noise_multiplier)
        self._rounds = None if rounds is None else integer("rounds", rounds)
        self._ratio, self._largest = positive("ratio", ratio), positive("largest", largest)
        if self._ratio <= 1:
            raise ArgumentError(
                f"Expected ratio > 1, got ratio={ratio}. It bounds how heavy the tails are; e is a "
                "common choice."
            )
        self.source = "second moments of the private gradients, from releases that were charged"

    def _count(self, parameters: Parameters) -> int:
        return self._rounds or max(1, math.ceil(1.5 * math.log2(parameters.size)))

    def preliminary(self, parameters: Parameters) -> tuple[float, ...]:
        """Return one noise multiplier for each round."""
        return (self._noise,) * self._count(parameters)

    def find(self, parameters: Parameters, ask: Ask) -> Tensor:
        """Return the moments, to a power of two."""
        rounds = self._count(parameters)
        found = parameters.zeros() + self._largest * 2.0**-rounds
        left = torch.ones_like(found, dtype=torch.bool)
        for number in range(1, rounds + 1):
            guess = self._largest * 2.0 ** (1 - number)
            bound = (4 * self._ratio * guess * math.log(self._ratio)) ** 2
            average = ask(bound, self._noise).gradient
            reached = left & (average >= (self._largest * 2.0 ** (-number - 1)) ** 2)
            found[reached] = self._largest * 2.0**-number
            left &= ~reached
        return found


private_second_moments = PrivateSecondMoments
"""Constructor of `PrivateSecondMoments`, as methods and examples spell it."""
