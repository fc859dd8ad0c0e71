"""PASAN: private SGD with one adaptive step size, in an ellipsoid."""

from dataclasses import dataclass, field
from typing import ClassVar

from privada.core.deprecation import renamed_argument
from privada.core.validation import flag, instance, positive
from privada.methods.method import Method, Parts
from privada.preconditioning import DiagonalScaling, Moments, Preconditioner, isotropic, restoring
from privada.updates import Projection, UpdateRule, adagrad_norm, averaged, scheduled


def ellipsoid_of(preconditioner: Preconditioner | Moments, exponent: float) -> Preconditioner:
    """Return the ellipsoid of moments, or another preconditioner with its scales as half axes."""
    if isinstance(preconditioner, Moments):
        return preconditioner.ellipsoid(exponent)
    instance(
        "preconditioner",
        preconditioner,
        Preconditioner,
        "to be a preconditioner or moments of pv.preconditioning",
        "Give moments as pv.preconditioning.known_moments(sigma).",
    )
    return (
        preconditioner
        if isinstance(preconditioner, DiagonalScaling) and preconditioner.scale is None
        else restoring(preconditioner)
    )


@renamed_argument("geometry", "preconditioner")
@dataclass(frozen=True)
class PASAN(Method):
    """Private adaptive SGD with noise that is adapted to the gradients.

    Gradients are clipped and noised in an ellipsoid with half axes clip sigma_j^exponent and
    mapped back; theta <- projection of theta - lr v / sqrt(sum of |v|^2 so far). The run ends
    with the mean of all iterates.

    Args:
        lr: alpha, of the order of the diameter of the feasible set.
        preconditioner: the moments sigma_j: `pv.preconditioning.known_moments`, `public_moments` or
            `private_second_moments`, which is charged; or any preconditioner, whose scales are
            the half axes and are undone after the release.
        exponent: of the moments; 1/2 is best for sub-Gaussian coordinates.
        onto: the feasible set: `pv.updates.box`, `ball` or `simplex`; none by default.
        averaging: whether the run ends with the mean of all iterates, or with the last.
        clip: the threshold B_0: the radius of the ellipsoid in the space of sigma^exponent.
        clipping: `pv.clipping.ellipsoid()` projects on the ellipsoid in the Euclidean norm, as
            printed; by default gradients are scaled down.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip` in the whitened
    space; the rest is post-processing.

    Example:
        >>> import torch, privada as pv
        >>> moments = pv.preconditioning.known_moments(torch.arange(1.0, 5.0) ** -1.5)
        >>> method = pv.methods.PASAN(lr=0.1, preconditioner=moments, onto=pv.updates.box(-1, 1))

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Algorithm 1.
    """

    name: ClassVar[str] = "pasan"
    lr: float
    preconditioner: Preconditioner | Moments = field(default_factory=isotropic)
    exponent: float = 1 / 2
    onto: Projection | None = None
    averaging: bool = True

    def parts(self, steps: int) -> Parts:
        """Return AdaGrad with one step size, in the ellipsoid, averaged."""
        rule: UpdateRule = adagrad_norm(onto=self.onto)
        return Parts(
            rule=averaged(rule) if flag("averaging", self.averaging) else rule,
            controller=scheduled(self.lr),
            preconditioner=ellipsoid_of(self.preconditioner, positive("exponent", self.exponent)),
        )
