"""One candidate: everything public that a private run needs."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from privada.clipping.engine import not_compiled
from privada.clipping.losses import Loss
from privada.core.errors import ArgumentError, PrivadaError
from privada.core.hidden_streams import hidden_generator
from privada.core.randomness import RandomSource
from privada.core.tensors import Parameters
from privada.core.validation import integer, positive
from privada.mechanism import Mechanism
from privada.methods import Method
from privada.noise import Schedule
from privada.participation import Participation
from privada.selection.spaces import Settings
from privada.train.public_training import ModelSide


@dataclass(frozen=True)
class Candidate:
    """A model, a method and how long to train it: what `Trainer` is to be given.

    Args:
        model: the module, freshly made.
        loss: a torch loss, module or function of (output, target).
        method: how to train, such as `pv.methods.DPAdamWOSM(clip=1.0)`.
        batch_size: the expected number of records in a step.
        epochs, steps: how long, exactly one of them.
        engine: as for `Trainer`.

    Example:
        >>> import privada as pv, torch
        >>> candidate = pv.selection.Candidate(
        ...     torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), pv.methods.DPSGD(lr=0.1),
        ...     batch_size=50, epochs=2,
        ... )
        >>> candidate.steps_on(1000)
        40
    """

    model: nn.Module
    loss: Loss
    method: Method
    batch_size: float
    epochs: float | None = None
    steps: int | None = None
    engine: str = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise ArgumentError(f"Expected model to be a torch.nn.Module, got {self.model!r}.")
        if not isinstance(self.method, Method):
            raise ArgumentError(
                f"Expected method to be a method such as pv.methods.DPSGD(lr=0.1), got "
                f"method={self.method!r}."
            )
        positive("batch_size", self.batch_size)
        if (self.epochs is None) == (self.steps is None):
            raise ArgumentError(
                "Expected exactly one of epochs and steps, got "
                f"{'neither' if self.epochs is None else 'both'}."
            )
        if self.epochs is not None:
            positive("epochs", self.epochs)
        if self.steps is not None:
            integer("steps", self.steps)

    def steps_on(self, population: int) -> int:
        """Return how many steps training on so many records takes."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return math.ceil(self.epochs * population / self.batch_size)

    def describe(self) -> str:
        """Return what decides the run in words, apart from the model."""
        length = f"{self.epochs:g} epochs" if self.steps is None else f"{self.steps} steps"
        return f"{self.method.describe()}, batch size {self.batch_size:g}, {length}"


Recipe = Callable[..., Candidate]


def made(recipe: Recipe, settings: Settings, rng: RandomSource) -> Candidate:
    """Return the candidate of some settings, its weights drawn from `rng`.

    Guarantee: its model is its own. Whatever the recipe keeps, and however often it returns it, is
    not trained, so that no run starts from what another one has learnt.
    """
    with hidden_generator(rng, torch.device("cpu")):
        try:
            candidate: Any = recipe(**settings)
        except PrivadaError:
            raise
        except TypeError as error:
            raise ArgumentError(
                f"Expected a recipe that takes the settings {sorted(settings)}, but it failed "
                f"with: {error}."
            ) from error
    if not isinstance(candidate, Candidate):
        raise ArgumentError(
            f"Expected the recipe to return a pv.selection.Candidate, got {type(candidate)}."
        )
    try:
        model, loss = copy.deepcopy((candidate.model, candidate.loss))
    except Exception as error:  # whatever a user's module raises
        raise ArgumentError(
            "Expected a model and a loss that copy.deepcopy can copy, so that no run starts from "
            f"what another one has learnt, but it failed with: {error}. With weight normalisation, "
            "use torch.nn.utils.parametrizations.weight_norm."
        ) from error
    return replace(candidate, model=model, loss=loss)


def mechanism_of(
    candidate: Candidate,
    population: int,
    participation: Participation,
    *,
    grouped: bool = False,
    unit: str = "record",
) -> Mechanism:
    """Return what a run of the candidate will do, priced but for its noise.

    `population` is the number of units; `grouped` says whether they are persons.
    """
    steps, size = candidate.steps_on(population), candidate.batch_size
    parameters = Parameters(
        candidate.model, ModelSide(not_compiled(candidate.model), candidate.loss)
    )
    clipping, parts = candidate.method.clipping, candidate.method.parts_of(steps)
    if not isinstance(parts.schedule, Schedule):
        raise ArgumentError(
            f"Expected candidates whose charges are known before the search, got "
            f"{candidate.method.describe()}, whose noise follows the releases. Give it a fixed "
            "schedule, or train it by itself on an adaptive ledger."
        )
    parameters.epoch = math.ceil(population / size)
    return Mechanism.of(
        parts,
        parameters,
        participation=participation,
        units=population,
        batch_size=size,
        steps=steps,
        clip=candidate.method.clip,
        clipping=clipping.of_units() if grouped else clipping,
        unit=unit,
    )
