"""What is minimised: a loss for each example, and terms that depend on the parameters alone.

A public term is differentiated after the release. It looks at no record, so it costs nothing, and
it is not clipped.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from privada.core.errors import ArgumentError, ModelError, PrivadaError
from privada.core.tensors import Parameters
from privada.core.validation import not_negative, shown

__all__ = ["ModelTerm", "Objective", "PublicTerm", "WeightDecay", "objective"]


@runtime_checkable
class PublicTerm(Protocol):
    """A part of the objective that depends on the parameters alone.

    Example:
        >>> import privada as pv
        >>> class Pull:
        ...     def gradient(self, model, parameters):
        ...         return parameters.zeros() + 1
        ...     def describe(self):
        ...         return "a pull of one"
        >>> isinstance(Pull(), pv.objective.PublicTerm)
        True
    """

    def gradient(self, model: nn.Module, parameters: Parameters) -> Tensor:
        """Return its gradient at the current parameters, as one vector."""

    def describe(self) -> str:
        """Return it in words, for the statement."""


@dataclass(frozen=True)
class WeightDecay:
    """The term strength / 2 |parameters|^2, whose gradient is strength x parameters.

    Guarantee: it looks at no record.

    Example:
        >>> import privada as pv, torch
        >>> from privada.core.tensors import Parameters
        >>> model = torch.nn.Linear(2, 1)
        >>> decay = pv.objective.WeightDecay(0.1)
        >>> found = decay.gradient(model, Parameters(model))
        >>> bool(torch.equal(found[:2], 0.1 * model.weight[0].detach()))
        True

    Reference: Krogh and Hertz (1991), A Simple Weight Decay Can Improve Generalization.
    """

    strength: float

    def __post_init__(self) -> None:
        not_negative("weight_decay", self.strength)

    def gradient(self, model: nn.Module, parameters: Parameters) -> Tensor:
        """Return strength times the parameters."""
        return parameters.read().mul_(self.strength)

    def describe(self) -> str:
        """Return it in words."""
        return f"weight decay of {self.strength:g}"


@dataclass(frozen=True)
class ModelTerm:
    """A term that a function computes from the model: a prior, a penalty, a divergence.

    Args:
        function: takes the model and returns one number, which must not depend on private records.
        name: what it is called in the statement.

    Guarantee: it is given the model and nothing else. That the function keeps no records of its own
    is listed among the assumptions.

    Edge cases: a term that is constant, not one number or not finite is an error.

    Example:
        >>> import privada as pv, torch
        >>> from privada.core.tensors import Parameters
        >>> model = torch.nn.Linear(2, 1)
        >>> lasso = pv.objective.ModelTerm(lambda model: model.weight.abs().sum(), "L1 penalty")
        >>> lasso.gradient(model, Parameters(model)).shape
        torch.Size([3])
    """

    function: Callable[[nn.Module], Tensor]
    name: str = "a public term"

    def __post_init__(self) -> None:
        if not callable(self.function) or isinstance(self.function, type):
            raise ArgumentError(
                "Expected public_term to be a function of the model that returns one number, got "
                f"public_term={shown(self.function)}."
            )

    def gradient(self, model: nn.Module, parameters: Parameters) -> Tensor:
        """Return the gradient of the function at the current parameters."""
        with torch.enable_grad(), parameters.trainable() as tensors:
            value = self._value(model)
            if not isinstance(value, Tensor) or value.numel() != 1:
                got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise ModelError(
                    f"Expected public_term to return a tensor of one number, got {got}. Add up or "
                    "average what it returns."
                )
            if not value.requires_grad:
                raise ModelError(
                    "Expected public_term to depend on the model's trainable parameters, but its "
                    "value does not. Compute it from the model that it is given, without detach()."
                )
            found = torch.autograd.grad(value.reshape(()), tensors, allow_unused=True)
        total = parameters.zeros()
        for place, part in zip(parameters.layout.pieces(total), found, strict=True):
            if part is not None:
                place.copy_(part.to_dense())
        if not bool(torch.isfinite(total).all()):
            raise ModelError(
                "Expected public_term to have a finite gradient, got a NaN or an infinity. Bound "
                "the term, or take a smaller learning rate."
            )
        return total

    def _value(self, model: nn.Module) -> Any:
        try:
            return self.function(model)
        except PrivadaError:
            raise
        except Exception as error:  # whatever a user's function raises: it sees no record
            raise ModelError(
                f"Expected public_term to be a function of the model, but it failed with: {error}."
            ) from error

    def describe(self) -> str:
        """Return it in words."""
        return self.name


@dataclass(frozen=True)
class Objective:
    """The public terms of an objective, beside the loss of each example.

    Guarantee: none of them is given a record.

    Example:
        >>> import privada as pv
        >>> pv.objective.Objective((pv.objective.WeightDecay(0.1),)).describe()
        'weight decay of 0.1'
    """

    terms: tuple[PublicTerm, ...] = ()

    def gradient(self, model: nn.Module, parameters: Parameters) -> Tensor | None:
        """Return the gradient of all terms, None if there are none."""
        if not self.terms:
            return None
        first, *others = (term.gradient(model, parameters) for term in self.terms)
        for other in others:
            first.add_(other)
        return first

    def describe(self) -> str:
        """Return the terms in words."""
        return " and ".join(term.describe() for term in self.terms)


def objective(weight_decay: Any = 0.0, public_term: Any = None) -> Objective:
    """Return the objective that a user asks for.

    `public_term` is a function of the model, a `PublicTerm`, or several of them.

    Example:
        >>> import privada as pv
        >>> pv.objective.objective(0.01, lambda model: model.bias.square().sum()).describe()
        'weight decay of 0.01 and a public term'
    """
    terms: list[PublicTerm] = []
    if not_negative("weight_decay", weight_decay) > 0:
        terms.append(WeightDecay(float(weight_decay)))
    several = isinstance(public_term, (list, tuple))
    given: Iterable[Any] = public_term if several else () if public_term is None else (public_term,)
    for each in given:
        own = isinstance(each, PublicTerm) and not isinstance(each, (type, nn.Module))
        terms.append(each if own else ModelTerm(each))
    return Objective(tuple(terms))
