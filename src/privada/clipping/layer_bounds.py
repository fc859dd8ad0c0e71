"""One clip norm for each layer, whose squares add up to that of all of them."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from privada.clipping.bounds import ByNorm, Threshold, factors_in, whitened
from privada.core.errors import ArgumentError
from privada.core.tensors import Layout
from privada.core.validation import positive
from privada.preconditioning import FlatScaling

# So that squares of rounded shares do not add up to more than one.
_ROUNDED_DOWN = 1 - 2.0**-50


@dataclass(frozen=True)
class Block:
    """Consecutive coordinates of a flat vector, with their share of the clip norm."""

    start: int
    stop: int
    share: float

    @property
    def place(self) -> slice:
        """Where the coordinates are."""
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class PerLayer:
    """Bounds the gradient of each layer by a share of the clip norm.

    A layer is a module with parameters of its own, all of which are bounded together. `bound` says
    how each layer's gradient is bounded. The shares hold for a model once the bound is laid out
    `on` its parameters.
    """

    bound: ByNorm
    shares: tuple[tuple[str, float], ...] | None = None
    blocks: tuple[Block, ...] = field(default=(), compare=False)

    def on(self, layout: Layout) -> "PerLayer":
        """Return the bound for a model with parameters of a layout.

        Raises:
            ArgumentError: a layer has no share, or a share no layer.
        """
        return replace(self, blocks=_blocks_of(layout, self.shares))

    def block_of(self, offset: int) -> int:
        """Return the number of the block that a coordinate is in."""
        return bisect_right(self.blocks, offset, key=lambda block: block.start) - 1

    def factors(self, norms: Tensor, clip: float) -> Tensor:
        """Return the factors of each block's gradients, first dimension the block."""
        pairs = zip(self.blocks, norms, strict=True)
        return torch.stack([self.bound.factors(own, clip * block.share) for block, own in pairs])

    def finish_(self, total: Tensor, clip: float) -> Tensor:
        """Multiply each block of a sum in place by what its gradients have in common."""
        for block in self.blocks:
            self.bound.finish_(total[block.place], clip * block.share)
        return total

    def sum_of(self, rows: Tensor, scaling: FlatScaling, clip: float) -> Tensor:
        """Return the sum of the bounded rows; one that is not finite anywhere counts as zero."""
        rows = whitened(rows, scaling)
        parts = [rows[:, block.place] for block in self.blocks]
        norms = torch.stack(
            [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts]
        )
        finite = torch.isfinite(norms).all(dim=0)
        if not bool(finite.all()):
            parts = [torch.where(finite[:, None], part, 0.0) for part in parts]
            norms = torch.where(finite, norms, 0.0)
        kept = factors_in(self, norms, clip, rows.dtype)
        total = torch.cat([own @ part for own, part in zip(kept, parts, strict=True)])
        return self.finish_(total, clip)

    def __repr__(self) -> str:
        pairs = ", ".join(f"{name!r}: {share:g}" for name, share in self.shares or ())
        text = f"per_layer({{{pairs}}})" if pairs else "per_layer()"
        return text if self.bound == Threshold() else f"{text} of {self.bound!r}"


def checked_shares(shares: Mapping[str, float] | None) -> tuple[tuple[str, float], ...] | None:
    """Return shares of the clip norm as a value; None for equal ones."""
    if shares is None:
        return None
    if not isinstance(shares, Mapping) or not shares:
        raise ArgumentError(
            "Expected shares to be a map from names of layers to positive numbers, got "
            f"shares={shares!r}. Leave it out for equal shares."
        )
    return tuple(
        (str(name), positive(f"shares[{name!r}]", share)) for name, share in shares.items()
    )


@lru_cache(maxsize=16)
def _blocks_of(layout: Layout, shares: tuple[tuple[str, float], ...] | None) -> tuple[Block, ...]:
    """Return the blocks of a layout, with shares whose squares add up to one."""
    layers: dict[str, list[int]] = {}
    for place, name in enumerate(layout.names):
        layers.setdefault(name.rpartition(".")[0], []).append(place)
    if shares is None:
        found = [(places, 1.0) for places in layers.values()]
    else:
        found = _with_shares(layout, layers, dict(shares))
    root = math.hypot(*(share for _, share in found)) / _ROUNDED_DOWN
    ends = list(accumulate(layout.sizes))
    found.sort()
    blocks = []
    for places, share in found:
        if places != list(range(places[0], places[-1] + 1)):
            raise ArgumentError(
                "Expected the parameters of a layer to follow each other in "
                f"model.named_parameters(), got {[layout.names[place] for place in places]} apart. "
                "Leave the order of torch.nn.Module as it is."
            )
        start = ends[places[0]] - layout.sizes[places[0]]
        blocks.append(Block(start, ends[places[-1]], share / root))
    return tuple(blocks)


def _with_shares(
    layout: Layout, layers: Mapping[str, Sequence[int]], shares: dict[str, float]
) -> list[tuple[list[int], float]]:
    """Return the places of the parameters of each layer, or of a parameter, with their share."""
    found: list[tuple[list[int], float]] = []
    missing = []
    for layer, places in layers.items():
        names = [layout.names[place] for place in places]
        if layer in shares:
            found.append((list(places), shares.pop(layer)))
        elif all(name in shares for name in names):
            found += [([place], shares.pop(layout.names[place])) for place in places]
        else:
            missing.append(layer)
    if missing or shares:
        raise ArgumentError(
            "Expected shares with a number for each layer that is trained, "
            f"{list(layers)}, got {'none for ' + str(missing) if missing else ''}"
            f"{' and ' if missing and shares else ''}"
            f"{'unknown names ' + str(list(shares)) if shares else ''}. Name layers as "
            "model.named_modules() does ('' is the model itself), or all parameters of a layer as "
            "model.named_parameters() does."
        )
    return found
