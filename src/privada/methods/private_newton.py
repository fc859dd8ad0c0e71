"""PrivateNewton: linear models by steps in the inverse of a private bound on the Hessian."""

import math
from dataclasses import dataclass
from typing import ClassVar

from privada.core.errors import ArgumentError
from privada.core.validation import fraction, positive
from privada.methods.method import Method, Parts
from privada.noise import FollowingSchedule
from privada.preconditioning.feature_matrix import FeatureMatrix
from privada.updates import LearningRate, averaged, scheduled, sgd


@dataclass(frozen=True)
class PrivateNewton(Method):
    """Private Newton steps for logistic and linear regression, with an upper bound as Hessian.

    One release tells the second moments A of the features. With the largest curvature L of the
    loss, L A bounds its Hessian from above wherever the parameters are, so that it has to be
    released once. Then each step releases the gradient of all records, clipped and noised in the
    features (L A)^(-1/2) x, and moves by theta <- theta - lr (L A)^-1 gradient. The run ends with
    the mean of the last half of its points.

    Args:
        lr: how far a step goes; 1 reaches the least value of the bound.
        share: of the budget, how much goes to the second moments. Of squared noise multipliers'
            inverses, theirs is so much of the sum.
        floor: what is added to the second moments, in units of the largest eigenvalue that their
            noise has.
        clip: the largest norm that one example's gradient may keep, in those features.

    Guarantee: the second moments are one Gaussian release over all records, and so is each step.
    The noise of both is calibrated together to the run's budget, and charged before each look.

    Edge cases: it is for one torch.nn.Linear, with CrossEntropyLoss, BCEWithLogitsLoss or MSELoss,
    and takes all records in every step: sampling="everyone". Others are refused with a remedy. With
    `groups`, a unit counts as the average over its rows, in both kinds of release.

    Example:
        >>> import privada as pv, torch
        >>> x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), (x, (x[:, 0] > 0).long()),
        ...     method=pv.methods.PrivateNewton(), sampling="everyone", batch_size=500, steps=20,
        ...     budget=pv.Budget(2.0, 1e-4),
        ... ).fit()
        >>> trainer.epsilon() <= 2.0
        True

    Reference: Ganesh, Haghifam, Steinke and Thakurta (2023), Faster Differentially Private Convex
    Optimization via Second-Order Methods, arXiv 2305.13209, Section 4; there a matrix is released
    in every step, and the gradient is clipped and noised in the features as they are.
    """

    name: ClassVar[str] = "newton"
    lr: LearningRate = 1.0
    share: float = 0.15
    floor: float = 0.1
    clip: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < fraction("share", self.share) < 1:
            raise ArgumentError(
                f"Expected share between 0 and 1, got share={self.share!r}. About a sixth serves."
            )
        positive("floor", self.floor)
        if isinstance(self.schedule, FollowingSchedule):
            raise ArgumentError(
                "Expected noise that is fixed beforehand with newton, got a schedule that follows "
                "the releases. Leave schedule out, or give pv.noise.Schedule(factors)."
            )
        super().__post_init__()

    def parts(self, steps: int) -> Parts:
        """Return averaged gradient descent in the features of the released matrix."""
        noise = math.sqrt((1 - self.share) / (self.share * steps))
        return Parts(
            rule=averaged(sgd(), after=steps // 2),
            controller=scheduled(self.lr),
            preconditioner=FeatureMatrix(noise, self.floor),
        )
