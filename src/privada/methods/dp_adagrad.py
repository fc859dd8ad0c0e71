"""DP-AdaGrad: AdaGrad on private gradients."""

from dataclasses import dataclass
from typing import ClassVar

from privada.methods.method import Method, Parts
from privada.updates import LearningRate, adagrad, scheduled


@dataclass(frozen=True)
class DPAdaGrad(Method):
    """Private AdaGrad: each coordinate's step is over the root of its summed squared releases.

    Args:
        lr: the learning rate, a number or a function of the step.
        eps: added to that root.
        clip: the largest norm that one example's gradient may keep.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip`; the rest is
    post-processing.

    Example:
        >>> import privada as pv
        >>> pv.methods.DPAdaGrad(lr=0.1).describe()
        'dp-adagrad (clip=1.0, lr=0.1, eps=1e-10)'

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Appendix C; Asi et al. (2021), Private Adaptive Gradient Methods,
    arXiv 2106.13756, Section 6.
    """

    name: ClassVar[str] = "dp-adagrad"
    lr: LearningRate
    eps: float = 1e-10

    def parts(self, steps: int) -> Parts:
        """Return AdaGrad on the releases, isotropic, with constant noise."""
        return Parts(rule=adagrad(self.eps), controller=scheduled(self.lr))
