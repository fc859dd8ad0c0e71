"""One run on several ranks: the same as in one process, whatever happens to a rank."""

import pytest
import torch

from tests.execute.cases import CASES, Tree, outcome, trainer
from tests.execute.ranks import together

pytestmark = pytest.mark.filterwarnings("ignore")
FEW = (
    "method dp-adam", "method adadp", "adaptive clip", "micro-batches", "persons",
    "second moments of persons", "noise that follows", "early stopping", "buffers", "dropout",
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
    together("cases", size, folder, *names)
    for name in names:
        expected = outcome(trainer(name, Tree(size)).fit())
        for rank in range(size):
            found = torch.load(folder / f"{rank}.pt", weights_only=False)
            alike(found[name], expected)


def test_two_ranks_do_what_one_process_does_bit_for_bit(tmp_path):
    check_cases(2, tmp_path, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_kinds_of_runs_are_the_same_on_several_ranks(size, tmp_path):
    check_cases(size, tmp_path, tuple(CASES))
