"""The engine: one forward and one backward pass, no per-example gradient kept.

The model runs once on the whole batch while a recorder notes what each layer was given; one
backward pass brings the gradients of the layers' outputs. Squared norms of the whitened
per-example gradients follow from these factors, then the clip factors, then the clipped sum, by
products of matrices.

References: Goodfellow (2015), Efficient Per-Example Gradient Computations; Lee and Kifer (2021),
Scaling up Differentially Private Deep Learning with Fast Per-Example Gradient Clipping; Li, Tramer,
Liang and Hashimoto (2022), Large Language Models Can Be Strong Differentially Private Learners.
"""

import copy
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from privada.clipping.bounds import ByNorm, factors_in
from privada.clipping.clips import THRESHOLD, Clipping
from privada.clipping.contributions import (
    Contribution,
    DenseGrad,
    OuterProductGrad,
    combine,
    extremes,
)
from privada.clipping.dependence import Dependence
from privada.clipping.example_layouts import FIRST, ExampleLayout, candidates
from privada.clipping.labels import NOBODY, labels_of_rows
from privada.clipping.leaves import leaves
from privada.clipping.losses import Loss, example_losses
from privada.clipping.norms import not_negative, spans
from privada.clipping.parameter_views import ParameterView, Weights, apart
from privada.clipping.per_layer import PerLayer
from privada.clipping.recording import (
    HALF,
    Key,
    NotFollowed,
    ParameterUse,
    Recorder,
    whole_contributions,
)
from privada.clipping.reference import PerExampleEngine
from privada.clipping.rules import RULES
from privada.clipping.rules.convolution import Patches
from privada.clipping.workspace import Workspace
from privada.core.errors import ModelError
from privada.core.tensors import Parameters
from privada.core.validation import positive
from privada.core.values import ClippedSum
from privada.data.batch import Batch, call
from privada.data.padding import Padding, find_padding, sizes_to_try
from privada.preconditioning import FlatScaling

# What a chunk's records may take; batches beyond it run in parts, with the same result.
_RECORD_BYTES = 1 << 28
_MOST_ROUNDS = 16
# How many examples of a batch have labels of their own; a prime, so that those that share one are
# not the ones that code is likely to bring together.
_LABELS = 61


class OnePassEngine:
    """Clipped sums from one forward and one backward pass over the batch.

    Guarantee: each example's part of the sum is made from the very factors that its norm is taken
    from, or from its gradient where the clipping needs that, so the sum has the sensitivity that
    its clipping says; an example whose gradient is not finite counts as zero. This needs a model in
    which examples do not touch: where each layer keeps its examples is found out on made-up ones,
    by which output gradients belong to whose loss, and a model in which that has no answer is
    refused.

    Edge cases: an empty batch gives zero. A batch of one is all one example, whatever the shapes.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        parameters: Parameters,
        example: Batch,
        record_bytes: int = _RECORD_BYTES,
        clipping: Clipping = THRESHOLD,
        expected: float | None = None,
    ) -> None:
        self.model, self._loss, self._parameters = model, loss, parameters
        self.clipping = clipping
        self._reference = PerExampleEngine(model, loss, parameters, "loop")
        self._pieces = _pieces(model, parameters)
        self._wholes = {name: piece for _, name, piece in self._pieces}
        self._names = [name for name, whole in self._wholes.items() if whole.size]
        self._starts = [self._wholes[name].offset for name in self._names]
        self._sizes = {self._wholes[name].offset: self._wholes[name].size for name in self._names}
        self._layouts: dict[Key, ExampleLayout] = {}
        self.whole_modules: frozenset[str] = frozenset()
        self.half = False  # whether autocast makes numbers short
        self._weights: tuple[Tensor, int, Weights] | None = None
        self._workspace = Workspace()
        self._by_itself = False
        self._modules: list[tuple[str, nn.Module]] = []
        width = self._find_layouts(example)
        self._modules = [
            (name, module)
            for name, module in model.named_modules()
            if name in self.whole_modules or isinstance(module, nn.RNNBase)
        ]
        self._chunk = max(1, record_bytes // max(1, width))
        self.padding: Padding | None = None
        self._expected = expected
        # code may take another path for more examples: looked at are sizes that batches will have
        self.sizes = sizes_to_try(self._chunk, expected)
        self._keep_apart(example)

    def pad(self, example: Batch) -> None:
        """Fill up batches from now on, so that a record's company does not change its bits."""
        self.padding = find_padding(example, self._factors, self._chunk, self._expected)
        self._chunk = self.padding.most

    def twin(self, model: nn.Module, loss: Loss, parameters: Parameters) -> "OnePassEngine":
        """Return an engine with the same layouts for a copy of the model, in another type, say."""
        twin = copy.copy(self)
        twin.model, twin._loss, twin._parameters = model, loss, parameters
        twin._reference = PerExampleEngine(model, loss, parameters, "loop")
        twin._pieces = _pieces(model, parameters)
        names = {name for name, _ in self._modules}
        twin._modules = [(name, each) for name, each in model.named_modules() if name in names]
        twin._weights, twin._workspace, twin.half = None, Workspace(), False
        return twin

    @contextmanager
    def by_itself(self) -> Iterator[None]:
        """Raise NotFollowed, for as long, where a batch would be left to the loop."""
        before, self._by_itself = self._by_itself, True
        try:
            yield
        finally:
            self._by_itself = before

    @property
    def uses_parameters(self) -> bool:
        """Whether any trainable parameter was used on made-up examples."""
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

    def _forward(self, recorder: Recorder, batch: Batch, expected: Tensor | None = None) -> Tensor:
        """Return the loss of each example."""
        with torch.enable_grad():
            with recorder.recording():
                outputs = call(self.model, batch.inputs)
            if expected is not None and outputs.shape != expected.shape:
                raise NotFollowed("its output changes its shape")
            with recorder.watching():
                losses = example_losses(self._loss, outputs, batch.targets)
        if recorder.asking and not recorder.unknown:
            self._refuse_hidden(outputs, losses)
        return losses

    def _refuse_hidden(self, outputs: Tensor, losses: Tensor) -> None:
        """Raise if autograd reaches a parameter: what is recorded is cut off from it."""
        if hidden := self._parameters.names_of(leaves(outputs)):
            raise NotFollowed(f"it uses {hidden} where that cannot be seen")
        if hidden := self._parameters.names_of(leaves(losses)):
            raise NotFollowed(f"its loss uses the parameters {hidden} itself")

    def _contributions(self, batch: Batch, workspace: Workspace) -> list[Contribution]:
        """Return the contributions of the examples, those that fill up the batch at the end."""
        whole = batch if self.padding is None else self.padding.fill(batch)
        found = self._uncompacted(whole)
        workspace.renew()
        with torch.no_grad(), self._no_autocast():
            return _compacted(found, workspace)

    def _padded_size(self, batch: Batch) -> int:
        return batch.size if self.padding is None else self.padding.size(batch.size)

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
        kind = self._parameters.device.type
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

    # ------------------------------------------------------------------ summing

    def clipped_sum(self, batch: Batch | None, scaling: FlatScaling, clip: float) -> ClippedSum:
        """Return the sum of the whitened, clipped per-example gradients; zero for None."""
        positive("clip", clip)
        clipping = self.clipping.on(self._parameters.layout)
        bound = clipping.by_norm
        statistics = clipping.no_statistics(self._parameters.device)
        if batch is None:
            total = self._parameters.zeros()
        elif bound is not None:
            total = self._sum_by_norm(batch, clipping, bound, scaling, clip, statistics)
        else:
            total, batch = self._parameters.zeros(), batch.by_group()
            clipping.add_rows(total, statistics, self.rows(batch), batch.groups, scaling, clip)
        return clipping.clipped(total, statistics, clip)

    def _sum_by_norm(
        self,
        batch: Batch,
        clipping: Clipping,
        bound: ByNorm,
        scaling: FlatScaling,
        clip: float,
        statistics: Tensor,
    ) -> Tensor:
        """Return the sum of a batch's gradients, each times a factor that its norm decides.

        Where layers are bounded by themselves, norms and factors have a row for each. What the
        control of the clip norm wants to know of the norms is added to `statistics`.
        """
        layers = bound if isinstance(bound, PerLayer) else None
        weights: list[float] = [0.0] if layers is None else [0.0] * len(layers.blocks)
        others: Tensor | None = None  # whitened and clipped already
        total: Tensor | None = None

        def with_rows(rows: Iterable[Tensor]) -> Tensor:
            """Return the others with gradients added that are made and dropped one by one."""
            to = self._parameters.zeros() if others is None else others
            clipping.add_rows(to, statistics, rows, None, scaling, clip)
            return to

        for chunk in batch.chunks(self._chunk):
            try:
                contributions = self._contributions(chunk, self._workspace)
            except NotFollowed:  # not as made-up examples did: one by one is always right
                if self._by_itself:
                    raise
                others = with_rows(self._reference.rows(chunk.without_dummies().dense()))
                continue
            size = self._padded_size(chunk)
            norms, plain = self._norms_and_plain(contributions, size, scaling, layers)
            if plain is not None:
                places = torch.nonzero(~plain[: chunk.size])[:, 0].tolist()
                others = with_rows(
                    self._materialised(contributions, i, i + 1).double() for i in places
                )
                for each in contributions:
                    each.drop(plain)
            kept = factors_in(bound, norms, clip, self._parameters.dtype)
            kept[..., chunk.size :] = 0.0
            if len(statistics):  # norms that are infinite here were counted with their rows
                whole = norms if layers is None else torch.linalg.vector_norm(norms, dim=0)
                statistics += clipping.control.statistics(whole[: chunk.size], clip)
            total = self._added(total, contributions, kept, layers)
            if scaling.shift is not None:
                own = kept.sum(dim=-1, dtype=torch.float64).reshape(-1).tolist()
                weights = [a + b for a, b in zip(weights, own, strict=True)]
        total = self._parameters.zeros() if total is None else total
        if scaling.shift is not None:
            _subtract_shift_(total, scaling.shift, weights, layers)
        if scaling.scale is not None:
            total.div_(scaling.scale)
        bound.finish_(total, clip)
        return total if others is None else total.add_(others)

    def rows(self, batch: Batch) -> Iterator[Tensor]:
        """Yield the gradients of the examples as rows, some at a time."""
        for chunk in batch.chunks(self._chunk):
            try:
                contributions = self._contributions(chunk, Workspace())
            except NotFollowed:
                if self._by_itself:
                    raise
                yield from self._reference.rows(chunk.without_dummies().dense())
                continue
            for start, stop in spans(chunk.size, 32 * self._parameters.size):
                yield self._materialised(contributions, start, stop)

    def _materialised(self, contributions: list[Contribution], start: int, stop: int) -> Tensor:
        """Return the gradients of some examples as rows."""
        count, size = stop - start, self._parameters.size
        rows = self._parameters.zeros().repeat(count, 1)
        with torch.no_grad(), self._no_autocast():
            for each in contributions:
                shape, stride = each.piece.shape, each.piece.stride
                view = rows.as_strided((count, *shape), (size, *stride), each.piece.offset)
                view += each.materialise(start, stop).reshape(view.shape)
        return rows

    def _added(
        self,
        total: Tensor | None,
        contributions: list[Contribution],
        kept: Tensor,
        layers: PerLayer | None,
    ) -> Tensor:
        """Return a total with a chunk's clipped sum added, without the shift.

        In a new total, parameters are written where they go; everything else starts from zero.
        """

        def factors(piece: ParameterView) -> Tensor:
            return kept if layers is None else kept[layers.block_of(piece.offset)]

        with torch.no_grad(), self._no_autocast():
            if total is None:
                written: set[int] = set()
                like = self._parameters
                total = torch.empty(like.size, dtype=like.dtype, device=like.device)
                left = []
                for each in contributions:
                    piece = each.piece
                    alone = self._sizes.get(piece.offset) == piece.size
                    if alone and isinstance(each, OuterProductGrad | DenseGrad):
                        each.write_to(total, factors(piece))
                        written.add(piece.offset)
                    else:
                        left.append(each)
                for offset, size in self._sizes.items():
                    if offset not in written:
                        total[offset : offset + size].zero_()
                contributions = left
            for each in contributions:
                each.add_to(total, factors(each.piece))
            return total

    def _norms_and_plain(
        self,
        contributions: list[Contribution],
        examples: int,
        scaling: FlatScaling,
        layers: PerLayer | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return upper bounds on the norms, and which examples they are for; None for all.

        The others have norms, factors or scales whose squares do not fit their type, and an
        infinite bound. Their gradients must be made, so that what is added is what the norm is
        taken from.
        """
        with torch.no_grad(), self._no_autocast():
            weights = self._weights_of(scaling)
            if weights is not None and not weights.fits:
                none = torch.zeros(examples, dtype=torch.bool, device=self._parameters.device)
                norms = torch.full_like(none, math.inf, dtype=torch.float64)
                return (norms if layers is None else norms.repeat(len(layers.blocks), 1)), none
            norms = self._norms(contributions, examples, scaling, layers)
            huge = extremes(contributions)
            if huge is None and math.isfinite(float(norms.sum())):
                return norms, None
            finite = torch.isfinite(norms if layers is None else norms.sum(dim=0))
            plain = finite if huge is None else finite & ~huge
            return torch.where(plain, norms, math.inf), plain

    def _norms(
        self,
        contributions: list[Contribution],
        examples: int,
        scaling: FlatScaling,
        layers: PerLayer | None = None,
    ) -> Tensor:
        """Return upper bounds on the norms of the whitened gradients; a row for each layer."""
        shift = None
        if scaling.shift is not None:
            inverse = 1.0 if scaling.scale is None else scaling.scale.reciprocal()
            moved = scaling.shift * inverse
            shift = moved, moved * inverse
        if layers is None:
            return self._norms_of(contributions, examples, scaling, shift, slice(None))
        parts: list[list[Contribution]] = [[] for _ in layers.blocks]
        for each in contributions:
            parts[layers.block_of(each.piece.offset)].append(each)
        return torch.stack(
            [
                self._norms_of(part, examples, scaling, shift, block.place)
                for part, block in zip(parts, layers.blocks, strict=True)
            ]
        )

    def _norms_of(
        self,
        contributions: list[Contribution],
        examples: int,
        scaling: FlatScaling,
        shift: tuple[Tensor, Tensor] | None,
        place: slice,
    ) -> Tensor:
        """Return upper bounds on the norms of a part of the whitened gradients.

        `shift` has the whitened shift, and the same divided by the scale once more.
        """
        weights = self._weights_of(scaling)
        eps = torch.finfo(self._parameters.dtype).eps
        device = self._parameters.device
        squares = torch.zeros(examples, dtype=torch.float64, device=device)
        for each in contributions:
            squares += each.squared_norms(weights)
        if shift is not None:
            own = float(shift[0][place].square().sum(dtype=torch.float64))
            cross = torch.zeros_like(squares)
            for each in contributions:
                cross += each.products(shift[1])
            # |u - m|^2 is a difference of like numbers where u is close to m
            rounding = eps * (4 + math.sqrt(self._parameters.size)) * (squares + own)
            for each in contributions:  # nor is what cancels in u small beside m
                loose = each.rounding(weights)
                rounding = rounding if loose is None else rounding + 4 * math.sqrt(own) * loose
            squares = not_negative(squares - 2 * cross + own) + rounding
        return squares.sqrt_().mul_(1 + 8 * eps)

    def norms(self, batch: Batch, scalings: Iterable[FlatScaling]) -> list[Tensor]:
        """Return bounds on the norms of the examples' gradients in geometries. They are private.

        They are infinite where a gradient has to be made for its norm.
        """
        contributions, size = self._contributions(batch, Workspace()), self._padded_size(batch)
        found = [self._norms_and_plain(contributions, size, each)[0] for each in scalings]
        return [norms[: batch.size] for norms in found]

    def _weights_of(self, scaling: FlatScaling) -> Weights | None:
        scale = scaling.scale
        if scale is None:
            return None
        kept = self._weights
        # a scale that was changed in place is another one
        if kept is None or kept[0] is not scale or kept[1] != scale._version:
            kept = self._weights = scale, scale._version, Weights(scale)
        return kept[2]

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
                self.half = torch.is_autocast_enabled(self._parameters.device.type) or any(
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
        """Return what is recorded with one made-up example less, if two are left."""
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
            raise NotFollowed(f"made-up examples do not tell which part of {unsure} is whose")


def _subtract_shift_(
    total: Tensor, shift: Tensor, weights: list[float], layers: PerLayer | None
) -> None:
    """Subtract the shift from a sum in place, times the sum of the examples' factors."""
    places = [slice(None)] if layers is None else [block.place for block in layers.blocks]
    for place, weight in zip(places, weights, strict=True):
        if weight:
            total[place].add_(shift[place], alpha=-weight)


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
    """Return more made-up examples of the same kind, in the same order."""
    return example.at(torch.arange(size) * example.size // size)


def _ways_to_expand(use: ParameterUse) -> list[ExampleLayout]:
    """Return where copies for each example may go, the likelier place first."""
    new, instead = ExampleLayout(expand="new"), ExampleLayout(expand="instead")
    if use.lead is None or use.lead[:1] != (1,):
        return [new]
    # (1, positions) is a batch of one, (1,) more likely one position
    return [new, instead] if len(use.lead) == 1 else [instead, new]


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


def _compacted(contributions: list[Contribution], workspace: Workspace) -> list[Contribution]:
    """Replace factors by gradients where that saves work, within the memory that factors take."""
    room = sum(
        each.factor_size for each in contributions if isinstance(each, OuterProductGrad | Patches)
    )
    found = []
    for each in contributions:
        if isinstance(each, OuterProductGrad | Patches):
            small = each.compact(room, workspace)
            room -= 0 if small is each else small.factor_size
            each = small
        found.append(each)
    return found
