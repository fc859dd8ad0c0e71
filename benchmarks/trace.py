"""Trace one training step: its calls, the files they are in, and how often the folder changes.

python -m benchmarks.trace
"""

import itertools
import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import privada as pv

_SOURCE = Path(pv.__file__).parent


def trainer() -> pv.Trainer:
    """Return a trainer of a small model that has taken some steps, so that all is in place."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 8, generator=generator)
    made = pv.Trainer(
        torch.nn.Linear(8, 2),
        torch.nn.CrossEntropyLoss(),
        (x, (x.sum(dim=1) > 0).long()),
        method=pv.methods.DPSGD(lr=0.1),
        batch_size=20,
        steps=100,
        noise_multiplier=1.0,
        delta=1e-4,
    )
    for _ in range(5):
        made.step()
    return made


def trace_step(made: pv.Trainer) -> dict[str, Any]:
    """Return what one step calls, within the package."""
    calls: list[str] = []
    reached: dict[str, set[str]] = defaultdict(set)

    def place(frame: FrameType | None) -> str | None:
        if frame is None:
            return None
        path = Path(frame.f_code.co_filename)
        return str(path.relative_to(_SOURCE)) if path.is_relative_to(_SOURCE) else None

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (name := place(frame)) is None:
            return
        calls.append(name)
        caller = place(frame.f_back)
        if caller not in (None, name):
            reached[caller].add(name)  # type: ignore[index]

    sys.setprofile(profile)
    try:
        made.step()
    finally:
        sys.setprofile(None)
    folders = [name.split("/")[0] for name in calls]
    changes = sum(one != other for one, other in itertools.pairwise(folders))
    hub = max(reached, key=lambda name: len(reached[name]))
    return {
        "calls": len(calls),
        "files": len(set(calls)),
        "changes of folder": changes,
        "largest hub": hub,
        "its fan-out": len(reached[hub]),
        "path": calls,
    }


def main() -> None:
    """Print the traces of sixty steps: the median one, and the one that changes folders most."""
    made = trainer()
    steps = sorted(
        (trace_step(made) for _ in range(60)), key=lambda found: found["changes of folder"]
    )
    for title, found in (("median", steps[len(steps) // 2]), ("most", steps[-1])):
        print(title, {name: value for name, value in found.items() if name != "path"})
    if "--path" in sys.argv:
        path = steps[len(steps) // 2]["path"]
        folders = [name.split("/")[0] for name in path]
        for place, name in enumerate(path):
            if place == 0 or folders[place] != folders[place - 1]:
                print(" ", name)


if __name__ == "__main__":
    main()
