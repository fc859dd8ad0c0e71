"""Privacy for all rows of a person: drawn, averaged and clipped together."""

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada.accounting import epsilon_of, events
from privada.core.errors import ArgumentError, LedgerError
from privada.core.randomness import SecureSource, SeededSource
from privada.core.tensors import Parameters
from privada.data import GroupedUnits, RowUnits, units_of
from privada.preconditioning import FlatScaling
from privada.query.executor import Draw

COUNTS = [1, 2, 3, 20, 5, 1, 9, 4]
IDS = np.repeat(np.arange(len(COUNTS)), COUNTS)
ROWS = len(IDS)
CLIP = 0.5
PLAIN = FlatScaling(None, None)


def records(seed=0, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, 4, generator=generator),
        torch.randn(rows, 1, generator=generator),
    )


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))


def trainer(data=None, groups=IDS, *, rows_per_unit=30, batch_size=4, steps=3, **settings):
    settings = {"noise_multiplier": 1.0, "delta": 1e-3} | settings
    return pv.Trainer(
        network(),
        nn.MSELoss(),
        records() if data is None else data,
        method=settings.pop("method", pv.methods.DPSGD(lr=0.1, clip=CLIP)),
        batch_size=batch_size,
        steps=steps,
        groups=groups,
        rows_per_unit=rows_per_unit,
        **settings,
    )


def clipped_sum(made, units):
    rows, owners = made._run.units.rows(np.array(units, dtype=np.int64), SecureSource())
    drawn = Draw(rows, torch.from_numpy(owners))
    return made.gradients.clipped_sum(drawn, PLAIN, CLIP).value


def by_hand(model, data, ids, units):
    """The same sum by a loop over persons and rows, in float64."""
    model = model.double()
    tensors = list(model.parameters())
    total = torch.zeros(sum(p.numel() for p in tensors), dtype=torch.float64)
    for unit in units:
        x, y = (part[torch.from_numpy(ids == unit)].double() for part in data)
        loss = nn.functional.mse_loss(model(x), y)  # which averages over the person's rows
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, tensors)])
        total += gradient * min(1.0, CLIP / float(gradient.norm()))
    return total


@pytest.mark.parametrize("engine", ["one-pass", "vmap", "loop"])
def test_a_persons_average_gradient_is_clipped_once(engine):
    found = clipped_sum(trainer(engine=engine), range(len(COUNTS)))
    expected = by_hand(network(), records(), IDS, range(len(COUNTS)))
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["one-pass", "vmap", "loop"])
@pytest.mark.parametrize("clipping", [pv.clipping.threshold(), pv.clipping.automatic()], ids=repr)
@pytest.mark.parametrize("wild", [1.0, 1e3, 1e30, float("nan"), float("inf")])
def test_a_whole_person_moves_the_sum_by_no_more_than_the_clip_norm(engine, clipping, wild):
    data = records()
    theirs = torch.from_numpy(IDS == 3)  # who has 20 rows
    data[0][theirs] *= wild if np.isfinite(wild) else 1.0
    if not np.isfinite(wild):
        data = Odd(data, IDS, wild)
    method = pv.methods.DPSGD(lr=0.1, clip=CLIP, clipping=clipping)
    made = trainer(data, engine=engine, method=method)
    with_them = clipped_sum(made, range(len(COUNTS)))
    without = clipped_sum(made, [unit for unit in range(len(COUNTS)) if unit != 3])
    assert float((with_them - without).double().norm()) <= CLIP * (1 + 1e-6)


class Odd(torch.utils.data.Dataset):
    """Records of which a person's are no numbers, or cannot be read."""

    def __init__(self, data, ids, value):
        self.data, self.ids, self.value = data, ids, value

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        x, y = self.data[0][index], self.data[1][index]
        if self.ids[index] == 3:
            if index % 2:
                raise OSError("damaged")
            x = torch.full_like(x, self.value)
        return x, y


def test_all_rows_of_a_person_in_one_sum_are_as_many_as_are_allowed():
    units = GroupedUnits(IDS, rows_per_unit=4)
    rows, owners = units.rows(np.arange(len(COUNTS)), SecureSource())
    assert np.array_equal(IDS[rows], owners)
    assert np.bincount(owners).tolist() == [min(count, 4) for count in COUNTS]
    assert len(set(rows.tolist())) == len(rows)


def test_rows_are_chosen_afresh_and_all_of_them_alike():
    units, rng, rounds = GroupedUnits(IDS, rows_per_unit=4), SeededSource(3, "rows"), 4000
    seen = np.zeros(ROWS)
    for _ in range(rounds):
        rows, _ = units.rows(np.array([3]), rng)
        seen[rows] += 1
    theirs = seen[IDS == 3]
    assert seen.sum() == theirs.sum() == 4 * rounds
    deviation = (theirs - rounds / 5) / np.sqrt(rounds * 0.2 * 0.8)
    assert np.abs(deviation).max() < 5.5  # one false alarm in a million


def test_what_is_taken_of_a_person_does_not_depend_on_the_others_rows():
    more = np.concatenate([IDS, np.full(50, 2)])  # person 2 has fifty rows more
    one, other = (
        GroupedUnits(ids, 4).rows(np.arange(8), SeededSource(5, "r")) for ids in (IDS, more)
    )
    for unit in (0, 1, 3, 4, 5, 6, 7):
        assert np.array_equal(one[0][one[1] == unit], other[0][other[1] == unit])


def test_units_are_drawn_and_counted():
    made = trainer(batch_size=2)
    assert made._run.mechanism.sampler.units == len(COUNTS)
    assert made.planned() == {events.poisson(0.25, 1.0): 3}
    by_epochs = pv.Trainer(
        network(),
        nn.MSELoss(),
        records(),
        method=pv.methods.DPSGD(lr=0.1),
        batch_size=2,
        epochs=3,
        noise_multiplier=1.0,
        delta=1e-3,
        groups=IDS,
    )
    assert by_epochs.steps == 12


def test_the_same_epsilon_protects_a_person_as_protects_a_row():
    made = trainer(batch_size=2, steps=5).fit()
    assert made.epsilon() == epsilon_of({events.poisson(0.25, 1.0): 5}, 1e-3)
    said = made.statement()
    assert said.unit == "person"
    assert any("Each person: all their rows" in each for each in said.assumptions)
    assert any("at most 30 of them" in each for each in said.assumptions)
    assert any("number of persons, 8, is public" in each for each in said.assumptions)
    assert "a record is here a person with all their rows" in said.sampling
    assert trainer(unit="hospital").statement().unit == "hospital"


def test_second_moments_are_of_persons_too():
    moments = pv.preconditioning.private_second_moments(50.0)
    method = pv.methods.AdaDPS(lr=0.1, preconditioner=moments, clip=CLIP)
    made = trainer(method=method)
    rows = list(made.gradients.executor._all_rows(Streams(made), SecureSource()))
    found = torch.cat([each.double() for each in rows])
    assert found.shape == (len(COUNTS), Parameters(network()).size)
    made.fit()


class Streams:
    """Randomness for reading records one by one."""

    def __init__(self, made):
        from privada.core.hidden_streams import hidden_generator

        with hidden_generator(SecureSource(), torch.device("cpu")) as streams:
            self._streams = streams

    def __getattr__(self, name):
        return getattr(self._streams, name)


# ---------------------------------------------------------------------- one ledger, one unit


def test_a_ledger_of_rows_takes_no_charges_for_persons(tmp_path):
    path = tmp_path / "patients.ledger"
    rows = trainer(groups=None, rows_per_unit=None, ledger=path, batch_size=20)
    rows.fit()
    before = rows.ledger.totals()
    with pytest.raises(LedgerError, match=r"for each row.*for each person \(all their rows\)"):
        trainer(ledger=path)
    assert pv.Ledger(path).totals() == before
    assert pv.Ledger(path).unit == "row"


def test_a_ledger_of_persons_takes_no_charges_for_rows_or_hospitals(tmp_path):
    path = tmp_path / "patients.ledger"
    pv.Ledger(path).close()  # for several runs
    trainer(ledger=path).fit()
    before = pv.Ledger(path).totals()
    assert pv.Ledger(path).unit == "person (all their rows)"
    for settings in (
        {"groups": None, "rows_per_unit": None, "batch_size": 20},
        {"unit": "hospital"},
        {"groups": None, "rows_per_unit": None, "batch_size": 20, "unit": "person"},
    ):
        with pytest.raises(LedgerError, match="different units do not add up"):
            trainer(ledger=path, **settings)
    with pytest.raises(LedgerError, match="different units do not add up"):
        pv.Ledger(path).charge({events.gaussian(1.0): 1}, run="by hand")
    assert pv.Ledger(path).totals() == before
    trainer(ledger=path).fit()
    assert sum(pv.Ledger(path).totals().values()) == 6


def test_the_unit_is_fixed_by_the_first_charge_and_not_by_a_refused_one(tmp_path):
    path = tmp_path / "patients.ledger"
    ledger = pv.Ledger(path, pv.Budget(0.5, 1e-5))
    assert ledger.unit is None
    with pytest.raises(pv.BudgetExceeded):
        ledger.charge({events.gaussian(0.1): 1}, run="a", unit="person (all their rows)")
    assert ledger.unit is pv.Ledger(path).unit is None
    ledger.charge({events.gaussian(50.0): 1}, run="a")
    assert ledger.unit == pv.Ledger(path).unit == "row"


def test_an_unused_reservation_leaves_the_unit_open_for_rows():
    ledger = pv.Ledger(None)
    ledger.refund(ledger.charge({events.gaussian(5.0): 1}, run="a"))
    assert ledger.unit is None
    ledger.charge({events.gaussian(5.0): 1}, run="a", unit="person (all their rows)")
    assert ledger.unit == "person (all their rows)"


def test_another_process_sees_the_unit(tmp_path):
    one, other = (pv.Ledger(tmp_path / "a.ledger") for _ in range(2))
    assert other.unit is None
    one.charge({events.gaussian(5.0): 1}, run="a", unit="person (all their rows)")
    with pytest.raises(LedgerError, match="different units"):
        other.charge({events.gaussian(5.0): 1}, run="b")


# ---------------------------------------------------------------------- entry points, wrong values


def test_a_loop_protects_persons(tmp_path):
    model = network()
    loop = pv.PrivateLoop(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.MSELoss(),
        records(),
        batch_size=4,
        epochs=1,
        clip=CLIP,
        noise_multiplier=1.0,
        delta=1e-3,
        groups=IDS,
        rows_per_unit=3,
    )
    private, optimizer, criterion, loader = loop
    assert len(loader) == 2
    for inputs, targets in loader:
        optimizer.zero_grad()
        criterion(private(inputs), targets).backward()
        optimizer.step()
    assert loop.statement().unit == "person"


@pytest.mark.parametrize("kind", [pv.PrivateClassifier, pv.PrivateRegressor])
def test_estimators_protect_persons(kind, tmp_path):
    ids = np.repeat(np.arange(60), 5)
    random = np.random.default_rng(0)
    rows, targets = random.normal(size=(300, 3)), np.tile([0, 1], 150)
    path = tmp_path / "visits.ledger"
    made = kind(2.0, delta=1e-3, epochs=2, rows_per_unit=3, ledger=path).fit(
        rows, targets, groups=ids
    )
    said = made.statement_
    assert said.unit == "person"
    assert any("at most 3 of them" in each for each in said.assumptions)
    assert any("number of persons, 60" in each for each in said.assumptions)
    assert pv.Ledger(path).unit == "person (all their rows)"
    with pytest.raises(LedgerError, match="different units"):
        kind(2.0, delta=1e-3, epochs=2, ledger=path).fit(rows, targets)


def test_a_fit_of_persons_is_adopted_as_one_of_persons(tmp_path):
    """A later ledger is first charged for what was fitted without one, for the same unit."""
    ids, random = np.repeat(np.arange(60), 5), np.random.default_rng(1)
    rows, targets = random.normal(size=(300, 3)), np.tile([0, 1], 150)
    made = pv.PrivateClassifier(1.0, delta=1e-3, epochs=1)
    made.fit(rows, targets, groups=ids)
    ledger = pv.Ledger(tmp_path / "a.ledger", pv.Budget(5.0, 1e-3))
    again = pv.PrivateClassifier(1.0, delta=1e-3, epochs=1, ledger=ledger)
    again.fit(rows, targets, groups=ids)
    assert ledger.unit == "person (all their rows)"
    assert again.epsilon_ > 1.2


def test_names_serve_as_identifiers():
    named = np.array(["ann", "bob"])[IDS % 2]
    assert units_of(ROWS, named, None).size == 2
    assert units_of(ROWS, list(named), 3).rows_per_unit == 3
    assert units_of(ROWS, torch.from_numpy(IDS), None).size == len(COUNTS)
    assert units_of(ROWS, None, None) == RowUnits(ROWS)


@pytest.mark.parametrize(
    ("groups", "rows_per_unit", "error", "words"),
    [
        (IDS[:-1], None, ArgumentError, "one identifier for each of 45 rows, got 44"),
        (None, 3, ArgumentError, "rows_per_unit=None without groups"),
        (IDS, 0, ArgumentError, "rows_per_unit"),
        (IDS, 2.5, ArgumentError, "rows_per_unit"),
        ("abc", None, ArgumentError, "one identifier for each row"),
        (3, None, ArgumentError, "one identifier for each row"),
        ([None] * ROWS, None, ArgumentError, "missing"),
        ([float("nan")] * ROWS, None, ArgumentError, "missing"),
        ([[1]] * ROWS, None, ArgumentError, "one number or text"),
    ],
)
def test_wrong_groups_are_refused_before_anything_is_charged(groups, rows_per_unit, error, words):
    ledger = pv.Ledger(None)
    with pytest.raises(error, match=words):
        trainer(groups=groups, rows_per_unit=rows_per_unit, ledger=ledger)
    assert not ledger.totals()


def test_micro_batches_of_persons_are_refused():
    method = pv.methods.DPSGD(lr=0.1, clipping=pv.clipping.microbatches(2))
    with pytest.raises(ArgumentError, match="single units with groups"):
        trainer(method=method)


def test_a_resumed_run_keeps_its_unit(tmp_path):
    settings = {"ledger": tmp_path / "a.ledger", "steps": 3}
    trainer(**settings).step().save(tmp_path / "run.pt")
    assert trainer(**settings, resume=tmp_path / "run.pt").fit().steps_done == 3
    with pytest.raises(pv.CheckpointError, match="rows_per_unit"):
        trainer(**settings, rows_per_unit=2, resume=tmp_path / "run.pt")


class Households:
    """Every five rows in a row are one household; a look takes all of them."""

    grouped, rows_per_unit = True, 5

    def __init__(self, rows=ROWS):
        self.row_count, self.size = rows, rows // 5

    def rows(self, units, rng):
        rows = (5 * units[:, None] + np.arange(5)).reshape(-1)
        return rows, np.repeat(np.arange(len(units)), 5)


def test_units_of_ones_own_are_the_same_as_their_identifiers():
    rows = 5 * (ROWS // 5)
    data = tuple(each[:rows] for each in records())
    own = trainer(data, Households(rows), rows_per_unit=None, seed=2).fit()
    same = trainer(data, np.arange(rows) // 5, rows_per_unit=5, seed=2).fit()
    assert own.ledger.totals() == same.ledger.totals()
    assert own.ledger.unit == same.ledger.unit == "person (all their rows)"
    drawn = Draw(np.arange(10), torch.arange(2).repeat_interleave(5))
    found, expected = (
        each.gradients.clipped_sum(drawn, PLAIN, CLIP).value
        for each in (
            trainer(data, Households(rows), rows_per_unit=None),
            trainer(data, np.arange(rows) // 5, rows_per_unit=5),
        )
    )
    assert torch.equal(found, expected)


def test_units_of_ones_own_that_do_not_fit_are_refused():
    data = records()
    with pytest.raises(pv.ArgumentError, match="one identifier for each of"):
        trainer(data, Households(ROWS - 5), rows_per_unit=None)
    with pytest.raises(pv.ArgumentError, match="rows_per_unit to be left out or 5"):
        trainer(data, Households(ROWS), rows_per_unit=3)
    single = Households(ROWS)
    single.grouped = False
    with pytest.raises(pv.ArgumentError, match="clipped one by one"):
        trainer(data, single, rows_per_unit=None)
