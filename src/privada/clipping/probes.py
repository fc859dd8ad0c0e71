"""Models are tried on dummy examples: do examples touch each other, does anything stay behind?

Values are compared: an example beside ordinary neighbours and beside poisoned ones, in training and
in evaluation mode, in small and in larger batches, before and after others. What values do not show
is for the engine to find, by which numbers each result can depend on (`dependence`).
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from privada.clipping.calling import call, of_tensors, output_tensors
from privada.clipping.dependence import Dependence
from privada.clipping.labels import NOBODY
from privada.core.errors import ModelError
from privada.core.silence import pass_on_signals
from privada.data.batch import Batch
from privada.data.dummies import POISONS, poisoned

# Besides the given ones: code may take another path for more examples, or for a round number.
_LARGER = (9, 64)
_POISONS_OF_LARGER: tuple[float | None, ...] = (float("nan"), 40.0)


def refuse_mixing_models(
    model: nn.Module, batch: Batch, modes: tuple[bool, ...] = (True, False)
) -> None:
    """Raise if dummy examples show that one depends on another, or that data stay in the model.

    A copy of the model runs, in the mode that it is in and in evaluation mode. An example's output
    and the gradient of its input must be the same whatever its neighbours are, and the same again
    after other examples; no buffer may change, nor any parameter be written to. Losses are taken of
    one example at a time, and need no such test.

    Raises:
        ModelError: with the remedy.
    """
    if batch.size < 3:
        return
    batch = batch.dense()
    own = _copied(model)
    for training in modes:
        with in_mode(own, training):
            _Probe(own, batch, training).run()


def _copied(model: nn.Module) -> nn.Module:
    """Return a copy that shares the parameters, so that what is tried leaves nothing behind."""
    try:
        return copy.deepcopy(model, {id(p): p for p in model.parameters()})
    except Exception:  # not every model can be copied
        return model


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Set evaluation mode, unless the modes are to stay as they are; put them back."""
    before = [(module, module.training) for module in model.modules()]
    try:
        if not training:
            model.eval()
        yield
    finally:
        for module, mode in before:
            module.training = mode


class _Probe:
    """One model in one mode."""

    def __init__(self, model: nn.Module, batch: Batch, training: bool) -> None:
        self._model, self._batch, self._training = model, batch, training
        self._state = torch.get_rng_state()

    def run(self) -> None:
        self._keeps_nothing()
        self._shows_no_neighbours(self._batch, POISONS)
        for size in _LARGER:
            places = torch.arange(size) * self._batch.size // size
            self._shows_no_neighbours(self._batch.at(places), _POISONS_OF_LARGER)

    # ------------------------------------------------------------------ running

    def _outputs(self, batch: Batch) -> Any:
        """Return the model's outputs, always from the same random state."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._state)
            return call(self._model, batch.inputs)

    def _results(self, batch: Batch) -> list[Tensor]:
        """Return what must not depend on neighbours: outputs and gradients of inputs."""
        inputs = tree_map(
            lambda v: v.clone().requires_grad_() if v.is_floating_point() else v, batch.inputs
        )
        with torch.enable_grad():
            outputs = self._outputs(Batch(inputs, batch.targets))
            found = output_tensors(outputs)
            leaves = [v for v in tree_leaves(inputs) if v.requires_grad]
            slopes = [v for v in found if v.requires_grad]
            if leaves and slopes:
                with torch.random.fork_rng(devices=[]):
                    total = torch.stack([(_pattern(v) * v).sum() for v in slopes]).sum()
                    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
                found += [g for g in gradients if g is not None]
        return [f.detach() for f in found]

    # ------------------------------------------------------------------ looking

    def _keeps_nothing(self) -> None:
        """Raise if a forward pass changes the model, by its values or by what they follow from."""
        buffers = {name: value.clone() for name, value in self._model.named_buffers()}
        written = {name: value._version for name, value in self._model.named_parameters()}
        last = self._batch.size - 1
        with torch.no_grad():
            first = self._outputs(self._batch)
            self._check_shape(first)
            for poison in (None, *POISONS):
                self._tolerantly(self._outputs, poisoned(self._batch, last, poison))
        changed = {
            n
            for n, v in self._model.named_buffers()
            if n not in buffers or not _same(v, buffers[n])
        }
        changed |= self._written_from_examples()
        with torch.no_grad():
            for name, value in self._model.named_buffers():
                if name in buffers and value.shape == buffers[name].shape:
                    value.copy_(buffers[name])
        if changed:
            raise ModelError(
                f"Expected a model that keeps nothing of the data, but its buffers "
                f"{sorted(changed)} change at a forward pass, which would carry un-noised "
                "statistics. Remove them, or set the layer to evaluation mode for good."
            )
        rewritten = [n for n, v in self._model.named_parameters() if v._version != written[n]]
        if rewritten:
            raise ModelError(
                f"Expected a model that is moved by releases alone, but its parameters {rewritten} "
                "are written to at a forward pass, as max_norm of an embedding does. That would "
                "carry un-noised facts about the data. Leave it out."
            )
        with torch.no_grad():
            again = output_tensors(self._outputs(self._batch))
            if not all(map(_close, output_tensors(first), again)):
                raise ModelError(_STAYS)

    def _written_from_examples(self) -> set[str]:
        """Return the buffers that depend on examples; raise if a later batch does on an earlier."""
        size = self._batch.size
        try:
            with torch.no_grad(), (seen := Dependence()):
                for first in (1, 1 + size):
                    inputs = tree_map(torch.clone, self._batch.inputs)
                    for values in tree_leaves(inputs):
                        seen.own(values, first)
                    outputs = self._outputs(Batch(inputs, None))
                labels = [seen.labels(v) for v in output_tensors(outputs)]
                buffers = dict(self._model.named_buffers())
                found = {n for n, v in buffers.items() if seen.labels(v) is not None}
        except Exception:  # what cannot be followed is left to the values
            return set()
        for each in labels:
            if each is not None and bool(((each != NOBODY) & (each <= size)).any()):
                raise ModelError(_STAYS)
        return found

    def _check_shape(self, outputs: Any) -> None:
        size = self._batch.size
        if not of_tensors(outputs):
            got: Any = type(outputs).__name__
        else:
            wrong = [v.shape for v in output_tensors(outputs) if v.shape[:1] != (size,)]
            if not wrong:
                return
            got = wrong[0]
        raise ModelError(
            f"Expected the model to return one output per example (first dimension {size} for "
            f"{size} examples), got {got}. Return a tensor whose first dimension is the batch, or "
            "a dictionary or tuple of such tensors. A model that averages a loss over the batch "
            "must not be given its labels: keep them out of the inputs."
        )

    def _shows_no_neighbours(self, batch: Batch, poisons: tuple[float | None, ...]) -> None:
        """Raise if an example's results change with what stands beside it."""
        expected = self._results(batch)
        for place in (0, batch.size - 1):
            others = torch.arange(batch.size) != place
            for poison in poisons:
                found = self._tolerantly(self._results, poisoned(batch, place, poison))
                if found is None or len(found) != len(expected):
                    continue
                for before, after in zip(expected, found, strict=True):
                    if before.shape != after.shape or not _close(before[others], after[others]):
                        raise ModelError(_NEIGHBOURS if self._training else _NEIGHBOURS_EVALUATED)
        if not all(map(_close, expected, self._results(batch))):
            raise ModelError(_STAYS)

    @staticmethod
    def _tolerantly(run: Callable[[Batch], Any], batch: Batch) -> Any:
        """Return what a run gives, None if a poisoned example makes the model fail."""
        try:
            return run(batch)
        except ModelError:
            raise
        except BaseException as error:
            pass_on_signals(error)
            return None


_NEIGHBOURS = (
    "Expected a model that treats each example by itself, but one example's output changed with "
    "its neighbours in the batch. Clipping cannot bound that: replace what averages or compares "
    "over the batch dimension."
)
_NEIGHBOURS_EVALUATED = (
    "Expected a model that treats each example by itself, but in evaluation mode one example's "
    "output changed with its neighbours in the batch. A score on private records, or a prediction, "
    "would tell of others: replace what averages or compares over the batch dimension."
)
_STAYS = (
    "Expected a model that keeps nothing of the data, but the same examples gave other results "
    "when they were run again after others. What stays behind would carry un-noised facts "
    "about the data: remove what is remembered between batches. If the model draws random numbers, "
    "draw them from torch's own generator."
)


def _pattern(like: Tensor) -> Tensor:
    """Return large output gradients, no two the same."""
    places = torch.arange(like.numel(), dtype=like.dtype, device=like.device)
    return (1e3 * (1 + (places * 0.618).frac())).view(like.shape)


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and bool(
        ((first == second) | ((first != first) & (second != second))).all()
    )


def _close(first: Tensor, second: Tensor) -> bool:
    """Return whether results are the same but for rounding, which may follow from neighbours."""
    return bool(torch.isclose(first, second, rtol=1e-3, atol=1e-5, equal_nan=True).all())
