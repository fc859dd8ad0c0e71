"""Scales of the features that a charged look at them finds, and how long steps are to be."""

import math

import torch
from torch import Tensor

from privada.core.tensors import Parameters
from privada.core.validation import positive, printable_text
from privada.core.values import Release, State
from privada.preconditioning.diagonal import Ask, DiagonalScaling, FromState

# The sizes of rows that are told apart: the norm of their squares, to a power of two.
LEAST_POWER, GREATEST_POWER = -40, 40
# What a row counts among the sizes, beside a norm of one for its squares.
SIZE_WEIGHT = 0.25


class PrivateFeatureMoments(FromState):
    """Scales E[x_j^2]^power of the features, from one charged release; `private_feature_moments`.

    Example:
        >>> import privada as pv
        >>> pv.preconditioning.private_feature_moments(50.0).preliminary(None)
        (50.0,)
    """

    def __init__(
        self, noise_multiplier: float, power: float = 0.25, layer: str | None = None
    ) -> None:
        super().__init__(False, "second moments of the features, from a release that was charged")
        self._noise = positive("noise_multiplier", noise_multiplier)
        self._power = positive("power", power)
        self._layer = None if layer is None else printable_text("layer", layer)

    def preliminary(self, parameters: Parameters) -> tuple[float, ...]:
        """Return the noise multiplier of the one release."""
        return (self._noise,)

    def prepare(self, state: State, parameters: Parameters, ask: Ask) -> State:
        """Return the state with the scales and the length of steps."""

        def accepts(width: int) -> object:
            return parameters.inputs_of(width, self._layer)

        moments, norm = features_of(ask.features(self._noise, accepts))
        weight, axis = parameters.inputs_of(len(moments) - 1, self._layer)
        scales = moments**self._power
        # features of typical size have a norm of one in these scales, as the clip norm is meant
        scales = (scales * float((moments / scales.square()).sum().sqrt())).float()
        parts: dict[str, Tensor] = dict.fromkeys(parameters.layout.names, scales[-1])
        parts[weight] = scales[:-1] if axis else scales[:-1, None]
        flat = parameters.layout.join(parts).to(parameters.device, parameters.dtype)
        return {"scale": flat, "step": 1 / math.sqrt(norm)}

    def at(self, state: State, parameters: Parameters) -> tuple[DiagonalScaling, State]:
        """Return the same scaling for every release."""
        return self.scaling_of(state), state


def features_of(release: Release) -> tuple[Tensor, float]:
    """Return the mean square of each feature, and 1 for a constant one; and the norm of a row.

    Rows count alike: the squares of each are divided by their norm, and multiplied by that of most
    rows, to a power of two.
    A mean that the noise hides is raised to the noise's standard deviation. Where the noise hides
    how large rows are as well, their features are taken to have a norm of one.
    """
    assert release.statistics is not None
    shares, sizes = release.value.double(), release.statistics.double()
    place, std = int(sizes.argmax()), release.noise_std
    seen = float(sizes[place]) > 4 * std
    largest = 2.0 ** (place + LEAST_POWER) / release.batch_size
    size = largest if seen else 1 / float(shares.clamp(min=std).sum())
    square = max(0.0, float(shares.sum()) * size) if seen else 1.0
    moments = torch.cat([shares.clamp(min=std) * size, shares.new_ones(1)])
    return moments, math.sqrt(square + 1)


def private_feature_moments(
    noise_multiplier: float, *, power: float = 0.25, layer: str | None = None
) -> PrivateFeatureMoments:
    """Return the preconditioner of the features' second moments, from a charged look at them.

    Before the first step, one Gaussian release over all units asks how large the squares of the
    features are, each row's divided by their norm, and how large rows are, to a power of two.
    Gradients are then clipped and noised in scales s_j = E[x_j^2]^power, so that features that are
    rare or small have less noise, and the typical row has a norm of one. With a power of 1/4 the
    noise has the least sum of squares that a clip norm in this ellipsoid allows. Steps in units of
    the noise, those of `DPAdamWOSM`, are divided by the root of the typical norm of rows: noise
    moves a model's outputs by that norm, and large rows need no long steps.

    Args:
        noise_multiplier: of the release. It is part of the run's budget: the noise of the steps is
            calibrated so that both fit. For 3% of a budget, `privada.defaults.look` computes it.
        power: of the mean squares.
        layer: the name of the layer that reads the features; by default the first linear one with
            as many inputs, or the first embedding with as many rows. Other parameters have the
            scale of a feature that is always 1.

    Returns:
        The preconditioner.

    Guarantee: the look is charged before a record is read. Whatever its features are, a unit moves
    the released sum by at most sqrt(1 + 1/16), which the noise is a multiple of. The scales are
    post-processing.

    Edge cases: each record's inputs are one row of numbers; others, and models without such a
    layer, are refused before anything is charged. What the noise hides counts as large as the
    noise. Federated training, where clients send updates, does not have it.

    Example:
        >>> import torch, privada as pv
        >>> method = pv.methods.DPAdamWOSM(
        ...     lr=0.1, clip=0.12,
        ...     preconditioner=pv.preconditioning.private_feature_moments(noise_multiplier=20.0),
        ... )
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(5, 2), torch.nn.CrossEntropyLoss(),
        ...     (torch.randn(500, 5), torch.randint(2, (500,))), method=method, batch_size=50,
        ...     steps=10, budget=pv.Budget(1.0, 1e-4),
        ... ).fit()

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Algorithm 1, for the scales; Asi et al. (2021), Private Adaptive Gradient
    Methods, arXiv 2106.13756, Section 4, for the power.
    """
    return PrivateFeatureMoments(noise_multiplier, power, layer)
