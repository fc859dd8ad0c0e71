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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from privada.clipping.bounds import ByNorm, factors_in
from privada.clipping.clips import THRESHOLD, Clipping
from privada.clipping.combining import compacted, extremes
from privada.clipping.contributions import Contribution, DenseGrad
from privada.clipping.layer_bounds import PerLayer
from privada.clipping.losses import Loss
from privada.clipping.norms import not_negative, spans
from privada.clipping.outer_products import OuterProductGrad
from privada.clipping.parameter_views import ParameterView, Weights
from privada.clipping.reads import NotFollowed
from privada.clipping.recorded_model import RecordedModel
from privada.clipping.reference import PerExampleEngine
from privada.clipping.workspace import Workspace
from privada.core.tensors import Parameters
from privada.core.validation import positive
from privada.core.values import ClippedSum
from privada.data.batch import Batch
from privada.data.padding import Padding, find_padding, sizes_to_try
from privada.preconditioning import FlatScaling

# What a chunk's records may take; batches beyond it run in parts, with the same result.
_RECORD_BYTES = 1 << 28


class OnePassEngine(RecordedModel):
    """Clipped sums from one forward and one backward pass over the batch.

    Guarantee: each example's part of the sum is made from the very factors that its norm is taken
    from, or from its gradient where the clipping needs that, so the sum has the sensitivity that
    its clipping says; an example whose gradient is not finite counts as zero. This needs a model in
    which examples do not touch: where each layer keeps its examples is found out on dummy ones,
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
        self.clipping = clipping
        self._reference = PerExampleEngine(model, loss, parameters, "loop")
        self._weights: tuple[Tensor, int, Weights] | None = None
        self._workspace = Workspace()
        self._by_itself = False
        super().__init__(model, loss, parameters, example)
        self._chunk = max(1, record_bytes // max(1, self.bytes_of_one))
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
        twin._replace_model(model, loss, parameters)
        twin._reference = PerExampleEngine(model, loss, parameters, "loop")
        twin._weights, twin._workspace = None, Workspace()
        return twin

    @contextmanager
    def by_itself(self) -> Iterator[None]:
        """Raise NotFollowed, for as long, where a batch would be left to the loop."""
        before, self._by_itself = self._by_itself, True
        try:
            yield
        finally:
            self._by_itself = before

    def _contributions(self, batch: Batch, workspace: Workspace) -> list[Contribution]:
        """Return the contributions of the examples of a batch that is filled up."""
        found = self._uncompacted(batch)
        with torch.no_grad(), self._no_autocast():
            return compacted(found, workspace)

    def _filled(self, batch: Batch) -> Batch:
        """Return a batch with dummy examples at its end, as padding says."""
        padding = self.padding
        if padding is None:
            return batch
        if 0 < batch.dummies <= padding.multiple and batch.rows % padding.multiple == 0:
            return batch  # as it was read
        return padding.fill(batch)

    def _chunks(self, batch: Batch) -> Iterable[Batch]:
        return (batch,) if 0 < batch.size <= self._chunk else batch.chunks(self._chunk)

    def clipped_sum(self, batch: Batch | None, scaling: FlatScaling, clip: float) -> ClippedSum:
        """Return the sum of the whitened, clipped per-example gradients; zero for None."""
        if not 0 < clip < math.inf:
            positive("clip", clip)
        clipping = self.clipping.on(self._parameters.layout)
        bound = clipping.by_norm
        statistics = clipping.no_statistics(self._parameters.first.device)
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

        for chunk in self._chunks(batch):
            filled = self._filled(chunk)
            try:
                contributions = self._contributions(filled, self._workspace)
            except NotFollowed:  # not as dummy examples did: one by one is always right
                if self._by_itself:
                    raise
                others = with_rows(self._reference.rows(chunk.without_dummies().dense()))
                continue
            norms, plain = self._norms_and_plain(contributions, filled.rows, scaling, layers)
            if plain is not None:
                places = torch.nonzero(~plain[: chunk.size])[:, 0].tolist()
                others = with_rows(
                    self._materialised(contributions, i, i + 1).double() for i in places
                )
                for each in contributions:
                    each.drop(plain)
            kept = factors_in(bound, norms, clip, self._parameters.first.dtype)
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
        for chunk in self._chunks(batch):
            try:
                contributions = self._contributions(self._filled(chunk), Workspace())
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
                like = self._parameters.first
                total = torch.empty(self._parameters.size, dtype=like.dtype, device=like.device)
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
                none = torch.zeros(examples, dtype=torch.bool, device=self._parameters.first.device)
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
        eps = torch.finfo(self._parameters.first.dtype).eps
        device = self._parameters.first.device
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
        filled = self._filled(batch)
        contributions = self._contributions(filled, Workspace())
        found = [self._norms_and_plain(contributions, filled.rows, each)[0] for each in scalings]
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


def _subtract_shift_(
    total: Tensor, shift: Tensor, weights: list[float], layers: PerLayer | None
) -> None:
    """Subtract the shift from a sum in place, times the sum of the examples' factors."""
    places = [slice(None)] if layers is None else [block.place for block in layers.blocks]
    for place, weight in zip(places, weights, strict=True):
        if weight:
            total[place].add_(shift[place], alpha=-weight)
