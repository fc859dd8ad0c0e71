"""A table of figures in a file."""

import csv
import io
from collections.abc import Mapping

from privada.loggers.text_file import TextFileLogger
from privada.train.callbacks import TrainingEvent


class CSV(TextFileLogger):
    """Writes a row for each figure of a step or an evaluation: step, name, value.

    Args:
        path: the file. Rows are added to one that exists, as those of a resumed run.
        every: how many steps lie between two that are written; by default there are fifty.

    Guarantee: as for `Logger`.

    Edge cases: steps that a resumed run takes again are there twice. The settings of the run are
    not in the file; `JSONLines` has them.

    Example:
        >>> import privada as pv, torch
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=4, noise_multiplier=1.0,
        ...     delta=1e-3,
        ... ).fit(callbacks=[pv.loggers.CSV("run.csv", every=2)])
        >>> with open("run.csv") as file:
        ...     print(*file.read().split()[:3])
        step,name,value 2,train/lr,0.1 2,train/noise_multiplier,1.0
    """

    def begin(self, event: TrainingEvent) -> None:
        """Open the file."""
        if self._open():
            self._add("step,name,value\n")

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Write a row for each figure."""
        rows = io.StringIO()
        lines = csv.writer(rows, lineterminator="\n")
        lines.writerows((step, name, value) for name, value in figures.items())
        self._add(rows.getvalue())
