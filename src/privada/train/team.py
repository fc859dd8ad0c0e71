"""The ranks of one run: what they agree on, and how those that do not lead follow."""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from privada.core.errors import DistributedError
from privada.core.ranks import Ranks, raise_told, refuse_several, told
from privada.core.state import HeldState
from privada.core.tensors import Parameters
from privada.core.version import __version__
from privada.query.executor import Execution, Executor, Followed, Led, Together
from privada.query.same_records import records_digest
from privada.train.state import TrainState

_COLUMNS = 1024


@dataclass(frozen=True)
class Begin:
    """Rank 0 begins a call of a run."""

    run: int
    call: str


@dataclass(frozen=True)
class Done:
    """Rank 0 has ended a call: what it has come to, and what it has raised."""

    progress: Any
    error: tuple[str, str] | None


class Team(Protocol):
    """Who works on a run: this process alone, or several ranks."""

    leads: bool
    size: int

    def first(self, act: Callable[[], Any]) -> Any:
        """Return what an act comes to on rank 0, which alone does it; None on the others."""

    @contextmanager
    def alike(self, facts: Callable[[], dict[str, Any]]) -> Iterator[None]:
        """Raise on all ranks afterwards if one has failed, or if their facts differ."""

    def offer(self, what: Callable[[], Any]) -> Any:
        """Return what rank 0 offers all others."""


class Alone:
    """A run in this process alone."""

    leads, size = True, 1

    def first(self, act: Callable[[], Any]) -> Any:
        """Return what an act comes to."""
        return act()

    @contextmanager
    def alike(self, facts: Callable[[], dict[str, Any]]) -> Iterator[None]:
        """Do nothing besides."""
        yield

    def offer(self, what: Callable[[], Any]) -> Any:
        """Return nothing: there is nobody to offer it to."""
        return None


class Several:
    """A run on several ranks, of which rank 0 leads.

    Rank 0 draws, pays, adds noise and updates. The others compute sums when they are asked, and
    have the model, the figures and the errors of rank 0 when a call of the trainer ends.

    Guarantee: a call begins only if all ranks make it, on models that are alike.
    """

    _made, _meeting = 0, 0

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        if Several._meeting != ranks.meeting:  # some of them may have made others before they met
            Several._made, Several._meeting = 0, ranks.meeting
        Several._made += 1
        self.number = Several._made  # the same on all ranks, which run the same script
        self._within = False

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.ranks.leads

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.ranks.size

    def first(self, act: Callable[[], Any]) -> Any:
        """Return what an act comes to on rank 0, which alone does it; None on the others."""
        return self.ranks.first(act)

    def offer(self, what: Callable[[], Any]) -> Any:
        """Return what rank 0 offers all others."""
        if not self.leads:
            return self.ranks.hear()
        offered = what()
        self.ranks.tell(offered)
        return offered

    @contextmanager
    def alike(self, facts: Callable[[], dict[str, Any]]) -> Iterator[None]:
        """Raise on all ranks afterwards if one has failed, or if their facts differ."""
        found: dict[str, Any] = {}
        error: BaseException | None = None
        try:
            yield
            found = facts()
        except BaseException as raised:
            error = raised
        said = self.ranks.reports((None if error is None else told(error), found))
        if error is not None:
            raise error
        failed = [(rank, each) for rank, (each, _) in enumerate(said) if each is not None]
        if failed:
            rank, each = failed[0]
            if rank == 0:
                raise_told(each)
            raise DistributedError(
                f"Rank {rank} of {self.size} could not take part: {each[0]}: {each[1]}"
            )
        _refuse_different([each for _, each in said])

    # ------------------------------------------------------------------ calls

    @contextmanager
    def leading(
        self, call: str, parameters: Parameters, executor: Executor, progress: Callable[[], Any]
    ) -> Iterator[None]:
        """Make a call together with all others; for rank 0. A call within a call is part of it."""
        if self._within:
            yield
            return
        assert isinstance(executor, Led)
        self._begin(call, parameters)
        error: BaseException | None = None
        self._within = True
        executor.others_listen(True)
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._within = False
            executor.others_listen(False)
            self._end(parameters, progress, error)

    def _end(
        self, parameters: Parameters, progress: Callable[[], Any], error: BaseException | None
    ) -> None:
        """Say what a call has come to. Where ranks have parted, that is known already."""
        if self.ranks.ended is not None and error is not None:
            return
        try:
            with self.ranks.exchange():
                self.ranks.tell(Done(progress(), None if error is None else told(error)))
                self.ranks.share_(parameters.read())
        except DistributedError:
            if error is None:
                raise

    def follow(
        self,
        call: str,
        parameters: Parameters,
        executor: Executor,
        take: Callable[[Any], None],
    ) -> None:
        """Compute what rank 0 asks for until it ends a call; for all others.

        `take` is given what the call has come to. What rank 0 has raised is raised here too.
        """
        assert isinstance(executor, Followed)
        self._begin(call, parameters)
        while True:
            message = self.ranks.hear()
            if not isinstance(message, Done):
                executor.answer(message)
                continue
            values = parameters.read()
            self.ranks.share_(values)
            parameters.write_(values)
            take(message.progress)
            raise_told(message.error)
            return

    def _begin(self, call: str, parameters: Parameters) -> None:
        said = self.ranks.reports((Begin(self.number, call), _mark(parameters.read())))
        calls = [begin.call for begin, _ in said]
        if any(begin != said[0][0] for begin, _ in said):
            listed = ", ".join(f"rank {rank}: {each}" for rank, each in enumerate(calls))
            raise DistributedError(
                f"Expected all ranks to make the same calls in the same order, got {listed}. What "
                "trains is not to stand under `if pv.execute.rank() == 0`; what reports may. "
                "Nothing more was charged."
            )
        differ = [rank for rank, (_, mark) in enumerate(said) if mark != said[0][1]]
        if differ:
            raise DistributedError(
                f"Expected the model to be the same on all ranks, got another one on ranks "
                f"{differ} than on rank 0: something besides the run has changed it since the last "
                "call. Change it alike on all ranks, or on none. Nothing more was charged."
            )

    def share_model(self, model: nn.Module) -> None:
        """Give all ranks the parameters and buffers of rank 0, frozen ones too."""
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                values = tensor.detach().contiguous()
                self.ranks.share_(values)
                if not self.leads:
                    tensor.copy_(values)


def team_of(execution: Execution | None) -> Alone | Several:
    """Return who works on a run.

    Raises:
        ArgumentError: this is one of several ranks, and nothing says what that is to mean.
    """
    if isinstance(execution, Together):
        ranks = execution.join()
        return Alone() if ranks is None else Several(ranks)
    refuse_several(
        "a run that computes its sums here",
        "Give executor=pv.execute.DataParallel() to train one model on all ranks, or "
        "executor=pv.execute.Local() for one run in each, which is charged for itself.",
    )
    return Alone()


def told_state(state: TrainState) -> TrainState:
    """Return of a state what ranks that follow report: how far the run is, and no part's own."""
    stopping = {name: value for name, value in state.stopping.items() if name != "parameters"}
    return replace(
        state, preconditioner={}, clip={}, rule={}, controller={}, stopping=stopping
    )  # fmt: skip


# ---------------------------------------------------------------------- what has to be alike


def facts_of(
    model: nn.Module,
    loss: Any,
    records: Any,
    units: Any,
    held: HeldState,
    engine: Any,
    settings: Any,
    asked: dict[str, Any],
) -> dict[str, Any]:
    """Return what has to be the same on all ranks, by what it is called."""
    tensors = {
        name: (tuple(t.shape), str(t.dtype), t.requires_grad)
        for name, t in (*model.named_parameters(), *model.named_buffers())
    }
    return {
        "the versions of Privada and torch": f"{__version__}, {torch.__version__}",
        **asked,
        "the ledger, given or not": settings.ledger is not None,
        "the transform and the collate, given or not": (
            settings.transform is not None,
            settings.collate is not None,
        ),
        "the model": (_words(model), tensors),
        "the loss": _words(loss),
        "the engine": (type(engine).__name__, repr(engine.clipping)),
        "the number of records": records.size,
        "the number of units, and their rows": (units.size, units.rows_per_unit, units.grouped),
        "the shapes and types of records": _structure(records.example),
        "the records, their order and their groups": records_digest(records, units, held),
    }


_SECRET = "the records, their order and their groups"


def _refuse_different(said: list[dict[str, Any]]) -> None:
    first = said[0]
    for rank, own in enumerate(said):
        differ = [name for name in first if own.get(name) != first[name]]
        if not differ:
            continue
        name = differ[0]
        shown = f", got {own[name]!r} there and {first[name]!r} here" if name != _SECRET else ""
        raise DistributedError(
            f"Expected all ranks to have the same run, but rank {rank} and rank 0 differ in "
            f"{', '.join(differ)}{shown}. Run one script with the same arguments, data in the same "
            "order (a split or a shuffle needs a fixed seed) and the same environment on all "
            "ranks. Nothing was charged."
        )


def _words(thing: Any) -> str:
    """Return what a module or a function is called, without places in memory."""
    if isinstance(thing, nn.Module):
        return re.sub(r"0x[0-9a-fA-F]+", "", repr(thing))
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def _structure(example: Any) -> str:
    leaves, tree = tree_flatten((example.inputs, example.targets))
    return f"{tree}: {[(tuple(t.shape[1:]), str(t.dtype)) for t in leaves]}"


def _mark(values: Tensor) -> bytes:
    """Return a short digest of a vector: sums of its bits in blocks."""
    bits = values.cpu().view(torch.int32).to(torch.int64)
    rest = -bits.numel() % _COLUMNS
    bits = torch.nn.functional.pad(bits, (0, rest)).view(-1, _COLUMNS)
    sums = bits.sum(dim=0).numpy().tobytes() + bits.sum(dim=1).numpy().tobytes()
    return hashlib.blake2b(sums, digest_size=16).digest()
