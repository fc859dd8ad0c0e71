"""One record moves the clipped sum by its clip norm at most, whatever stands beside it."""

import pytest
import torch

from privada.data.padding import Padding
from tests.audits import company

ALLOWED = 1 + 1e-6
TYPES = {"float32": torch.float32, "float64": torch.float64}


@pytest.mark.parametrize("clip", company.CLIPS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", company.MODELS)
def test_a_record_moves_the_sum_by_its_clip_norm_at_most(name, dtype, clip):
    assert max(company.trials(name, TYPES[dtype], clip, seed=0, count=8)) <= ALLOWED


@pytest.mark.slow
@pytest.mark.parametrize("name", company.MODELS)
def test_three_thousand_adversarial_trials(name):
    found = [
        moved
        for seed in range(1, 4)
        for dtype in TYPES.values()
        for clip in company.CLIPS
        for moved in company.trials(name, dtype, clip, seed, count=20)
    ]
    assert len(found) * len(company.MODELS) >= 3000
    assert max(found) <= ALLOWED


def test_the_trials_can_fail(monkeypatch):
    """Without dummy examples, some record moves the sum of attention by more."""
    monkeypatch.setattr(Padding, "size", lambda self, count: count)
    found = [
        moved
        for seed in range(4)
        for moved in company.trials("attention", torch.float32, "threshold", seed, count=40)
    ]
    assert max(found) > 1.1
