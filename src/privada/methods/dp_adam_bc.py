"""DP-AdamBC: Adam with the noise variance subtracted from its second moment."""

from dataclasses import dataclass
from typing import ClassVar

from privada.methods.method import Method, Parts
from privada.updates import LearningRate, adam_bias_corrected, scheduled


@dataclass(frozen=True)
class DPAdamBC(Method):
    """Private Adam whose second moment is that of the gradients, without the noise.

    The variance (sigma C / B)^2 of the noise, which is known exactly, is subtracted from the second
    moment, down to `floor`.

    Args:
        lr: the learning rate, a number or a function of the step.
        beta1, beta2: decays of the moments.
        floor: the least second moment.
        clip: the largest norm that one example's gradient may keep.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip`; the rest is
    post-processing.

    Example:
        >>> import privada as pv
        >>> pv.methods.DPAdamBC().describe()
        'dp-adam-bc (clip=1.0, lr=0.001, beta1=0.9, beta2=0.999, floor=5e-08)'

    Reference: Tang, Shpilevskiy and Lecuyer (2024), DP-AdamBC: Your DP-Adam Is Actually DP-SGD
    (Unless You Apply Bias Correction), arXiv 2312.14334.
    """

    name: ClassVar[str] = "dp-adam-bc"
    lr: LearningRate = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    floor: float = 5e-8

    def parts(self, steps: int) -> Parts:
        """Return the rule on the releases, isotropic, with constant noise."""
        rule = adam_bias_corrected(self.beta1, self.beta2, self.floor)
        return Parts(rule=rule, controller=scheduled(self.lr))
