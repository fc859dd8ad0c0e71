"""DP-Adam-Pub: Adam with public moments, after the release."""

from dataclasses import dataclass
from typing import Any, ClassVar

from privada.methods.method import Method, Parts
from privada.updates import LearningRate, public_adam, scheduled


@dataclass(frozen=True)
class DPAdamPub(Method):
    """Private Adam on a mixture of the release and a public gradient, scaled by public ones.

    Args:
        lr: the learning rate, a number or a function of the step.
        public: a `pv.Public`, or data that are used in full in every step.
        mix: the weight of the release in the mixture.
        beta1, beta2: decays of the first and the second moment.
        eps: added to the root of the second moment.
        clip: the largest norm that one example's gradient may keep.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip`; the rest is
    post-processing. That the examples are public is declared.

    Example:
        >>> import numpy as np, privada as pv
        >>> public = pv.Public((np.zeros((40, 3)), np.zeros(40, dtype=int)), batch_size=8)
        >>> method = pv.methods.DPAdamPub(lr=0.1, public=public, mix=0.8)

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Appendix C, whose beta1, beta2 and beta3 are mix, beta1 and beta2 here.
    """

    name: ClassVar[str] = "dp-adam-pub"
    lr: LearningRate
    public: Any
    mix: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def parts(self, steps: int) -> Parts:
        """Return the rule on the releases, isotropic, with constant noise."""
        rule = public_adam(self.public, self.mix, self.beta1, self.beta2, self.eps)
        return Parts(rule=rule, controller=scheduled(self.lr))
