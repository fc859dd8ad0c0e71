"""Events for TensorBoard."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privada.core.errors import ArgumentError
from privada.core.validation import shown
from privada.loggers.logger import Logger, require
from privada.train.callbacks import TrainingEvent


class TensorBoard(Logger):
    """Writes events that `tensorboard --logdir FOLDER` shows.

    Needs TensorBoard: `pip install 'privada[loggers]'`.

    Args:
        folder: the folder of the run, which is created. Give each run one of its own.
        every: how many steps lie between two that are written; by default there are fifty.

    Guarantee: as for `Logger`: all events of a run have the time at which training began.

    Edge cases: what a resumed run writes takes the place of later steps in the same folder.

    Example:
        >>> import privada as pv
        >>> logger = pv.loggers.TensorBoard("runs/first", every=50)
        >>> logger.every
        50
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int | None = None) -> None:
        super().__init__(every=every)
        if not isinstance(folder, (str, os.PathLike)):
            raise ArgumentError(f"Expected folder to be a path, got folder={shown(folder)}.")
        self.folder = Path(folder)
        require("tensorboard", "pv.loggers.TensorBoard")
        self._writer: Any = None

    def begin(self, event: TrainingEvent) -> None:
        """Open a file of events, and write the settings."""
        from torch.utils.tensorboard import SummaryWriter

        try:
            self._writer = SummaryWriter(
                str(self.folder), purge_step=event.step + 1 if event.step else None
            )
        except OSError as error:
            raise ArgumentError(
                f"Cannot write to {str(self.folder)!r}: {error.strerror}. Give a folder that may "
                "be written."
            ) from error
        rows = "\n".join(f"| {name} | {value} |" for name, value in event.settings.items())
        self._writer.add_text(
            "settings", f"| setting | value |\n|---|---|\n{rows}", event.step, walltime=self.began
        )

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Write an event for each figure."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step, walltime=self.began)

    def end(self, event: TrainingEvent) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
