"""Geometries from past releases: adaptivity without public data."""

from privada.core.tensors import Parameters
from privada.core.validation import flag, fraction, integer, positive
from privada.core.values import Release, State
from privada.preconditioning.diagonal import DiagonalScaling, FromState, isotropic


class PastReleases(FromState):
    """Whiten by the second moment of past releases, and restore afterwards.

    s <- decay s + (1 - decay) v^2 over releases v; the next gradients are clipped and noised in
    units of sqrt(s) + eps, and the release is mapped back.

    Args:
        decay: of the second moment.
        eps: added to its root. Coordinates of much smaller gradients get noise in proportion to
            it, so it wants to be of the order of the noise, not of rounding.
        corrected: whether the second moment is divided by 1 - decay^t.

    Guarantee: scales are post-processing of releases.

    Edge cases: the first gradients are whitened by eps alone, all coordinates alike.

    Example:
        >>> import privada as pv
        >>> pv.preconditioning.past_releases(decay=0.99, eps=1e-3).private
        True

    Reference: Ganesh, McMahan and Thakurta (2025), On Design Principles for Private Adaptive
    Optimizers, arXiv 2507.01129, scale-then-privatise.
    """

    def __init__(self, decay: float = 0.999, eps: float = 1e-8, corrected: bool = False) -> None:
        super().__init__(True, "second moments of this run's own earlier releases")
        self._decay, self._eps = fraction("decay", decay), positive("eps", eps)
        self._corrected = flag("corrected", corrected)

    def init(self, parameters: Parameters) -> State:
        """Return a second moment of zero."""
        zero = parameters.zeros()
        return {"seen": 0, "second": zero, "scale": zero + self._eps}

    def at(self, state: State, parameters: Parameters) -> tuple[DiagonalScaling, State]:
        """Return the geometry of the releases so far."""
        return self.scaling_of(state), state

    def seen(self, release: Release, state: State) -> State:
        """Return the state with one more release in it."""
        gradient, seen = release.private_gradient, state["seen"] + 1
        second = (self._decay * state["second"]).addcmul_(gradient, gradient, value=1 - self._decay)
        known = second / (1 - self._decay**seen) if self._corrected else second
        return {"seen": seen, "second": second, "scale": known.sqrt().add_(self._eps)}


past_releases = PastReleases
"""Constructor of `PastReleases`, as methods and examples spell it."""


class delayed(FromState):
    """By turns no scale, and the scale that the releases of the turn before give.

    For `plain` releases gradients are clipped as they are and the releases averaged; then, with
    s <- decay s + (1 - decay) (average)^2, for `adaptive` releases they are clipped and noised in
    units of sqrt(s) + eps, and used as they are.

    Args:
        plain, adaptive: how many releases each turn takes.
        decay, eps: of the second moment, and what is added to its root.

    Guarantee: scales are post-processing of releases.

    Example:
        >>> import privada as pv
        >>> pv.preconditioning.delayed(plain=10, adaptive=10).private
        True

    Reference: Li et al. (2023), Differentially Private Adaptive Optimization with Delayed
    Preconditioners, arXiv 2212.00309, Algorithm 1.
    """

    def __init__(self, plain: int, adaptive: int, decay: float = 0.9, eps: float = 1e-8) -> None:
        super().__init__(False, "averages of this run's own earlier releases")
        self._plain, self._adaptive = integer("plain", plain), integer("adaptive", adaptive)
        self._decay, self._eps = fraction("decay", decay), positive("eps", eps)
        self._isotropic = isotropic()

    def init(self, parameters: Parameters) -> State:
        """Return moments of zero."""
        zero = parameters.zeros()
        return {"seen": 0, "total": zero, "second": zero, "scale": zero + self._eps}

    def at(self, state: State, parameters: Parameters) -> tuple[DiagonalScaling, State]:
        """Return the geometry of the turn."""
        plain = state["seen"] % (self._plain + self._adaptive) < self._plain
        return self._isotropic if plain else self.scaling_of(state), state

    def seen(self, release: Release, state: State) -> State:
        """Return the state with one more release in it; at the end of a turn, with a new scale."""
        place = state["seen"] % (self._plain + self._adaptive)
        state = state | {"seen": state["seen"] + 1}
        if place >= self._plain:
            return state
        before = 0.0 if place == 0 else state["total"]
        state["total"] = release.private_gradient + before
        if place == self._plain - 1:
            mean = state["total"] / self._plain
            second = (self._decay * state["second"]).addcmul_(mean, mean, value=1 - self._decay)
            state |= {"second": second, "scale": second.sqrt().add_(self._eps)}
        return state
