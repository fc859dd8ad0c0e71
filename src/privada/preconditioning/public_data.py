"""Preconditioners from the gradients of public examples, updated during training."""

import math
from collections.abc import Callable
from typing import Any

from privada.core.errors import ArgumentError
from privada.core.public_examples import Public, as_public
from privada.core.tensors import Parameters
from privada.core.validation import fraction, integer, one_of, positive, rate
from privada.core.values import State
from privada.preconditioning.diagonal import DiagonalScaling, FromState

Varying = float | Callable[[int], float]


def _value(varying: Varying, number: int) -> float:
    return varying(number) if callable(varying) else varying


class PublicGradients(FromState):
    """The scales of RMSProp, AdaGrad or Adam, from average public gradients.

    `public_gradients` and `ideal` make one.
    """

    def __init__(
        self,
        public: Public,
        form: str,
        *,
        decay: Varying,
        eps: Varying,
        mix: float,
        first_decay: float,
        every: int | str,
        source: str,
        private: bool,
    ) -> None:
        super().__init__(False, source)
        self._public, self._form = public, one_of("form", form, ("rmsprop", "adagrad", "adam"))
        self._decay = decay if callable(decay) else fraction("decay", decay)
        self._eps = eps if callable(eps) else positive("eps", eps)
        self._mix, self._first_decay = rate("mix", mix), fraction("first_decay", first_decay)
        self._every = None if every == "epoch" else integer("every", every)
        self.private = private

    def init(self, parameters: Parameters) -> State:
        """Return moments of zero; raise if the model does not accept the examples."""
        parameters.try_public(self._public, declared=self.private)  # `ideal` says what it is
        moments = ("second", "first") if self._form == "adam" else ("second",)
        every = self._every or parameters.epoch
        if every is None:
            raise ArgumentError(
                "Expected every to be a number of releases here, got every='epoch'. How many steps "
                "an epoch has is not known outside of Trainer and PrivateLoop."
            )
        return {"asked": 0, "every": every} | {name: parameters.zeros() for name in moments}

    def at(self, state: State, parameters: Parameters) -> tuple[DiagonalScaling, State]:
        """Return the scaling at the current parameters, from a public batch of its own."""
        asked, every = state["asked"], state["every"]
        if asked % every == 0:
            state = self._refreshed(state, parameters, asked // every + 1)
        return self.scaling_of(state), state | {"asked": asked + 1}

    def _refreshed(self, state: State, parameters: Parameters, number: int) -> State:
        """Return the state with one more public gradient in it; `number` counts them from 1."""
        shown = parameters.public_gradient(self._public, number - 1)
        if self._form == "adagrad":
            second = state["second"].addcmul(shown, shown)
        else:
            decay = fraction("decay", _value(self._decay, number))
            second = (decay * state["second"]).addcmul_(shown, shown, value=1 - decay)
        state = state | {"second": second}
        scale = second.sqrt().add_(positive("eps", _value(self._eps, number)))
        if self._form == "adam":
            first = state["first"].lerp(shown, 1 - self._first_decay)
            # (mix g + (1 - mix) M) / A is (g - shift) / scale with these
            shift = first * -((1 - self._mix) / self._mix)
            state |= {"first": first, "shift": shift}
            scale.div_(self._mix)
        return state | {"scale": scale}

    def __repr__(self) -> str:
        return f"{self._form} of {self.source}"


def public_gradients(
    public: Any,
    form: str = "rmsprop",
    *,
    decay: Varying = 0.9,
    eps: Varying = 1e-8,
    mix: float = 0.9,
    first_decay: float = 0.9,
    every: int | str = 1,
    source: str = "gradients of examples declared public",
) -> PublicGradients:
    """Return the preconditioner of an adaptive optimiser on public examples.

    With the average gradient g of a public batch at the current parameters, "rmsprop" has
    s <- decay s + (1 - decay) g^2, "adagrad" s <- s + g^2, and the scale is sqrt(s) + eps. "adam"
    is as "rmsprop", with the public mean M <- d M + (1 - d) g mixed into each private gradient
    before it is scaled: (mix g_i + (1 - mix) M) / scale.

    Args:
        public: a `pv.Public`, or data that are used in full each time.
        form: "rmsprop", "adagrad" or "adam".
        decay, eps: numbers, or functions of the number of public gradients so far; `theorem_2`
            gives the paper's.
        mix, first_decay: for "adam", the weight of the private gradient and the decay d of M.
        every: how many releases one public gradient is used for; "epoch" for as many as one pass
            over the private records has steps.
        source: where the values come from, in words that the statement repeats.

    Returns:
        The preconditioner.

    Guarantee: scales come from public examples and from the parameters, which are releases; so the
    private sum moves by at most the clip norm. That the examples are public is declared.

    Example:
        >>> import numpy as np, privada as pv
        >>> public = pv.Public((np.zeros((40, 3)), np.zeros(40, dtype=int)), batch_size=8)
        >>> pv.preconditioning.public_gradients(public, "adam", every=10)
        adam of gradients of examples declared public

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Algorithm 1, Option 1, equations (4) to (6).
    """
    return PublicGradients(
        as_public(public), form, decay=decay, eps=eps, mix=mix, first_decay=first_decay,
        every=every, source=source, private=True,
    )  # fmt: skip


def ideal(private: Any, form: str = "rmsprop", **settings: Any) -> PublicGradients:
    """Return the preconditioner that the private records themselves would give, without noise.

    It is an upper bound for experiments: a model that is trained with it is not private, and the
    statement says so.

    Args:
        private: the private records.
        form: "rmsprop", "adagrad" or "adam".
        settings: those of `public_gradients`.

    Returns:
        The preconditioner.

    Guarantee: none.

    Example:
        >>> import numpy as np, privada as pv
        >>> pv.preconditioning.ideal((np.zeros((40, 3)), np.zeros(40, dtype=int))).private
        False

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Table 4, 'ideal'.
    """
    options: dict[str, Any] = {
        "decay": 0.9, "eps": 1e-8, "mix": 0.9, "first_decay": 0.9, "every": 1,
    }  # fmt: skip
    source = "gradients of the private records, un-noised: not a private release"
    return PublicGradients(
        as_public(private), form, **(options | settings), source=source, private=False
    )


def theorem_2(gamma: float = 1.0, eps: float = 1e-8) -> dict[str, Callable[[int], float]]:
    """Return decay and eps as in AdaDPS's convergence theorem, to be given to `public_gradients`.

    beta_t = 1 - gamma / t and eps_t = eps / sqrt(t), t counting public gradients from 1. It goes
    with a learning rate of `updates.inverse_sqrt`.

    Args:
        gamma: in (0, 1].
        eps: the first eps_t.

    Returns:
        The arguments `decay` and `eps`, as functions of the number of public gradients.

    Guarantee: as for `public_gradients`; both are known before the first step.

    Example:
        >>> import privada as pv
        >>> pv.preconditioning.theorem_2(gamma=0.5)["decay"](10)
        0.95

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Theorem 2.
    """
    gamma, eps = rate("gamma", gamma), positive("eps", eps)
    return {"decay": lambda t: 1 - gamma / t, "eps": lambda t: eps / math.sqrt(t)}
