"""Memory that is used again: fresh memory may cost more than the product that fills it."""

import math
import threading
from collections.abc import Sequence

import torch
from torch import Tensor


class Workspace:
    """Memory that is used again, step after step, for what is made and dropped in each.

    Fresh memory comes a page at a time, and may cost more than the product that fills it. It grows
    to what a step has wanted. A copy begins with none.
    """

    def __init__(self) -> None:
        self._held = torch.empty(0)
        self._taken = 0

    def __reduce__(self) -> tuple[type["Workspace"], tuple[()]]:
        return Workspace, ()

    def renew(self) -> None:
        """Begin a step: what was taken before is not used any more."""
        if self._taken > self._held.numel():
            self._held = self._held.new_empty(0)  # before the larger one is there
            self._held = self._held.new_empty(self._taken)
        self._taken = 0

    def take(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return memory of a shape, and of the type of a tensor, with anything in it."""
        if (self._held.dtype, self._held.device) != (like.dtype, like.device):
            self._held = like.new_empty(0)
        start, self._taken = self._taken, self._taken + math.prod(shape)
        if self._taken > self._held.numel():
            return like.new_empty(shape)
        return self._held[start : self._taken].view(shape)


_kept = threading.local()


def scratch(shape: Sequence[int], like: Tensor, use: str = "values") -> Tensor:
    """Return memory of a shape, and of the type of a tensor, that the next call returns again.

    What is there under another `use` stays as it is.
    """
    size, kept = math.prod(shape), getattr(_kept, use, like)
    fits = kept is not like and kept.numel() >= size
    if not fits or (kept.dtype, kept.device) != (like.dtype, like.device):
        kept = like.new_empty(size)
        setattr(_kept, use, kept)
    return kept[:size].view(shape)
