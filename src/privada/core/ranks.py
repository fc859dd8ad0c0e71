"""Processes that work on one run together: the ranks of torch.distributed, and what they send.

Messages are pickled, as torch.distributed does it: ranks trust each other, and the network between
them must be trusted too. What travels, draws and sums without noise, is as secret as the records.
"""

import contextlib
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from privada.core.errors import ArgumentError, DistributedError

T = TypeVar("T")

# A message that fits takes one broadcast; of a longer one the rest takes another.
_FIRST, _LENGTH = 2048, 8
# Where in torch's sources an error comes from, which helps nobody here.
_PLACE = re.compile(r"^\[[^\]]*\.cc:\d+\] ")
# The types of sums, by the number that they are sent as.
_TYPES = (torch.float32, torch.float64)


def launched() -> tuple[int, int]:
    """Return this process's rank and how many there are, as torch.distributed or torchrun say.

    Example:
        >>> from privada.core.ranks import launched
        >>> launched()
        (0, 1)
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1
    return (rank, size) if 0 <= rank < size else (0, 1)


def refuse_several(what: str, remedy: str) -> None:
    """Raise if this is one of several ranks, each of which would do it for itself.

    Raises:
        ArgumentError: it is.
    """
    rank, size = launched()
    if size > 1:
        raise ArgumentError(
            f"Expected {what} in one process, got rank {rank} of {size}, as torchrun or "
            f"torch.distributed started them: each would draw and charge for itself. {remedy} "
            "Nothing was charged."
        )


def refuse_others(what: str) -> None:
    """Raise on all ranks but the first.

    Raises:
        ArgumentError: this is not rank 0.
    """
    rank, size = launched()
    if rank > 0:
        raise ArgumentError(
            f"Expected {what} on rank 0 alone, got rank {rank} of {size}: each would be charged "
            "for itself. Ask under `if pv.execute.rank() == 0:` and send the others what it "
            "gives. Nothing was charged here."
        )


_meetings = 0


def met() -> None:
    """Note that this process has joined a group of others, which begins to count anew."""
    global _meetings
    _meetings += 1


class Ranks:
    """The ranks of one run, all of which say the same in turns: rank 0 leads.

    Args:
        timeout: how many seconds one rank waits for another.

    Guarantee: where a rank is gone or does not answer in time, every operation of the others raises
    a DistributedError within that time, and so does every later one: ranks that may have missed a
    word do not go on.
    """

    def __init__(self, timeout: float) -> None:
        self.rank, self.size = launched()
        self._world = dist.group.WORLD
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        self._devices: Any = None
        self._timeout = timeout
        self._process = os.getpid()
        self.meeting = _meetings
        self.ended: str | None = None

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which draws, pays and adds noise."""
        return self.rank == 0

    @property
    def current(self) -> bool:
        """Whether these are the ranks that torch.distributed has now, of this very process."""
        own = dist.is_initialized() and dist.group.WORLD is self._world
        return own and os.getpid() == self._process

    def end(self, reason: str) -> None:
        """Say no further word, and close the connections, so that the others notice."""
        if self.ended is not None:
            return
        self.ended = reason
        for group in (self._group, self._devices):
            if group is not None and self.current:
                with contextlib.suppress(Exception):
                    dist.destroy_process_group(group)
        self._group = self._devices = None

    def part(self) -> None:
        """Close the connections of a process that ends, and keep no reference to them.

        Left open, they may abort it: their threads outlive Python.
        """
        self.end("the process ends")
        self._world = None

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Make several operations one: if any of them fails, or is interrupted, all is ended."""
        if self.ended is not None or not self.current:
            raise DistributedError(
                "Cannot go on together: the ranks have parted "
                f"({self.ended or 'torch.distributed was closed, or this is a fork'}). Start all "
                "processes again, and resume from the last checkpoint."
            )
        try:
            yield
        except DistributedError as error:
            self.end(str(error))
            raise
        except RuntimeError as error:  # what torch.distributed raises
            reason = _PLACE.sub("", str(error)).split(". ")[0].splitlines()[0]
            self.end(reason)
            raise DistributedError(
                f"Another rank is gone, or rank {self.rank} of {self.size} has not heard of it for "
                f"{self._timeout:g} s ({reason}). What was charged stays charged. Start all "
                "processes again, and resume from the last checkpoint."
            ) from error
        except BaseException as error:
            self.end(f"rank {self.rank} stopped in the middle: {type(error).__name__}")
            raise

    # ------------------------------------------------------------------ words

    def tell(self, message: Any) -> None:
        """Send a message to all others; for rank 0."""
        packed = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        whole = len(packed).to_bytes(_LENGTH, "little") + packed
        with self.exchange():
            first = whole[:_FIRST].ljust(_FIRST, b"\0")
            dist.broadcast(_tensor_of(first), 0, group=self._group)
            if len(whole) > _FIRST:
                dist.broadcast(_tensor_of(whole[_FIRST:]), 0, group=self._group)

    def hear(self) -> Any:
        """Wait for the next message of rank 0; for all others."""
        with self.exchange():
            buffer = torch.empty(_FIRST, dtype=torch.uint8)
            dist.broadcast(buffer, 0, group=self._group)
            whole = buffer.numpy().tobytes()
            length = int.from_bytes(whole[:_LENGTH], "little")
            if _LENGTH + length > _FIRST:
                rest = torch.empty(_LENGTH + length - _FIRST, dtype=torch.uint8)
                dist.broadcast(rest, 0, group=self._group)
                whole += rest.numpy().tobytes()
            return pickle.loads(whole[_LENGTH : _LENGTH + length])

    def reports(self, own: Any) -> list[Any]:
        """Return what every rank says, by rank; for all at once."""
        said: list[Any] = [None] * self.size
        with self.exchange():
            dist.all_gather_object(said, own, group=self._group)
        return said

    def first(self, act: Callable[[], T]) -> T | None:
        """Return what an act comes to on rank 0, None on all others; raise on all what it raises.

        Raises:
            PrivadaError: what rank 0 has raised.
            DistributedError: rank 0 has raised something else, here on the others.
        """
        if not self.leads:
            raise_told(self.hear())
            return None
        try:
            found = act()
        except BaseException as error:
            with contextlib.suppress(DistributedError):
                self.tell(told(error))
            raise
        self.tell(None)
        return found

    # ------------------------------------------------------------------ numbers

    def share_(self, values: Tensor) -> None:
        """Write the values of rank 0 into a tensor of the same shape and type on all others."""
        with self.exchange():
            where = self._where(values)
            here = (values if where is not None else values.cpu()).contiguous()
            dist.broadcast(here, 0, group=self._group if where is None else where)
            if here is not values and not self.leads:
                values.copy_(here)

    def add_up_(self, own: Tensor | None, note: Tensor, device: torch.device) -> bool:
        """Add the vectors of all ranks into that of rank 0, in one order: by a tree of pairs.

        `note` are a few numbers of which rank 0 gets the greatest. None for `own` says that a rank
        has none to give; then there is no sum. Returns whether rank 0 has it.
        """
        with self.exchange():
            form = [1.0, 0.0, 0.0] if own is None else [0.0, own.numel(), _TYPES.index(own.dtype)]
            noted = torch.tensor([*form, *note.tolist()], dtype=torch.float64)
            stride = 1
            while stride < self.size:
                if self.rank & stride:
                    self._send(noted, self.rank - stride)
                    if own is not None and not noted[0]:
                        self._send(own, self.rank - stride)
                    return False
                if self.rank + stride < self.size:
                    theirs = self._receive(torch.empty_like(noted), self.rank + stride)
                    if not theirs[0]:
                        kind = _TYPES[int(theirs[2])]
                        part = torch.empty(int(theirs[1]), dtype=kind, device=device)
                        part = self._receive(part, self.rank + stride)
                        if own is not None and (part.shape, kind) == (own.shape, own.dtype):
                            own.add_(part)
                        else:
                            noted[0] = 1.0
                    noted = torch.maximum(noted, theirs)
                stride *= 2
            note.copy_(noted[3:])
            return not bool(noted[0])

    def _send(self, values: Tensor, to: int) -> None:
        where = self._where(values)
        here = (values if where is not None else values.cpu()).contiguous()
        dist.send(here, to, group=self._group if where is None else where)

    def _receive(self, into: Tensor, source: int) -> Tensor:
        where = self._where(into)
        if where is not None:
            dist.recv(into, source, group=where)
            return into
        here = torch.empty(into.shape, dtype=into.dtype)
        dist.recv(here, source, group=self._group)
        return here.to(into.device)

    def _where(self, values: Tensor) -> Any:
        """Return the group that tensors of this kind travel by, None for a copy on the host."""
        if values.device.type == "cpu":
            return self._group
        if values.device.type != "cuda" or not dist.is_nccl_available():
            return None
        if self._devices is None:  # made by all ranks at once, at their first tensor there
            wait = timedelta(seconds=self._timeout)
            self._devices = dist.new_group(backend="nccl", timeout=wait)
        return self._devices


def _tensor_of(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def told(error: BaseException) -> tuple[str, str]:
    """Return the name of an error and its words, as they are sent.

    Example:
        >>> from privada.core.errors import LedgerError
        >>> from privada.core.ranks import told
        >>> told(LedgerError("It is full."))
        ('LedgerError', 'It is full.')
    """
    return type(error).__name__, str(error)


def raise_told(said: tuple[str, str] | None, own: BaseException | None = None) -> None:
    """Raise what rank 0 has raised, if it has, as the same error where it is one of Privada's."""
    if said is None:
        return
    import privada.core.errors as known

    name, words = said
    kind = getattr(known, name, None)
    if isinstance(kind, type) and issubclass(kind, known.PrivadaError):
        raise kind(words) from own
    raise DistributedError(
        f"Rank 0 stopped with {f'{name}: {words}' if words else name}. Start all processes again, "
        "and resume from the last checkpoint."
    ) from own
