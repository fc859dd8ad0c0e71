"""One run on several processes: each computes the clipped sum of a part of the same draw."""

import atexit
import os
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from privada.core.errors import ArgumentError, DistributedError
from privada.core.randomness import RandomSource, SecureSource, SeededSource
from privada.core.ranks import Ranks, launched
from privada.core.tensors import Parameters
from privada.core.validation import positive
from privada.core.values import ClippedSum
from privada.preconditioning import FlatScaling
from privada.query.executor import Draw, Executor
from privada.query.local import LocalExecutor

_REMEDY = (
    "Start the script with `torchrun --nproc-per-node N train.py`, or call "
    "torch.distributed.init_process_group first."
)


def rank() -> int:
    """Return the number of this process among those that train together; 0 where there is one.

    What a script prints or writes once belongs under `if pv.execute.rank() == 0:`.

    Example:
        >>> import privada as pv
        >>> pv.execute.rank()
        0
    """
    return launched()[0]


@dataclass(frozen=True)
class DataParallel:
    """Splits each draw among the ranks of torch.distributed, and adds up their clipped sums.

    Rank 0 leads: it alone draws, pays the ledger, adds noise and updates the model. The others
    get the parameters, compute the clipped sum of their share, and send it to rank 0. All ranks run
    the same script, make the same calls of the trainer, and have the same model after each.

    Args:
        timeout: how many seconds one rank waits for another. It must be more than any rank spends
            between two calls of the trainer.

    Guarantee: that of `pv.Trainer` in one process: one draw, one charge and one noise for each
    release, whatever becomes of a rank. A unit's rows are all computed by one rank, so that the sum
    of the parts has the sensitivity of the whole. What ranks send each other, draws and sums
    without noise, is as secret as the records, and is not encrypted here: machines and the network
    between them must be trusted.

    Edge cases: in one process it computes everything here. With fewer rows than ranks, some have
    nothing to do. A rank that fails, or that is gone, ends the call on all ranks with a
    DistributedError; what was charged stays charged. Before the first charge the ranks compare
    their records, models and settings, and refuse different ones; the model starts from the
    parameters of rank 0, and so does a run that is resumed. Reports and checkpoints are those of
    rank 0, and `save` does nothing on the others.

    Example:
        >>> import privada as pv, torch
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=3, noise_multiplier=1.0,
        ...     delta=1e-3, executor=pv.execute.DataParallel(),
        ... ).fit()  # with `torchrun --nproc-per-node 4` on four ranks

    Reference: Abadi et al. (2016), Deep Learning with Differential Privacy, arXiv 1607.00133,
    Section 3.1, on lots of several batches.
    """

    timeout: float = 1800.0

    def __post_init__(self) -> None:
        positive("timeout", self.timeout)

    def join(self) -> Ranks | None:
        """Return the ranks of this process's group; None where it is the only one.

        Raises:
            ArgumentError: torchrun has started several, and they cannot be joined.
        """
        size = launched()[1]
        if size == 1:
            return None
        if not dist.is_initialized():
            try:
                dist.init_process_group("gloo", **_meeting())
                atexit.register(_leave)
            except (RuntimeError, ValueError) as error:
                raise ArgumentError(
                    f"Cannot join the {size} processes that the environment speaks of: {error}. "
                    f"{_REMEDY}"
                ) from error
        known = _joined.get(self.timeout)
        if known is None or not known.current:
            known = _joined[self.timeout] = Ranks(self.timeout)
            atexit.register(known.part)
        return known

    def over(self, local: Executor) -> Executor:
        """Return the executor of rank 0, or that of a rank that follows."""
        ranks = self.join()
        if ranks is None:
            return local
        if not isinstance(local, LocalExecutor):
            raise ArgumentError(
                "Expected executor=pv.execute.DataParallel() for records that are here, got a run "
                f"that computes its sums by {type(local).__name__}. Leave out the executor."
            )
        return (Leading if ranks.leads else Following)(local, ranks)

    def describe(self) -> str:
        """Return it in words."""
        return f"each batch on {launched()[1]} ranks"


def _leave() -> None:
    """Leave the group of all processes, which was joined here."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _meeting() -> dict[str, Any]:
    """Return where the ranks meet, if it is not where torch.distributed has them meet by itself.

    `torchrun --max-restarts` starts them again with the same store. What those before have left
    there, the addresses of processes that are gone, must not be found: so each start has keys of
    its own. On several machines agents may count restarts differently.
    """
    given = os.environ
    if given.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or given.get("GROUP_WORLD_SIZE") != "1":
        return {}
    store, rank, size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    keys = f"privada/start-{given.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    own = dist.PrefixStore(keys, store)  # type: ignore[attr-defined]
    return {"store": own, "rank": rank, "world_size": size}


_joined: dict[float, Ranks] = {}


@dataclass(frozen=True)
class _Ask:
    """What rank 0 asks all ranks to compute. Private."""

    drawn: Draw | None  # None for all units
    bound: float | None  # the clip norm, the bound of a square, or None for features
    known: bool  # whether the parameters are known to all
    scaling: tuple[bool, bool] | None  # what comes of a new one: scale, shift; None for the last
    recheck: bool
    model_position: int | None  # where seeded streams are
    rows_position: int | None


@dataclass(frozen=True)
class _Explain:
    """Rank 0 asks what went wrong."""


class _Part:
    """What each rank does for a sum."""

    def __init__(self, local: LocalExecutor, ranks: Ranks) -> None:
        self._local, self._ranks = local, ranks
        self._parameters: Parameters = local.parameters
        self._scaling = FlatScaling(None, None)

    def _exchange(
        self, ask: _Ask, rows: RandomSource
    ) -> tuple[ClippedSum | None, BaseException | None]:
        """Compute the sum that is asked for together; None where there is none here.

        The second value is what this rank's part has raised, which is told when all have ended
        theirs.
        """
        ranks = self._ranks
        own: ClippedSum | None = None
        error: BaseException | None = None
        with ranks.exchange():
            self._synchronise(ask)
            try:
                own = self._own(ask, rows)
            except BaseException as raised:
                error = raised
            said = [0.0] * 3 if own is None else [own.sensitivity, -own.sensitivity, own.extra]
            note = torch.tensor(said, dtype=torch.float64)
            value = None if own is None else own.value
            whole = ranks.add_up_(value, note, self._parameters.device)
        if error is not None or not whole or own is None:
            return None, error
        if not (own.sensitivity == float(note[0]) == -float(note[1]) and own.extra == note[2]):
            raise DistributedError(
                "Expected all ranks to compute sums of the same sensitivity, got between "
                f"{-float(note[1])} and {float(note[0])}. Run the same version everywhere."
            )
        return own, None

    def _synchronise(self, ask: _Ask) -> None:
        """Take over the parameters and the scaling of rank 0."""
        if not ask.known:
            values = self._parameters.read()
            self._ranks.share_(values)
            if not self._ranks.leads:
                self._parameters.write_(values)
        if ask.scaling is not None:
            kept = self._scaling.scale, self._scaling.shift
            parts = [
                self._shared(tensor) if there else None
                for tensor, there in zip(kept, ask.scaling, strict=True)
            ]
            if not self._ranks.leads:
                self._scaling = FlatScaling(parts[0], parts[1])

    def _shared(self, own: Tensor | None) -> Tensor:
        values = self._parameters.zeros() if not self._ranks.leads or own is None else own
        self._ranks.share_(values)
        return values

    def _own(self, ask: _Ask, rows: RandomSource) -> ClippedSum:
        """Return the sum of this rank's share."""
        local, ranks = self._local, self._ranks
        if ask.bound is None:
            return local.feature_sum(rows, ranks.rank, ranks.size)
        if ask.drawn is None:
            return local.squared_sum(ask.bound, rows, ranks.rank, ranks.size)
        share = ask.drawn.split(ranks.size)[ranks.rank]
        return local.clipped_sum(share, self._scaling, ask.bound)


class Leading(_Part):
    """The executor of rank 0.

    Guarantee: that of an executor. A sum is whole or there is none: where the part of a rank is
    missing, it raises.
    """

    def __init__(self, local: LocalExecutor, ranks: Ranks) -> None:
        super().__init__(local, ranks)
        self._sent: tuple[object, ...] = ()
        self._recheck = False
        self._known = False  # whether all ranks have the parameters as they are
        self._listening = False

    def others_listen(self, listening: bool) -> None:
        """Say whether all others wait to be asked, at the same parameters."""
        self._listening = self._known = listening

    def clipped_sum(self, drawn: Draw, scaling: FlatScaling, clip: float) -> ClippedSum:
        """Return the sum over the shares of all ranks."""
        new = self._sent != (mark := _mark(scaling))
        self._scaling = scaling
        there = (scaling.scale is not None, scaling.shift is not None) if new else None
        found = self._asked(_Ask(drawn, clip, self._known, there, self._recheck, None, None))
        self._sent, self._kept, self._recheck = mark, scaling, False
        return found

    def squared_sum(self, bound: float, rng: RandomSource) -> ClippedSum:
        """Return the sum over all units, of which each rank takes its share."""
        return self._asked(_Ask(None, bound, self._known, None, False, None, None), rng)

    def features(self) -> int:
        """Return how many features a record has."""
        return self._local.features()

    def feature_sum(self, rng: RandomSource) -> ClippedSum:
        """Return the sum over all units, of which each rank takes its share."""
        return self._asked(_Ask(None, None, self._known, None, False, None, None), rng)

    def recheck(self) -> None:
        """Let all ranks try the model again."""
        self._check_listening()
        self._local.recheck()
        self._recheck = True

    def _check_listening(self) -> None:
        if not self._listening:
            raise ArgumentError(
                "Expected a query of a data-parallel run within step() or fit(), which all ranks "
                "call, got one by itself. Ask in one process, without DataParallel. Nothing was "
                "charged."
            )

    def _asked(self, ask: _Ask, rows: RandomSource | None = None) -> ClippedSum:
        self._check_listening()
        size, source = self._ranks.size, self._local.model_rng
        start = source.position if isinstance(source, SeededSource) else None
        place = rows.position if isinstance(rows, SeededSource) else None
        ask = replace(ask, model_position=start, rows_position=place)
        self._known = False
        with self._ranks.exchange():
            self._ranks.tell(ask)
            found, error = self._exchange(ask, SecureSource() if rows is None else rows)
        if isinstance(source, SeededSource) and start is not None:
            source.position = start + size  # as if all parts had been computed here
        if error is not None:
            raise error
        if found is None:
            raise self._explained()
        return found

    def _explained(self) -> DistributedError:
        """Return an error that says which rank has failed, and how."""
        self._ranks.tell(_Explain())
        said = self._ranks.reports(None)
        failed = [f"rank {rank}: {words}" for rank, words in enumerate(said) if words is not None]
        return DistributedError(
            f"Expected a part of the sum from each of {self._ranks.size} ranks, but there is none "
            f"of {'; '.join(failed) or 'one of them'}. What was charged stays charged, and nothing "
            "was released."
        )


class Following(_Part):
    """The executor of a rank that follows: it computes shares, and neither draws nor pays."""

    def __init__(self, local: LocalExecutor, ranks: Ranks) -> None:
        super().__init__(local, ranks)
        self.error: BaseException | None = None

    def answer(self, message: object) -> None:
        """Compute this rank's part of what rank 0 asks for, and send it there."""
        if isinstance(message, _Explain):
            said = None if self.error is None else f"{type(self.error).__name__}: {self.error}"
            self._ranks.reports(said)
            return
        assert isinstance(message, _Ask)
        source = self._local.model_rng
        if isinstance(source, SeededSource) and message.model_position is not None:
            source.position = message.model_position + self._ranks.rank
        rows: RandomSource = SecureSource()
        if message.rows_position is not None and isinstance(source, SeededSource):
            rows = SeededSource(source.seed, "sampling", message.rows_position)
        _, self.error = self._exchange(message, rows)  # which rank 0 may ask for

    def _own(self, ask: _Ask, rows: RandomSource) -> ClippedSum:
        if ask.recheck:
            self._local.recheck()
        return super()._own(ask, rows)

    def clipped_sum(self, drawn: Draw, scaling: FlatScaling, clip: float) -> ClippedSum:
        """Refuse: rank 0 asks."""
        raise _refused()

    def squared_sum(self, bound: float, rng: RandomSource) -> ClippedSum:
        """Refuse: rank 0 asks."""
        raise _refused()

    def features(self) -> int:
        """Return how many features a record has."""
        return self._local.features()

    def feature_sum(self, rng: RandomSource) -> ClippedSum:
        """Refuse: rank 0 asks."""
        raise _refused()

    def recheck(self) -> None:
        """Refuse: rank 0 asks, before it pays."""
        raise _refused()


def _refused() -> ArgumentError:
    return ArgumentError(
        "Expected a query on rank 0, which alone draws, pays and adds noise, got one on another "
        "rank. Call step() or fit(), on all ranks. Nothing was charged."
    )


def _mark(scaling: FlatScaling) -> tuple[object, ...]:
    """Return what changes when a scaling is another one, or is written to."""
    return tuple(
        None if each is None else (id(each), each._version)
        for each in (scaling.scale, scaling.shift)
    )
