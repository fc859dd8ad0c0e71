"""Callbacks: what others may do between the steps of a run, with what is public of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from privada.core.errors import ArgumentError
from privada.core.tensors import Parameters
from privada.core.validation import shown
from privada.train.evaluations import Evaluation


class StopTraining(Exception):
    """Raised by a callback that wants the run to end: `Trainer.fit` then calls `finish()`.

    On a planned ledger, as a trainer makes one for itself, the run still costs what its whole plan
    does; on an adaptive one it costs what it was charged.

    Example:
        >>> import privada as pv
        >>> class Enough(pv.Callback):
        ...     def on_evaluation(self, event):
        ...         if event.evaluation.values["accuracy"] > 0.9:
        ...             raise pv.StopTraining
    """


class _Now:
    """Whether the model still is as an event says."""

    current = True


@dataclass(frozen=True, eq=False)
class TrainingEvent:
    """What a callback gets to see of a run. All of it is public.

    Attributes:
        step: how many steps were taken.
        steps: how many there are in the whole run.
        settings: what the run was asked to do, as plain values: the name of the run, the method in
            words, steps, expected batch size, noise multiplier and delta.
        lr, noise_multiplier: those of the last step; None before the first.
        clip_norm: the clip norm of the next release.
        evaluation: the newest evaluation, None before the first.
        finished: whether no further step will be taken.

    Guarantee: it follows from the settings and from releases: no record, batch, batch size,
    gradient, loss or random number is in it.

    Example: see `pv.Callback`.
    """

    step: int
    steps: int
    settings: Mapping[str, Any]
    lr: float | None
    noise_multiplier: float | None
    clip_norm: float
    evaluation: Evaluation | None
    finished: bool
    _epsilon: Callable[[], float] = field(repr=False)
    _model: nn.Module = field(repr=False)
    _now: _Now = field(default_factory=_Now, repr=False)

    @property
    def epsilon(self) -> float:
        """The epsilon of everything charged so far; of a finished run that of `Trainer.epsilon()`.

        On a planned ledger it is a running figure until then, as in `Trainer.history`: the promise
        is that of the whole plan from the first step on.
        """
        return self._epsilon()

    def parameters(self) -> dict[str, Tensor]:
        """Return a copy of the model's parameters and buffers, by name, as they are now.

        Raises:
            ArgumentError: the callback has returned, and the model is another one by now.
        """
        if not self._now.current:
            raise ArgumentError(
                "Expected parameters() to be called before the callback returns, got a call later, "
                "when the model may have changed. Keep the copy, not the event."
            )
        return {name: value.detach().clone() for name, value in self._model.state_dict().items()}


class Callback:
    """Does something between the steps of a run; the base of callbacks and loggers.

    Override what you need. Each method gets a `TrainingEvent`.

    Guarantee: an event has nothing that is not public, so that what a callback shows, logs or
    stores of it is covered by the statement of the run.

    Edge cases: an error that a callback raises ends `fit`, as an interruption does: a checkpoint is
    saved if there is one, what was not used is returned, and `fit` can be called again.
    `StopTraining` finishes the run. The parameters must stay as they are: a change is undone, and
    is an error, since momentum, averages and other ranks would not know of it. Steps cannot be
    taken from within. Of several ranks, rank 0 alone calls back.

    Example:
        >>> import privada as pv, torch
        >>> class Print(pv.Callback):
        ...     def on_step(self, event):
        ...         print(f"step {event.step} of {event.steps}, learning rate {event.lr}")
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=2, noise_multiplier=1.0,
        ...     delta=1e-3,
        ... ).fit(callbacks=[Print()])
        step 1 of 2, learning rate 0.1
        step 2 of 2, learning rate 0.1
    """

    # What is known to leave the model alone is not looked after, which would take time.
    _only_looks: ClassVar[bool] = False

    def on_start(self, event: TrainingEvent) -> None:
        """Do something before the first step of this `fit`."""

    def on_step(self, event: TrainingEvent) -> None:
        """Do something after a step."""

    def on_evaluation(self, event: TrainingEvent) -> None:
        """Do something after an evaluation, which `event.evaluation` has."""

    def on_end(self, event: TrainingEvent) -> None:
        """Do something at the end of `fit`, also if it ends by an error; `event.finished` says."""


def checked(callbacks: Any) -> tuple[Callback, ...]:
    """Return callbacks as a tuple.

    Raises:
        ArgumentError: they are something else.
    """
    given = (callbacks,) if isinstance(callbacks, Callback) else callbacks
    if isinstance(given, (str, type)) or not isinstance(given, Sequence):
        raise ArgumentError(
            f"Expected callbacks to be a list of pv.Callback, got callbacks={shown(callbacks)}."
        )
    for each in given:
        if not isinstance(each, Callback):
            raise ArgumentError(
                f"Expected callbacks to be objects of classes derived from pv.Callback, got "
                f"{shown(each)} among them. Write class Mine(pv.Callback), and give Mine()."
            )
    return tuple(given)


_NOTHING = {Callback.on_start, Callback.on_step, Callback.on_evaluation, Callback.on_end}


class Calls:
    """Calls the callbacks of one `fit`.

    Args:
        callbacks: whom to call.
        event: returns what they get to see, with the evaluation that it is about.
        parameters: what they must leave alone.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        event: Callable[[Evaluation | None], TrainingEvent],
        parameters: Parameters,
    ) -> None:
        self._callbacks, self._event, self._parameters = callbacks, event, parameters
        self.calling = False

    @contextmanager
    def around(self) -> Iterator[None]:
        """Call `on_start`, and `on_end` in any case, of all that were started."""
        with ExitStack() as started:
            for each in self._callbacks:
                started.callback(self._end, each)
                self._call(each, each.on_start, None)
            yield

    def _end(self, callback: Callback) -> None:
        with suppress(StopTraining):  # it ends as it is
            self._call(callback, callback.on_end, None)

    def after_step(self) -> None:
        """Call `on_step`."""
        for each in self._callbacks:
            self._call(each, each.on_step, None)

    def after_evaluation(self, evaluation: Evaluation) -> None:
        """Call `on_evaluation`."""
        for each in self._callbacks:
            self._call(each, each.on_evaluation, evaluation)

    def _call(
        self,
        callback: Callback,
        what: Callable[[TrainingEvent], None],
        about: Evaluation | None,
    ) -> None:
        if getattr(what, "__func__", None) in _NOTHING:
            return
        event = self._event(about)
        # the end of a run is the end of what depends on them
        watched = not callback._only_looks and not event.finished
        before = self._parameters.read() if watched else None
        self.calling = True
        try:
            what(event)
        finally:
            self.calling = event._now.current = False
            changed = before is not None and not _same_bits(before, self._parameters.read())
            if changed:
                assert before is not None
                self._parameters.write_(before)
        if changed:
            raise ArgumentError(
                f"Expected {what.__qualname__} to leave the model's parameters as they are, got "
                "others after it; they were put back. Work on the copy that event.parameters() "
                "returns, or change the model after fit()."
            )


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two vectors are the same, also where they are not numbers."""
    whole = torch.int32 if one.dtype == torch.float32 else torch.int64
    return torch.equal(one.view(whole), other.view(whole))
