"""The values that carry the guarantee."""

import pytest
import torch

from privada.core.errors import ArgumentError
from privada.core.values import ClippedSum


def test_sums_over_records_that_are_not_shared_add_up():
    one = ClippedSum(torch.tensor([1.0, 2.0]), 0.5)
    other = ClippedSum(torch.tensor([3.0, -1.0]), 0.5)
    both = one + other
    assert torch.equal(both.value, torch.tensor([4.0, 1.0]))
    assert both.sensitivity == 0.5
    assert torch.equal(one.value, torch.tensor([1.0, 2.0]))


def test_of_two_sensitivities_the_larger_holds():
    assert (ClippedSum(torch.zeros(2), 0.5) + ClippedSum(torch.zeros(2), 2.0)).sensitivity == 2.0


@pytest.mark.parametrize(
    "other",
    [ClippedSum(torch.zeros(3), 0.5), ClippedSum(torch.zeros(2, dtype=torch.float64), 0.5)],
)
def test_sums_of_other_shapes_and_types_do_not_add_up(other):
    with pytest.raises(ArgumentError, match="Expected sums of one shape and type"):
        ClippedSum(torch.zeros(2), 0.5) + other


@pytest.mark.parametrize("other", [torch.zeros(2), 0, None])
def test_nothing_but_a_clipped_sum_is_added(other):
    with pytest.raises(TypeError):
        ClippedSum(torch.zeros(2), 0.5) + other
