"""A preconditioner for linear models from the second moments of their features."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from privada.core.feature_maps import FeatureMap
from privada.core.symmetric import unfolded
from privada.core.tensors import Parameters
from privada.core.validation import positive
from privada.core.values import Release, State
from privada.preconditioning.diagonal import Ask, DiagonalScaling, FlatScaling, Preconditioner

# How much the coordinate counts that tells how long rows are; it adds 4.4% to the noise.
SIZE_WEIGHT = 0.3


@dataclass(frozen=True, eq=False)
class MappedFeatures(DiagonalScaling):
    """Gradients of a linear layer, clipped and noised in other features, and mapped back.

    Example: see `FeatureMatrix`.
    """

    features: FeatureMap | None = None

    def on(self, parameters: Parameters) -> FlatScaling:
        """Return the map of the features."""
        return FlatScaling(None, None, self.features)

    def restore(self, release: Release, scaling: FlatScaling) -> Release:
        """Return the release, with the map that takes it back to the parameters."""
        assert self.features is not None
        return release.restored_by(self.features)

    def precondition(self, public: Tensor, scaling: FlatScaling) -> Tensor:
        """Return a public gradient in the space that releases are used in."""
        assert self.features is not None
        return self.features.restored(self.features.mapped(public[None])[0])


class FeatureMatrix(Preconditioner):
    """The inverse root of the second moments of a linear model's features, from one release.

    With A the average of x x^T over the records, with noise, and L the largest curvature of the
    loss in the outputs, gradients are clipped and noised in features x S and mapped back by S^T,
    where S S^T = (L (A_+ + ridge I))^-1, and A_+ is A without its negative eigenvalues. L A is an
    upper bound on the Hessian of the average loss at any point, so that a step of length 1 is one
    of Newton's method with a bound in the place of the Hessian. The ridge is `floor` times the
    largest eigenvalue that the noise has.

    Args:
        noise: the noise multiplier of the release over that of a step.
        floor: the ridge, in units of the largest eigenvalue of the noise.

    Guarantee: one Gaussian release over all records, of sensitivity sqrt(1 + 0.3^2), charged before
    it is made. What is made of it is post-processing; in the mapped features each gradient is
    clipped as anywhere else.

    Edge cases: rows count by their direction; the average of their squared norms, cut at their
    number, says how long they are. It is for a single linear layer.

    Example:
        >>> import privada as pv
        >>> from privada.preconditioning.feature_matrix import FeatureMatrix
        >>> FeatureMatrix(noise=0.5)
        second moments of the features, from a release that was charged

    Reference: Ganesh, Haghifam, Steinke and Thakurta (2023), Faster Differentially Private Convex
    Optimization via Second-Order Methods, arXiv 2305.13209, Section 4, for the quadratic upper
    bound; Dwork, Talwar, Thakurta and Zhang (2014), Analyze Gauss, for the release.
    """

    source = "second moments of the features, from a release that was charged"
    feature_products = True

    def __init__(self, noise: float, floor: float = 0.1) -> None:
        self._noise, self._floor = positive("noise", noise), positive("floor", floor)
        self._made: tuple[Tensor, MappedFeatures] | None = None

    def preliminary(self, parameters: Parameters) -> tuple[float, ...]:
        """Return the noise multiplier of the release, over that of a step."""
        return (self._noise,)

    def init(self, parameters: Parameters) -> State:
        """Return no state; the run has checked that the model is linear."""
        return {}

    def prepare(self, state: State, parameters: Parameters, ask: Ask) -> State:
        """Return the state with the map of the features."""
        shapes = parameters.layout.shapes
        features = int(shapes[0][1]) + (len(shapes) > 1)
        release = ask(SIZE_WEIGHT, self._noise)
        found, std = release.gradient.double().cpu(), release.noise_std / release.batch_size
        size = float(found[-1]) / SIZE_WEIGHT * features
        # a size below its own noise says nothing; with a constant feature it is at least 1
        size = min(max(size, std / SIZE_WEIGHT * features, 1e-6), float(features))
        values, vectors = torch.linalg.eigh(unfolded(found[:-1], features))
        # a symmetric matrix of noise with this spread has eigenvalues up to sqrt(2 m) std
        ridge = self._floor * math.sqrt(2 * features) * std
        moments = size * (values.clamp(min=0.0) + ridge)
        assert parameters.curvature is not None
        matrix = vectors / (parameters.curvature * moments).sqrt()
        return {"map": matrix.to(parameters.device)}

    def at(self, state: State, parameters: Parameters) -> tuple[DiagonalScaling, State]:
        """Return the same map for every release."""
        if self._made is None or self._made[0] is not state["map"]:
            features = FeatureMap(state["map"], bias=len(parameters.layout.shapes) > 1)
            made = MappedFeatures(restores=True, source=self.source, features=features)
            self._made = state["map"], made
        return self._made[1], state
