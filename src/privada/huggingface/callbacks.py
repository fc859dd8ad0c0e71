"""Callbacks of transformers, called with what is public of a run."""

import inspect
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from privada.core.errors import ArgumentError
from privada.core.validation import shown
from privada.metrics import Validation
from privada.train.callbacks import Callback, StopTraining, TrainingEvent
from privada.train.evaluations import Evaluation
from privada.train.stopping import EarlyStopping

_OWN = "Derive it from pv.Callback, whose methods get what is public of a run."
# Between a gradient and the step that it is for there is nothing public.
_BETWEEN = ("on_pre_optimizer_step", "on_optimizer_step", "on_substep_end")
# What a private run has none of, or cannot show.
_MISSING = ("train_dataloader", "eval_dataloader", "optimizer", "lr_scheduler")
# How many times a run is logged where nothing else is said, as by loggers.
_USUAL = 50


def figures_of(found: Evaluation) -> dict[str, float]:
    """Return an evaluation under the names that transformers would give it."""
    named = {f"eval_{name}": value for name, value in found.values.items()}
    return named | {f"eval_{name}_baseline": value for name, value in found.baselines.items()}


def split(
    callbacks: Any, validation: Validation | None, stopping: EarlyStopping | None
) -> tuple[list[Any], EarlyStopping | None]:
    """Return callbacks without transformers' early stopping, and the stopping that it asks for.

    Raises:
        ArgumentError: it stops by public rows that there are none of, or stops twice.
    """
    if not isinstance(callbacks, (list, tuple)):
        raise ArgumentError(
            f"Expected callbacks to be a list, got callbacks={shown(callbacks)}. Give "
            "callbacks=[callback]."
        )
    kept = []
    for each in callbacks:
        if _of_transformers(each) and type(each).__name__ == "EarlyStoppingCallback":
            if validation is None or stopping is not None:
                raise ArgumentError(
                    "Expected EarlyStoppingCallback beside an eval_dataset with public rows and "
                    "without stopping=, got "
                    f"{'no eval_dataset' if validation is None else 'stopping= too'}."
                )
            stopping = EarlyStopping(
                validation,
                patience=each.early_stopping_patience,
                least=each.early_stopping_threshold or None,
                restore_best=True,
            )
        else:
            kept.append(each)
    return kept, stopping


def adapted(
    callbacks: Sequence[Any], every: int | None, rows: int, processing: Any
) -> list[Callback]:
    """Return callbacks of transformers as those of a run, and others as they are."""
    return [
        _Adapter(each, every, rows, processing) if _of_transformers(each) else each
        for each in callbacks
    ]


def _of_transformers(value: Any) -> bool:
    known = sys.modules.get("transformers.trainer_callback")
    if known is None:
        return False
    if isinstance(value, type) and issubclass(value, known.TrainerCallback):
        raise ArgumentError(
            f"Expected callbacks that are made, got the class {value.__name__}. Write "
            f"callbacks=[{value.__name__}()]."
        )
    return isinstance(value, known.TrainerCallback)


class _Arguments:
    """The arguments that callbacks of transformers may read; others are refused by name."""

    def __init__(self, **known: Any) -> None:
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ArgumentError(
            f"Expected a callback that reads {', '.join(sorted(self.__dict__))} of its arguments, "
            f"got one that reads {name}. {_OWN}"
        )


class _Adapter(Callback):
    """Calls one callback of transformers as its trainer would, with what is public.

    Args:
        callback: the callback.
        every: how many steps lie between two logs, None for fifty in a run.
        rows: the public number of rows, or of persons.
        processing: the tokenizer.
    """

    def __init__(self, callback: Any, every: int | None, rows: int, processing: Any) -> None:
        kind = type(callback)
        _check(kind)
        self._callback, self._every, self._rows = callback, every, rows
        self._processing, self._name = processing, kind.__name__

    def on_start(self, event: TrainingEvent) -> None:
        from transformers.trainer_callback import TrainerControl, TrainerState

        batch = float(event.settings["batch_size"])
        self._epochs_per_step = batch / self._rows
        every = self._every or -(-event.steps // _USUAL)
        self._arguments = _Arguments(
            max_steps=event.steps,
            num_train_epochs=event.steps * self._epochs_per_step,
            logging_steps=every,
            learning_rate=event.lr,
            run_name=event.settings["run"],
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=1,
            process_index=0,
            local_process_index=0,
            world_size=1,
            disable_tqdm=False,
        )
        self._state, self._control = TrainerState(), TrainerControl()
        self._state.max_steps, self._state.logging_steps = event.steps, every
        self._state.num_train_epochs = -(-int(event.steps * batch) // self._rows)
        self._place(event)
        for name in ("on_train_begin", "on_epoch_begin", "on_step_begin"):
            self._call(name, event)

    def on_step(self, event: TrainingEvent) -> None:
        before = int(self._state.epoch)
        self._place(event)
        self._call("on_step_end", event)
        if event.finished or event.step % self._arguments.logging_steps == 0:
            epsilon = {"epsilon": event.epsilon, "learning_rate": event.lr}
            self._log({name: value for name, value in epsilon.items() if value is not None}, event)
        ended = int(self._state.epoch) > before
        if ended or event.finished:
            self._call("on_epoch_end", event)
        if not event.finished:
            if ended:
                self._call("on_epoch_begin", event)
            self._call("on_step_begin", event)

    def on_evaluation(self, event: TrainingEvent) -> None:
        assert event.evaluation is not None
        figures = figures_of(event.evaluation)
        self._log(figures, event)
        self._call("on_evaluate", event, metrics=figures)

    def on_end(self, event: TrainingEvent) -> None:
        self._place(event)
        self._call("on_train_end", event)

    def _place(self, event: TrainingEvent) -> None:
        self._state.global_step = event.step
        self._state.epoch = event.step * self._epochs_per_step

    def _log(self, figures: dict[str, float], event: TrainingEvent) -> None:
        logs = {**figures, "epoch": self._state.epoch}
        self._state.log_history.append({**logs, "step": event.step})
        self._call("on_log", event, logs=logs)

    def _call(self, name: str, event: TrainingEvent, **more: Any) -> None:
        given = {"model": event._model, "processing_class": self._processing, **more}
        call = getattr(self._callback, name)
        self._control = call(self._arguments, self._state, self._control, **given) or self._control
        for wish in ("should_save", "should_evaluate"):
            if getattr(self._control, wish):
                raise ArgumentError(
                    f"Expected {self._name} to look on, or to end the run, got {wish}=True. Say "
                    "eval_steps of the trainer, and checkpoint= of train()."
                )
        self._control.should_log = self._control.should_epoch_stop = False
        if self._control.should_training_stop and not event.finished:
            raise StopTraining


def _check(kind: type) -> None:
    """Raise if a class of callbacks wants what a private run has not, or cannot show."""
    names = [name for name in dir(kind) if name.startswith("on_")]
    from transformers.trainer_callback import TrainerCallback

    for name in names:
        method = getattr(kind, name)
        if method is getattr(TrainerCallback, name, None):
            continue
        if name in _BETWEEN:
            raise ArgumentError(
                f"Expected callbacks that see what is public, got {kind.__name__} with {name}, "
                f"which would see a step's gradient before its noise. {_OWN}"
            )
        for each in inspect.signature(method).parameters.values():
            if each.name in _MISSING and each.default is each.empty:
                raise ArgumentError(
                    f"Expected callbacks that see what is public, got {kind.__name__}.{name}, "
                    f"which wants {each.name}. {_OWN}"
                )
