"""DP-SGD: clip each example's gradient, add noise, descend."""

from dataclasses import dataclass
from typing import ClassVar

from privada.methods.method import Method, Parts
from privada.updates import LearningRate, scheduled, sgd


@dataclass(frozen=True)
class DPSGD(Method):
    """Private stochastic gradient descent.

    theta <- theta - lr (1/B) (sum_i g_i min(1, clip / |g_i|) + sigma clip N(0, I)).

    Args:
        lr: the learning rate, a number or a function of the step.
        clip: the largest norm that one example's gradient may keep.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip`.

    Example:
        >>> import privada as pv
        >>> pv.methods.DPSGD(lr=0.5, clip=1.0).describe()
        'dp-sgd (clip=1.0, lr=0.5)'

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, arXiv 1607.00133,
    Algorithm 1.
    """

    name: ClassVar[str] = "dp-sgd"
    lr: LearningRate

    def parts(self, steps: int) -> Parts:
        """Return gradient descent on the releases, isotropic, with constant noise."""
        return Parts(rule=sgd(), controller=scheduled(self.lr))
