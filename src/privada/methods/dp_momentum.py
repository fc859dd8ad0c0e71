"""DPMomentum: DP-SGD with heavy-ball momentum."""

from dataclasses import dataclass
from typing import ClassVar

from privada.methods.method import Method, Parts
from privada.updates import LearningRate, momentum, scheduled


@dataclass(frozen=True)
class DPMomentum(Method):
    """Private gradient descent with momentum.

    m <- decay m + v for the released gradient v; theta <- theta - lr m.

    Args:
        lr: the learning rate, a number or a function of the step.
        decay: how much of the last step is kept.
        clip: the largest norm that one example's gradient may keep.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip`; the rest is
    post-processing.

    Example:
        >>> import privada as pv
        >>> pv.methods.DPMomentum(lr=0.1).describe()
        'dp-momentum (clip=1.0, lr=0.1, decay=0.9)'

    Reference: Mohapatra et al. (2022), The Role of Adaptive Optimizers for Honest Private
    Hyperparameter Selection, arXiv 2111.04906, DPMomentum; Qian (1999).
    """

    name: ClassVar[str] = "dp-momentum"
    lr: LearningRate
    decay: float = 0.9

    def parts(self, steps: int) -> Parts:
        """Return momentum on the releases, isotropic, with constant noise."""
        return Parts(rule=momentum(self.decay), controller=scheduled(self.lr))
