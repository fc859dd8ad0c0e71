"""How long commands take in fresh processes: processor and elapsed time, and modules loaded.

`python -m benchmarks.command_line` writes results/command_line.md. On a machine that others use,
processor time and the number of modules say more than elapsed time.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import privada as pv
from benchmarks.measure import interleaved
from privada.accounting import events

ROUNDS = 5
RESULTS = Path(__file__).parent / "results"
_COUNT = """
import os, sys
sys.stdout = open(os.devnull, "w")
from privada.cli import main
try:
    main()
except SystemExit:
    pass
print(len(sys.modules), file=sys.__stderr__)
"""
_PLAN = ("plan", "--records", "60000", "--epsilon", "1")
COMMANDS: dict[str, tuple[str, ...]] = {
    "privada --help": ("--help",),
    "privada train --help": ("train", "--help"),
    "an option that there is not": ("train", "--nope"),
    "a file that there is not": ("train", "no.csv", "--target", "sick", "--epsilon", "1"),
    "a column that there is not": ("train", "t.csv", "--target", "ill", "--epsilon", "1"),
    "privada ledger FILE": ("ledger", "account"),
    "privada plan, all defaults": _PLAN,
}


def _make(folder: Path) -> None:
    """Write a table, and a ledger with the charges of a run."""
    (folder / "t.csv").write_text("age,sick\n39,no\n50,yes\n")
    with pv.Ledger(folder / "account", pv.Budget(3.0, 1e-5), kind="planned") as ledger:
        ledger.charge({events.poisson(0.01, 1.2): 1000, events.gaussian(30.0): 2}, run="first")


class _Command:
    """A command whose processor time is kept each time that it is run."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self.arguments, self.folder = arguments, folder
        self.seconds: list[float] = []

    def __call__(self) -> None:
        with Path(os.devnull).open("w") as nowhere:
            child = subprocess.Popen(
                [sys.executable, *self.arguments], cwd=self.folder, stdout=nowhere, stderr=nowhere
            )
            _, _, used = os.wait4(child.pid, 0)
            child.returncode = 0
        self.seconds.append(used.ru_utime + used.ru_stime)


def _modules(arguments: tuple[str, ...], folder: Path) -> int:
    command = [sys.executable, "-c", _COUNT, *arguments]
    done = subprocess.run(command, cwd=folder, stderr=subprocess.PIPE, text=True, check=True)
    return int(done.stderr.split()[-1])


def write() -> str:
    """Measure, and write the page."""
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make(folder)
        started = {
            "python -c pass": _Command(["-c", "pass"], folder),
            "python -c 'import scipy.stats'": _Command(["-c", "import scipy.stats"], folder),
            "python -c 'import torch'": _Command(["-c", "import torch"], folder),
        }
        started |= {
            what: _Command(["-m", "privada", *arguments], folder)
            for what, arguments in COMMANDS.items()
        }
        elapsed = interleaved(dict(started), rounds=ROUNDS)
        for what, command in started.items():
            # the first run, which compiles, is not counted
            used = statistics.median(command.seconds[1:])
            arguments = COMMANDS.get(what)
            loaded = "" if arguments is None else f"{_modules(arguments, folder):,}"
            lines.append(f"| {what} | {used:.2f} | {elapsed[what]:.2f} | {loaded} |")
    page = (
        "# The command line: how long an answer takes\n\n"
        f"`python -m benchmarks.command_line` makes this page: medians of {ROUNDS} runs in turns, "
        f"each in a fresh process, at a load of {os.getloadavg()[0]:.0f} on "
        f"{os.cpu_count()} cores ({time.strftime('%Y-%m')}). Elapsed time includes waiting for "
        "other work of the machine.\n\n"
        "| what | processor seconds | elapsed seconds | modules |\n|---|---:|---:|---:|\n"
        + "\n".join(lines)
        + "\n"
    )
    (RESULTS / "command_line.md").write_text(page, encoding="utf-8")
    return page


if __name__ == "__main__":
    print(write())
