"""DPAdam: Adam on private gradients."""

from dataclasses import dataclass
from typing import ClassVar

from privada.methods.method import Method, Parts
from privada.updates import LearningRate, adam, scheduled


@dataclass(frozen=True)
class DPAdam(Method):
    """Private Adam, with defaults that seldom need tuning.

    Both moments are of releases; see `privada.updates.adam`.

    Args:
        lr: the learning rate, a number or a function of the step.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        clip: the largest norm that one example's gradient may keep.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip`; the rest is
    post-processing.

    Example:
        >>> import privada as pv
        >>> pv.methods.DPAdam().describe()
        'dp-adam (clip=1.0, lr=0.001, beta1=0.9, beta2=0.999, eps=1e-08)'

    Reference: Mohapatra et al. (2022), The Role of Adaptive Optimizers for Honest Private
    Hyperparameter Selection, arXiv 2111.04906, DPAdam; Li et al. (2022), Private Adaptive
    Optimization, arXiv 2202.05963, Algorithm 2.
    """

    name: ClassVar[str] = "dp-adam"
    lr: LearningRate = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def parts(self, steps: int) -> Parts:
        """Return Adam on the releases, isotropic, with constant noise."""
        return Parts(rule=adam(self.beta1, self.beta2, self.eps), controller=scheduled(self.lr))
