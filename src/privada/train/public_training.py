"""Gradients of public examples, and training on them."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privada import data
from privada.clipping import Batch
from privada.clipping.calling import call
from privada.clipping.losses import Loss, example_losses
from privada.clipping.probes import refuse_mixing_models
from privada.core.deprecation import renamed_argument
from privada.core.errors import ArgumentError
from privada.core.overlap import refuse_private
from privada.core.public_examples import Public, as_public
from privada.core.randomness import SeededSource, random_words
from privada.core.tensors import Parameters
from privada.core.validation import integer, positive
from privada.core.values import Release
from privada.preconditioning import Preconditioner
from privada.train.modes import training_mode
from privada.updates import LearningRate
from privada.updates.learning_rates import rate_of

# How many public examples run through the model at a time.
_CHUNK = 1024
# How many are tried before a run.
_TRIED = 16


class ModelSide:
    """Takes gradients of public examples at a model's current parameters.

    They are those of the average of the examples' losses, each as if it were a batch of its own,
    just as private ones are. `private` are the records that they must not be, if there are any.
    """

    def __init__(self, model: nn.Module, loss: Loss, private: Any = None) -> None:
        self._model, self._loss, self._private = model, loss, private
        self._loaded: dict[int, tuple[Public, data.Records]] = {}

    def _trained(self) -> list[Tensor]:
        return [p for p in self._model.parameters() if p.requires_grad]

    def _records(self, public: Public) -> data.Records:
        if id(public) not in self._loaded:
            first = self._trained()[0]
            loaded = data.load(public.data, first.dtype, first.device, public=True)
            self._loaded[id(public)] = public, loaded
        return self._loaded[id(public)][1]

    def check(self, public: Public, *, declared: bool = True) -> None:
        """Take the gradient of a few examples, and raise what that raises.

        Examples that were declared public are refused if they are the private records.
        """
        records = self._records(public)
        if declared and self._private is not None:
            refuse_private(public.data, self._private)
        some = records.fetch(np.arange(min(_TRIED, records.size))).dense()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            self._gradient(self._losses(some).sum())
        refuse_mixing_models(self._model, some)

    def _batch(self, public: Public, number: int) -> Batch:
        """Return batch `number`: a random part of the examples, the same for the same number."""
        records = self._records(public)
        size = min(public.batch_size or records.size, records.size)
        if size == records.size:
            return records.fetch(np.arange(size)).dense()
        order = np.argsort(random_words(SeededSource(public.seed, "public", number), records.size))
        return records.fetch(np.sort(order[:size])).dense()

    def _losses(self, batch: Batch) -> Tensor:
        return example_losses(self._loss, call(self._model, batch.inputs), batch.targets)

    def _gradient(self, loss: Tensor) -> Tensor:
        trained = self._trained()
        parts = torch.autograd.grad(loss, trained, allow_unused=True)
        return torch.cat(
            [
                torch.zeros_like(p).reshape(-1) if g is None else g.to_dense().reshape(-1)
                for p, g in zip(trained, parts, strict=True)
            ]
        )

    def average(self, public: Public, number: int) -> Tensor:
        """Return the average gradient of public batch `number` as one vector."""
        batch = self._batch(public, number)
        total: Tensor | None = None
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            for chunk in batch.chunks(_CHUNK):
                part = self._gradient(self._losses(chunk).sum())
                total = part if total is None else total.add_(part)
        assert total is not None
        return total.div_(batch.size)

    def each(self, public: Public, number: int) -> Tensor:
        """Return the gradients of the examples of public batch `number` as rows."""
        return torch.stack(list(self._one_by_one(public, number)))

    def squares(self, public: Public, number: int) -> Tensor:
        """Return the average square of each coordinate over the gradients of a public batch."""
        total, count = torch.zeros(()), 0
        for gradient in self._one_by_one(public, number):
            total, count = total + gradient.square(), count + 1
        return total / count

    def _one_by_one(self, public: Public, number: int) -> Iterator[Tensor]:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            for example in self._batch(public, number).chunks(1):
                yield self._gradient(self._losses(example).sum())


def warm_start(
    model: nn.Module,
    loss: Loss,
    public: Any,
    *,
    steps: int,
    lr: float = 0.001,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.RMSprop,
) -> nn.Module:
    """Train a model in place on public examples, before it meets private ones.

    Guarantee: no private record is read; a private run from here on starts from a public point.

    Edge cases: `public` is a `pv.Public` with the batch size to use, or data of which all is used
    in every step. The model's mode is left as it was.

    Example:
        >>> import numpy as np, privada as pv, torch
        >>> public = pv.Public((np.eye(4, dtype="float32"), np.arange(4)), batch_size=2)
        >>> model = pv.warm_start(torch.nn.Linear(4, 4), torch.nn.CrossEntropyLoss(), public,
        ...                       steps=5, lr=0.1)

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Table 7.
    """
    steps, lr = integer("steps", steps, least=0), positive("lr", lr)
    public, parameters = as_public(public), Parameters(model, ModelSide(model, loss))
    chosen = optimizer([p for p in model.parameters() if p.requires_grad], lr=lr)
    for number in _training(model, steps):
        parameters.set_gradient(parameters.public_gradient(public, number))
        chosen.step()
    chosen.zero_grad()
    return model


@renamed_argument("geometry", "preconditioner")
def adas(
    model: nn.Module,
    loss: Loss,
    data: Any,
    *,
    preconditioner: Preconditioner,
    steps: int,
    lr: LearningRate,
) -> nn.Module:
    """Train a model in place as AdaDPS would without clipping and noise, for comparison.

    Gradients are averaged over a batch and divided by the geometry's scale.

    Guarantee: none. Whoever is in `data` gets no protection.

    Edge cases: `data` is a `pv.Public` with the batch size to use, or data of which all is used in
    every step; the name says what is done with it. A geometry that asks for releases is refused.

    Example:
        >>> import numpy as np, privada as pv, torch
        >>> data = np.eye(4, dtype="float32"), np.arange(4)
        >>> scales = pv.preconditioning.by_feature([1.0, 1.0, 0.5, 0.1])
        >>> model = pv.adas(torch.nn.Linear(4, 4), torch.nn.CrossEntropyLoss(), data, lr=0.1,
        ...                 preconditioner=scales, steps=5)

    Reference: Li et al. (2022), Private Adaptive Optimization with Side Information,
    arXiv 2202.05963, Appendix B, AdaS.
    """
    examples, parameters = as_public(data), Parameters(model, ModelSide(model, loss))
    rate, state = rate_of(lr), preconditioner.init(parameters)
    state = preconditioner.prepare(state, parameters, _NoReleases())
    for number in _training(model, integer("steps", steps, least=0)):
        chosen, state = preconditioner.at(state, parameters)
        scaling = chosen.on(parameters)
        gradient = parameters.public_gradient(examples, number)
        if scaling.shift is not None:
            gradient.sub_(scaling.shift)
        if scaling.scale is not None:
            gradient.div_(scaling.scale)
        parameters.add_(gradient, -rate(number))
    return model


class _NoReleases:
    """What there is to ask where there are no private records."""

    def __call__(self, bound: float, noise_multiplier: float) -> Release:
        raise ArgumentError(
            "Expected a geometry that is known or comes from public examples, got one that asks "
            "for releases of private data, which there are none of here."
        )

    def features(self, noise_multiplier: float, accepts: Callable[[int], object]) -> Release:
        return self(1.0, noise_multiplier)


def _training(model: nn.Module, steps: int) -> Iterator[int]:
    with training_mode(model):
        yield from range(steps)
