"""Clients: who computes updates, and how sums over them are bounded."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privada.clipping import Clipping
from privada.clipping.squares import squared_sum
from privada.core.errors import ArgumentError
from privada.core.randomness import RandomSource
from privada.core.tensors import Parameters
from privada.core.values import ClippedSum
from privada.data import Indices
from privada.preconditioning import FlatScaling
from privada.query.executor import Draw


@runtime_checkable
class Clients(Protocol):
    """Places for clients, each of which computes an update when it is asked.

    A place stands for one client as long as the process lives. An update is the model's parameters
    minus what local training has made of them, so that it points where a gradient does. It may be
    anything: what is not an update of the right form is left out, and the others are bounded.

    Places are counted from 0. There are `size` of them, unless a method `places()` says how many;
    it is asked before each draw.
    """

    @property
    def size(self) -> int:
        """The public number of clients, which sets the sampling rate."""

    def updates(self, places: Sequence[int] | None, parameters: Parameters) -> Iterator[Tensor]:
        """Yield at most one update for each place that was asked, all of them for None.

        A client that is missing, late or broken is left out. What it sends can neither raise nor
        change what another one sends. Private: never shown.
        """


@runtime_checkable
class OpenToAll(Protocol):
    """Clients of whom there may be more than the public number."""

    def places(self) -> int:
        """Return how many places there are now, of all that ever came. Private: never shown.

        It is asked before each draw, and raises if clients cannot be reached.
        """


class InProcess:
    """Clients that are functions in this process: for tests and studies of methods.

    Args:
        train: takes the number of a client and the parameters as one vector, and returns its own
            after local training.
        size: how many clients there are.

    Guarantee: none of its own; `FederatedTrainer` bounds what comes of it. A client whose function
    raises is left out.

    Example:
        >>> import privada as pv
        >>> clients = pv.federated.InProcess(lambda client, start: start - 0.1, size=100)
        >>> clients.size
        100
    """

    def __init__(self, train: Callable[[int, Tensor], Tensor], size: int) -> None:
        self._train, self.size = train, size

    def updates(self, places: Sequence[int] | None, parameters: Parameters) -> Iterator[Tensor]:
        """Yield the updates of some clients, in the order of their numbers."""
        start = parameters.read()
        for place in range(self.size) if places is None else places:
            try:
                update = update_from(start, self._train(place, start.clone()))
            except Exception:
                continue
            if update is not None:
                yield update


def update_from(start: Tensor, made: Tensor) -> Tensor | None:
    """Return what training has changed, None if what it made has another form or length."""
    if not made.is_floating_point() or made.layout != torch.strided or made.shape != start.shape:
        return None
    return start - made.detach().to(start)


@dataclass(frozen=True)
class ClientUnits:
    """Each place is a unit: one client with all its records.

    Example:
        >>> from privada.federated.clients import ClientUnits
        >>> ClientUnits(1000).grouped
        True
    """

    size: int
    rows_per_unit: int = 1
    grouped: bool = True

    @property
    def row_count(self) -> int:
        """As many as there are clients: each sends one update."""
        return self.size

    def rows(self, units: Indices, rng: RandomSource) -> tuple[Indices, NDArray[np.int64] | None]:
        """Return the clients themselves."""
        return units, None


class FederatedExecutor:
    """Computes clipped sums over the updates of clients.

    Guarantee: a client's update is scaled and bounded here, by the clip norm, whatever the client
    has sent; one that is not finite counts as zero. All count alike, however many records they
    have. So adding or removing a client moves the sum by no more than its sensitivity.

    Edge cases: if nobody was drawn, or nobody answers, the sum is zero.

    Reference: McMahan et al. (2018), Learning Differentially Private Recurrent Language Models,
    arXiv 1710.06963, Algorithm 1.
    """

    def __init__(self, clients: Clients, parameters: Parameters, clipping: Clipping) -> None:
        self._clients, self._parameters, self._clipping = clients, parameters, clipping

    def clipped_sum(self, drawn: Draw, scaling: FlatScaling, clip: float) -> ClippedSum:
        """Return the sum of the scaled updates of a draw, each bounded by the clip norm."""
        total = self._parameters.zeros()
        clipping = self._clipping.on(self._parameters.layout)
        statistics = clipping.no_statistics(total.device)
        rows = self._rows(drawn.rows.tolist())
        clipping.add_rows(total, statistics, rows, None, scaling, clip)
        return clipping.clipped(total, statistics, clip)

    def squared_sum(self, bound: float, rng: RandomSource) -> ClippedSum:
        """Return sum_i min(g_ij^2, bound) over the updates of all clients."""
        return squared_sum(self._parameters, self._rows(None), bound)

    def features(self) -> int:
        """Refuse: clients send updates of the model, and not what their records look like."""
        raise ArgumentError(
            "Expected a preconditioner that needs no moments of features in federated training, "
            "where clients send updates of the model alone. Give public scales with "
            "pv.preconditioning.by_feature. Nothing was charged."
        )

    def feature_sum(self, rng: RandomSource) -> ClippedSum:
        """Refuse, as `features` does."""
        raise AssertionError(f"clients do not send {self.features()} features")

    def recheck(self) -> None:
        """Raise if clients cannot be reached, before anything is charged for it."""
        if isinstance(self._clients, OpenToAll):
            self._clients.places()

    def _rows(self, places: list[int] | None) -> Iterator[Tensor]:
        return (each[None] for each in self._clients.updates(places, self._parameters))
