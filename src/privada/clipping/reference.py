"""The reference engine: per-example gradients of any model, materialised.

It makes one gradient per example, a chunk at a time. The engine of one pass is held to it.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from privada.clipping.batch import Batch, call
from privada.clipping.clips import THRESHOLD, Clipping
from privada.clipping.losses import Loss, one_example
from privada.clipping.padding import Padding, find_padding
from privada.core.tensors import Parameters
from privada.core.validation import positive
from privada.core.values import ClippedSum
from privada.geometry import Whitening

# What one chunk's per-example gradients may take, with the copies made of them.
_CHUNK_BYTES = 1 << 28


class PerExampleEngine:
    """Per-example gradients, materialised a chunk at a time, then whitened, clipped and summed.

    Guarantee: each example's loss is computed by itself, so no example can reach another's
    gradient; the sum has the sensitivity that its clipping says; an example whose gradient is not
    finite counts as zero.

    Edge cases: an empty batch gives zero. A batch of any size is worked through in chunks.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        parameters: Parameters,
        how: str,
        chunk_bytes: int = _CHUNK_BYTES,
        clipping: Clipping = THRESHOLD,
    ) -> None:
        self._model, self._loss, self._parameters = model, loss, parameters
        self.clipping = clipping
        self._gradients = self._by_vmap if how == "vmap" else self._by_loop
        width = torch.finfo(parameters.dtype).bits // 8
        self._chunk = max(1, chunk_bytes // (4 * width * parameters.size))
        self._padding: Padding | None = None
        self._alone = how == "loop"

    def pad(self, example: Batch, expected: float | None = None) -> None:
        """Fill up batches from now on, so that a record's company does not change its bits."""
        if not self._alone:
            self._padding = find_padding(example, self._factors, self._chunk, expected)
            self._chunk = self._padding.most

    @property
    def invariant(self) -> bool:
        """Whether an example's gradient was seen not to depend on its company, bit for bit."""
        return self._alone or (self._padding is not None and self._padding.invariant)

    def _factors(self, batch: Batch) -> list[Tensor]:
        """Return the gradients of a batch, without dropout and the like."""
        training = [module for module in self._model.modules() if module.training]
        try:
            self._model.eval()
            return [self._gradients(batch).detach()]
        finally:
            for module in training:
                module.training = True

    def _example_loss(
        self,
        trained: dict[str, Tensor],
        fixed: dict[str, Tensor],
        inputs: Any,
        target: Any,
    ) -> Tensor:
        def module(*args: Any, **kwargs: Any) -> Any:
            return functional_call(self._model, (trained, fixed), args, kwargs)

        one = tree_map(lambda t: t.unsqueeze(0), (inputs, target))
        return one_example(self._loss, call(module, one[0]), one[1])

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        names = set(self._parameters.layout.names)
        named = dict(self._model.named_parameters())
        trained = {name: named[name].detach() for name in self._parameters.layout.names}
        fixed = {name: p.detach() for name, p in named.items() if name not in names}
        return trained, fixed | dict(self._model.named_buffers())

    def _by_vmap(self, batch: Batch) -> Tensor:
        one = grad(self._example_loss)
        many = vmap(one, in_dims=(None, None, 0, 0), randomness="different")
        return self._rows(many(*self._state(), batch.inputs, batch.targets), batch.size)

    def _by_loop(self, batch: Batch) -> Tensor:
        trained, fixed = self._state()
        like = self._parameters
        rows = torch.zeros(batch.size, like.size, dtype=like.dtype, device=like.device)
        for row, example in zip(rows, batch.chunks(1), strict=True):
            leaves = {name: value.clone().requires_grad_() for name, value in trained.items()}
            inputs, target = tree_map(lambda t: t[0], (example.inputs, example.targets))
            value = self._example_loss(leaves, fixed, inputs, target)
            parts = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
            for place, part in zip(like.layout.pieces(row), parts, strict=True):
                if part is not None:
                    place.copy_(part.to_dense())
        return rows

    def _rows(self, named: dict[str, Tensor], size: int) -> Tensor:
        return torch.cat(
            [named[name].reshape(size, -1) for name in self._parameters.layout.names], dim=1
        )

    def rows(self, batch: Batch) -> Iterator[Tensor]:
        """Yield the gradients of the examples as rows, a chunk at a time."""
        for chunk in batch.chunks(self._chunk):
            whole = chunk if self._padding is None else self._padding.fill(chunk)
            yield self._gradients(whole).detach()[: chunk.size]

    def clipped_sum(self, batch: Batch | None, whitening: Whitening, clip: float) -> ClippedSum:
        """Return the sum of the whitened, clipped per-example gradients; zero for None."""
        positive("clip", clip)
        total = self._parameters.zeros()
        if batch is not None:
            batch = batch.by_group()
            self.clipping.add_rows(total, self.rows(batch), batch.groups, whitening, clip)
        return ClippedSum(total, self.clipping.sensitivity(clip))
