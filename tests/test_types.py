"""What must not type-check does not: a release without a receipt, noise without one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import PATIENCE

ROOT = Path(__file__).parent.parent
RIGHT = """
import torch
import privada as pv
from privada.accounting import events
from privada.core.receipts import Receipt
from privada.core.values import ClippedSum, Release

event = events.gaussian(1.0)
receipt: Receipt = pv.Ledger(None).charge({event: 1}, run="first").use(event)
clipped = ClippedSum(torch.zeros(2), 1.0)
"""
WRONG = {
    "a release without a receipt": "Release(torch.zeros(2), 1.0, 10.0)",
    "noise without a receipt": "pv.noise.GaussianNoise().release(clipped, batch_size=10.0)",
    "noise with a multiplier": "pv.noise.GaussianNoise().release(clipped, 1.0, 10.0)",
    "noise on a tensor": "pv.noise.GaussianNoise().release(torch.zeros(2), receipt, 10.0)",
    "a receipt without a charge": "Receipt(event, 'first', 'training')",
    "a reservation as a receipt": "Release(torch.zeros(2), 1.0, 1.0, pv.Ledger(None).charge("
    "{event: 1}, run='first'))",
    "a sum and a tensor": "clipped + torch.zeros(2)",
}


def checked(tmp_path, program):
    path = tmp_path / "program.py"
    path.write_text(RIGHT + program + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run(
        [*command, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE * 10,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.slow
def test_what_is_right_type_checks_and_what_is_not_does_not(tmp_path):
    code, said = checked(tmp_path, "pv.noise.GaussianNoise().release(clipped, receipt, 10.0)")
    assert code == 0, said
    code, said = checked(tmp_path, "\n".join(WRONG.values()))
    assert code == 1
    first = len((RIGHT).splitlines()) + 1
    lines = {int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line}
    assert lines == set(range(first, first + len(WRONG))), said
