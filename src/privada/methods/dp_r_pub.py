"""DP-R-Pub: RMSProp with public second moments, after the release."""

from dataclasses import dataclass
from typing import Any, ClassVar

from privada.methods.method import Method, Parts
from privada.updates import LearningRate, public_rmsprop, scheduled


@dataclass(frozen=True)
class DPRPub(Method):
    """Private RMSProp whose second moment is that of public gradients.

    The release is divided by the root of a running average of squared public gradients.

    Args:
        lr: the learning rate, a number or a function of the step.
        public: a `pv.Public`, or data that are used in full in every step.
        decay: of the second moment.
        eps: added to its root.
        clip: the largest norm that one example's gradient may keep.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip`; the rest is
    post-processing. That the examples are public is declared.

    Example:
        >>> import numpy as np, privada as pv
        >>> public = pv.Public((np.zeros((40, 3)), np.zeros(40, dtype=int)), batch_size=8)
        >>> pv.methods.DPRPub(lr=0.1, public=public).describe()
        'dp-r-pub (clip=1.0, lr=0.1, public=Public(batch_size=8), decay=0.9, eps=1e-08)'

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Section 6.1.1.
    """

    name: ClassVar[str] = "dp-r-pub"
    lr: LearningRate
    public: Any
    decay: float = 0.9
    eps: float = 1e-8

    def parts(self, steps: int) -> Parts:
        """Return the rule on the releases, isotropic, with constant noise."""
        rule = public_rmsprop(self.public, self.decay, self.eps)
        return Parts(rule=rule, controller=scheduled(self.lr))
