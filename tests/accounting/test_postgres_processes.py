"""A ledger in PostgreSQL under real processes, on one machine and on two: killed, and racing."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from privada.accounting import Budget, Ledger, epsilon_of
from privada.core.errors import BudgetExceeded
from privada.train import checkpoint
from tests.accounting.test_ledger_processes import (
    BUDGET,
    EVENT,
    FINISHED,
    GAUSSIAN,
    PROCESSES,
    REFUSED,
    Log,
    _no_child_is_left,
    charge_for_ever,
    charged,
    create,
    finish,
    spend,
    start,
    train,
    wait_for_a_line,
)
from tests.forks import PATIENCE
from tests.postgres_server import Server, shared_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("processes"),
    pytest.mark.usefixtures(_no_child_is_left.__name__),
]


@pytest.fixture
def server() -> Server:
    return shared_server()


def test_killed_at_any_moment_no_charge_is_lost(server: Server, tmp_path: Path) -> None:
    url, log = server.new(), tmp_path / "log"
    largest, chance = 3, random.Random(40)
    limit = Budget(10_000.0, 1e-5)
    Ledger(url, limit).close()
    for kills in range(1, 31):
        size = log.stat().st_size if log.exists() else 0
        child = start(charge_for_ever, url, log, largest)
        wait_for_a_line(log, size, child)
        time.sleep(chance.uniform(0, 0.12))
        child.kill()
        child.join(PATIENCE)
        assert child.exitcode == -signal.SIGKILL
        held, noted = charged(url), Log.total(log)
        assert held >= noted
        # what was charged and not noted is at most what each killed child was about to note
        assert held - noted <= largest * kills
    with Ledger(url) as ledger:
        ledger.charge({GAUSSIAN: 1}, run="after")


def test_a_killed_training_resumes_and_no_step_is_free(server: Server, tmp_path: Path) -> None:
    url, log, chance = server.new(), tmp_path / "log", random.Random(41)
    steps, limit = 120, Budget(epsilon_of({EVENT: 40 * 120}, 1e-5), 1e-5)
    Ledger(url, limit).close()
    for number in range(4):
        size = log.stat().st_size if log.exists() else 0
        # the first does not end by itself, however late the kill comes on a busy machine
        last = steps - 1 if number == 0 else None
        child = start(train, tmp_path, steps, None, last, url)
        wait_for_a_line(log, size, child)
        time.sleep(chance.uniform(0, 0.25))
        child.kill()
        child.join(PATIENCE)
        assert child.exitcode in (-signal.SIGKILL, FINISHED)
        assert charged(url) >= Log.total(log)
    assert finish(start(train, tmp_path, steps, None, None, url)) == FINISHED
    assert checkpoint.read(tmp_path / "run.pt", {})["step"] == steps
    assert charged(url) >= max(steps, Log.total(log))
    assert Ledger(url).epsilon() <= limit.epsilon


@pytest.mark.parametrize("kind", ["gaussian", "poisson"])
def test_eight_processes_never_overspend(server: Server, tmp_path: Path, kind: str) -> None:
    url, barrier = server.new(), PROCESSES.Barrier(8)
    Ledger(url, BUDGET).close()
    children = [start(spend, url, tmp_path, n, barrier, kind) for n in range(8)]
    assert [finish(child) for child in children] == [FINISHED] * 8
    done = {n: int((tmp_path / f"done {n}").read_text()) for n in range(8)}
    with Ledger(url) as ledger:
        counts = {charge.run: charge.count for charge in ledger.charges()}
        assert counts == {f"run {n}": many for n, many in done.items() if many}
        assert ledger.epsilon() <= BUDGET.epsilon
        assert epsilon_of(ledger.totals(), BUDGET.delta) <= BUDGET.epsilon
        event = next(iter(ledger.totals()))
        unit = 1 if kind == "gaussian" else 40
        while ledger.affordable(event, unit) == unit:
            ledger.charge({event: unit}, run="last")
        with pytest.raises(BudgetExceeded):
            ledger.charge({event: unit}, run="last")


def test_processes_that_create_one_ledger_with_two_budgets_have_one(server: Server) -> None:
    url, barrier = server.new(), PROCESSES.Barrier(8)
    budgets = [Budget(1.0 + number % 2, 1e-5) for number in range(8)]
    children = [start(create, url, barrier, budget) for budget in budgets]
    codes = [finish(child) for child in children]
    kept = Ledger(url).budget
    assert codes == [FINISHED if budget == kept else REFUSED for budget in budgets]
    assert charged(url) == 4


# ---------------------------------------------------------------------- two machines

SPEND = """
import sys
from privada.accounting import Ledger, events
from privada.core.errors import BudgetExceeded
url, name = sys.argv[1:]
ledger, done = Ledger(url), 0
print("ready", flush=True)
sys.stdin.readline()
try:
    while True:
        ledger.charge({events.gaussian(30.0): 1}, run=name)
        done += 1
except BudgetExceeded:
    print(done)
"""

HOLD = """
import sys, time
from privada.accounting import Ledger, events
ledger = Ledger(sys.argv[1])
with ledger._storage.writing("charge") as transaction:
    transaction.add("gone", "training", {events.gaussian(30.0): 5})
    print("ready", flush=True)
    time.sleep(1000)
"""


@dataclass(frozen=True)
class Machine:
    """A machine with an address of its own, from which a server of this one is reached."""

    name: str
    server: str

    def run(self, program: str, *given: str, folder: Path) -> "subprocess.Popen[str]":
        folder.mkdir()
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, sys.executable, "-c", program, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
        )


def _ip(*words: str) -> None:
    told = subprocess.run(["ip", *words], capture_output=True, text=True)
    if told.returncode != 0:
        pytest.skip(f"cannot make network namespaces here: {told.stderr.strip()}")


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    """Two machines: network namespaces, each with a cable of its own to this one."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and ip for network namespaces")
    made, mark = [], os.getpid() % 10_000
    try:
        for place in range(2):
            name, here, there = f"privada-{mark}-{place}", f"pv{mark}h{place}", f"pv{mark}t{place}"
            # addresses that are set apart for documentation
            ours, theirs = f"198.51.100.{4 * place + 1}", f"198.51.100.{4 * place + 2}"
            _ip("netns", "add", name)
            made.append(Machine(name, ours))
            _ip("link", "add", here, "type", "veth", "peer", "name", there)
            _ip("link", "set", there, "netns", name)
            _ip("addr", "add", f"{ours}/30", "dev", here)
            _ip("link", "set", here, "up")
            _ip("-n", name, "addr", "add", f"{theirs}/30", "dev", there)
            _ip("-n", name, "link", "set", there, "up")
        yield made
    finally:
        for machine in made:
            subprocess.run(["ip", "netns", "del", machine.name], capture_output=True)


def test_two_machines_never_overspend_together(
    server: Server, machines: list[Machine], tmp_path: Path
) -> None:
    url = server.new()
    Ledger(url, BUDGET).close()
    most = Ledger(url).affordable(GAUSSIAN, 1000)
    children = [
        machine.run(
            SPEND,
            url.replace("127.0.0.1", machine.server),
            machine.name,
            folder=tmp_path / machine.name,
        )
        for machine in machines
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        done = {m.name: c.communicate("go\n", PATIENCE) for m, c in zip(machines, children)}  # noqa: B905
    finally:
        for child in children:
            child.kill()
    with Ledger(url) as ledger:
        counts = {charge.run: charge.count for charge in ledger.charges()}
        assert counts == {name: int(told) for name, (told, _) in done.items() if int(told)}
        assert sum(counts.values()) == most
        assert ledger.epsilon() <= BUDGET.epsilon


def test_a_machine_that_is_gone_in_the_middle_holds_nobody_up_for_long(
    server: Server, machines: list[Machine], tmp_path: Path
) -> None:
    """Its cable is pulled while it holds the lock: the server notices, and rolls it back."""
    url, machine = server.new(), machines[0]
    ledger = Ledger(url, BUDGET)
    child = machine.run(HOLD, url.replace("127.0.0.1", machine.server), folder=tmp_path / "one")
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        _ip("-n", machine.name, "link", "set", f"pv{os.getpid() % 10_000}t0", "down")
        ledger.charge({GAUSSIAN: 1}, run="other")
        assert charged(url) == 1
    finally:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=PATIENCE)
