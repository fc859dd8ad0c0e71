"""PAGAN: private AdaGrad in an ellipsoid."""

from dataclasses import dataclass, field
from typing import ClassVar

from privada.core.deprecation import renamed_argument
from privada.core.validation import flag, positive
from privada.methods.method import Method, Parts
from privada.methods.pasan import ellipsoid_of
from privada.preconditioning import Moments, Preconditioner, isotropic
from privada.updates import Projection, adagrad, averaged, scheduled


@renamed_argument("geometry", "preconditioner")
@dataclass(frozen=True)
class PAGAN(Method):
    """Private AdaGrad with noise that is adapted to the gradients.

    Gradients are clipped and noised in an ellipsoid with half axes clip sigma_j^exponent and
    mapped back; theta_j <- theta_j - lr v_j / sqrt(sum of v_j^2 so far), projected in the norm
    that belongs to these step sizes. The run ends with the mean of all iterates.

    Args:
        lr: alpha, of the order of the diameter of the feasible set in a coordinate.
        preconditioner: the moments sigma_j: `pv.preconditioning.known_moments`, `public_moments` or
            `private_second_moments`, which is charged; or any preconditioner, whose scales are
            the half axes and are undone after the release.
        exponent: of the moments; 2/3 is best for sub-Gaussian coordinates.
        onto: the feasible set: `pv.updates.box`, `ball` or `simplex`; none by default.
        averaging: whether the run ends with the mean of all iterates, or with the last.
        eps: added to the root of the sum of squares.
        clip: the threshold B_0: the radius of the ellipsoid in the space of sigma^exponent.
        clipping: `pv.clipping.ellipsoid()` projects on the ellipsoid in the Euclidean norm, as
            printed; by default gradients are scaled down.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip` in the whitened
    space; the rest is post-processing.

    Edge cases: without a preconditioner it is DP-AdaGrad with averaging.

    Example:
        >>> import torch, privada as pv
        >>> moments = pv.preconditioning.known_moments(torch.arange(1.0, 5.0) ** -1.5)
        >>> method = pv.methods.PAGAN(lr=0.1, preconditioner=moments, onto=pv.updates.box(-1, 1))

    Reference: Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization,
    arXiv 2106.13756, Algorithm 2.
    """

    name: ClassVar[str] = "pagan"
    lr: float
    preconditioner: Preconditioner | Moments = field(default_factory=isotropic)
    exponent: float = 2 / 3
    onto: Projection | None = None
    averaging: bool = True
    eps: float = 1e-10

    def parts(self, steps: int) -> Parts:
        """Return AdaGrad in the ellipsoid, averaged."""
        rule = adagrad(self.eps, onto=self.onto)
        return Parts(
            rule=averaged(rule) if flag("averaging", self.averaging) else rule,
            controller=scheduled(self.lr),
            preconditioner=ellipsoid_of(self.preconditioner, positive("exponent", self.exponent)),
        )
