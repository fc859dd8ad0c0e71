"""DP-RMSProp: RMSProp on private gradients."""

from dataclasses import dataclass
from typing import ClassVar

from privada.methods.method import Method, Parts
from privada.updates import LearningRate, rmsprop, scheduled


@dataclass(frozen=True)
class DPRMSProp(Method):
    """Private RMSProp: each coordinate's step is over the root of its mean squared release.

    Args:
        lr: the learning rate, a number or a function of the step.
        decay: decay of the second moment.
        eps: added to its root.
        clip: the largest norm that one example's gradient may keep.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip`; the rest is
    post-processing.

    Example:
        >>> import privada as pv
        >>> pv.methods.DPRMSProp(lr=0.01).describe()
        'dp-rmsprop (clip=1.0, lr=0.01, decay=0.99, eps=1e-08)'

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Section 6.
    """

    name: ClassVar[str] = "dp-rmsprop"
    lr: LearningRate
    decay: float = 0.99
    eps: float = 1e-8

    def parts(self, steps: int) -> Parts:
        """Return RMSProp on the releases, isotropic, with constant noise."""
        return Parts(rule=rmsprop(self.decay, self.eps), controller=scheduled(self.lr))
