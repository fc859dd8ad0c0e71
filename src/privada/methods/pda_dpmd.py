"""PDA-DPMD: descend along a mixture of the release and a public gradient."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from privada.methods.method import Method, Parts
from privada.updates import LearningRate, falling_weight, mixed_with_public, scheduled


@dataclass(frozen=True)
class PDADPMD(Method):
    """Private mirror descent with public data, in its first-order form.

    theta <- theta - lr (weight v + (1 - weight) g) for the release v and the average public
    gradient g.

    Args:
        lr: the learning rate, a number or a function of the step.
        public: a `pv.Public`, or data that are used in full in every step.
        weight: the weight of the release, a number or a function of the step; by default
            cos(pi t / 2T), from all private to all public.
        clip: the largest norm that one example's gradient may keep.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip`; the rest is
    post-processing. That the examples are public is declared.

    Example:
        >>> import numpy as np, privada as pv
        >>> method = pv.methods.PDADPMD(lr=0.1, public=(np.zeros((9, 3)), np.zeros(9)), weight=0.5)

    Reference: Amid et al. (2022), Public Data-Assisted Mirror Descent for Private Model Training,
    arXiv 2112.00193; as a baseline in Li et al. (2022), arXiv 2202.05963.
    """

    name: ClassVar[str] = "pda-dpmd"
    lr: LearningRate
    public: Any
    weight: float | Callable[[int], float] | None = None

    def parts(self, steps: int) -> Parts:
        """Return the rule on the releases, isotropic, with constant noise."""
        weight = falling_weight(steps) if self.weight is None else self.weight
        rule = mixed_with_public(self.public, weight)
        return Parts(rule=rule, controller=scheduled(self.lr))
