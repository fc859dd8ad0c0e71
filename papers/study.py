"""A comparison of methods: each tuned on the same grid, then run on the same further seeds."""

import itertools
import json
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Settings = dict[str, Any]
# Returns the figure of merit, the less the better, of a method with some settings and a seed.
Trial = Callable[[str, Settings, int], float]


@dataclass(frozen=True)
class Outcome:
    """What a method reached: its settings, and the figure for each of the further seeds."""

    method: str
    settings: Settings
    figures: tuple[float, ...]
    tried: int

    @property
    def median(self) -> float:
        """The median over the further seeds."""
        return statistics.median(self.figures)


def grid(**choices: Sequence[Any]) -> list[Settings]:
    """Return every combination of the choices."""
    return [dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values())]


def compare(
    trial: Trial,
    grids: Mapping[str, list[Settings]],
    tuning_seeds: Iterable[int],
    seeds: Iterable[int],
) -> list[Outcome]:
    """Tune each method by the median over some seeds, and run the best settings on others."""
    tuning, further = list(tuning_seeds), list(seeds)
    jobs = [(m, s, seed) for m, choices in grids.items() for s in choices for seed in tuning]
    with ProcessPoolExecutor(os.cpu_count(), initializer=one_thread) as pool:
        found = iter(pool.map(trial, *zip(*jobs, strict=True), chunksize=1))
        chosen = {}
        for method, choices in grids.items():
            medians = [statistics.median([next(found) for _ in tuning]) for _ in choices]
            chosen[method] = choices[medians.index(min(medians))]
        runs = [(m, s, seed) for m, s in chosen.items() for seed in further]
        figures = iter(pool.map(trial, *zip(*runs, strict=True), chunksize=1))
        return [
            Outcome(method, settings, tuple(next(figures) for _ in further), len(grids[method]))
            for method, settings in chosen.items()
        ]


def one_thread() -> None:
    """Keep a process of several to one thread."""
    import torch

    torch.set_num_threads(1)


def table(outcomes: Sequence[Outcome], figure: str) -> str:
    """Return the outcomes as a Markdown table; quartiles say how far seeds are apart."""
    lines = [
        f"| method | median {figure} | quartiles | chosen of so many settings |",
        "|---|---:|---:|---|",
    ]
    for each in outcomes:
        low, _, high = statistics.quantiles(each.figures, n=4)
        words = ", ".join(f"{k} {v}" for k, v in each.settings.items()) + f" of {each.tried}"
        lines.append(f"| {each.method} | {each.median:.4g} | {low:.4g} to {high:.4g} | {words} |")
    return "\n".join(lines)


def write(folder: Path, name: str, words: str, outcomes: Mapping[str, Sequence[Outcome]]) -> None:
    """Write the page and the figures behind it, and print the page."""
    (folder / f"{name}.md").write_text(words)
    plain = {
        title: [
            {"method": o.method, "settings": o.settings, "figures": o.figures, "median": o.median}
            for o in group
        ]
        for title, group in outcomes.items()
    }
    (folder / f"{name}.json").write_text(json.dumps(plain, indent=1) + "\n")
    print(words)
