"""A file of JSON, one object on each line."""

import json
import math
from collections.abc import Mapping
from typing import Any

from privada.loggers.text_file import TextFileLogger
from privada.train.callbacks import TrainingEvent


class JSONLines(TextFileLogger):
    """Writes a line of JSON for each step and each evaluation that is logged.

    The first line has the settings of the run, the others "step" and figures by name.

    Args:
        path: the file. Lines are added to one that exists, as those of a resumed run.
        every: how many steps lie between two lines; by default there are fifty.

    Guarantee: as for `Logger`.

    Edge cases: what is not a finite number is null. Each line is on its way to the disk before
    training goes on, so that a crash loses none. Steps that a resumed run takes again are there
    twice.

    Example:
        >>> import json, privada as pv, torch
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=4, noise_multiplier=1.0,
        ...     delta=1e-3,
        ... ).fit(callbacks=[pv.loggers.JSONLines("run.jsonl", every=2)])
        >>> with open("run.jsonl") as file:
        ...     [json.loads(line).get("step") for line in file]
        [None, 2, 4]
    """

    def begin(self, event: TrainingEvent) -> None:
        """Open the file, and write the settings."""
        self._open()
        self._line(dict(event.settings))

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Write a line."""
        known = {n: value if math.isfinite(value) else None for n, value in figures.items()}
        self._line({"step": step, **known})

    def _line(self, values: dict[str, Any]) -> None:
        self._add(json.dumps(values, default=str) + "\n")
