"""Averages of gradients over the rows of a unit, or over the records of a micro-batch."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


def averages(rows: Iterable[Tensor], groups: Tensor) -> Iterator[Tensor]:
    """Yield the averages over rows of one group, in float64, as soon as a group is complete."""
    start = 0
    held: tuple[int, Tensor, Tensor] | None = None
    for some in rows:
        here = groups[start : start + len(some)].to(some.device)
        start += len(some)
        found, places, counts = torch.unique_consecutive(
            here, return_inverse=True, return_counts=True
        )
        sums = torch.zeros((len(found), some.shape[1]), dtype=torch.float64, device=some.device)
        sums.index_add_(0, places, some.double())
        if held is not None and held[0] == int(found[0]):
            sums[0] += held[1]
            counts[0] += held[2]
        elif held is not None:
            yield (held[1] / held[2])[None]
        if len(found) > 1:
            yield sums[:-1] / counts[:-1, None]
        held = int(found[-1]), sums[-1].clone(), counts[-1]
    if held is not None:
        yield (held[1] / held[2])[None]
