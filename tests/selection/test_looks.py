"""A search looks once on one charge, however its runs and its processes end."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from joblib import parallel_config

import privada as pv
from privada.noise import GaussianNoise
from privada.selection import runs, search_loop
from privada.selection.started_runs import StartedRuns
from privada.train import checkpoint
from tests.forks import PATIENCE
from tests.selection.test_search import BUDGET, recipe, searched

WAYS = ["compose-pld", "repeat-geometric"]
STEPS, RUNS = 3, 3  # as `recipe` and `space` have them; a run is its steps and a score


class Stopped(BaseException):
    """What ends a process, as far as a test can do that to its own."""


@pytest.fixture
def three_runs(monkeypatch):
    monkeypatch.setattr(search_loop, "draw_runs", lambda *_: RUNS)
    monkeypatch.setattr(search_loop, "integers", lambda _bits, _below, count: np.arange(count))


@pytest.fixture
def asked(tmp_path):
    return {"ledger": tmp_path / "l.db", "state": tmp_path / "s"}


@pytest.fixture
def looks(monkeypatch):
    """Count the releases of private records, whoever asks for them."""
    kept, count = GaussianNoise.release, [0]

    def release(self, *given, **named):
        count[0] += 1
        return kept(self, *given, **named)

    monkeypatch.setattr(GaussianNoise, "release", release)
    return count


def _diverging(monkeypatch, error, at, failing=(0, 1, 2)):
    """Make runs of some candidates raise after their release number `at`."""
    kept = runs.Trainer.step

    def step(self):
        kept(self)
        index = {0.1: 0, 1.0: 1, 4.0: 2}[float(self.method.lr)]
        if index in failing and self.steps_done == at:
            raise error

    monkeypatch.setattr(runs.Trainer, "step", step)


def _call(**asked):
    """Call select, and return what came of it: nothing if it raised."""
    try:
        return searched(**asked)
    except (pv.PrivadaError, Stopped, KeyboardInterrupt):
        return None


def _releases(ledger: Path) -> int:
    return sum(pv.Ledger(ledger).totals().values())


OURS = [
    pv.ModelError("the weights are infinite"),
    pv.ArgumentError("lr"),
    pv.DataError("data"),
    pv.LedgerError("ledger"),
    pv.BudgetExceeded("budget"),
    pv.CheckpointError("checkpoint"),
]
OTHERS = [
    RuntimeError("nan"),
    MemoryError(),
    torch.OutOfMemoryError("cuda"),
    OSError(5, "patient_17.png"),
    SystemExit(3),
    GeneratorExit(),
    StopIteration(),
    RecursionError(),
    Warning("w"),
]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("error", [*OURS, *OTHERS], ids=lambda error: type(error).__name__)
def test_a_run_that_raises_anything_is_the_worst_and_the_search_goes_on(
    error, how, three_runs, asked, looks, monkeypatch
):
    _diverging(monkeypatch, error, at=2, failing=(0, 2))
    found = searched(how=how, **asked)
    assert found.settings == {"lr": 1.0}
    # two runs of two releases each, and one that is whole
    assert looks[0] == 2 + (STEPS + 1) + 2
    again = searched(how=how, **asked)
    assert (again.score, looks[0]) == (found.score, 2 + (STEPS + 1) + 2)
    assert _releases(asked["ledger"]) == 1


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    "error",
    [OURS[0], MemoryError(), KeyboardInterrupt(), Stopped()],
    ids=lambda e: type(e).__name__,
)
def test_six_calls_on_one_state_look_no_more_than_one(
    error, how, three_runs, asked, looks, monkeypatch
):
    """Whatever ends them, the sixth has looked no more often than was paid for."""
    _diverging(monkeypatch, error, at=1)
    if isinstance(error, Stopped):  # as a process does that is killed: nothing is caught
        monkeypatch.setattr(runs.CandidateRuns, "attempt", runs.CandidateRuns._attempt)
    for _ in range(6):
        assert _call(how=how, **asked) is None
    assert looks[0] == RUNS
    assert _releases(asked["ledger"]) == 1


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("after", [1, 3, 4, 5, 8, 12])
def test_stopped_after_any_release_no_run_is_taken_again(
    after, how, three_runs, asked, looks, monkeypatch
):
    counted, begun = GaussianNoise.release, []

    def release(self, *given, **named):
        found = counted(self, *given, **named)
        if looks[0] == after:
            raise KeyboardInterrupt
        return found

    kept = runs.CandidateRuns._attempt

    def attempt(self, number, index):
        begun.append(number)
        return kept(self, number, index)

    monkeypatch.setattr(GaussianNoise, "release", release)
    monkeypatch.setattr(runs.CandidateRuns, "_attempt", attempt)
    with pytest.raises(KeyboardInterrupt):
        searched(how=how, **asked)
    found = searched(how=how, **asked)
    assert sorted(begun) == list(range(RUNS))
    assert looks[0] == RUNS * (STEPS + 1) - (STEPS - (after - 1) % (STEPS + 1))
    assert found.epsilon() <= BUDGET.epsilon
    assert _releases(asked["ledger"]) == 1


@pytest.mark.parametrize("how", WAYS)
def test_copies_of_the_state_of_any_moment_take_no_run_again(
    how, three_runs, asked, tmp_path, looks, monkeypatch
):
    """Each copy, in each order, after a search that was stopped in its last run."""
    copies, kept = [], checkpoint.write

    def write(path, content):
        kept(path, content)
        copies.append(tmp_path / f"copy {len(copies)}")
        shutil.copy(path, copies[-1])

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write", write)
        _diverging(patch, KeyboardInterrupt(), at=2, failing=(2,))
        assert _call(how=how, **asked) is None
    paid = 2 * (STEPS + 1) + 2
    assert looks[0] == paid
    assert len(copies) >= 3
    for each in itertools.chain(copies, reversed(copies)):
        _call(how=how, ledger=asked["ledger"], state=each)
    _call(how=how, **asked)
    assert looks[0] == paid
    assert _releases(asked["ledger"]) == 1


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    "owner",
    [(checkpoint, "write"), (pv.Ledger, "lease"), (pv.Ledger, "publish"),
     (pv.Ledger, "check_lease"), (StartedRuns, "add"), (StartedRuns, "create"),
     (StartedRuns, "remove"),
     (pv.Ledger, "charge")],
    ids=lambda owner: owner[1],
)  # fmt: skip
def test_stopped_before_or_after_any_note_no_run_is_taken_again(
    owner, how, three_runs, asked, looks, monkeypatch
):
    """Full disks and kills at each durable step: paid for once, looked at once."""
    place, name = owner
    kept = getattr(place, name)
    for late, moment in itertools.product((False, True), (1, 3)):
        calls, error = [0], Stopped() if late else OSError(28, "full")

        def failing(*given, moment=moment, error=error, late=late, calls=calls, **named):
            calls[0] += 1
            if calls[0] != moment:
                return kept(*given, **named)
            if late:
                kept(*given, **named)
            raise error

        for each in asked.values():
            each.unlink(missing_ok=True)
        looks[0] = 0
        with monkeypatch.context() as patch:
            patch.setattr(place, name, failing)
            with contextlib.suppress(OSError):
                _call(how=how, **asked)
        _call(how=how, **asked)
        assert looks[0] <= RUNS * (STEPS + 1)
        assert _releases(asked["ledger"]) == 1


@pytest.mark.parametrize("damage", ["gone", "empty line", "cut short", "another's", "flipped"])
def test_without_its_marks_a_search_ends_with_what_it_has(
    damage, three_runs, asked, looks, monkeypatch
):
    with monkeypatch.context() as patch:
        _diverging(patch, KeyboardInterrupt(), at=1, failing=(1,))
        assert _call(**asked) is None
    (marks,) = asked["ledger"].parent.glob(".l.db.select-*.begun")
    whole = marks.read_bytes()
    assert marks.stat().st_mode & 0o077 == 0
    assert whole.count(b"\n") == 2
    if damage == "gone":
        marks.unlink()
    else:
        marks.write_bytes(
            {
                "empty line": b"\n" + whole,
                "cut short": whole[:-3],
                "another's": b"".join(b"0 0123456789abcdef\n" for _ in range(2)),
                "flipped": whole.replace(b"1 ", b"2 ", 1),
            }[damage]
        )
    before = looks[0]
    found = searched(**asked)
    assert found.settings == {"lr": 0.1}
    assert looks[0] == before
    assert {each.name for each in asked["ledger"].parent.iterdir()} == {"l.db", "s"}


def test_marks_are_not_in_the_ledger_and_are_gone_at_the_end(three_runs, asked, monkeypatch):
    """The ledger's own count of writes must not tell the number of runs."""

    def changes():
        return int.from_bytes(asked["ledger"].read_bytes()[24:28], "big")

    counts = set()
    for number in (1, 3, 6):
        monkeypatch.setattr(search_loop, "draw_runs", lambda *_, number=number: number)
        monkeypatch.setattr(
            search_loop, "integers", lambda _bits, below, count: np.arange(count) % below
        )
        for each in asked.values():
            each.unlink(missing_ok=True)
        searched(**asked)
        counts.add(changes())
        assert {each.name for each in asked["ledger"].parent.iterdir()} == {"l.db", "s"}
    assert len(counts) == 1


_KILLED = """
import os, signal, sys
from privada.noise import GaussianNoise
from privada.selection import search as searching
from privada.selection import search_loop
from tests.selection.test_search import searched

ledger, state, seen, after = sys.argv[1:]
kept = GaussianNoise.release

def release(self, *given, **named):
    found = kept(self, *given, **named)
    with open(seen, "a") as file:
        file.write("x")
    if os.path.getsize(seen) == int(after):
        os.kill(os.getpid(), signal.SIGKILL)
    return found

GaussianNoise.release = release
search_loop.draw_runs = lambda *_: 3
searched(ledger=ledger, state=state)
"""


def test_killed_for_real_in_the_middle_of_every_run(asked, tmp_path):
    seen = tmp_path / "seen"
    codes = []
    for run in range(RUNS + 1):
        command = [sys.executable, "-c", _KILLED, *map(str, asked.values()), str(seen)]
        command += [str(2 * run + 2)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE)
        codes.append(done.returncode)
    assert codes[:RUNS] == [-signal.SIGKILL] * RUNS
    assert b"all of them did, or were lost" in done.stderr
    assert seen.stat().st_size == 2 * RUNS
    assert _releases(asked["ledger"]) == 1


# ---------------------------------------------------------------------- side by side


def _dying(lr, marker):
    """Return a candidate whose training kills its worker, once."""
    found = recipe(lr)

    class Dying(torch.nn.Linear):
        def forward(self, x):
            if lr == 1.0 and self.training and os.getppid() == int(marker.read_text()):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().forward(x)

    return pv.selection.Candidate(Dying(5, 2), found.loss, found.method, batch_size=80, steps=STEPS)


def test_a_run_whose_worker_dies_has_failed_and_the_others_go_on(tmp_path, asked):
    marker = tmp_path / "parent"
    marker.write_text(str(os.getpid()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = searched(recipe=lambda lr: _dying(lr, marker), how="compose-pld", n_jobs=2, **asked)
    scores = {each.settings["lr"]: each.score for each in found.tried}
    assert scores[1.0] == -np.inf
    assert len(scores) == RUNS
    assert _releases(asked["ledger"]) == 1


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_no_more_runs_are_begun_than_there_are_workers(backend, tmp_path, asked, monkeypatch):
    """What is killed loses those that are under way, and none that waits."""
    ahead, under_way, kept = [], set(), StartedRuns.add

    def add(self, number):
        under_way.add(number)
        ahead.append(len(under_way))
        kept(self, number)

    noted = search_loop.note

    def note(search, now, number, outcome):
        under_way.discard(number)
        noted(search, now, number, outcome)

    monkeypatch.setattr(StartedRuns, "add", add)
    monkeypatch.setattr(search_loop, "note", note)
    space = {"lr": [0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 4.0]}
    with parallel_config(backend=backend, n_jobs=2):
        searched(how="compose-pld", space=space, **asked)
    assert len(ahead) == 7
    # one that is done may not be noted yet when the next begins
    assert max(ahead) <= 2 * 2


def test_what_cannot_be_sent_to_a_worker_is_found_before_the_charge(asked):
    class Here:
        def __reduce__(self):
            raise TypeError("it stays here")

    here = Here()
    for given in ({"recipe": lambda lr: (here, recipe(lr))[1], "n_jobs": 2}, {"n_jobs": 0}):
        with pytest.raises(Exception, match=r"pickle|n_jobs"):
            searched(**given, **asked)
        assert pv.Ledger(asked["ledger"]).totals() == {}
        assert {each.name for each in asked["ledger"].parent.iterdir()} == {"l.db"}


def test_an_outdated_copy_of_a_state_takes_nothing_over(asked, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        _diverging(patch, KeyboardInterrupt(), at=2, failing=(0,))
        assert _call(how="compose-pld", **asked) is None
    shutil.copy(asked["state"], tmp_path / "outdated")
    searched(how="compose-pld", **asked)
    held = []
    monkeypatch.setattr(pv.Ledger, "lease", lambda self, label: held.append(label))
    with pytest.raises(pv.LedgerError, match="not in this state"):
        searched(how="compose-pld", **{**asked, "state": tmp_path / "outdated"})
    assert held == []
