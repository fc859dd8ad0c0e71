"""The ledger under real processes: killed, racing, without room and without permission.

Children come from a fork server that has the library loaded, so that a test can afford dozens.
"""

import contextlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

import privada as pv
from privada.accounting import Budget, Ledger, epsilon_of, events
from privada.core.errors import BudgetExceeded, LedgerError
from privada.core.randomness import RandomSource
from privada.train import checkpoint
from tests.forks import PATIENCE

pytestmark = pytest.mark.xdist_group("processes")

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pytest", "privada.train.trainer"])
FINISHED, REFUSED = 0, 3
STARTED: list[BaseProcess] = []

BUDGET = Budget(1.0, 1e-5)
# alone, a Gaussian has a closed form, so that charging it costs next to nothing
GAUSSIAN = events.gaussian(30.0)


def start(work: Callable[..., None], *given: Any) -> BaseProcess:
    process = PROCESSES.Process(target=work, args=given)
    process.start()
    STARTED.append(process)
    return process


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    """End what a test that failed has left: whoever ends last would wait for it."""
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.join(PATIENCE)


def finish(process: BaseProcess) -> int | None:
    """Wait for a child; return its exit code."""
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        process.join(PATIENCE)
        pytest.fail("a child process was stuck")
    return process.exitcode


def report(folder: Path, value: Any) -> None:
    """Leave a child's findings for the test."""
    (folder / "report.json").write_text(json.dumps(value))


def findings(process: BaseProcess, folder: Path) -> Any:
    assert finish(process) == FINISHED
    return json.loads((folder / "report.json").read_text())


def charged(path: Path | str) -> int:
    """Open the ledger, which checks its integrity, and return how much is charged."""
    with Ledger(path) as ledger:
        return sum(charge.count for charge in ledger.charges())


class Log:
    """Lines that survive the process that writes them, in the order of writing."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def add(self, number: int) -> None:
        os.write(self._file, f"{number}\n".encode())
        os.fsync(self._file)

    @staticmethod
    def total(path: Path) -> int:
        return sum(int(line) for line in path.read_text().split()) if path.exists() else 0


# ---------------------------------------------------------------------- killed


def charge_for_ever(path: Path | str, log_path: Path, largest: int) -> None:
    """Charge, and take note after each charge and before each refund."""
    ledger, log, chance = Ledger(path), Log(log_path), random.Random()
    run = f"run {os.getpid()}"
    log.add(0)
    try:
        while True:
            number = chance.randint(1, largest)
            reservation = ledger.charge({GAUSSIAN: number}, run=run, plan={GAUSSIAN: 50})
            log.add(number)
            if chance.random() < 0.3:
                if number > 1:
                    reservation.use(GAUSSIAN, number - 1)
                log.add(-1)
                ledger.refund(reservation)
    except BudgetExceeded:
        raise SystemExit(REFUSED) from None


def wait_for_a_line(path: Path, size: int, process: BaseProcess) -> None:
    """Wait until the child has written to its log, or is gone."""
    until = time.monotonic() + PATIENCE
    while process.is_alive() and time.monotonic() < until:
        if path.exists() and path.stat().st_size > size:
            return
        time.sleep(0.002)


def test_killed_at_any_moment_no_charge_is_lost(tmp_path: Path) -> None:
    path, log = tmp_path / "patients.ledger", tmp_path / "log"
    largest, chance = 3, random.Random(20)
    limit = Budget(10_000.0, 1e-5)  # more than forty short lives can spend
    Ledger(path, limit).close()
    for kills in range(1, 41):
        size = log.stat().st_size if log.exists() else 0
        child = start(charge_for_ever, path, log, largest)
        wait_for_a_line(log, size, child)
        time.sleep(chance.uniform(0, 0.12))
        child.kill()
        child.join(PATIENCE)
        assert child.exitcode == -signal.SIGKILL
        held, noted = charged(path), Log.total(log)
        assert held >= noted
        # what was charged and not noted is at most what each killed child was about to note
        assert held - noted <= largest * kills
        assert epsilon_of(Ledger(path).totals(), limit.delta) <= limit.epsilon
    with Ledger(path) as ledger:
        ledger.charge({GAUSSIAN: 1}, run="after")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log", "patients.ledger"]


def create_for_ever(folder: Path, log_path: Path) -> None:
    log = Log(log_path)
    for number in range(1_000_000):
        path = folder / f"{os.getpid()}-{number}.ledger"
        Ledger(path, BUDGET).close()
        log.add(1)


def test_killed_while_creating_a_ledger_is_whole_or_not_there(tmp_path: Path) -> None:
    chance, log, folder = random.Random(21), tmp_path / "log", tmp_path / "ledgers"
    folder.mkdir()
    for _ in range(10):
        size = log.stat().st_size if log.exists() else 0
        child = start(create_for_ever, folder, log)
        wait_for_a_line(log, size, child)
        time.sleep(chance.uniform(0, 0.1))
        child.kill()
        child.join(PATIENCE)
        for path in folder.glob("*.ledger"):
            with Ledger(path) as ledger:
                assert ledger.budget == BUDGET
            path.unlink()


def make_trainer(ledger: Any = None, **given: Any) -> pv.Trainer:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 3, generator=generator)
    chosen: dict[str, Any] = {"noise_multiplier": 4.0, "delta": 1e-5, "steps": 100}
    return pv.Trainer(
        torch.nn.Linear(3, 2),
        torch.nn.CrossEntropyLoss(),
        (x, (x.sum(dim=1) > 0).long()),
        method=pv.methods.DPSGD(lr=0.1, clip=1.0),
        batch_size=6,
        ledger=ledger,
        **(chosen | given),
    )


def train(
    folder: Path,
    steps: int,
    own: Budget | None = None,
    last: int | None = None,
    place: str | None = None,
) -> None:
    """Train from the checkpoint if there is one, and take note after each step.

    With `last`, go no further than that step, and wait to be killed. `place` is the ledger's.
    """
    saved, log = folder / "run.pt", Log(folder / "log")
    noise = {} if own is None else {"budget": own, "noise_multiplier": None}
    try:
        trainer = make_trainer(
            place or folder / "patients.ledger",
            steps=steps,
            resume=saved if saved.exists() else None,
            **noise,
        )
        trainer.save(saved)
        step = trainer.step

        def noted() -> pv.Trainer:
            step()
            log.add(1)
            time.sleep(PATIENCE if trainer.steps_done == last else 0.002)
            return trainer

        trainer.step = noted  # type: ignore[method-assign]
        log.add(0)
        trainer.fit(checkpoint=saved, checkpoint_steps=4)
    except BudgetExceeded:
        raise SystemExit(REFUSED) from None


EVENT = events.poisson(0.1, 4.0)
STEPS = 250


@pytest.mark.parametrize(
    ("limit", "own", "kills"),
    [
        (Budget(epsilon_of({EVENT: 40 * STEPS}, 1e-5), 1e-5), None, 6),
        (Budget(epsilon_of({EVENT: STEPS + 60}, 1e-5), 1e-5), None, 6),
        (None, BUDGET, 4),
    ],
    ids=["ample", "tight", "own"],
)
def test_a_killed_training_resumes_and_no_step_is_free(
    tmp_path: Path, limit: Budget | None, own: Budget | None, kills: int
) -> None:
    chance, killed = random.Random(22), 0
    path, log = tmp_path / "patients.ledger", tmp_path / "log"
    Ledger(path, limit).close()

    def check() -> None:
        assert charged(path) >= Log.total(log)
        if limit is not None:  # by the ledger's filter
            assert Ledger(path).epsilon() <= limit.epsilon
        if own is not None:  # as the run was planned
            assert epsilon_of(Ledger(path).totals(), own.delta) <= own.epsilon

    for number in range(kills):
        size = log.stat().st_size if log.exists() else 0
        # the first does not end by itself, however late the kill comes on a busy machine
        child = start(train, tmp_path, STEPS, own, STEPS - 1 if number == 0 else None)
        if number == 0 or chance.random() < 0.8:
            wait_for_a_line(log, size, child)
            time.sleep(chance.uniform(0, 0.25))
        else:
            time.sleep(chance.uniform(0.1, 0.6))  # perhaps while it reads its checkpoint
        child.kill()
        child.join(PATIENCE)
        killed += child.exitcode == -signal.SIGKILL
        assert child.exitcode in (-signal.SIGKILL, FINISHED, REFUSED)
        check()
    assert killed >= 1
    code = finish(start(train, tmp_path, STEPS, own))
    check()
    assert code in (FINISHED, REFUSED)
    if code == FINISHED:
        assert checkpoint.read(tmp_path / "run.pt", {})["step"] == STEPS
    assert len({charge.run for charge in Ledger(path).charges()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_training_killed_many_times_resumes_and_no_step_is_free(
    tmp_path: Path, seed: int
) -> None:
    steps, chance = 2000, random.Random(seed)
    path, log = tmp_path / "patients.ledger", tmp_path / "log"
    limit = Budget(epsilon_of({events.poisson(0.1, 4.0): 2 * steps}, 1e-5), 1e-5)
    Ledger(path, limit).close()
    for _ in range(40):
        size = log.stat().st_size if log.exists() else 0
        child = start(train, tmp_path, steps)
        wait_for_a_line(log, size, child)
        time.sleep(chance.uniform(0, 0.5))
        child.kill()
        child.join(PATIENCE)
        assert charged(path) >= Log.total(log)
        assert epsilon_of(Ledger(path).totals(), limit.delta) <= limit.epsilon
    assert finish(start(train, tmp_path, steps)) in (FINISHED, REFUSED)
    assert charged(path) >= Log.total(log)


# ---------------------------------------------------------------------- racing


def spend(path: Path | str, folder: Path, number: int, barrier: Any, kind: str) -> None:
    """Charge small blocks until not even one more is allowed; report what was acknowledged."""
    event = GAUSSIAN if kind == "gaussian" else events.poisson(0.02, 2.0)
    unit = 1 if kind == "gaussian" else 40
    chance, done = random.Random(number), 0
    barrier.wait(PATIENCE)
    with Ledger(path) as ledger:
        while True:
            block = unit * chance.randint(1, 3)
            try:
                reservation = ledger.charge(
                    {event: block}, run=f"run {number}", plan={event: 20 * unit}
                )
            except BudgetExceeded:
                if block == unit:
                    break
                continue
            done += block
            if chance.random() < 0.2:
                if block > unit:
                    reservation.use(event, block - unit)
                ledger.refund(reservation)
                done -= unit
    (folder / f"done {number}").write_text(str(done))


@pytest.mark.parametrize("kind", ["gaussian", "poisson"])
def test_eight_processes_do_not_overspend_together(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "patients.ledger"
    Ledger(path, BUDGET).close()
    barrier = PROCESSES.Barrier(8)
    children = [start(spend, path, tmp_path, number, barrier, kind) for number in range(8)]
    assert [finish(child) for child in children] == [FINISHED] * 8
    acknowledged = {n: int((tmp_path / f"done {n}").read_text()) for n in range(8)}
    with Ledger(path) as ledger:
        held = Counter({charge.run: charge.count for charge in ledger.charges()})
        assert +held == +Counter({f"run {n}": done for n, done in acknowledged.items()})
        assert sum(held.values()) == sum(ledger.totals().values()) > 8
        assert epsilon_of(ledger.totals(), BUDGET.delta) <= BUDGET.epsilon
        event = next(iter(ledger.totals()))
        unit = 1 if kind == "gaussian" else 40
        # the last refund may have come after the others gave up: spend what is left, then no more
        while ledger.affordable(event, unit) == unit:
            ledger.charge({event: unit}, run="last")
        with pytest.raises(BudgetExceeded):
            ledger.charge({event: unit}, run="last")
        assert epsilon_of(ledger.totals(), BUDGET.delta) <= BUDGET.epsilon


OWN_STEPS = 60


def resume_at_once(folder: Path, number: int, barrier: Any, own: Budget) -> None:
    """Make the trainer before anyone else has charged, then take all the steps it is allowed."""
    trainer = make_trainer(
        folder / "patients.ledger",
        steps=OWN_STEPS,
        budget=own,
        noise_multiplier=None,
        resume=folder / "run.pt",
    )
    barrier.wait(PATIENCE)
    with contextlib.suppress(BudgetExceeded):
        trainer.fit()
    (folder / f"done {number}").write_text(str(trainer.steps_done))


@pytest.mark.parametrize("limit", [None, Budget(50.0, 1e-5)], ids=["no limit", "larger"])
def test_processes_that_resume_one_checkpoint_keep_to_the_runs_budget_together(
    tmp_path: Path, limit: Budget | None
) -> None:
    path, own = tmp_path / "patients.ledger", BUDGET
    Ledger(path, limit).close()
    first = make_trainer(path, steps=OWN_STEPS, budget=own, noise_multiplier=None)
    for _ in range(20):
        first.step()
    first.save(tmp_path / "run.pt")
    barrier = PROCESSES.Barrier(2)
    children = [start(resume_at_once, tmp_path, n, barrier, own) for n in range(2)]
    assert [finish(child) for child in children] == [FINISHED] * 2
    done = [int((tmp_path / f"done {n}").read_text()) for n in range(2)]
    with Ledger(path) as ledger:
        assert epsilon_of(ledger.totals(), own.delta) <= own.epsilon
        assert charged(path) == 20 + sum(each - 20 for each in done)
        assert len({charge.run for charge in ledger.charges()}) == 1
    # what one gave back at the end, the other may have been refused a moment before
    assert OWN_STEPS // 2 < charged(path) <= OWN_STEPS


def create(path: Path | str, barrier: Any, budget: Budget | None) -> None:
    barrier.wait(PATIENCE)
    try:
        with Ledger(path, budget) as ledger:
            ledger.charge({GAUSSIAN: 1}, run=f"run {os.getpid()}")
            assert budget in (None, ledger.budget)
    except LedgerError as error:
        if "created with" not in str(error):
            raise
        raise SystemExit(REFUSED) from None


def test_eight_processes_create_one_ledger(tmp_path: Path) -> None:
    for turn in range(4):
        folder = tmp_path / str(turn)
        folder.mkdir()
        path, barrier = folder / "patients.ledger", PROCESSES.Barrier(8)
        children = [start(create, path, barrier, BUDGET) for _ in range(8)]
        assert [finish(child) for child in children] == [FINISHED] * 8
        assert charged(path) == 8
        assert Ledger(path).budget == BUDGET
        assert [each.name for each in folder.iterdir()] == [path.name]


def test_processes_that_create_one_ledger_with_two_budgets_have_one(tmp_path: Path) -> None:
    path, barrier = tmp_path / "patients.ledger", PROCESSES.Barrier(8)
    budgets = [Budget(1.0 + number % 2, 1e-5) for number in range(8)]
    children = [start(create, path, barrier, budget) for budget in budgets]
    codes = [finish(child) for child in children]
    kept = Ledger(path).budget
    assert codes == [FINISHED if budget == kept else REFUSED for budget in budgets]
    assert charged(path) == 4
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


# ---------------------------------------------------------------------- no room


class Watched:
    """A sampler that counts its draws."""

    def __init__(self, sampler: Any) -> None:
        self._sampler, self.draws = sampler, 0

    def draw(self, step: int, rng: RandomSource) -> Any:
        self.draws += 1
        return self._sampler.draw(step, rng)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


class WatchedEngine:
    """An engine that counts its calls."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.calls = engine, 0

    def clipped_sum(self, *given: Any) -> Any:
        self.calls += 1
        return self._engine.clipped_sum(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def watch(trainer: pv.Trainer) -> tuple[Watched, WatchedEngine]:
    query = trainer.gradients
    sampler, engine = Watched(query.mechanism.sampler), WatchedEngine(query.executor.engine)
    query.mechanism = replace(query.mechanism, sampler=sampler)
    query.executor.engine = engine
    return sampler, engine


def try_step(trainer: pv.Trainer) -> dict[str, Any]:
    """Take a step that may fail, and tell what it touched."""
    sampler, engine = trainer.gradients.mechanism.sampler, trainer.gradients.executor.engine
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    draws, calls, done = sampler.draws, engine.calls, trainer.steps_done
    message = None
    try:
        trainer.step()
    except LedgerError as error:
        message = str(error)
    return {
        "message": message,
        "draws": sampler.draws - draws,
        "calls": engine.calls - calls,
        "steps": trainer.steps_done - done,
        "moved": any(
            not torch.equal(before[name], value)
            for name, value in trainer.model.state_dict().items()
        ),
    }


TAKEN = {"message": None, "draws": 1, "calls": 1, "steps": 1, "moved": True}


def refused(outcome: dict[str, Any]) -> bool:
    """Whether a step failed before it touched anything."""
    return outcome == {
        "message": outcome["message"],
        "draws": 0,
        "calls": 0,
        "steps": 0,
        "moved": False,
    } and isinstance(outcome["message"], str)


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def train_without_room(folder: Path) -> None:
    """Take steps while files may have at most so many bytes, and steps when they may grow."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = folder / "patients.ledger"
    trainer = make_trainer(path)
    watch(trainer)
    found = []
    for size in (0, 1, 100, 512, 1000, 2000, 4096, 5000, 8192, 10_000, 12_288, 16_384, 1 << 20):
        trainer.gradients.account.refund_unused()  # so that the next step has to be paid for
        held = charged(path)
        with largest_file(size):
            outcome = try_step(trainer)
        outcome["size"], outcome["charged"] = size, charged(path) - held
        found.append(outcome)
    found.append(try_step(trainer))
    with largest_file(0):
        try:
            Ledger(folder / "new.ledger", BUDGET)
        except LedgerError as error:
            found.append({"message": str(error)})
    report(folder, found)


def test_no_step_is_taken_when_files_cannot_grow(tmp_path: Path) -> None:
    *limited, after, new = findings(start(train_without_room, tmp_path), tmp_path)
    assert [outcome["size"] for outcome in limited if outcome["message"] is not None]
    assert limited[0]["message"] is not None
    assert limited[-1]["message"] is None
    for outcome in limited:
        size, grown = outcome.pop("size"), outcome.pop("charged")
        if outcome["message"] is None:
            assert outcome == TAKEN, size
            assert grown >= 1, size
        else:
            assert refused(outcome), size
            assert grown == 0, size
            assert "nothing was released" in outcome["message"], size
    assert after == TAKEN
    assert "Cannot create the ledger" in new["message"]
    assert not list(tmp_path.glob(".*"))
    assert not (tmp_path / "new.ledger").exists()


@pytest.mark.parametrize("kind", ["planned", "adaptive"])
def test_no_step_is_taken_when_the_database_is_full(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "patients.ledger"
    Ledger(path, kind=kind).close()
    trainer = make_trainer(path)
    assert trainer.ledger.kind == kind
    watch(trainer)
    connection = trainer.ledger._storage.connection()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with contextlib.suppress(LedgerError):
        for number in range(1000):
            trainer.ledger.publish(f"another result, number {number}", "1")
    held = charged(path)
    outcome = try_step(trainer)
    assert refused(outcome)
    assert "full" in outcome["message"]
    assert "nothing was released" in outcome["message"]
    assert charged(path) == held
    connection.execute("PRAGMA max_page_count = 1000000")
    assert try_step(trainer) == TAKEN
    assert charged(path) > held


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root to mount a small file system")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        pytest.skip(f"cannot mount a small file system here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Take all the room that is left."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))


def test_no_step_is_taken_on_a_full_disk(small_disk: Path) -> None:
    path, filler = small_disk / "patients.ledger", small_disk / "filler"
    trainer = make_trainer(path)
    watch(trainer)
    assert try_step(trainer) == TAKEN
    trainer.statement()  # settles
    held = charged(path)
    fill(filler)
    for _ in range(2):
        outcome = try_step(trainer)
        assert refused(outcome)
        assert "full" in outcome["message"]
        assert "nothing was released" in outcome["message"]
    with pytest.raises(LedgerError, match="Cannot create the ledger"):
        Ledger(small_disk / "new.ledger", BUDGET)
    filler.unlink()
    assert charged(path) == held
    assert try_step(trainer) == TAKEN
    assert charged(path) > held
    assert [each.name for each in small_disk.iterdir()] == [path.name]


def test_a_full_disk_stops_fit_and_its_checkpoint_can_be_resumed(
    small_disk: Path, tmp_path: Path
) -> None:
    path, filler, saved = small_disk / "patients.ledger", small_disk / "filler", tmp_path / "run.pt"
    trainer = make_trainer(path, steps=40)
    sampler, _ = watch(trainer)
    step = trainer.step

    def filling() -> pv.Trainer:
        if trainer.steps_done == 5:
            fill(filler)
        return step()

    trainer.step = filling  # type: ignore[method-assign]
    with pytest.raises(LedgerError, match="full"):
        trainer.fit(checkpoint=saved)
    filler.unlink()
    assert charged(path) >= sampler.draws == trainer.steps_done
    saved = saved if saved.exists() else None
    again = make_trainer(path, steps=40, resume=saved).fit()
    assert again.steps_done == 40
    assert charged(path) >= 40


# ---------------------------------------------------------------------- no permission


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="privada-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        for each in folder.rglob("*"):
            if each.is_dir():
                each.chmod(0o755)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def become_nobody() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def use_what_is_not_writable(folder: Path, answers: Any) -> None:
    """As a user who may read but not write, try everything; send back what happened."""
    make_trainer(steps=2).fit()  # loads whatever is loaded late, which nobody may not read
    become_nobody()
    path = folder / "patients.ledger"
    found: dict[str, Any] = {}
    trainer = make_trainer(path)
    watch(trainer)
    found["step"] = try_step(trainer)
    found["read"] = [sum(trainer.ledger.totals().values()), len(trainer.ledger.charges())]
    for name, act in {
        "charge": lambda: trainer.ledger.charge({GAUSSIAN: 1}, run="a"),
        "create": lambda: Ledger(folder / "new.ledger", BUDGET),
        "unreadable": lambda: Ledger(folder / "unreadable.ledger"),
        "closed folder": lambda: Ledger(folder / "closed" / "patients.ledger"),
        "save": lambda: trainer.save(folder / "run.pt"),
    }.items():
        try:
            act()
            found[name] = "nothing was raised"
        except pv.PrivadaError as error:
            found[name] = f"{type(error).__name__}: {error}"
        except Exception as error:
            found[name] = f"unexpected {type(error).__name__}: {error}"
    answers.send(found)


@pytest.fixture
def found(open_folder: Path) -> Any:
    """What a user finds who may read a ledger but not write it, and not enter one folder."""
    path = open_folder / "patients.ledger"
    with Ledger(path, Budget(8.0, 1e-5)) as ledger:
        ledger.charge({EVENT: 5}, run="owner")
    Ledger(open_folder / "unreadable.ledger").close()
    (open_folder / "closed").mkdir()
    Ledger(open_folder / "closed" / "patients.ledger").close()
    path.chmod(stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
    (open_folder / "unreadable.ledger").chmod(0)
    (open_folder / "closed").chmod(0)
    open_folder.chmod(0o555)
    before = path.read_bytes()
    ours, theirs = PROCESSES.Pipe()
    assert finish(start(use_what_is_not_writable, open_folder, theirs)) == FINISHED
    assert path.read_bytes() == before
    return ours.recv()


def test_no_step_is_taken_on_a_read_only_ledger(found: Any) -> None:
    assert refused(found["step"])
    for words in (found["step"]["message"], found["charge"]):
        assert "readonly" in words
        assert "writable" in words
    assert found["read"] == [5, 1]
    assert found["create"].startswith("LedgerError: Cannot create the ledger")
    assert found["unreadable"].startswith("LedgerError: Cannot open the ledger")
    assert found["save"].startswith("CheckpointError: Cannot write the checkpoint")


def test_a_folder_that_may_not_be_entered_is_a_clear_error(found: Any) -> None:
    assert found["closed folder"].startswith("LedgerError: Cannot open the ledger")
