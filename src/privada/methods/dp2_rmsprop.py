"""DP^2-RMSProp: phases of plain steps alternate with phases of scaled steps."""

from dataclasses import dataclass
from typing import ClassVar

from privada.clipping import in_turns
from privada.clipping.norm_controls import Constant
from privada.core.errors import ArgumentError
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
        clipping: how gradients are bounded; the clip norms follow the turns.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.clipping.control, Constant):
            raise ArgumentError(
                "Expected a clipping whose clip norms are those of clip and adaptive_clip, got "
                f"clipping={self.clipping!r}. Use pv.clipping.threshold() or automatic()."
            )
        turns = (self.plain, self.clip), (self.adaptive, self.adaptive_clip)
        object.__setattr__(self, "clipping", in_turns(*turns, of=self.clipping))

    def parts(self, steps: int) -> Parts:
        """Return gradient descent on the releases, with the delayed preconditioner."""
        plain, adaptive = integer("plain", self.plain), integer("adaptive", self.adaptive)
        positive("adaptive_clip", self.adaptive_clip)
        slow, fast = rate_of(self.lr), rate_of(self.adaptive_lr, "adaptive_lr")

        def rate(step: int) -> float:
            return (slow if step % (plain + adaptive) < plain else fast)(step)

        preconditioner = delayed(plain, adaptive, self.decay, self.eps)
        return Parts(rule=sgd(), controller=scheduled(rate), preconditioner=preconditioner)
