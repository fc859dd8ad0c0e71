"""Lengths that nobody declared are refused by type; how many records fit is asked with noise."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada.accounting import epsilon_of, events
from privada.data.lengths import without_length

hugging = pytest.importorskip("datasets")
METHOD = pv.methods.DPSGD(lr=0.1, clip=1.0)
N = 60


class Rows(torch.utils.data.Dataset):
    """Rows of tensors, of which every third has another shape, and every fifth raises."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        if index % 5 == 4:
            raise OSError("this file is damaged")
        return torch.ones(2 if index % 3 == 2 else 3), torch.tensor(index % 2)


FIT = sum(i % 5 != 4 and i % 3 != 2 for i in range(N))


def made(data=None, **changes):
    settings = {
        "method": METHOD, "batch_size": 20, "steps": 2, "noise_multiplier": 1.0, "delta": 1e-4,
        "ledger": pv.Ledger(None),
    } | changes  # fmt: skip
    model = settings.pop("model", None) or nn.Linear(3, 2)
    data = Rows() if data is None else data
    return pv.Trainer(model, nn.CrossEntropyLoss(), data, **settings)


def test_the_share_is_what_a_loop_over_the_records_counts():
    run = made()
    found = pv.usable_records(run, noise_multiplier=1e-3)
    assert found.value == pytest.approx(FIT / N, abs=1e-3)
    assert found.std == pytest.approx(1e-3 / N)
    run.fit()
    assert run.steps_done == 2


def test_it_is_one_gaussian_release_of_its_own():
    run = made()
    pv.usable_records(run, noise_multiplier=5.0)
    ((event, count),) = run.ledger.totals().items()
    assert (event, count) == (events.gaussian(5.0), 1)
    (charge,) = run.ledger.charges()
    assert (charge.run, charge.purpose) == (f"{run._run.charges.run}, usable records", "statistics")
    assert run.epsilon() >= epsilon_of({events.gaussian(5.0): 1}, 1e-4) * 0.999


def test_the_noise_is_as_large_as_it_says():
    values = [pv.usable_records(made(), noise_multiplier=12.0).value for _ in range(40)]
    # a chi-squared number with 39 degrees of freedom: beyond these bounds once in a million
    spread = np.sum((np.array(values) - FIT / N) ** 2) / (12.0 / N) ** 2
    assert 9 < spread < 104


def test_nothing_is_read_that_is_not_paid_for():
    class Counting(Rows):
        read = 0

        def __getitem__(self, index):
            Counting.read += 1
            return super().__getitem__(index)

    run = made(Counting(), noise_multiplier=50.0, ledger=pv.Ledger(None, pv.Budget(1.0, 1e-4)))
    before = Counting.read
    with pytest.raises(pv.BudgetExceeded):
        pv.usable_records(run, noise_multiplier=1.0)
    assert Counting.read == before


def test_a_person_counts_once():
    people = [i // 6 for i in range(N)]
    run = made(groups=people, rows_per_unit=6, batch_size=5)
    found = pv.usable_records(run, noise_multiplier=1e-3)
    assert found.value == pytest.approx(FIT / N, abs=2e-3)
    assert found.std == pytest.approx(1e-3 / 10)


def test_a_loss_that_is_not_finite_is_not_usable():
    x = torch.ones(N, 3)
    data = [(row * (1e30 if i % 4 == 0 else 1.0), torch.tensor(0.0)) for i, row in enumerate(x)]
    data = torch.utils.data.Subset(data, range(N))
    run = pv.Trainer(
        nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), nn.MSELoss(), data, method=METHOD,
        batch_size=20, steps=1, noise_multiplier=1.0, delta=1e-4,
        ledger=pv.Ledger(None),
    )  # fmt: skip
    assert pv.usable_records(run, 1e-3).value == pytest.approx(0.75, abs=1e-3)


def test_a_loop_can_ask_too():
    model = nn.Linear(3, 2)
    loop = pv.PrivateLoop(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), Rows(),
        clip=1.0, batch_size=20, steps=2, noise_multiplier=1.0, delta=1e-4,
        ledger=pv.Ledger(None),
    )  # fmt: skip
    assert pv.usable_records(loop, 1e-3).value == pytest.approx(FIT / N, abs=1e-3)


def test_where_it_cannot_be_asked_the_remedy_is_named():
    with pytest.raises(pv.ArgumentError, match=r"pv\.Ledger\(path, budget\)"):
        pv.usable_records(made(ledger=None), 1.0)
    with pytest.raises(pv.ArgumentError, match="noise_multiplier"):
        pv.usable_records(made(), 0.0)
    with pytest.raises(pv.ArgumentError, match=r"pv\.Trainer or a pv\.PrivateLoop"):
        pv.usable_records(Rows(), 1.0)
    with pytest.raises(pv.ArgumentError, match="in this process"):
        pv.usable_records(made(executor=pv.execute.InParts(2)), 1.0)


# ---------------------------------------------------------------------- lengths by type


def table(length):
    kind = hugging.List(hugging.Value("float32"), length=length)
    types = hugging.Features({"x": kind, "labels": hugging.Value("int64")})
    return hugging.Dataset.from_dict({"x": [[1.0] * 3] * N, "labels": [0, 1] * (N // 2)}, types)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("style", [None, "torch", "numpy"])
def test_a_column_of_any_length_is_refused_and_one_of_a_length_is_not(style):
    with pytest.raises(pv.ArgumentError, match=r"got x, whose type .*collate=pv\.pad_to\(length\)"):
        made(table(-1).with_format(style), model=Named())
    for data, how in (
        (table(3), {}),
        (table(-1), {"collate": pv.pad_to(3)}),
        (table(-1), {"example": {"x": [0.0] * 3, "labels": 0}}),
    ):
        found = pv.usable_records(made(data.with_format(style), model=Named(), **how), 1e-3)
        assert found.value == pytest.approx(1.0, abs=1e-3)


def test_lists_in_rows_have_no_length_and_tensors_are_as_they_are():
    lists = [{"x": [1.0] * 3, "label": 0}] * N
    for data in (lists, torch.utils.data.Subset(table(-1), range(10))):
        with pytest.raises(pv.ArgumentError, match="got x, whose type"):
            made(data, model=Named())
    made([{"x": torch.ones(3), "label": 0}] * N, model=Named())
    made(lists, model=Named(), transform=lambda row, rng: {**row, "x": torch.tensor(row["x"])})


def test_what_a_data_set_makes_of_its_rows_counts_and_not_its_columns():
    def tensors(rows):
        return {"x": [torch.tensor(row) for row in rows["x"]], "labels": rows["labels"]}

    made(table(-1).with_transform(tensors), model=Named())


def test_types_within_types():
    value = hugging.Value("int64")
    columns = {
        "number": value,
        "fixed": hugging.List(hugging.List(value, length=2), length=2),
        "inner": hugging.List(hugging.List(value), length=2),
        "image": hugging.Array2D((2, 2), "int64"),
        "rows": hugging.Array2D((None, 2), "int64"),
        "large": hugging.LargeList(value),
        "labels": value,
    }
    square = [[1, 2], [3, 4]]
    row = dict.fromkeys(("fixed", "inner", "image", "rows"), square) | {"number": 1, "large": [1]}
    data = hugging.Dataset.from_list([row | {"labels": 0}], hugging.Features(columns))
    assert without_length(data, data[0]) == ["inner", "rows", "large"]


def test_public_records_of_another_shape_are_a_warning():
    def rows(n, value=1.0):
        pairs = [(torch.full((n, 3), value), torch.zeros(n, 2))] * 30
        return torch.utils.data.Subset(pairs, range(30))

    short, long = rows(2), rows(5)

    def evaluated(public):
        return pv.Trainer(
            nn.Linear(3, 2), nn.MSELoss(), short, method=METHOD, batch_size=10, steps=1,
            noise_multiplier=1.0, delta=1e-3, validation=pv.Validation(public),
        )  # fmt: skip

    with pytest.warns(UserWarning, match=r"shape \(5, 3\), the first private one has \(2, 3\)"):
        evaluated(long)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluated(rows(2, 0.0))
