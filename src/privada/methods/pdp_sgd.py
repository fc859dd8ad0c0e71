"""PDP-SGD: project the release on the main directions of public gradients."""

from dataclasses import dataclass
from typing import Any, ClassVar

from privada.methods.method import Method, Parts
from privada.updates import LearningRate, public_subspace, scheduled


@dataclass(frozen=True)
class PDPSGD(Method):
    """Projected private gradient descent: noise outside a public subspace is dropped.

    Args:
        lr: the learning rate, a number or a function of the step.
        public: a `pv.Public`, whose batch of m examples gives m gradients, or data that are
            used in full each time.
        dimensions: of the subspace.
        every: how many steps a subspace serves.
        clip: the largest norm that one example's gradient may keep.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip`; the rest is
    post-processing. That the examples are public is declared.

    Example:
        >>> import numpy as np, privada as pv
        >>> data = np.zeros((40, 3)), np.zeros(40, dtype=int)
        >>> method = pv.methods.PDPSGD(lr=0.1, public=pv.Public(data, batch_size=20), dimensions=5)

    Reference: Zhou, Wu and Banerjee (2021), Bypassing the Ambient Dimension: Private SGD with
    Gradient Subspace Identification, arXiv 2007.03813; as a baseline in Asi et al. (2021),
    arXiv 2106.13756.
    """

    name: ClassVar[str] = "pdp-sgd"
    lr: LearningRate
    public: Any
    dimensions: int = 50
    every: int = 1

    def parts(self, steps: int) -> Parts:
        """Return the rule on the releases, isotropic, with constant noise."""
        rule = public_subspace(self.public, self.dimensions, self.every)
        return Parts(rule=rule, controller=scheduled(self.lr))
