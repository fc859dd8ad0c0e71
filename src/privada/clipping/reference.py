"""The reference engine: per-example gradients of any model, materialised.

It makes one gradient per example, a chunk at a time. The engine of one pass is held to it. A
parameter counts wherever it is used, in the model or in the loss: the loop asks autograd for the
gradients of the parameters themselves, and vmap puts its copies in the place of the parameters
while both run.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from privada.clipping.calling import call
from privada.clipping.clips import THRESHOLD, Clipping
from privada.clipping.leaves import leaves
from privada.clipping.losses import Loss, one_example
from privada.clipping.replacing import replaced
from privada.core.tensors import Parameters
from privada.core.validation import positive
from privada.core.values import ClippedSum
from privada.data.batch import Batch
from privada.data.padding import Padding, find_padding
from privada.preconditioning import FlatScaling

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
        expected: float | None = None,
    ) -> None:
        self.model, self.loss, self._parameters = model, loss, parameters
        self.clipping = clipping
        self._gradients = self._by_vmap if how == "vmap" else self._by_loop
        width = torch.finfo(parameters.dtype).bits // 8
        self._chunk = max(1, chunk_bytes // (4 * width * parameters.size))
        self.padding: Padding | None = None
        self._alone, self._expected = how == "loop", expected

    def pad(self, example: Batch) -> None:
        """Fill up batches from now on, so that a record's company does not change its bits."""
        if not self._alone:
            self.padding = find_padding(example, self._factors, self._chunk, self._expected)
            self._chunk = self.padding.most

    def _factors(self, batch: Batch) -> list[Tensor]:
        """Return the gradients of a batch, without dropout and the like."""
        training = [module for module in self.model.modules() if module.training]
        try:
            self.model.eval()
            return [self._gradients(batch).detach()]
        finally:
            for module in training:
                module.training = True

    def _example_loss(self, trained: Sequence[Tensor], inputs: Any, target: Any) -> Tensor:
        """Return one example's loss at copies of the parameters."""
        modules = [*self.model.modules()]
        if isinstance(self.loss, nn.Module):
            modules += self.loss.modules()
        copies = dict(zip(self._parameters.ids, trained, strict=True))
        one = tree_map(lambda t: t.unsqueeze(0), (inputs, target))
        with replaced(modules, copies):
            return one_example(self.loss, call(self.model, one[0]), one[1])

    def _trained(self) -> list[Tensor]:
        with self._parameters.trainable() as tensors:
            return [tensor.detach() for tensor in tensors]

    def not_replaced(self, batch: Batch) -> list[str]:
        """Return the parameters that an example's loss reaches past the copies that vmap makes.

        Such are parameters that a function has kept from elsewhere: `weight` where it would have to
        be `model.weight`.
        """
        inputs, target = tree_map(lambda t: t[0], (batch.inputs, batch.targets))
        with torch.enable_grad():
            found = leaves(self._example_loss(self._trained(), inputs, target))
        return self._parameters.names_of(found)

    def _by_vmap(self, batch: Batch) -> Tensor:
        one = grad(self._example_loss)
        many = vmap(one, in_dims=(None, 0, 0), randomness="different")
        parts = many(self._trained(), batch.inputs, batch.targets)
        return torch.cat([part.reshape(batch.rows, -1) for part in parts], dim=1)

    def _by_loop(self, batch: Batch) -> Tensor:
        like = self._parameters
        rows = torch.zeros(batch.size, like.size, dtype=like.dtype, device=like.device)
        for row, example in zip(rows, batch.chunks(1), strict=True):
            # in memory of its own: that of a view holds the other examples
            alone = Batch(*tree_map(torch.clone, (example.inputs, example.targets)))
            parts = self.gradient(alone)
            for place, part in zip(like.layout.pieces(row), parts, strict=True):
                if part is not None:
                    place.copy_(part.to_dense())
        return rows

    def gradient(self, example: Batch) -> Sequence[Tensor | None]:
        """Return one example's gradient, parameter by parameter; None where none is reached."""
        torch.clear_autocast_cache()  # it holds parameters as they were before the last step
        with torch.enable_grad(), self._parameters.trainable() as tensors:
            outputs = call(self.model, example.inputs)
            value = one_example(self.loss, outputs, example.targets)
            if not value.requires_grad:
                return [None] * len(tensors)
            found: Sequence[Tensor | None] = torch.autograd.grad(value, tensors, allow_unused=True)
            return found

    def rows(self, batch: Batch) -> Iterator[Tensor]:
        """Yield the gradients of the examples as rows, a chunk at a time."""
        for chunk in batch.chunks(self._chunk):
            whole = chunk.without_dummies() if self.padding is None else self.padding.fill(chunk)
            yield self._gradients(whole).detach()[: chunk.size]

    def clipped_sum(self, batch: Batch | None, scaling: FlatScaling, clip: float) -> ClippedSum:
        """Return the sum of the whitened, clipped per-example gradients; zero for None."""
        positive("clip", clip)
        total = self._parameters.zeros()
        clipping = self.clipping.on(self._parameters.layout)
        statistics = clipping.no_statistics(total.device)
        if batch is not None:
            batch = batch.by_group()
            clipping.add_rows(total, statistics, self.rows(batch), batch.groups, scaling, clip)
        return clipping.clipped(total, statistics, clip)
