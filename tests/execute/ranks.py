"""Start several ranks on this machine, each of which does one of `tests.execute.jobs`."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.forks import PATIENCE

ROOT = Path(__file__).parent.parent.parent


def free_port():
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1]


def start(job, size, folder, *arguments, **environment):
    """Start a job on so many ranks; return the processes."""
    port, started = free_port(), []
    for rank in range(size):
        own = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": str(rank),  # no set may be gone through in the same order everywhere
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        }
        command = [sys.executable, "-m", "tests.execute.jobs", job, str(folder), *arguments]
        started.append(
            subprocess.Popen(
                command,
                env=os.environ | own | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return started


def ended(started, patience=PATIENCE):
    """Return exit codes and what was printed, by rank; what hangs is killed and fails the test."""
    outcomes = []
    try:
        for process in started:
            out, err = process.communicate(timeout=patience)
            outcomes.append((process.returncode, out, err))
    finally:
        for process in started:
            process.kill()
    return outcomes


def together(job, size, folder, *arguments, patience=PATIENCE, **environment):
    """Do a job on so many ranks, and return what each printed; one that fails, fails the test."""
    outcomes = ended(start(job, size, folder, *arguments, **environment), patience)
    words = [f"rank {rank}:\n{out}\n{err}" for rank, (_, out, err) in enumerate(outcomes)]
    assert all(code == 0 for code, _, _ in outcomes), "\n".join(words)
    return [out for _, out, _ in outcomes]
