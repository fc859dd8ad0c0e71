"""One run on two processes against the same run on one: the time of a step, and where it goes.

`python -m benchmarks.data_parallel` starts two ranks by torchrun and writes the page.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from pathlib import Path

import torch
import torch.distributed as dist

import privada as pv
from benchmarks.models import CROSS, cnn, mlp
from privada.core.ranks import Ranks
from privada.query.local import LocalExecutor

RESULTS = Path(__file__).parent / "results"
ROUNDS, STEPS = 5, 5
MODELS = {
    "MLP 784-256-256-10": (lambda: mlp(784, 256, 256, 10), (784,), (256, 4096)),
    "CNN": (cnn, (1, 28, 28), (64, 256)),
}
CONTENDERS = {
    "one process, one thread": (pv.execute.Local(), 1),
    "one process, two threads": (pv.execute.Local(), 2),
    "two processes, one thread each": (pv.execute.DataParallel(), 1),
}
TOGETHER = "two processes, one thread each"
FIRST = "one process, one thread"
ROW = "row "


class Clock:
    """Adds up the seconds that some methods take on this rank, each without those within it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def watch(self, owner: type, method: str, name: str) -> None:
        """Count a method under a name from now on."""
        kept = getattr(owner, method)

        def timed(*arguments, **named):
            started = time.perf_counter()
            try:
                return kept(*arguments, **named)
            finally:
                self.seconds[name] += time.perf_counter() - started

        setattr(owner, method, timed)


class Timed(pv.Trainer):
    """A trainer that notes when each step has ended."""

    def step(self):
        """Take a step."""
        super().step()
        self.ends.append(time.perf_counter())
        return self

    def timed(self) -> float:
        """Return the median seconds of a step, but for the first two."""
        self.ends: list[float] = []
        used = time.process_time()
        self.fit()
        self.processor = (time.process_time() - used) / self.steps
        gaps = [after - before for before, after in zip(self.ends[1:], self.ends[2:], strict=False)]
        return statistics.median(gaps) if gaps else 0.0


def trainer(build, shape, batch: int, executor) -> Timed:
    """Return a run of a few steps on made-up records."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4 * batch, *shape, generator=generator)
    y = torch.randint(10, (4 * batch,), generator=generator)
    torch.manual_seed(0)
    return Timed(
        build(), CROSS, (x, y), method=pv.methods.DPSGD(lr=0.1), batch_size=batch,
        steps=STEPS + 2, noise_multiplier=1.0, delta=1e-6, seed=1, executor=executor,
    )  # fmt: skip


def moved(numbers: int) -> float:
    """Return the median seconds of sending parameters to the other rank and a sum back."""
    ranks = pv.execute.DataParallel().join()
    values, found = torch.rand(numbers), []
    for _ in range(9):
        dist.barrier()
        started = time.perf_counter()
        ranks.share_(values)
        ranks.add_up_(values, torch.zeros(1), values.device)
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def measure(only: str, batch: int) -> None:
    """Measure one case on two ranks, in turns, and print what rank 0 has found."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank, clock = dist.get_rank(), Clock()
    clock.watch(Ranks, "share_", "parameters sent")
    clock.watch(Ranks, "add_up_", "waiting for the other's sum, and adding it")
    clock.watch(LocalExecutor, "clipped_sum", "own share")
    build, shape, _ = MODELS[only]
    seconds: dict[str, list[float]] = defaultdict(list)
    parts: dict[str, list[float]] = defaultdict(list)
    used: dict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        for contender, (executor, threads) in CONTENDERS.items():
            dist.barrier()
            if rank and contender != TOGETHER:
                continue  # it waits, and uses no processor
            torch.set_num_threads(threads)
            made = trainer(build, shape, batch, executor)
            clock.seconds.clear()
            seconds[contender].append(made.timed())
            used[contender].append(made.processor)
            if contender == TOGETHER:
                for part, value in clock.seconds.items():
                    parts[part].append(value / (STEPS + 2))
        torch.set_num_threads(1)
    size = sum(p.numel() for p in build().parameters())
    alone = moved(size)
    if rank == 0:
        row = {
            "model": only,
            "batch": batch,
            "parameters": size,
            "seconds": {key: statistics.median(v) for key, v in seconds.items()},
            "ratios": _ratios(seconds),
            "processor": {key: statistics.median(v) for key, v in used.items()},
            "parts": {key: statistics.median(v) for key, v in parts.items()},
            "moving": alone,
        }
        print(f"{ROW}{json.dumps(row)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _ratios(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return how many times as fast as the first each contender is, by rounds: least to most."""
    return {
        name: sorted(round(one / own, 3) for one, own in zip(seconds[FIRST], values, strict=True))
        for name, values in seconds.items()
    }


def page(rows: list[dict]) -> str:
    """Return the results in words and tables."""
    facts = (
        f"{os.cpu_count()} cores, {platform.machine()}, python {platform.python_version()}, "
        f"torch {torch.__version__}"
    )
    text = [
        "# Data-parallel: two processes against one",
        "",
        "Written by `python -m benchmarks.data_parallel`: two ranks started by torchrun on one "
        f"machine, gloo over the loopback. Contenders take turns, {ROUNDS} rounds of {STEPS} steps "
        "each; the other rank waits meanwhile. A ratio is that of two contenders in the same "
        "round; medians over rounds, with the least and the most. The machine was shared with "
        "other work while this was measured, so that a second core was not always free: read the "
        f"ratios, not the milliseconds. Machine: {facts}.",
        "",
        "Processor time is that of rank 0 alone, in one process over on two: how many times as "
        "fast two processes would be if each had a core to itself and sending took no time.",
        "",
        "| model | batch | one process, one thread: ms | two threads: times as fast | "
        "two processes: times as fast | processor time |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        first = 1e3 * row["seconds"][FIRST]
        cells = []
        for name in list(CONTENDERS)[1:]:
            found = row["ratios"][name]
            middle = statistics.median(found)
            cells.append(f"{middle:.2f} ({found[0]:.2f} to {found[-1]:.2f})")
        cells.append(f"{row['processor'][FIRST] / row['processor'][TOGETHER]:.2f}")
        text.append(f"| {row['model']} | {row['batch']:,} | {first:.1f} | {' | '.join(cells)} |")
    text += [
        "",
        "Where the time of a step on two processes goes, in milliseconds on rank 0. The rest is "
        "the draw, the charge, the noise and the update: rank 0 does that while the other waits. "
        "The last column is what sending the parameters and a sum takes by itself, when both "
        "ranks are ready: the most that overlapping it with computation could save.",
        "",
        "| model | batch | a step | own share | waiting for the other's sum | parameters sent | "
        "rest | moving alone | share of a step |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        whole, parts = 1e3 * row["seconds"][TOGETHER], {k: 1e3 * v for k, v in row["parts"].items()}
        own, sent = parts["own share"], parts["parameters sent"]
        waited = parts["waiting for the other's sum, and adding it"]
        moving = 1e3 * row["moving"]
        text.append(
            f"| {row['model']} | {row['batch']:,} | {whole:.1f} | {own:.1f} | {waited:.1f} | "
            f"{sent:.1f} | {max(0.0, whole - own - waited - sent):.1f} | {moving:.1f} | "
            f"{moving / whole:.0%} |"
        )
    return "\n".join(text) + "\n"


def main() -> None:
    """Start two ranks for each case, and write the page."""
    rows = []
    for model, (_, _, batches) in MODELS.items():
        for batch in batches:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", "2", "-m", "benchmarks.data_parallel"]
            done = subprocess.run(
                [*command, model, str(batch)], check=True, capture_output=True, text=True
            )
            said = next(line for line in done.stdout.splitlines() if line.startswith(ROW))
            rows.append(json.loads(said.removeprefix(ROW)))
            print(said, flush=True)
    (RESULTS / "data_parallel.json").write_text(json.dumps(rows, indent=2) + "\n")
    (RESULTS / "data_parallel.md").write_text(page(rows))


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2])) if sys.argv[1:] else main()
