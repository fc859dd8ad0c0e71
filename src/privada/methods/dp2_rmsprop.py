"""DP^2-RMSProp: phases of plain steps alternate with phases of scaled steps."""

from dataclasses import dataclass
from typing import ClassVar

from privada.core.validation import integer, positive
from privada.methods.method import Method, Parts
from privada.preconditioning import delayed
from privada.updates import LearningRate, scheduled, sgd
from privada.updates.learning_rates import rate_of


@dataclass(frozen=True)
class DP2RMSProp(Method):
    """Private RMSProp with delayed preconditioners.

    For `plain` steps it is DP-SGD, and the releases are averaged; then, for `adaptive` steps,
    gradients are divided by the root of the second moment of these averages before they are
    clipped and noised.

    Args:
        lr: the learning rate of plain steps, a number or a function of the step.
        adaptive_lr: that of adaptive steps.
        plain, adaptive: the number of steps of each phase.
        decay: of the second moment.
        eps: added to its root.
        clip: the largest norm that one example's gradient may keep in plain steps.
        adaptive_clip: the same for scaled gradients in adaptive steps.

    Guarantee: each step is a Gaussian release with the same noise multiplier; scales are
    post-processing of earlier ones.

    Example:
        >>> import privada as pv
        >>> method = pv.methods.DP2RMSProp(lr=0.1, adaptive_lr=3.0, clip=0.5, adaptive_clip=5.0)

    Reference: Li et al. (2023), Differentially Private Adaptive Optimization with Delayed
    Preconditioners, arXiv 2212.00309, Algorithm 1.
    """

    name: ClassVar[str] = "dp2-rmsprop"
    lr: LearningRate
    adaptive_lr: LearningRate
    plain: int = 195
    adaptive: int = 195
    decay: float = 0.9
    eps: float = 1e-7
    adaptive_clip: float = 1.0

    def parts(self, steps: int) -> Parts:
        """Return gradient descent on the releases, with the delayed preconditioner."""
        plain, adaptive = integer("plain", self.plain), integer("adaptive", self.adaptive)
        # clipping g / s at c' is clipping g / (s c' / c) at c, but for a factor of c' / c
        ratio = positive("adaptive_clip", self.adaptive_clip) / self.clip
        slow, fast = rate_of(self.lr), rate_of(self.adaptive_lr, "adaptive_lr")

        def rate(step: int) -> float:
            if step % (plain + adaptive) < plain:
                return slow(step)
            return fast(step) * ratio

        preconditioner = delayed(plain, adaptive, self.decay, self.eps, stretch=ratio)
        return Parts(rule=sgd(), controller=scheduled(rate), preconditioner=preconditioner)
