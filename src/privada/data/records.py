"""What private records have in common, however they are kept."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from privada.core.hidden_streams import HiddenStreams
from privada.data.batch import Batch
from privada.data.padding import Padding

Indices = NDArray[np.int64]
Transform = Callable[[Any, torch.Generator], Any]
Collate = Callable[[list[Any]], Any]


class Records(Protocol):
    """Private records, read by index."""

    @property
    def size(self) -> int:
        """The number of records."""

    @property
    def example(self) -> Batch:
        """One record of the public shapes and types."""

    def fetch(self, indices: Indices) -> Batch:
        """Return some records that are public, and raise what that raises. At least one index."""

    def read(
        self, indices: Indices, streams: HiddenStreams, padding: Padding | None = None
    ) -> tuple[Batch | None, Indices]:
        """Return the records that can be read and fit, and which of the indices they are at.

        They may be filled up with dummy examples, if a padding is given.
        What is read of a record depends on that record alone: on no other record, nor on how many
        there are. None stands for no record.
        """
