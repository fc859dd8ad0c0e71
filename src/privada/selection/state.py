"""What a search has done so far, on disk, so that it can be killed and go on."""

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privada.core.errors import CheckpointError
from privada.selection.split import Mask
from privada.train import checkpoint

_KINDS = {
    "fingerprint": str,
    "run": str,
    "draws": list,
    "outcomes": dict,
    "done": list,
    "mask": Tensor,
}


@dataclass(frozen=True)
class RunOutcome:
    """What one run of a candidate released: its score and its parameters.

    `init_seed` is the number that its first weights were drawn from. What a model draws when it is
    made and keeps elsewhere than in its parameters is made again from it.
    """

    candidate: int
    score: float
    score_std: float
    parameters: dict[str, Tensor]
    init_seed: int = 0

    def digest(self) -> str:
        """Return a digest of what would be given out."""
        facts = self.candidate, self.score, self.score_std, self.init_seed
        total = hashlib.sha256(repr(facts).encode())
        for name, value in sorted(self.parameters.items()):
            total.update(repr((name, tuple(value.shape), str(value.dtype))).encode())
            total.update(
                value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            )
        return total.hexdigest()


@dataclass
class SearchState:
    """A search under way. Private until it is done: it tells how many runs there are.

    `draws` has the candidate of each run, `done` the numbers of the runs that are finished,
    `outcomes` those of their outcomes that may still be given out. `noise_factor` is that of the
    plan: what the ledger holds by now must not change it.
    """

    fingerprint: str
    run: str
    draws: list[int]
    mask: Mask | None = None
    outcomes: dict[int, RunOutcome] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    noise_factor: float = 1.0

    def save(self, path: str | os.PathLike[str] | None) -> None:
        """Write it, readable by its owner alone; None keeps it in memory."""
        if path is None:
            return
        mask = np.zeros(0, dtype=bool) if self.mask is None else self.mask
        checkpoint.write(
            path,
            {
                "fingerprint": self.fingerprint,
                "run": self.run,
                "draws": list(self.draws),
                "mask": torch.from_numpy(mask),
                "done": sorted(self.done),
                "noise_factor": self.noise_factor,
                "outcomes": {number: vars(each) for number, each in self.outcomes.items()},
            },
        )


def remove(path: str | os.PathLike[str] | None) -> None:
    """Remove a state, and what a write of it that was killed has left behind."""
    if path is not None:
        Path(path).unlink(missing_ok=True)
        remove_drafts(path)


def remove_drafts(path: str | os.PathLike[str] | None) -> None:
    """Remove what killed writes of a state have left beside it: it tells as much as the state."""
    if path is None:
        return
    target = Path(path)
    name = re.compile(rf"\.{re.escape(target.name)}\.[a-z0-9_]{{8}}\.new")
    with contextlib.suppress(OSError):
        for each in target.absolute().parent.iterdir():
            if name.fullmatch(each.name):
                each.unlink(missing_ok=True)


def read(path: str | os.PathLike[str] | None) -> SearchState | None:
    """Return the state in a file, None if there is none yet."""
    if path is None or not Path(path).exists():
        return None
    content: dict[str, Any] = checkpoint.load(path, _KINDS, "pv.selection.select")
    mask = content["mask"].numpy()
    return SearchState(
        fingerprint=content["fingerprint"],
        run=content["run"],
        draws=[int(each) for each in content["draws"]],
        mask=mask if mask.size else None,
        outcomes={int(n): _outcome(fields) for n, fields in content["outcomes"].items()},
        done={int(each) for each in content["done"]},
        # states of before there were two kinds of ledger have none
        noise_factor=float(content.get("noise_factor", 1.0)),
    )


def _outcome(fields: dict[str, Any]) -> RunOutcome:
    """Return an outcome; before version 0.2 its seed was called origin."""
    return RunOutcome(**{"init_seed" if n == "origin" else n: each for n, each in fields.items()})


def refuse_other(state: SearchState, fingerprint: str, path: object) -> None:
    """Raise if a state is of another search."""
    if state.fingerprint != fingerprint:
        raise CheckpointError(
            f"Expected {str(path)!r} to be of this search, but it was begun with other candidates, "
            "terms or data sizes, or on another ledger. Call select with the arguments that it was "
            "begun with, or give another path to begin, and pay for, a new one."
        )
