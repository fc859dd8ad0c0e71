"""ADP-SGD: noise that grows as the steps get smaller."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from privada.core.errors import ArgumentError
from privada.core.validation import flag, not_negative, one_of, positive
from privada.methods.method import Method, Parts
from privada.noise import FollowingSchedule, Schedule, follow_norm
from privada.updates import adagrad_norm, scheduled, sgd
from privada.updates.learning_rates import function_of_step


@dataclass(frozen=True)
class ADPSGD(Method):
    """Private gradient descent with a decaying step and noise that is adapted to it.

    Step t = 1, 2, ... is -lr / b_t times a release with noise sigma alpha_t; alpha_t^2 = b_t makes
    the noise in the final parameters least for the same privacy: small steps tolerate more of it.

    Args:
        lr: eta; the learning rate of step t is eta / b_t.
        divisor: b_t as a function of t, counted from 1; by default sqrt(20 + t). For any other
            schedule of learning rates eta_t, b_t = eta / eta_t.
        alpha: the relative noise as a function of t; by default sqrt(b_t). A constant 1 gives
            DP-SGD. "adaptive" lets both b_t and alpha_t be found during training, the noise of
            step t + 1 with alpha^2 = b_t; it needs an adaptive ledger.
        adaptive: whether b_t is computed during training instead,
            b_t^2 = b_(t-1)^2 + max(|v_t|^2, least) over releases v_t, with b_0^2 = `first`;
            unless `alpha` is given, alpha_t^2 = sqrt(first + growth t) then.
        first, least, growth: constants of the adaptive form.
        denoised: whether the adaptive form subtracts the expected squared norm of the noise, which
            is public, from |v_t|^2, so that b_t is nearer to that of the gradients themselves.
        clip: the largest norm that one example's gradient may keep.

    Guarantee: step t is a Gaussian release of a sum of sensitivity `clip` with the multiplier
    sigma alpha_t. The whole schedule is known before the first step and is charged exactly; with a
    budget, sigma is calibrated so that all of it fits. With alpha="adaptive" each step is charged
    at its own multiplier through the filter of an adaptive ledger; sigma is fitted anew on the way,
    so that budget and steps end together.

    Edge cases: a constant factor in alpha makes no difference under a budget. To follow Adam's
    moment, or anything else, give `schedule`, as to any method.

    Example:
        >>> import privada as pv
        >>> method = pv.methods.ADPSGD(lr=1.0)
        >>> [round(method.parts(3).schedule.factor(t) ** 4) for t in range(3)]
        [21, 22, 23]

    Reference: Wu et al. (2021), Adaptive Differentially Private Empirical Risk Minimization,
    arXiv 2110.07435, Algorithm 1, Remark 4.1, Sections 5.1 and 5.2; its norm of the raw gradient is
    that of the release here, and its advanced composition is tight accounting.
    """

    name: ClassVar[str] = "adp-sgd"
    lr: float = 1.0
    divisor: Callable[[int], float] | None = None
    alpha: Callable[[int], float] | str | None = None
    adaptive: bool = False
    first: float = 20.0
    least: float = 1e-5
    growth: float = 1.0
    denoised: bool = False

    def parts(self, steps: int) -> Parts:
        """Return gradient descent with the decaying or the found step, and the noise schedule."""
        lr, adaptive = positive("lr", self.lr), flag("adaptive", self.adaptive)
        flag("denoised", self.denoised)
        not_negative("first", self.first)
        not_negative("least", self.least)
        positive("growth", self.growth)
        if self.divisor is not None:
            function_of_step("divisor", self.divisor, 1)
        schedule = self._schedule(steps)
        if adaptive or self._on_the_fly:
            rule = adagrad_norm(self.first, self.least, denoised=self.denoised)
            return Parts(rule, scheduled(lr), schedule=schedule)
        return Parts(sgd(), scheduled(lambda step: lr / self._b(step + 1)), schedule=schedule)

    @property
    def _on_the_fly(self) -> bool:
        return isinstance(self.alpha, str)

    def _schedule(self, steps: int) -> Schedule | FollowingSchedule:
        """Return the noise of each step, fixed beforehand or found on the way."""
        if isinstance(self.alpha, str):
            one_of("alpha", self.alpha, ("adaptive",))
            if self.divisor is not None:
                raise ArgumentError(
                    'Expected no divisor with alpha="adaptive", which finds b_t during training, '
                    f"got divisor={self.divisor!r}. Leave one of them out."
                )
            return follow_norm(positive("first", self.first), self.least, self.denoised)
        alpha = self._fitting if self.alpha is None else function_of_step("alpha", self.alpha, 1)
        return Schedule(tuple(positive("alpha", alpha(t)) for t in range(1, steps + 1)))

    def _b(self, t: int) -> float:
        return positive("divisor", math.sqrt(20 + t) if self.divisor is None else self.divisor(t))

    def _fitting(self, t: int) -> float:
        """Return sqrt(b_t), or the guess of it that is fixed beforehand."""
        if not self.adaptive:
            return math.sqrt(self._b(t))
        guess = not_negative("first", self.first) + positive("growth", self.growth) * t
        return math.sqrt(math.sqrt(guess))
