"""The progress bar of a run."""

import math
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from privada.core import formatting
from privada.core.validation import flag
from privada.train.callbacks import Callback, TrainingEvent

if TYPE_CHECKING:
    from rich.progress import Progress

_LONGEST = 60
# How often in a run the epsilon is computed.
_PRICES = 16


class ProgressBar(Callback):
    """Shows steps, the epsilon of what was charged, and the newest evaluation.

    Args:
        name: what the bar is called.
    """

    _only_looks: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar: Progress | None = None
        self._task: Any = None
        self._priced = 0  # the step whose epsilon is shown: a price takes time

    def on_start(self, event: TrainingEvent) -> None:
        """Show the bar."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("epsilon {task.fields[epsilon]}", markup=False),
            TimeRemainingColumn(),
            TextColumn("{task.fields[reached]}", markup=False),
        )
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(
            self._name,
            total=event.steps,
            completed=event.step,
            epsilon="0",
            reached=reached(event),
        )
        if event.step:
            self._price(event)
        self._bar.start()

    def on_step(self, event: TrainingEvent) -> None:
        """Move on."""
        self._update(event)

    def on_evaluation(self, event: TrainingEvent) -> None:
        """Show what was reached."""
        self._update(event)

    def on_end(self, event: TrainingEvent) -> None:
        """Leave the bar as it is at the end."""
        if self._bar is not None:
            try:
                self._update(event)
            finally:
                self._bar.stop()

    def _update(self, event: TrainingEvent) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=event.step, reached=reached(event))
            if event.finished or _PRICES * (event.step - self._priced) >= event.steps:
                self._price(event)

    def _price(self, event: TrainingEvent) -> None:
        assert self._bar is not None
        self._priced = event.step
        at = "" if event.finished else f" at step {event.step:,}"
        self._bar.update(self._task, epsilon=f"{formatting.epsilon(event.epsilon)}{at}")


def reached(event: TrainingEvent) -> str:
    """Return the newest evaluation in a few words: its first figure, and the baseline."""
    if event.evaluation is None:
        return ""
    name, value = next(iter(event.evaluation.values.items()), ("", math.nan))
    baseline = event.evaluation.baselines.get(name)
    beside = "" if baseline is None else f" (baseline {formatting.number(baseline)})"
    noisy = " with noise" if event.evaluation.charged else ""
    return f"{name[:_LONGEST]} {formatting.number(value)}{noisy}{beside}"


def is_shown(progress: bool | None) -> bool:
    """Return whether to show a bar: as was said, and by default where errors go to a terminal."""
    if progress is not None:
        return flag("progress", progress)
    return sys.stderr is not None and sys.stderr.isatty()
