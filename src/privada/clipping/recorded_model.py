"""A model whose per-example gradients are recorded in one pass, and where its examples are.

Where each layer keeps its examples is found out on dummy ones: the gradients of one example's
loss alone must be zero in all that belongs to the others. What an example's gradient is made of is
then followed, number by number: it must come from this example and the parameters alone.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from privada.clipping.calling import call, output_tensors
from privada.clipping.combining import combine
from privada.clipping.contributions import Contribution
from privada.clipping.dependence import Dependence
from privada.clipping.example_layouts import FIRST, ExampleLayout, candidates
from privada.clipping.labels import NOBODY, labels_of_rows
from privada.clipping.leaves import leaves
from privada.clipping.losses import Loss, example_losses
from privada.clipping.parameter_views import ParameterView, apart
from privada.clipping.reads import NotFollowed
from privada.clipping.recording import (
    HALF,
    Key,
    ParameterUse,
    Recorder,
    whole_contributions,
)
from privada.clipping.rules import RULES
from privada.core.errors import ModelError
from privada.core.tensors import Parameters
from privada.data.batch import Batch

_MOST_ROUNDS = 16
# How many examples of a batch have labels of their own; a prime, so that those that share one are
# not the ones that code is likely to bring together.
_LABELS = 61


class RecordedModel:
    """Records what the per-example gradients of a model and its loss are made of.

    `sizes` are those of batches to come, beside the example's own, at which examples are seen to
    stay apart. `bytes_of_one` is about what the records of one example take.
    """

    sizes: Sequence[int] = ()

    def __init__(
        self, model: nn.Module, loss: Loss, parameters: Parameters, example: Batch
    ) -> None:
        self.model, self._loss, self._parameters = model, loss, parameters
        self._pieces = _pieces(model, parameters)
        self._wholes = {name: piece for _, name, piece in self._pieces}
        self._names = [name for name, whole in self._wholes.items() if whole.size]
        self._starts = [self._wholes[name].offset for name in self._names]
        self._sizes = {self._wholes[name].offset: self._wholes[name].size for name in self._names}
        self._layouts: dict[Key, ExampleLayout] = {}
        self.whole_modules: frozenset[str] = frozenset()
        self.half = False  # whether autocast makes numbers short
        self._modules: list[tuple[str, nn.Module]] = []
        self.bytes_of_one = self._find_layouts(example)
        self._modules = [
            (name, module)
            for name, module in model.named_modules()
            if name in self.whole_modules or isinstance(module, nn.RNNBase)
        ]

    def _replace_model(self, model: nn.Module, loss: Loss, parameters: Parameters) -> None:
        """Record a copy of the model from now on, in the same layouts."""
        self.model, self._loss, self._parameters = model, loss, parameters
        self._pieces, self.half = _pieces(model, parameters), False
        names = {name for name, _ in self._modules}
        self._modules = [(name, each) for name, each in model.named_modules() if name in names]

    @property
    def uses_parameters(self) -> bool:
        """Whether any trainable parameter was used on dummy examples."""
        return bool(self._layouts or self.whole_modules)

    # ------------------------------------------------------------------ passes

    def _recorder(
        self, examples: int, layouts: dict[Key, ExampleLayout], asking: bool = False
    ) -> Recorder:
        whole = self.whole_modules
        modules = list(self.model.named_modules()) if asking else self._modules
        # by identity, which a copy of the engine does not share with it
        pieces = {id(parameter): (name, piece) for parameter, name, piece in self._pieces}
        return Recorder(modules, pieces, RULES, layouts, whole, examples, asking)

    def _forward(self, recorder: Recorder, batch: Batch, expected: Any = None) -> Tensor:
        """Return the loss of each example."""
        with torch.enable_grad():
            with recorder.recording():
                outputs = call(self.model, batch.inputs)
            if expected is not None and _shapes(outputs) != _shapes(expected):
                raise NotFollowed("its output changes its shape")
            with recorder.watching():
                losses = example_losses(self._loss, outputs, batch.targets)
        if recorder.asking and not recorder.unknown:
            self._refuse_hidden(outputs, losses)
        return losses

    def _refuse_hidden(self, outputs: Any, losses: Tensor) -> None:
        """Raise if autograd reaches a parameter: what is recorded is cut off from it."""
        if hidden := self._parameters.names_of(leaves(*output_tensors(outputs))):
            raise NotFollowed(f"it uses {hidden} where that cannot be seen")
        if hidden := self._parameters.names_of(leaves(losses)):
            raise NotFollowed(f"its loss uses the parameters {hidden} itself")

    def _uncompacted(self, batch: Batch) -> list[Contribution]:
        """Return the contributions of a batch, in which dummy examples have no loss."""
        recorder = self._recorder(batch.rows, self._layouts)
        losses = self._forward(recorder, batch)
        if recorder.unknown:
            raise NotFollowed(f"a new use of {recorder.unknown[0].name!r}")
        gradients: list[Tensor | None] = [None] * len(recorder.copies)
        with self._no_autocast():
            if losses.requires_grad:
                with torch.enable_grad():
                    total = losses[: batch.size].sum()
                gradients = recorder.backward(total)
            with torch.no_grad():
                return self._by_parameter(recorder, gradients, batch.rows)

    def _factors(self, batch: Batch) -> list[Tensor]:
        """Return what the gradients of a batch are made of, without dropout and the like."""
        training = [module for module in self.model.modules() if module.training]
        try:
            self.model.eval()
            found = self._uncompacted(batch)
        finally:
            for module in training:
                module.training = True
        return [factor for each in found for factor in each.factors()]

    def _no_autocast(self) -> AbstractContextManager[object]:
        kind = self._parameters.first.device.type
        if not torch.is_autocast_enabled(kind):
            return nullcontext()
        return torch.autocast(kind, enabled=False)

    def _by_parameter(
        self, recorder: Recorder, gradients: Iterable[Tensor | None], examples: int
    ) -> list[Contribution]:
        by_name: dict[str, list[Contribution]] = defaultdict(list)
        each: Contribution
        for each in whole_contributions(recorder.copies, gradients):
            by_name[self._owner(each.piece)].append(each)
        for use in recorder.uses:
            for each in use.contributions():
                by_name[self._owner(each.piece)].append(each)
            use.gradient, use.inputs = None, ()
        found: list[Contribution] = []
        for name, parts in by_name.items():
            if len(parts) == 1 or apart([part.piece for part in parts]):
                found += parts
            else:
                found.append(combine(parts, self._wholes[name], examples))
        return found

    def _owner(self, piece: ParameterView) -> str:
        """Return the name of the parameter that a piece is part of."""
        return self._names[bisect_right(self._starts, piece.offset) - 1]

    # ------------------------------------------------------------------ finding out

    def _find_layouts(self, example: Batch) -> int:
        """Find out where each use of a parameter has its examples; return bytes per example.

        Made-up examples run together; the gradients of one example's loss alone must be zero in
        all that belongs to the others. What no example owns is spread over them; a use that no
        rule knows, or that stays without an owner, makes its module run example by example.
        """
        spread: dict[Key, ExampleLayout] = {}
        otherwise: dict[Key, ExampleLayout] = {}
        with torch.no_grad():
            state = torch.get_rng_state()
            expected = call(self.model, example.inputs)
        for _ in range(_MOST_ROUNDS):
            recorder = self._recorder(example.size, spread, asking=True)
            torch.set_rng_state(state)
            try:
                losses = self._forward(recorder, example, expected)
            except Exception as error:
                if not otherwise and spread:
                    names = sorted({name for name, _ in spread})
                    raise NotFollowed(f"{names} are used on what belongs to no example") from error
                if not otherwise:
                    raise
                spread.update(otherwise)
                otherwise.clear()
                continue
            fewer = self._with_one_less(example, spread)
            if fewer is not None:  # a dimension may have as many entries as there are examples
                recorder.batched_modules &= fewer.batched_modules
            for unknown in recorder.unknown:
                self._run_whole(recorder, unknown.stack, f"{unknown.name!r} in {unknown.function}")
            if recorder.unknown:
                continue
            with self._no_autocast():
                left = self._by_gradients(recorder, losses, fewer)
            if any(len(layouts) > 1 for layouts in left.values()):
                self._by_values(recorder, example, spread, state, left)
            lost = [use for use in recorder.uses if not left[use.key]]
            if not lost:
                self._layouts = {key: layouts[0] for key, layouts in left.items()}
                outputs = [use.output for use in recorder.uses if use.output is not None]
                self.half = torch.is_autocast_enabled(self._parameters.first.device.type) or any(
                    output.dtype in HALF for output in outputs
                )
                return _record_bytes(recorder)
            for use in lost:
                if use.lead is None or use.key in spread:
                    self._run_whole(recorder, use.stack, repr(use.key[0]))
                else:
                    ways = _ways_to_expand(use)
                    spread[use.key] = ways[0]
                    for way in ways[1:]:
                        otherwise[use.key] = way
        raise NotFollowed("its layers do not keep their examples apart")

    def look_again(self, example: Batch) -> None:
        """Raise ModelError if examples do not stay apart at the current parameters."""
        with torch.random.fork_rng(devices=[]):
            try:
                self._keep_apart(example)
            except NotFollowed as error:
                raise ModelError(
                    "Expected a model that treats examples in training as it did when it was "
                    f"tried first, but now {error}. Remove what makes it change."
                ) from error

    def _keep_apart(self, example: Batch) -> None:
        """Raise unless each example's gradient follows from this example and the parameters alone.

        Several batches are followed, each larger than the one before: it must have nothing of
        those before it either, which a model could keep.
        """
        sizes = example.size, *self.sizes
        batches = [enlarged(example.dense(), size) for size in sizes]
        found, first = [], 1
        with (seen := Dependence()):
            for batch in batches:
                for values in tree_leaves((batch.inputs, batch.targets)):
                    seen.own(values, first, _LABELS)
                own = labels_of_rows(batch.rows, first, _LABELS)
                found.append((own, self._uncompacted(batch)))
                first += min(batch.rows, _LABELS)
        for own, contributions in found:
            for each in contributions:
                self._refuse_company(seen, each, own)

    def _refuse_company(self, seen: Dependence, each: Contribution, own: Tensor) -> None:
        """Raise unless what a contribution is made of has the labels of its examples alone."""
        for factor in each.factors():
            labels = seen.labels(factor)
            if labels is None:
                continue
            foreign = (labels != NOBODY) & (labels != own.view(-1, *[1] * (labels.ndim - 1)))
            if bool(foreign.any()):
                raise NotFollowed(
                    f"what an example does to {self._owner(each.piece)!r} depends on its "
                    "neighbours in the batch, or on a batch before it"
                )

    def _run_whole(self, recorder: Recorder, stack: tuple[str, ...], words: str) -> None:
        """Let the innermost module that takes a batch run example by example."""
        inside = next((i for i, name in enumerate(stack) if name in recorder.whole_modules), None)
        # what such a module uses of others' parameters makes a module around them run so
        around = [name for name in stack[:inside] if name in recorder.batched_modules and name]
        if not around:
            raise NotFollowed(f"no rule knows the use of {words}")
        inner = {name for name in self.whole_modules if name.startswith(f"{around[-1]}.")}
        self.whole_modules = self.whole_modules - inner | {around[-1]}

    def _with_one_less(self, example: Batch, spread: dict[Key, ExampleLayout]) -> Recorder | None:
        """Return what is recorded with one dummy example less, if two are left."""
        if example.size < 3:
            return None
        recorder = self._recorder(example.size - 1, spread, asking=True)
        self._forward(recorder, next(example.chunks(example.size - 1)))
        return recorder

    @staticmethod
    def _by_gradients(
        recorder: Recorder, losses: Tensor, fewer: Recorder | None
    ) -> dict[Key, list[ExampleLayout]]:
        """Return the layouts of each use in which an example's loss moves its own part alone.

        Whatever the gradients, the examples' dimension is one that shrinks with their number.
        """
        size = recorder.examples
        shapes = {} if fewer is None else {use.key: use.shape for use in fewer.uses}
        left = {
            use.key: [use.layout]
            if use.layout
            else [
                layout
                for layout in candidates(use.shape, size, use.tail)
                if fewer is None or _shrinks(use.shape, shapes.get(use.key), layout.dimension, size)
            ]
            for use in recorder.uses
        }
        mattered = set()
        for index in range(size if losses.requires_grad else 0):
            for use in recorder.uses:
                use.gradient = None
            recorder.backward(losses[index], again=True)
            for use in recorder.uses:
                if use.gradient is not None:
                    mattered.add(use.key)
                    _narrow(left, use, use.gradient != 0, index)
        return {key: layouts if key in mattered else [FIRST] for key, layouts in left.items()}

    def _by_values(
        self,
        recorder: Recorder,
        example: Batch,
        spread: dict[Key, ExampleLayout],
        state: Tensor,
        left: dict[Key, list[ExampleLayout]],
    ) -> None:
        """Where gradients vanish, keep the layouts in which an example's input moves its own part.

        A use that stays without an answer is not followed.
        """
        size = example.size
        for index in range(size):
            other = self._recorder(size, spread, asking=True)
            places = torch.arange(size)
            places[index] = (index + 1) % size
            torch.set_rng_state(state)
            self._forward(other, example.at(places))
            for before, after in zip(recorder.uses, other.uses, strict=True):
                if len(left[before.key]) > 1 and before.output is not None:
                    assert after.output is not None
                    if before.output.shape == after.output.shape:
                        _narrow(left, before, before.output != after.output, index)
        unsure = [key[0] for key, layouts in left.items() if len(layouts) > 1]
        if unsure:
            raise NotFollowed(f"dummy examples do not tell which part of {unsure} is whose")


def _narrow(
    left: dict[Key, list[ExampleLayout]], use: ParameterUse, touched: Tensor, index: int
) -> None:
    """Keep the layouts of a use in which nothing but one example is touched."""
    kept = []
    for layout in left[use.key]:
        owners = layout.arrange(touched, use.examples, use.tail).flatten(1).any(dim=1)
        owners[index] = False
        if not bool(owners.any()):
            kept.append(layout)
    left[use.key] = kept


def enlarged(example: Batch, size: int) -> Batch:
    """Return more dummy examples of the same kind, in the same order."""
    return example.at(torch.arange(size) * example.size // size)


def _ways_to_expand(use: ParameterUse) -> list[ExampleLayout]:
    """Return where copies for each example may go, the likelier place first."""
    new, instead = ExampleLayout(expand="new"), ExampleLayout(expand="instead")
    if use.lead is None or use.lead[:1] != (1,):
        return [new]
    # (1, positions) is a batch of one, (1,) more likely one position
    return [new, instead] if len(use.lead) == 1 else [instead, new]


def _shapes(outputs: Any) -> list[torch.Size]:
    return [tensor.shape for tensor in output_tensors(outputs)]


def _record_bytes(recorder: Recorder) -> int:
    """Return about how many bytes the records of one example take, with copies made of them."""
    kept = sum(v.numel() * v.element_size() for use in recorder.uses for v, _ in use.inputs)
    kept += sum(8 * use.shape.numel() for use in recorder.uses)
    kept += sum(copy.numel() * copy.element_size() for _, copy in recorder.copies)
    return 4 * kept // recorder.examples


def _pieces(model: nn.Module, parameters: Parameters) -> list[tuple[Tensor, str, ParameterView]]:
    named = dict(model.named_parameters(remove_duplicate=False))
    pieces: list[tuple[Tensor, str, ParameterView]] = []
    offset = 0
    for name, shape in zip(parameters.layout.names, parameters.layout.shapes, strict=True):
        stride = torch.empty(shape, device="meta").stride()
        pieces.append((named[name], name, ParameterView(offset, tuple(shape), stride)))
        offset += shape.numel()
    return pieces


def _shrinks(shape: torch.Size, fewer: torch.Size | None, dimension: int, size: int) -> bool:
    """Return whether a dimension is in proportion to the number of examples."""
    if fewer is None or len(shape) != len(fewer):
        return False
    return shape[dimension] * (size - 1) == fewer[dimension] * size
