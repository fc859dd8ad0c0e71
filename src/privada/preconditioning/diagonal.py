"""Diagonal scalings: one scale and one shift for each coordinate."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from privada.core.deprecation import renamed_argument
from privada.core.errors import ArgumentError
from privada.core.feature_maps import FeatureMap
from privada.core.tensors import Parameters
from privada.core.validation import flag, printable_text, shown
from privada.core.values import Release, State

Scales = Mapping[str, Tensor] | Tensor | float


class Ask(Protocol):
    """What a preconditioner asks before the first step; each is a release over all units."""

    def __call__(self, bound: float, noise_multiplier: float) -> Release:
        """Return a release of sum_i min(g_ij^2, bound)."""

    def features(self, noise_multiplier: float, accepts: Callable[[int], object]) -> Release:
        """Return a release of sum_i x_i^2 / |x_i^2|, and of how large rows are.

        `accepts` is called with the number of features before anything is charged, and may raise.
        """


@dataclass(frozen=True)
class FlatScaling:
    """A diagonal scaling as vectors over the parameters of one model.

    Args:
        scale: a vector of scales; None where all are 1.
        shift: a vector of shifts; None where all are 0.
        features: other features of a linear layer, in which its gradients are clipped; None for
            its own.

    Example:
        >>> import torch, privada as pv
        >>> from privada.core.tensors import Parameters
        >>> pv.preconditioning.diagonal(2.0).on(Parameters(torch.nn.Linear(1, 1))).scale
        tensor([2., 2.])
    """

    scale: Tensor | None
    shift: Tensor | None
    features: FeatureMap | None = None


class Preconditioner:
    """The scales in which gradients are clipped and noised, which may differ between releases.

    They come from public data or from releases; `source` says in words from which. `private` says
    whether that is true: a preconditioner computed from the private records themselves, for
    comparison, is not private, and neither is a model trained with it.

    A subclass returns its `DiagonalScaling` from `at`. What it keeps between releases is in a state
    of plain numbers and tensors, which checkpoints hold.

    Guarantee: adding or removing a record moves the whitened sum by at most the clip norm, for any
    preconditioner whose values come from public data or releases.

    Example:
        >>> import privada as pv
        >>> class Fading(pv.preconditioning.Preconditioner):
        ...     source = "a schedule that is known beforehand"
        ...     def init(self, parameters):
        ...         return {"turn": 0}
        ...     def at(self, state, parameters):
        ...         turn = state["turn"] + 1
        ...         return pv.preconditioning.diagonal(1 / turn), {"turn": turn}
        >>> Fading().private
        True

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Algorithm 1.
    """

    source: str = ""
    private: bool = True
    # whether it asks for products of the features of a linear model, in the place of squares of
    # gradients, with noise that is a part of the run's own: `preliminary` are factors of it then
    feature_products: bool = False

    def preliminary(self, parameters: Parameters) -> tuple[float, ...]:
        """Return the noise multipliers of the releases that `prepare` queries."""
        return ()

    def init(self, parameters: Parameters) -> State:
        """Return the first state."""
        return {}

    def prepare(self, state: State, parameters: Parameters, ask: Ask) -> State:
        """Return the state before the first step, from releases of second moments if need be."""
        return state

    def at(self, state: State, parameters: Parameters) -> tuple["DiagonalScaling", State]:
        """Return the scaling of the next release, and the next state."""
        raise TypeError(f"{type(self).__name__} does not implement at(state, parameters).")

    def seen(self, release: Release, state: State) -> State:
        """Return the state after a release."""
        return state

    def __repr__(self) -> str:
        return self.source


@dataclass(frozen=True, eq=False)
class DiagonalScaling(Preconditioner):
    """A diagonal preconditioner: gradients are clipped and noised as u = (g - shift) / scale.

    Args:
        scale: a number, a vector, or a map from parameter names to tensors; None for 1.
        shift: the same; None for 0.
        restores: whether a release is mapped back by v = scale * r / B + shift, or used as it is.
        source: where the values come from, in words that the statement repeats.
        step: what the length of steps in units of the noise is multiplied by.

    Guarantee: the whitened sum moves by at most the clip norm, whatever the scaling, as long as
    its values do not depend on the private data except through releases.

    Example:
        >>> import privada as pv
        >>> pv.preconditioning.DiagonalScaling(scale=2.0, source="a public corpus").restores
        False

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963.
    """

    scale: Scales | None = None
    shift: Scales | None = None
    restores: bool = False
    source: str = ""
    step: float = 1.0

    def init(self, parameters: Parameters) -> State:
        """Return no state; raise if the values do not fit the model."""
        self.on(parameters)
        return {}

    def at(self, state: State, parameters: Parameters) -> tuple["DiagonalScaling", State]:
        """Return itself: this scaling is the same for every release."""
        return self, state

    def on(self, parameters: Parameters) -> FlatScaling:
        """Return scale and shift as vectors over a model's parameters."""
        scale = None if self.scale is None else flat_values("scales", self.scale, parameters)
        if scale is not None and not bool((scale > 0).all()):
            raise ArgumentError(
                f"Expected every scale > 0, got a smallest scale of {float(scale.min()):g}. "
                "Add a small positive constant."
            )
        shift = None if self.shift is None else flat_values("shift", self.shift, parameters)
        return FlatScaling(scale, shift)

    def restore(self, release: Release, scaling: FlatScaling) -> Release:
        """Return the release, mapped back to the space of gradients if this scaling restores."""
        if self.step != 1.0:
            release = replace(release, step=self.step)
        return release.restored(scaling.scale, scaling.shift) if self.restores else release

    def precondition(self, public: Tensor, scaling: FlatScaling) -> Tensor:
        """Return a public gradient in the space that releases are used in.

        Where a release is not mapped back, the step is along gradients over the scale, and so it
        is for what is added to them.
        """
        return public if self.restores or scaling.scale is None else public / scaling.scale

    def __repr__(self) -> str:
        return self.source or "isotropic"


def check_values(name: str, values: Any) -> None:
    """Raise unless values can be laid out over a model: numbers, or a map to numbers."""
    for each in values.values() if isinstance(values, Mapping) else (values,):
        try:
            found = torch.as_tensor(each)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            found = torch.empty(0, dtype=torch.bool)
        if found.dtype == torch.bool or found.is_complex():
            raise ArgumentError(
                f"Expected {name} to be a number, a vector or a map from parameter names to "
                f"tensors, got {name}={shown(values)}."
            )


def flat_values(name: str, values: Scales, parameters: Parameters) -> Tensor:
    """Return values given in one of three ways as one vector over all parameters."""
    check_values(name, values)
    if isinstance(values, Mapping):
        flat = parameters.layout.join({k: torch.as_tensor(v) for k, v in values.items()})
    else:
        flat = torch.as_tensor(values)
        if flat.ndim > 1 or flat.numel() not in (1, parameters.size):
            raise ArgumentError(
                f"Expected {name} to be a number, a vector of {parameters.size} entries or a map "
                f"from parameter names to tensors, got a tensor of shape {tuple(flat.shape)}."
            )
        flat = flat.expand(parameters.size)
    flat = flat.detach().to(parameters.device, parameters.dtype)
    if not bool(torch.isfinite(flat).all()):
        raise ArgumentError(f"Expected finite {name}, got a NaN or an infinity among them.")
    return flat


def isotropic() -> DiagonalScaling:
    """Return no preconditioner: the scale of every coordinate is 1.

    Returns:
        The scaling.

    Guarantee: the sum moves by at most the clip norm when a record is added or removed.

    Example:
        >>> import privada as pv
        >>> pv.preconditioning.isotropic().scale is None
        True

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, arXiv 1607.00133,
    Algorithm 1.
    """
    return DiagonalScaling()


def diagonal(
    scales: Scales,
    *,
    shift: Scales | None = None,
    restore: bool = False,
    source: str = "scales given by the user and declared public",
) -> DiagonalScaling:
    """Return a preconditioner with a scale, and optionally a shift, for each coordinate.

    Each per-example gradient is whitened, u = (g - shift) / scale, then clipped and noised.

    Args:
        scales: a number, a vector over all trainable parameters, or a map from parameter names to
            tensors that broadcast to the parameters' shapes.
        shift: the same; none by default.
        restore: whether the release is mapped back, v = scale * r / B + shift.
        source: where the values come from, in words that the statement repeats.

    Returns:
        The diagonal scaling.

    Guarantee: the whitened sum moves by at most the clip norm, whatever the scales; provided that
    scales and shift do not depend on the private data except through releases. `source` states
    that assumption in the statement.

    Edge cases: scales must be finite and positive.

    Example:
        >>> import torch, privada as pv
        >>> model = torch.nn.Linear(3, 1)
        >>> scaling = pv.preconditioning.diagonal({"weight": torch.tensor([1.0, 2.0, 4.0]),
        ...                                        "bias": torch.tensor(1.0)})
        >>> scaling.restores
        False

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Algorithm 1; Asi et al. (2021), Private Adaptive Gradient Methods,
    arXiv 2106.13756, Algorithms 1 and 2.
    """
    check_values("scales", scales)
    if shift is not None:
        check_values("shift", shift)
    return DiagonalScaling(
        scales, shift, flag("restore", restore), printable_text("source", source)
    )


class FromState(Preconditioner):
    """A preconditioner whose scale and shift are in its state."""

    def __init__(self, restores: bool, source: str) -> None:
        self._restores, self.source = restores, source
        self._made: DiagonalScaling | None = None

    def scaling_of(self, state: State) -> DiagonalScaling:
        """Return the scaling of a state."""
        if self._made is None or self._made.scale is not state["scale"]:
            self._made = DiagonalScaling(
                state["scale"],
                state.get("shift"),
                self._restores,
                self.source,
                state.get("step", 1.0),
            )
        return self._made


@renamed_argument("shape", "inner")
class Restoring(Preconditioner):
    """Another preconditioner, with its scales and shifts undone after the release.

    Args:
        inner: the other preconditioner.

    Guarantee: that of the other preconditioner; undoing a scale is post-processing.

    Example:
        >>> import privada as pv
        >>> fixed = pv.preconditioning.diagonal(2.0, source="a constant")
        >>> pv.preconditioning.restoring(fixed)
        a constant

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Algorithms 1 and 2, line 6.
    """

    def __init__(self, inner: Preconditioner) -> None:
        if not isinstance(inner, Preconditioner):
            raise ArgumentError(
                f"Expected one of pv.preconditioning to restore, got {inner!r}. Give scales as "
                "pv.preconditioning.diagonal(scales)."
            )
        self._inner, self.source, self.private = inner, inner.source, inner.private
        self._made: tuple[DiagonalScaling, DiagonalScaling] | None = None

    def preliminary(self, parameters: Parameters) -> tuple[float, ...]:
        """Return what the other preconditioner does."""
        return self._inner.preliminary(parameters)

    def init(self, parameters: Parameters) -> State:
        """Return what the other preconditioner does."""
        return self._inner.init(parameters)

    def prepare(self, state: State, parameters: Parameters, ask: Ask) -> State:
        """Return what the other preconditioner does."""
        return self._inner.prepare(state, parameters, ask)

    def at(self, state: State, parameters: Parameters) -> tuple[DiagonalScaling, State]:
        """Return the scaling of the other preconditioner, to be restored."""
        preconditioner, state = self._inner.at(state, parameters)
        if self._made is None or self._made[0] is not preconditioner:
            self._made = preconditioner, replace(preconditioner, restores=True)
        return self._made[1], state

    def seen(self, release: Release, state: State) -> State:
        """Return what the other preconditioner does."""
        return self._inner.seen(release, state)

    def __repr__(self) -> str:
        return repr(self._inner)


restoring = Restoring
"""Constructor of `Restoring`, as methods and examples spell it."""
