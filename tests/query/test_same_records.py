"""Digests by which ranks compare their records: whatever differs shows."""

import numpy as np
import torch

from privada import data
from privada.core.state import HeldState
from privada.query.same_records import records_digest

ROWS = 200
X, Y = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32), np.zeros(ROWS)
RECORDS = data.load((X, Y), torch.float32, torch.device("cpu"))


def digest(groups, rows_per_unit=4):
    return records_digest(RECORDS, data.GroupedUnits(groups, rows_per_unit), HeldState())


def test_any_two_rows_that_change_persons_show():
    """Also rows that one look would not have taken."""
    first = ["ann", "bob"] * (ROWS // 2)
    kept = digest(first)
    assert digest(list(first)) == kept
    for row in range(0, ROWS, 10):
        changed = list(first)
        changed[row], changed[row + 1] = changed[row + 1], changed[row]
        assert digest(changed) != kept


def test_persons_are_told_apart_by_their_rows_and_not_by_their_names():
    assert digest([1, 2] * (ROWS // 2)) == digest(["ann", "bob"] * (ROWS // 2))
    assert digest([1, 1, 2, 2] * (ROWS // 4)) != digest([1, 2] * (ROWS // 2))
