"""What all loggers have in common: which figures are written, and when."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from typing import ClassVar

from privada.core.errors import ArgumentError
from privada.core.validation import integer
from privada.train.callbacks import Callback, TrainingEvent

# How many steps of a run are written where nothing else is said: each epsilon takes time.
_USUAL = 50


class Logger(Callback, ABC):
    """Writes figures of a run by name and step; the base of loggers.

    Derive from it to write elsewhere: `write` gets the figures, `begin` and `end` are there to open
    and close what is written to.

    Args:
        every: how many steps lie between two that are written; by default there are fifty in a
            run. Evaluations, and the last step, are written in any case.

    Guarantee: it writes what a `TrainingEvent` has and no times of steps: how long a step takes
    follows from how many records were drawn. Where a time has to be given it is `began`, when
    training began.

    Edge cases: figures are "train/lr", "train/noise_multiplier", "train/clip_norm",
    "train/epsilon", "validation/NAME" and "baseline/NAME" of an evaluation, and "charged/NAME"
        of a private score.

    Example:
        >>> import privada as pv
        >>> class Print(pv.loggers.Logger):
        ...     def write(self, step, figures):
        ...         print(step, figures["train/lr"])
    """

    _only_looks: ClassVar[bool] = True

    def __init__(self, *, every: int | None = None) -> None:
        self.every = None if every is None else integer("every", every)
        self.began = 0.0
        self._written = -1

    @abstractmethod
    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Write figures by name."""

    def begin(self, event: TrainingEvent) -> None:
        """Open what is written to."""

    def end(self, event: TrainingEvent) -> None:
        """Close what is written to."""

    def on_start(self, event: TrainingEvent) -> None:
        """Begin."""
        self.began, self._written = time.time(), event.step
        self.begin(event)

    def on_step(self, event: TrainingEvent) -> None:
        """Write every so many steps."""
        every = self.every or -(-event.steps // _USUAL)
        if event.step % every == 0 and not event.finished:
            self._write_step(event)

    def on_evaluation(self, event: TrainingEvent) -> None:
        """Write what was reached."""
        found = event.evaluation
        if found is not None:
            kind = "charged" if found.charged else "validation"
            reached = {f"{kind}/{name}": value for name, value in found.values.items()}
            beside = {f"baseline/{name}": value for name, value in found.baselines.items()}
            self.write(found.step, reached | beside)

    def on_end(self, event: TrainingEvent) -> None:
        """Write the last step, and end."""
        try:
            if event.step > self._written:
                self._write_step(event)
        finally:
            self.end(event)

    def _write_step(self, event: TrainingEvent) -> None:
        figures = {
            "train/lr": event.lr,
            "train/noise_multiplier": event.noise_multiplier,
            "train/clip_norm": event.clip_norm,
            "train/epsilon": event.epsilon,
        }
        known = {name: float(value) for name, value in figures.items() if value is not None}
        self.write(event.step, known)
        self._written = event.step


def require(package: str, what: str) -> None:
    """Raise unless a package that a logger needs is installed."""
    if find_spec(package) is None:
        raise ArgumentError(
            f"Expected {package} to be installed for {what}, got none. Run pip install "
            "'privada[loggers]', or use pv.loggers.JSONLines(path), which needs nothing."
        )
