"""One run on several ranks: the same as in one process, whatever happens to a rank."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import privada as pv
from tests.execute.cases import CASES, Tree, outcome, trainer
from tests.execute.ranks import ROOT, ended, start, together
from tests.forks import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore")
FEW = (
    "method dp-adam", "method adadp", "adaptive clip", "micro-batches", "persons",
    "second moments of persons", "feature moments of persons", "noise that follows",
    "early stopping", "buffers", "public stopping", "dropout, left in evaluation mode",
    "fewer rows than ranks",
)  # fmt: skip


def alike(one, other):
    """Raise unless two outcomes are the same, to the last bit."""
    assert len(one["model"]) == len(other["model"])
    for here, there in zip(one["model"], other["model"], strict=True):
        assert torch.equal(here, there)
    for key in one.keys() - {"model"}:
        assert one[key] == other[key], key


def check_cases(size, folder, names):
    together("cases", size, folder, *names, patience=600)
    for name in names:
        expected = outcome(trainer(name, Tree(size)).fit())
        for rank in range(size):
            found = torch.load(folder / f"{rank}.pt", weights_only=False)
            alike(found[name], expected)


def test_two_ranks_do_what_one_process_does_bit_for_bit(tmp_path):
    check_cases(2, tmp_path, FEW)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="NOT TESTED: threads, no /proc")
def test_a_process_that_ends_closes_its_connections_first(tmp_path):
    """Their threads would outlive Python, and abort the process now and then."""
    together("leaving", 2, tmp_path)
    for rank in range(2):
        there, left = read(tmp_path, rank)
        assert there > 0
        assert left <= there // 2  # torch keeps the idle ones of the group of all


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_kinds_of_runs_are_the_same_on_several_ranks(size, tmp_path):
    check_cases(size, tmp_path, tuple(CASES))


def read(folder, rank):
    return json.loads((folder / f"{rank}.json").read_text())


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """What two ranks have found in one process group, by what was tried."""
    folder = tmp_path_factory.mktemp("several")
    together("several", 2, folder)
    return read(folder, 0), read(folder, 1)


@pytest.mark.parametrize("which", ["alone", "parts"])
def test_several_ranks_that_do_not_say_so_are_refused_before_a_charge(several, which):
    for found in several:
        kind, words = found[which]
        assert kind == "ArgumentError"
        assert "pv.execute.DataParallel()" in words
        assert "pv.execute.Local()" in words


def test_a_run_of_its_own_in_each_rank_can_be_asked_for(several):
    assert several[0]["local"] != several[1]["local"]


DIFFERENT = {
    "other data": "the records, their order and their groups",
    "other order": "the records, their order and their groups",
    "other groups": "the records, their order and their groups",
    "fewer rows": "the number of records",
    "other seed": "seed",
    "a seed on one rank": "seed",
    "other clip": "clip=2.0",
    "other rate": "lr=2",
    "other model": "the model",
    "a ledger on one rank": "the ledger",
}


@pytest.mark.parametrize("which", DIFFERENT)
def test_ranks_that_differ_are_refused_in_words_before_a_charge(several, which):
    for found in several:
        kind, words = found[which]
        assert kind == "DistributedError"
        assert DIFFERENT[which] in words
        assert "Nothing was charged" in words
    assert all(found["no ledger was made"] for found in several)


def test_what_one_rank_cannot_begin_no_rank_begins(several):
    zero, one = several
    assert one["one cannot begin"][0] == "ModelError"
    assert zero["one cannot begin"][0] == "DistributedError"
    assert "Rank 1" in zero["one cannot begin"][1]
    assert "BatchNorm1d" in zero["one cannot begin"][1]
    assert zero["both cannot begin"] == one["both cannot begin"]
    assert zero["both cannot begin"][0] == "ArgumentError"


def test_all_ranks_raise_what_rank_0_raises(several):
    zero, one = several
    for which, kind in {
        "no budget": "BudgetExceeded",
        "exceeded": "BudgetExceeded",
        "rank 0 finds a fault": "ModelError",
        "no checkpoint": "CheckpointError",
        "full disk": "CheckpointError",
    }.items():
        assert zero[which] == one[which]
        assert zero[which][0] == kind
    assert zero["rank 0 fails"][0] == "MemoryError"
    assert one["rank 0 fails"][0] == "DistributedError"
    assert "MemoryError" in one["rank 0 fails"][1]
    assert zero["steps before it"] == one["steps before it"] == 3


def test_a_part_that_fails_releases_nothing_and_stays_charged(several):
    for found in several:
        assert found["a part fails"][0] == "DistributedError"
        assert "rank 1: MemoryError: no room" in found["a part fails"][1]
        assert found["as it was"] is True
        assert found["charged"] == 1
        assert found["goes on"] == [4, 5]


def test_the_model_starts_from_that_of_rank_0(several):
    assert several[0]["first model"] == several[1]["first model"]


def test_reports_are_the_same_on_all_ranks_and_only_rank_0_can_charge(several):
    zero, one = several
    assert zero["private"] is one["private"] is True
    assert zero["epsilon"] == one["epsilon"]
    assert zero["text"] == one["text"]
    assert "2 processes computed the sums" in zero["text"]
    assert one["refused here"][0] == "LedgerError"
    assert "Rank 0 alone" in one["refused here"][1]
    for found in several:
        assert found["query by itself"][0] == "ArgumentError"


def test_rank_0_alone_writes_checkpoints_and_all_go_on_from_its(several):
    assert [found["saved"] for found in several] == [True, False]
    assert [found["resumed"] for found in several] == [[2, 2], [2, 2]]


def test_an_ordinary_loop_takes_the_same_steps_on_all_ranks(several):
    assert several[0]["loop"] == several[1]["loop"]


def test_other_queries_are_refused_where_each_rank_would_pay_for_its_own(several):
    assert several[0]["scaler"] is None
    assert several[1]["scaler"][0] == "ArgumentError"
    assert "rank 0" in several[1]["scaler"][1]
    for found in several:
        assert found["search"][0] == "ArgumentError"
        assert "Nothing was charged" in found["search"][1]


@pytest.mark.parametrize("which", ["ddp", "sharded", "partly sharded"])
@pytest.mark.parametrize("how", ["", ", alone"])
def test_models_that_torch_distributes_itself_are_refused_before_a_charge(several, which, how):
    """They would send gradients without noise, of records that nobody has paid for."""
    for found in several:
        kind, words = found[which + how]
        assert kind == "ModelError"
        assert "executor=pv.execute.DataParallel()" in words
        assert "Nothing was charged" in words


def test_ranks_that_do_not_do_the_same_are_told(several):
    for found in several:
        assert "ranks [1]" in found["changed"][1]
        assert "rank 0: fit, rank 1: step" in found["other calls"][1]


# ---------------------------------------------------------------------- ranks that are gone


def charged(folder):
    with pv.Ledger(folder / "people.ledger") as ledger:
        assert ledger.epsilon() <= 1.0
        return sum(ledger.totals().values())


def check_resumed(folder, size):
    """Go on to the end on so many ranks, within the budget."""
    before = charged(folder)
    together("resumed", size, folder)
    found = [read(folder, rank) for rank in range(size)]
    assert all(each == found[0] for each in found)
    steps, epsilon, total = found[0]
    assert 8 <= steps <= 12  # what was lost was paid for: the run may end earlier
    assert epsilon <= 1.0
    assert total == charged(folder) >= before


@pytest.mark.slow
@pytest.mark.parametrize(("whom", "size", "after"), [(0, 2, 1), (1, 2, 3), (2, 4, 1), (0, 3, 2)])
def test_a_rank_that_is_killed_in_a_step_ends_the_run_on_all_others(whom, size, after, tmp_path):
    started = start("killed", size, tmp_path, str(whom), "5", "SIGKILL")
    began = time.monotonic()
    outcomes = ended(started)
    for rank, (code, out, err) in enumerate(outcomes):
        if rank == whom:
            assert code == -signal.SIGKILL
            continue
        assert code == 0, out + err
        kind, words = read(tmp_path, rank)
        assert kind == "DistributedError"
        assert "resume from the last checkpoint" in words
    assert time.monotonic() - began < 100
    # four steps and the one that was lost; of a block that rank 0 took with it, what was reserved
    assert charged(tmp_path) == 5 if whom else 5 <= charged(tmp_path) <= 6
    check_resumed(tmp_path, after)


@pytest.mark.slow
@pytest.mark.parametrize("whom", [0, 1])
def test_ranks_that_torchrun_starts_again_meet_and_go_on_from_the_checkpoint(whom, tmp_path):
    """Not at the addresses that those before have left behind."""
    told = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "--max-restarts", "1", "-m", "tests.execute.jobs", "restarted", str(tmp_path), str(whom)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "ended").exists()
    found = [read(tmp_path, rank) for rank in range(2)]
    assert found[0] == found[1]
    steps, epsilon, total = found[0]
    assert 8 <= steps <= 12
    assert epsilon <= 1.0
    assert total == charged(tmp_path)


@pytest.mark.slow
def test_a_rank_that_hangs_is_waited_for_so_long_and_no_longer(tmp_path):
    started = start("killed", 3, tmp_path, "2", "5", "SIGSTOP")
    try:
        for rank in (0, 1):
            started[rank].communicate(timeout=100)
            kind, _words = read(tmp_path, rank)
            assert kind == "DistributedError"
    finally:
        for process in started:
            process.kill()
    assert charged(tmp_path) == 5
    check_resumed(tmp_path, 2)


@pytest.mark.slow
def test_an_interrupt_of_rank_0_alone_ends_all_and_saves(tmp_path):
    together("interrupted", 3, tmp_path)
    assert read(tmp_path, 0)[0] == "KeyboardInterrupt"
    for rank in (1, 2):
        kind, words = read(tmp_path, rank)
        assert kind == "DistributedError"
        assert "KeyboardInterrupt" in words
    assert charged(tmp_path) == 4
    check_resumed(tmp_path, 1)


@pytest.mark.slow
def test_ranks_killed_at_any_moment_leave_a_ledger_and_a_checkpoint_that_agree(tmp_path):
    moments = random.Random(7)
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        size = moments.choice([2, 3])
        started = start("killed_anywhere", size, folder, "20000")
        while not (folder / "run.pt").exists():
            assert all(process.poll() is None for process in started)
            time.sleep(0.05)
        time.sleep(moments.uniform(0, 1.5))
        whom = moments.randrange(size)
        started[whom].kill()
        outcomes = ended(started)
        for rank in set(range(size)) - {whom}:
            assert outcomes[rank][0] == 0, outcomes[rank]
            assert read(folder, rank)[0] == "DistributedError"
        with pv.Ledger(folder / "people.ledger") as ledger:
            held = sum(ledger.totals().values())
        saved = torch.load(
            __import__("io").BytesIO((folder / "run.pt").read_bytes()[40:]), weights_only=True
        )
        assert saved["releases"] <= held  # nothing was released that is not charged
