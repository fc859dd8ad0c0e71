"""AdaDPS: scale gradients by side information before they are privatised."""

from dataclasses import dataclass
from typing import ClassVar

from privada.clipping import microbatches
from privada.core.deprecation import renamed_argument
from privada.core.validation import integer
from privada.methods.method import Method, Parts
from privada.preconditioning import Moments, Preconditioner
from privada.updates import LearningRate, scheduled, sgd


@renamed_argument("geometry", "preconditioner")
@dataclass(frozen=True)
class AdaDPS(Method):
    """Private adaptive descent with side information.

    Each gradient is divided by a scale A that is known without the private data, then clipped and
    noised: theta <- theta - lr (1/B) (sum_i clip(g_i / A) + sigma clip N(0, I)). Coordinates with
    small but informative gradients then get less noise.

    Args:
        lr: the learning rate, a number or a function of the step; `pv.updates.inverse_sqrt` is
            that of the paper's theorem.
        preconditioner: the side information, one of `pv.preconditioning`: `public_gradients`
            (RMSProp, AdaGrad or Adam statistics), `token_frequency`, `tf_idf`,
            `feature_moments`, `by_feature` or `diagonal`; second moments,
            `known_moments`, `public_moments` or `private_second_moments`; `ideal` for the oracle,
            which is not private.
        clip: the largest norm that one example's scaled gradient may keep.
        microbatch: the size of micro-batches whose average gradients are clipped, 4 in the paper's
            experiments. It doubles the sensitivity; use it only to reproduce them.

    Guarantee: each step is a Gaussian release of a sum of sensitivity `clip`, whatever the scale.

    Edge cases: with a scale of 1 it is DP-SGD.

    Example:
        >>> import privada as pv
        >>> frequency = pv.preconditioning.token_frequency([100, 10, 1], source="a public corpus")
        >>> pv.methods.AdaDPS(lr=0.5, preconditioner=frequency).describe()
        'adadps (clip=1.0, lr=0.5, preconditioner=a public corpus)'

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Algorithm 1.
    """

    name: ClassVar[str] = "adadps"
    lr: LearningRate
    preconditioner: Preconditioner | Moments
    microbatch: int | None = None

    def __post_init__(self) -> None:
        if self.microbatch is not None:
            object.__setattr__(
                self, "clipping", microbatches(integer("microbatch", self.microbatch))
            )
        super().__post_init__()

    def parts(self, steps: int) -> Parts:
        """Return gradient descent on the releases, preconditioned by the side information."""
        preconditioner = self.preconditioner
        if isinstance(preconditioner, Moments):
            preconditioner = preconditioner.ellipsoid(exponent=1.0, restores=False)
        return Parts(rule=sgd(), controller=scheduled(self.lr), preconditioner=preconditioner)
