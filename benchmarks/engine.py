"""The engine against plain PyTorch and its peers: time, memory, growth.

`python -m benchmarks.engine memory <case> <contender>` measures one contender's memory by itself,
`python -m benchmarks.engine times <case> <contender> ...` the times of several, in turns.
"""

import ctypes
import gc
import json
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn

from benchmarks.chart import bars, lines
from benchmarks.contenders import CONTENDERS, Step, jax_privacy_here, recorded
from benchmarks.measure import interleaved
from benchmarks.models import CASES, CROSS, Case, mlp

SECONDS_FOR_A_CASE = 4.0
# Where its threads are put can make a process slower than another for as long as it lives.
PROCESSES = 3
SECONDS_FOR_MEMORY = 120
GROWING = ("plain PyTorch", "limit", "privada, isotropic", "privada, diagonal")


def _prepared(case: Case, names: tuple[str, ...]) -> tuple[dict[str, Step], dict[str, str]]:
    """Return the steps that work, and what the others said."""
    steps, failures = {}, {}
    for name in names:
        try:
            step = CONTENDERS[name](case)
            step()
        except Exception as error:  # whatever a peer cannot do
            failures[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
            continue
        steps[name] = step
    return steps, failures


def _timed(steps: dict[str, Step], seconds: float) -> dict[str, float]:
    """Return the median seconds of each step; those of two seconds or more are taken once."""
    once = {}
    for name, step in steps.items():
        started = time.perf_counter()
        step()
        once[name] = time.perf_counter() - started
    quick = {name: step for name, step in steps.items() if once[name] < 2}
    rounds = max(5, min(100, int(seconds / sum(once[name] for name in quick))))
    return once | interleaved(quick, rounds, settle=0.02)


def peak(case: Case, name: str) -> float:
    """Return the most megabytes that steps hold, model and batch included.

    What the set-up held for a while is not counted, nor are the pages of libraries' code, which
    come with the first call of whatever is in them and are shared between processes.
    """
    before = _workspace("VmRSS") - _workspace("RssFile")
    step = (jax_privacy_here if name == "jax-privacy" else CONTENDERS[name])(case)
    step()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    for _ in range(3):
        step()
    return (_workspace("VmHWM") - _workspace("RssFile") - before) * 1024 / 1e6


def _workspace(field: str) -> int:
    """Return a field of this process's memory in kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[field].split()[0])


def _peak_elsewhere(case: Case, name: str) -> float | None:
    """Return the median peak memory of processes of their own, None where they fail.

    Raises:
        TimeoutExpired: it did not take four steps in two minutes.
    """
    command = [sys.executable, "-m", "benchmarks.engine", "memory", case.name, name]
    peaks = []
    for _ in range(PROCESSES):  # where a large block finds room is a matter of luck
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS_FOR_MEMORY, check=True
            )
        except subprocess.CalledProcessError:
            return None
        peaks.append(float(result.stdout.split()[-1]))
    return statistics.median(peaks)


def _times_elsewhere(
    cases: dict[str, tuple[str, ...]],
) -> tuple[dict[str, dict[str, list[float]]], dict[str, dict[str, str]]]:
    """Return the seconds of each contender in several processes, and what failed, by model.

    The processes of one model are far apart: a shared machine can be slower for minutes.
    """
    found: dict[str, dict[str, list[float]]] = {case: {} for case in cases}
    failures: dict[str, dict[str, str]] = {case: {} for case in cases}
    for number in range(PROCESSES):
        for case, names in cases.items():
            # JAX takes seconds for a step where others take milliseconds: once will do
            wanted = [name for name in names if number == 0 or name != "jax-privacy"]
            command = [sys.executable, "-m", "benchmarks.engine", "times", case, *wanted]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds, failed = json.loads(result.stdout.splitlines()[-1])
            failures[case] |= failed
            for name, value in seconds.items():
                found[case].setdefault(name, []).append(value)
            print(f"{case}, process {number + 1} of {PROCESSES}", seconds, flush=True)
    return found, failures


def _over_the_limit(seconds: dict[str, list[float]], name: str) -> list[float]:
    """Return a contender's ratio to the limit in each process, the least first."""
    return sorted(
        round(own / limit, 3) for own, limit in zip(seconds[name], seconds["limit"], strict=False)
    )


def _memory_elsewhere(case: Case) -> tuple[dict[str, float | None], dict[str, str]]:
    """Return the peak memory of each contender, None where it fails, and which are too slow."""
    memory, slow = {}, {}
    for name in CONTENDERS:
        try:
            memory[name] = _peak_elsewhere(case, name)
        except subprocess.TimeoutExpired:
            slow[name] = f"did not take four steps in {SECONDS_FOR_MEMORY} s"
    print(case.name, memory, slow, flush=True)
    return memory, slow


def compare(cases: list[Case]) -> list[dict[str, object]]:
    """Return times and memory of every contender on some models."""
    held = {case.name: _memory_elsewhere(case) for case in cases}
    times, failures = _times_elsewhere({name: tuple(memory) for name, (memory, _) in held.items()})
    rows = []
    for case in cases:
        seconds, (memory, slow) = times[case.name], held[case.name]
        ratios = {name: _over_the_limit(seconds, name) for name in seconds}
        rows.append(
            {
                "model": case.name,
                "parameters": sum(p.numel() for p in case.model().parameters()),
                "recorded megabytes": round(recorded(case), 1),
                "milliseconds": {
                    name: round(1e3 * statistics.median(values), 3)
                    for name, values in seconds.items()
                },
                "over the limit": {name: statistics.median(r) for name, r in ratios.items()},
                "least and most": {name: [r[0], r[-1]] for name, r in ratios.items()},
                "megabytes": {n: round(m, 1) for n, m in memory.items() if m is not None},
                "failed": failures[case.name] | slow,
            }
        )
    return rows


def growth() -> dict[str, dict[str, dict[float, float]]]:
    """Return milliseconds of a step against the batch size and against the parameters."""
    panels: dict[str, dict[str, dict[float, float]]] = {}

    def measure(title: str, at: float, case: Case) -> None:
        steps, _ = _prepared(case, GROWING)
        for name, value in _timed(steps, 4.0).items():
            panels.setdefault(title, {}).setdefault(name, {})[at] = round(1e3 * value, 3)

    for batch in (16, 64, 256, 1024, 4096):
        inputs = torch.rand(batch, 784), torch.randint(10, (batch,))
        case = Case("", lambda: mlp(784, 256, 256, 10), lambda inputs=inputs: inputs, CROSS)
        measure("batch size, MLP 784-256-256-10", batch, case)
    for width in (100, 316, 1000, 3162, 10_000):
        inputs = torch.rand(64, width), torch.randint(width, (64,))
        case = Case("", lambda w=width: nn.Linear(w, w), lambda inputs=inputs: inputs, CROSS)
        measure("parameters, one square layer, b 64", width * width, case)
    return panels


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:,.2f}"


def page(rows: list[dict], panels: dict, machine: dict[str, object]) -> str:
    """Return the results in words and tables."""
    names = list(CONTENDERS)
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    text = [
        "# The engine: what a private step costs",
        "",
        "Written by `make bench`. One step is forward, backward, clipping, noise and update on a "
        "given batch. Contenders take turns within one process; figures are medians over steps, "
        f"and of these over {PROCESSES} processes, minutes apart, since one can be slower than "
        "another for as long as it lives; ratios are taken within a process. A row may have been "
        "measured again by itself (`python -m benchmarks engine transformer`). The limit is a "
        "plain step and one draw of torch's normals over all parameters. Memory is the most "
        "that a process with nothing else in it holds during steps, beyond what importing took and "
        f"without the pages of libraries' code, and of this the median over {PROCESSES} processes. "
        f"Machine: {facts}.",
    ]
    tables = {
        "Milliseconds": "milliseconds",
        "Over the limit": "over the limit",
        "Peak memory, MB": "megabytes",
    }
    for title, key in tables.items():
        text += ["", f"## {title}", "", "| model | " + " | ".join(names) + " |"]
        text += ["|---|" + "---:|" * len(names)]
        for row in rows:
            cells = [_cell(row[key].get(name)) for name in names]
            if key == "over the limit":
                spread = row["least and most"]
                cells = [
                    f"{cell} ({_cell(spread[n][0])} to {_cell(spread[n][1])})"
                    if n.startswith("privada")
                    else cell
                    for n, cell in zip(names, cells, strict=True)
                ]
            text.append(f"| {row['model']} | " + " | ".join(cells) + " |")
    text += ["", "## Memory above the plain step, MB", "",
             "The goal is 1.5 times the parameters and the recorded activations: what layers with "
             "parameters were given, and the gradients of what they returned.", "",
             "| model | 1.5 x parameters | records | goal | isotropic | diagonal |",
             "|---|---:|---:|---:|---:|---:|"]  # fmt: skip
    for row in rows:
        weights, records = 6e-6 * row["parameters"], row["recorded megabytes"]
        held = row["megabytes"]
        above = [held[name] - held["plain PyTorch"] for name in GROWING[2:]]
        cells = [weights, records, weights + records, *above]
        text.append(f"| {row['model']} | " + " | ".join(f"{cell:,.1f}" for cell in cells) + " |")
    text += ["", "![Milliseconds of a step](engine.svg)", "", "## Growth", "",
             "![Milliseconds against batch size and parameters](growth.svg)"]  # fmt: skip
    refused = [
        f"- {row['model']}: {name}: {why}" for row in rows for name, why in row["failed"].items()
    ]
    if refused:
        text += ["", "## What did not run", "", *refused]
    return "\n".join(text) + "\n"


def write(results: Path, machine: dict[str, object], only: tuple[str, ...] = ()) -> None:
    """Measure everything and write engine.json, engine.md and two charts.

    With `only`, models whose names begin so are measured again, and the rest stays as it is there.
    """
    if only:
        kept = json.loads((results / "engine.json").read_text())
        again = {
            row["model"]: row for row in compare([c for c in CASES if c.name.startswith(only)])
        }
        rows = [again.get(row["model"], row) for row in kept["rows"]]
        panels = {
            title: {
                name: {float(at): ms for at, ms in line.items()} for name, line in panel.items()
            }
            for title, panel in kept["growth"].items()
        }
    else:
        rows, panels = compare(CASES), growth()
    (results / "engine.json").write_text(
        json.dumps({"machine": machine, "rows": rows, "growth": panels}, indent=2) + "\n"
    )
    (results / "engine.md").write_text(page(rows, panels, machine))
    times = {row["model"]: row["milliseconds"] for row in rows}
    bars(results / "engine.svg", "Milliseconds of one step", times, "ms")
    lines(results / "growth.svg", panels, "ms")


def main() -> None:
    """Measure what the arguments say, in this process."""
    warnings.simplefilter("ignore")
    _, what, wanted, *names = sys.argv
    case = next(case for case in CASES if case.name == wanted)
    if what == "memory":
        print(peak(case, names[0]))
    else:
        steps, failures = _prepared(case, tuple(names))
        print(json.dumps([_timed(steps, SECONDS_FOR_A_CASE), failures]))


if __name__ == "__main__":
    main()
