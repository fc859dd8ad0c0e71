"""DPAdamWOSM: Adam whose second moment is that of the noise."""

from dataclasses import dataclass
from typing import ClassVar

from privada.methods.method import Method, Parts
from privada.preconditioning import Preconditioner, isotropic
from privada.updates import LearningRate, adam_without_second_moment, scheduled


@dataclass(frozen=True)
class DPAdamWOSM(Method):
    """Private Adam without second moment.

    theta <- theta - lr (m / (1 - beta1^t)) / (sigma C / B + eps). Where noise outweighs gradients,
    Adam's second moment converges to (sigma C / B)^2; this starts from there, and so sets its own
    step size.

    Args:
        lr: the learning rate, a number or a function of the step.
        beta1: decay of the first moment.
        eps: added to the standard deviation of the noise.
        preconditioner: the scales in which gradients are clipped and noised; none by default.
            `pv.preconditioning.private_feature_moments` finds them by a charged look.
        clip: the largest norm that one example's gradient may keep.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip`; the rest is
    post-processing.

    Example:
        >>> import privada as pv
        >>> pv.methods.DPAdamWOSM().describe()
        'dp-adam-wosm (clip=1.0, lr=0.001, beta1=0.9, eps=1e-08)'

    Reference: Mohapatra et al. (2022), The Role of Adaptive Optimizers for Honest Private
    Hyperparameter Selection, arXiv 2111.04906, Theorem 3 and Section 6.
    """

    name: ClassVar[str] = "dp-adam-wosm"
    lr: LearningRate = 0.001
    beta1: float = 0.9
    eps: float = 1e-8
    preconditioner: Preconditioner | None = None

    def parts(self, steps: int) -> Parts:
        """Return the rule on the releases, in the scales, with constant noise."""
        return Parts(
            rule=adam_without_second_moment(self.beta1, self.eps),
            controller=scheduled(self.lr),
            preconditioner=isotropic() if self.preconditioner is None else self.preconditioner,
        )
