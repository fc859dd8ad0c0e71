"""`privada train` on several processes that it starts itself."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import privada as pv
from privada.core.errors import ArgumentError, DistributedError
from privada.execute import helpers
from privada.workflows.train import train_table

OPTIONS = pv.workflows.TrainOptions(
    epsilon=2.0, target="sick", classes=("no", "yes"), epochs=2, seed=3, delta=1e-3
)


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{20 + k % 60},{'yes' if k % 60 > 30 else 'no'}" for k in range(400)]
    path = tmp_path / "patients.csv"
    path.write_text("age,sick\n" + "\n".join(rows))
    return path


@pytest.mark.slow
def test_three_processes_train_what_one_does(table, tmp_path):
    one = train_table(table, OPTIONS, tmp_path / "one")
    three = train_table(table, OPTIONS, tmp_path / "three", processes=3)
    found, expected = (
        load_file(tmp_path / each / "model.safetensors") for each in ("three", "one")
    )
    for name, values in expected.items():
        # sums in another order may fall on neighbouring points of the noise's lattice
        torch.testing.assert_close(found[name], values, rtol=1e-4, atol=1e-4)
    assert three.trainer.ledger.totals() == one.trainer.ledger.totals()
    assert three.trainer.epsilon() == one.trainer.epsilon()
    assert three.trainer.steps_done == one.trainer.steps_done
    assert not torch.distributed.is_initialized()
    history = [
        json.loads((tmp_path / each / "history.json").read_text()) for each in ("three", "one")
    ]
    assert history[0] == history[1]


@pytest.mark.slow
def test_a_helper_that_is_killed_leaves_a_run_that_can_be_resumed(table, tmp_path):
    program = (
        "import os, signal, subprocess, sys\n"
        "import privada as pv\n"
        "from privada.execute import helpers\n"
        "from privada.query.local import LocalExecutor\n"
        "from privada.workflows.train import train_table\n"
        "started, kept, counted = [], LocalExecutor.clipped_sum, [0]\n"
        "begin = helpers._started\n"
        "helpers._started = lambda task: started.append(begin(task)) or started[-1]\n"
        "def ending(self, *arguments):\n"
        "    counted[0] += 1\n"
        "    if counted[0] == 5:\n"
        "        started[0].kill()\n"
        "    return kept(self, *arguments)\n"
        "LocalExecutor.clipped_sum = ending\n"
        "options = pv.workflows.TrainOptions(epsilon=2.0, target='sick', classes=('no', 'yes'),\n"
        "                                    epochs=2, delta=1e-3)\n"
        "try:\n"
        "    train_table('patients.csv', options, 'out', processes=2)\n"
        "except pv.DistributedError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert "stays charged" in done.stdout, done.stderr
    options = pv.workflows.TrainOptions(
        epsilon=2.0, target="sick", classes=("no", "yes"), epochs=2, delta=1e-3
    )
    again = train_table(table, options, tmp_path / "out", resume=True)
    assert again.statement.epsilon <= 2.0
    assert again.trainer.steps_done >= again.trainer.steps - 6


def test_a_helper_that_does_not_start_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr(helpers, "_PROGRAM", "pass")
    with (
        pytest.raises(DistributedError, match="ended at once"),
        helpers.helpers(2, print) as executor,
    ):
        pytest.fail(f"{executor}")


def test_one_process_starts_nothing(monkeypatch):
    monkeypatch.setattr(helpers, "_started", lambda task: pytest.fail("it was started"))
    with helpers.helpers(1, print) as executor:
        assert executor is None


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2"])
def test_processes_are_counted(wrong, table, tmp_path):
    with pytest.raises(ArgumentError, match="processes"):
        train_table(table, OPTIONS, tmp_path / "out", processes=wrong)
    assert not (tmp_path / "out").exists()


def test_tables_are_refused_under_torchrun_before_a_charge(table, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ArgumentError, match="one process"):
        train_table(table, OPTIONS, tmp_path / "out")
    assert not (tmp_path / "out").exists()
