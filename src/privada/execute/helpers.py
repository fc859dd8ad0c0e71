"""Processes on this machine that help with one run: started, joined and ended here."""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from privada.core.errors import DistributedError, PrivadaError
from privada.core.ranks import met, refuse_several
from privada.core.validation import integer
from privada.execute.data_parallel import DataParallel
from privada.query.executor import Execution

# How long processes may take to meet, and to end when there is nothing left to do, in seconds.
_TO_MEET, _TO_END = 300, 10
_PROGRAM = "from privada.execute.helpers import help_out; help_out()"


@contextmanager
def helpers(
    processes: int, work: Callable[..., None], *arguments: Any, timeout: float = 1800.0
) -> Iterator[Execution | None]:
    """Start all but the first of some processes, and yield what this one computes its sums by.

    Args:
        processes: how many there are with this one. One starts nothing, and yields None.
        work: what each of the others does, a function of a module: it is given an executor and the
            arguments, makes the same trainer as this process, and calls the same of it.
        arguments: what it is given besides, which is pickled and sent through a pipe.
        timeout: how many seconds one process waits for another.

    Guarantee: the processes speak over this machine's loopback, where there is one. They end with
    the block, and when this process is gone.

    Raises:
        DistributedError: one of them did not start.
    """
    if integer("processes", processes) == 1:
        yield None
        return
    refuse_several("processes that help", "Leave out torchrun, or the number of processes.")
    threads = torch.get_num_threads()
    own = max(1, threads // processes)
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        try:
            for rank in range(1, processes):
                task = (rank, processes, meeting, own, timeout, work, arguments)
                started.append(_started(pickle.dumps(task)))
            for process in started:
                _wait_until_ready(process)
            _join(0, processes, meeting)
            torch.set_num_threads(own)
            yield DataParallel(timeout)
        finally:
            torch.set_num_threads(threads)
            if dist.is_initialized():
                dist.destroy_process_group()
            for process in started:
                _end(process)


def _started(task: bytes) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # which is noticed when it does not say a word
        process.stdin.write(task)
        process.stdin.close()
    return process


def _wait_until_ready(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdout is not None
    if process.stdout.readline().strip() != b"ready":
        raise DistributedError(
            "Cannot start a process to help with the run: it ended at once. Train in one process. "
            "Nothing was charged for training."
        )


def _join(rank: int, size: int, meeting: str) -> None:
    """Meet the others, over the loopback if there is one."""
    there = {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    if there and before is None:
        os.environ["GLOO_SOCKET_IFNAME"] = min(there)
    try:
        dist.init_process_group(
            "gloo",
            init_method=Path(meeting).as_uri(),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=_TO_MEET),
        )
        met()
    finally:
        if before is None and rank == 0:
            os.environ.pop("GLOO_SOCKET_IFNAME", None)


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def help_out() -> None:
    """Do what is asked for on the standard input; in a process that was started to help."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's, which says so
    rank, size, meeting, threads, timeout, work, arguments = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(threads)
    print("ready", flush=True)
    _join(rank, size, meeting)
    try:
        work(DataParallel(timeout), *arguments)
    except PrivadaError:
        sys.exit(1)  # the first process raises the same, or has ended
