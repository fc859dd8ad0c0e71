"""ADADP: a learning rate that step doubling finds."""

from dataclasses import dataclass
from typing import ClassVar

from privada.methods.method import Method, Parts
from privada.updates import sgd, step_doubling


@dataclass(frozen=True)
class ADADP(Method):
    """Private gradient descent that sets its own learning rate.

    Each iteration makes two releases, at the parameters and half a step further, and compares one
    full step with two half steps: where they differ by more than the tolerance, the rate falls;
    otherwise it grows.

    Args:
        lr: the first learning rate.
        tolerance: the error to aim at; by default sqrt(d / 2T) for d parameters and T iterations.
        follow: "halves" goes on from the two half steps, as the authors' code does, so that both
            releases move the model; "full" from the full step, as Algorithm 2 is printed.
        accept: whether an iteration whose error is above the tolerance is undone.
        least, most: bounds on the factor by which the rate changes.
        power: of tolerance / error in that factor; 1/2 for "halves" and 1 for "full" by default.
        freeze, epoch, decay: after `freeze` iterations the rate stays as it is and falls as
            1 / (1 + decay k) in the k-th further epoch of `epoch` steps, by default one pass over
            the records, of one release each.
        clip: the largest norm that one example's gradient may keep.

    Guarantee: each iteration is two Gaussian releases of sums of sensitivity `clip`, both charged;
    errors and rates are post-processing.

    Edge cases: if the budget ends between the two releases, the first stays charged and the
    parameters are as they were before the iteration.

    Example:
        >>> import privada as pv
        >>> method = pv.methods.ADADP(lr=0.1, tolerance=1.0, follow="full")
        >>> method.parts(100).controller.queries(0)
        2

    Reference: Koskela and Honkela (2020), Learning Rate Adaptation for Differentially Private
    Learning, arXiv 1809.03832, Algorithm 2, equations (4.1) and (5.1).
    """

    name: ClassVar[str] = "adadp"
    lr: float = 0.1
    tolerance: float | None = None
    follow: str = "halves"
    accept: bool = False
    least: float = 0.9
    most: float = 1.1
    power: float | None = None
    freeze: int | None = None
    epoch: int | None = None
    decay: float = 0.1

    def parts(self, steps: int) -> Parts:
        """Return gradient descent under step doubling, isotropic, with constant noise."""
        controller = step_doubling(
            self.lr,
            self.tolerance,
            steps=steps,
            follow=self.follow,
            least=self.least,
            most=self.most,
            power=self.power,
            accept=self.accept,
            freeze=self.freeze,
            epoch=self.epoch,
            decay=self.decay,
        )
        return Parts(rule=sgd(), controller=controller)
