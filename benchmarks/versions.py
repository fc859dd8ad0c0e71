"""Compare the engine of this checkout with that of another, in turns within one run.

    python -m benchmarks.versions ../other-checkout [rounds [part of a model's name]]

Each checkout runs its own code in a process of its own. They take turns, a few steps each, so that
whatever else the machine does falls on both. Prints the ratio of medians for each model.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

WAYS = ("isotropic", "diagonal")
# How long one turn takes, about, in seconds, and how often processes are started.
_TURN, _STARTS = 0.2, 5


def work() -> None:
    """Time steps that are asked for on the standard input: model, way, number of steps."""
    import torch

    from benchmarks import contenders
    from benchmarks.models import CASES

    torch.manual_seed(0)
    cases = {case.name: case for case in CASES}
    made: dict[tuple[str, str], contenders.Step] = {}
    for line in sys.stdin:
        model, way, count = line.rstrip("\n").split("\t")
        if (model, way) not in made:
            made.clear()
            made[model, way] = getattr(contenders, way)(cases[model])
            made[model, way]()
        step = made[model, way]
        started = time.perf_counter()
        for _ in range(int(count)):
            step()
        print((time.perf_counter() - started) / int(count), flush=True)


class Checkout:
    """The code of one checkout, at work in a process."""

    def __init__(self, root: Path) -> None:
        program = Path(__file__).resolve()
        places = [str(root), str(root / "src")]
        code = (
            f"import runpy, sys; sys.path[:0] = {places!r}; "
            f"runpy.run_path({str(program)!r}, run_name='worker')['work']()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def time(self, model: str, way: str, steps: int) -> float:
        """Return the seconds of a step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{model}\t{way}\t{steps}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.kill()


def compare(other: Path, rounds: int, only: str = "") -> None:
    """Print a line for each model and way.

    Processes are started anew several times: where memory lies can matter more than the code.
    """
    from benchmarks.models import CASES

    roots = Path(__file__).resolve().parent.parent, other.resolve()
    for case in CASES:
        if only not in case.name:
            continue
        for way in WAYS:
            times: dict[Path, list[float]] = {root: [] for root in roots}
            for start in range(_STARTS):
                found = _turns(roots if start % 2 else roots[::-1], case.name, way, rounds)
                for root, some in found.items():
                    times[root].append(statistics.median(some))
            now, before = (statistics.median(times[root]) for root in roots)
            ratios = [a / b for a, b in zip(times[roots[0]], times[roots[1]], strict=True)]
            print(
                f"{case.name:36} {way:10} {1e3 * before:9.2f} ms {1e3 * now:9.2f} ms  "
                f"ratio {now / before:5.3f}  of pairs {min(ratios):5.3f} to {max(ratios):5.3f}",
                flush=True,
            )


def _turns(roots: tuple[Path, ...], model: str, way: str, rounds: int) -> dict[Path, list[float]]:
    """Return the seconds of a step in each turn, of new processes."""
    made = {root: Checkout(root) for root in roots}
    try:
        first = max(each.time(model, way, 2) for each in made.values())
        steps = max(1, int(_TURN / first))
        times: dict[Path, list[float]] = {root: [] for root in roots}
        for turn in range(rounds):
            for root in roots if turn % 2 else roots[::-1]:
                times[root].append(made[root].time(model, way, steps))
        return times
    finally:
        for each in made.values():
            each.close()


if __name__ == "__main__":
    compare(
        Path(sys.argv[1]),
        int(sys.argv[2]) if len(sys.argv) > 2 else 5,
        sys.argv[3] if len(sys.argv) > 3 else "",
    )
