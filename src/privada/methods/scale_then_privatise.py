"""Scale-then-privatise: whiten by past releases, without public data."""

from dataclasses import dataclass
from typing import ClassVar

from privada.core.validation import positive
from privada.methods.method import Method, Parts
from privada.preconditioning import past_releases
from privada.updates import LearningRate, adam, scheduled


@dataclass(frozen=True)
class ScaleThenPrivatise(Method):
    """Private Adam whose gradients are clipped and noised in units of its own second moment.

    The second moment of past releases scales the next gradients before they are clipped; the
    release is mapped back and given to Adam.

    Args:
        lr: the learning rate, a number or a function of the step.
        beta1, beta2: decays of Adam's moments; beta2 is that of the scale too.
        eps: added to the root of Adam's second moment.
        eps_scale: added to the root of the scale; the first gradients are clipped at `clip` in
            units of it.
        corrected: whether the scale is corrected for its start at zero.
        clip: the largest norm that one example's scaled gradient may keep.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip` in the whitened
    space; scales are post-processing of earlier ones.

    Example:
        >>> import privada as pv
        >>> method = pv.methods.ScaleThenPrivatise(lr=0.01, eps_scale=1e-2)

    Reference: Ganesh, McMahan and Thakurta (2025), On Design Principles for Private Adaptive
    Optimizers, arXiv 2507.01129.
    """

    name: ClassVar[str] = "scale-then-privatise"
    lr: LearningRate = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    eps_scale: float = 1e-3
    corrected: bool = False

    def parts(self, steps: int) -> Parts:
        """Return Adam on restored releases, preconditioned by earlier ones."""
        return Parts(
            rule=adam(self.beta1, self.beta2, self.eps),
            controller=scheduled(self.lr),
            preconditioner=past_releases(
                self.beta2, positive("eps_scale", self.eps_scale), self.corrected
            ),
        )
