"""Searches that protect all rows of a person: who is split, scored, charged and promised what."""

import numpy as np
import pytest
import torch
from joblib import parallel_config
from torch import nn

import privada as pv
from privada import data
from privada.clipping.scores import bounded_sum
from privada.core.hidden_streams import hidden_generator
from privada.core.randomness import SeededSource
from privada.noise import GaussianNoise
from privada.participation import participation
from privada.query.account import Account
from privada.query.scores import Scorer
from privada.selection import search as searching
from privada.selection.split import split
from tests.selection.test_search import BUDGET, DATA, Killed, X, Y, _killed_after, searched

GROUPS = np.arange(400) // 2 % 100  # one hundred persons of four rows, not side by side
WILD = {
    "huge": 1e30,
    "infinite": np.inf,
    "not a number": np.nan,
    "ordinary": 1.0,
}


def grouped(**changes):
    return searched(**({"groups": GROUPS, "rows_per_unit": 3} | changes))


def parts_of(data, groups, validation=0.5, sampling="poisson", seed=1, mask=None, **given):
    return split(
        data, validation, participation(sampling), lambda: SeededSource(seed, "split"), mask,
        groups=groups, **given,
    )  # fmt: skip


# ------------------------------------------------------------------------------------- the split


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
@pytest.mark.parametrize("seed", range(5))
def test_whole_persons_are_set_apart(sampling, seed):
    found = parts_of(DATA, GROUPS, 0.3, sampling, seed)
    train, scored = set(found.train_groups.tolist()), set(found.scored_groups.tolist())
    assert not train & scored
    assert len(train | scored) == 100
    assert (found.population, found.scored_population) == (70, 30)
    for part, groups in ((found.train, found.train_groups), (found.scored, found.scored_groups)):
        assert len(part[0]) == len(groups) == 4 * len(set(groups.tolist()))
        rows = [np.flatnonzero((row == X).all(axis=1))[0] for row in part[0]]
        assert np.array_equal(GROUPS[rows], groups)


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_the_split_of_others_does_not_depend_on_a_persons_rows(sampling, rows):
    """The wild person is the first of all; how many rows they have moves nobody else."""
    few = parts_of(DATA, GROUPS, sampling=sampling).mask
    rng = np.random.default_rng(rows)
    places = np.sort(rng.integers(1, 401, size=rows))
    wild = np.insert(X, places, 1e30, axis=0), np.insert(Y, places, 1)
    groups = np.insert(GROUPS, places, GROUPS[0])
    found = parts_of(wild, groups, sampling=sampling).mask
    assert np.array_equal(found[groups != GROUPS[0]], few[GROUPS[0] != GROUPS])
    assert len(set(found[groups == GROUPS[0]].tolist())) == 1


@pytest.mark.parametrize("rows", [1, 1000])
def test_the_split_of_others_does_not_depend_on_whether_a_person_is_there(rows):
    few = parts_of(DATA, GROUPS).mask
    wild = np.concatenate([X, np.full((rows, 5), 1e30)]), np.concatenate([Y, np.ones(rows)])
    found = parts_of(wild, np.concatenate([GROUPS, np.full(rows, 100)])).mask
    assert np.array_equal(found[:400], few)


def test_rows_that_split_a_person_are_refused():
    named = np.flatnonzero(GROUPS < 30)
    found = parts_of(DATA, GROUPS, named)
    assert (found.population, found.scored_population) == (70, 30)
    ledger = pv.Ledger(None, BUDGET)
    with pytest.raises(pv.ArgumentError, match="all rows of a person or none"):
        grouped(validation=named[1:], ledger=ledger)
    with pytest.raises(pv.ArgumentError, match="all rows of a customer or none"):
        grouped(validation=named[1:], ledger=ledger, unit="customer")
    with pytest.raises(pv.ArgumentError, match="Put all records and groups together"):
        grouped(validation=(X[:40].copy(), Y[:40].copy()), ledger=ledger)
    assert ledger.charges() == ()


def test_persons_are_counted_and_not_rows():
    """Ten thousand rows of three persons are too few for coins, whatever the number of rows."""
    rows = np.zeros((9999, 5), dtype="float32"), np.zeros(9999, dtype=int)
    with pytest.raises(pv.ArgumentError, match="got 3 persons"):
        parts_of(rows, np.arange(9999) % 3, unit="person")


@pytest.mark.parametrize(
    ("groups", "rows_per_unit", "words"),
    [
        (GROUPS[:-1], 3, "one identifier for each of 400 rows"),
        ("abc", 3, "one identifier for each row"),
        (GROUPS, 0, "rows_per_unit"),
        (None, 3, "rows_per_unit=None without groups"),
        ([None, *GROUPS[1:]], 3, "missing"),
    ],
)
def test_bad_groups_are_refused_and_nothing_is_charged(groups, rows_per_unit, words):
    ledger = pv.Ledger(None, BUDGET)
    with pytest.raises(pv.ArgumentError, match=words):
        grouped(groups=groups, rows_per_unit=rows_per_unit, ledger=ledger)
    assert ledger.charges() == ()


# ------------------------------------------------------------------------------------- the scores


class Failing(nn.Linear):
    """Raises where a record says so, as a model on wild records may."""

    def forward(self, x):
        if bool((x[:, 0] > 1e20).any()):
            raise RuntimeError("a wild record")
        return super().forward(x)


class Rows(torch.utils.data.Dataset):
    """Records one by one, of which some are not numbers and some cannot be read."""

    def __init__(self, inputs, targets):
        self._inputs = torch.as_tensor(inputs, dtype=torch.float32)
        self._targets = torch.as_tensor(targets)

    def __len__(self):
        return len(self._inputs)

    def __getitem__(self, index):
        if self._inputs[index, 0] == -np.inf:
            raise OSError("cannot be read")
        return self._inputs[index], self._targets[index]


def total_of(inputs, targets, groups, score, model, rows_per_unit=8):
    """Return the sum that would get noise."""
    records = data.load(Rows(inputs, targets), torch.float32, torch.device("cpu"))
    units = data.units_of(len(groups), groups, rows_per_unit)
    scorer = Scorer(
        records, score, population=100, account=Account(pv.Ledger(None), run="r"),
        noise=GaussianNoise(SeededSource(0, "noise")), model_rng=SeededSource(0, "model"),
        units=units, sampling_rng=SeededSource(0, "rows"),
    )  # fmt: skip
    hidden = hidden_generator(SeededSource(0, "model"), torch.device("cpu"))
    with torch.no_grad(), hidden as streams:
        found = scorer._utilities(model, streams)
        return float(bounded_sum(found, score.span, torch.device("cpu")).value)


SCORES = {
    "accuracy": pv.selection.accuracy(),
    "loss": pv.selection.bounded_loss(nn.CrossEntropyLoss(), 2.5),
    "own": pv.selection.Score("own", lambda out, y: out[:, 0].clamp(-1, 3), -1.0, 3.0),
}


@pytest.mark.parametrize("kind", [nn.Linear, Failing])
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("value", WILD)
def test_one_person_never_moves_the_sum_by_more_than_the_span(name, value, kind):
    torch.manual_seed(0)
    model, score = kind(5, 2).eval(), SCORES[name]
    rng = np.random.default_rng(0)
    without = total_of(X, Y, GROUPS, score, model)
    moved = []
    for rows in (1, 2, 8, 9, 100, 1000):
        places = np.sort(rng.integers(1, 401, size=rows))  # the first one shows the structure
        inputs = np.insert(X, places, rng.normal(size=(rows, 5)) * WILD[value], axis=0)
        targets = np.insert(Y, places, rng.integers(0, 2, size=rows))
        moved.append(total_of(inputs, targets, np.insert(GROUPS, places, 777), score, model))
    assert np.abs(np.array(moved) - without).max() <= score.span * (1 + 1e-12)


def test_a_person_with_right_answers_alone_moves_the_sum_by_the_whole_span():
    """The bound is reached, and so is not one of a sum that nobody moves."""
    model = nn.Linear(5, 2).eval()
    right = model(torch.ones(1, 5)).argmax().item()
    for rows in (1, 1000):
        inputs = np.concatenate([X, np.ones((rows, 5))])
        targets = np.concatenate([Y, np.full(rows, right)])
        groups = np.concatenate([GROUPS, np.full(rows, 777)])
        with_them = total_of(inputs, targets, groups, pv.selection.accuracy(), model)
        without = total_of(X, Y, GROUPS, pv.selection.accuracy(), model)
        assert with_them - without == pytest.approx(1.0)


def test_a_persons_score_is_the_average_of_some_of_their_rows():
    model = nn.Linear(5, 2).eval()
    right = (model(torch.from_numpy(X)).argmax(dim=1).numpy() == Y).astype(float)
    all_rows = np.bincount(GROUPS, weights=right) / np.bincount(GROUPS)
    assert total_of(X, Y, GROUPS, pv.selection.accuracy(), model, 4) == pytest.approx(
        all_rows.sum()
    )
    one = total_of(X, Y, GROUPS, pv.selection.accuracy(), model, 1)
    assert one == int(one)
    assert abs(one - all_rows.sum()) < 25  # 100 coins


def test_the_rows_of_a_person_are_chosen_afresh_for_each_score():
    chosen = []

    class Seen(data.GroupedUnits):
        def rows(self, units, rng):
            found = super().rows(units, rng)
            chosen.append(tuple(found[0].tolist()))
            return found

    pair = torch.from_numpy(X), torch.from_numpy(Y)
    scorer = Scorer(
        data.load(pair, torch.float32, torch.device("cpu")), pv.selection.accuracy(),
        population=100, account=Account(pv.Ledger(None), run="r"), units=Seen(GROUPS, 1),
        noise=GaussianNoise(SeededSource(0, "noise")), model_rng=SeededSource(0, "model"),
    )  # fmt: skip
    for _ in range(2):
        scorer.query(nn.Linear(5, 2), 1.0)
    assert len(chosen) == len(set(chosen)) == 2


@pytest.mark.parametrize("rows", [1, 30, 1000])
def test_a_search_whose_scored_part_has_one_wild_person_more(rows, monkeypatch):
    """The same models are trained; each scored sum moves by the span at most."""
    sums, kept = [], GaussianNoise.release

    def release(self, clipped, *given):
        if clipped.value.numel() == 1:
            sums.append((float(clipped.value), clipped.sensitivity))
        return kept(self, clipped, *given)

    monkeypatch.setattr(GaussianNoise, "release", release)
    named = np.flatnonzero(GROUPS < 30)
    asked = {"how": "compose-pld", "recipe": few_persons, "seed": 3, "rows_per_unit": 4}
    grouped(validation=named, **asked)
    few, sums[:] = list(sums), []
    wild = (
        np.concatenate([X, np.full((rows, 5), 1e6, "float32")]),
        np.concatenate([Y, np.ones(rows, int)]),
    )
    groups, more = np.concatenate([GROUPS, np.full(rows, 100)]), 400 + np.arange(rows)
    grouped(data=wild, groups=groups, validation=np.concatenate([named, more]), **asked)
    assert len(sums) == len(few) == 3
    for (total, bound), (before, _) in zip(sums, few, strict=True):
        assert bound == 1.0
        assert abs(total - before) in (pytest.approx(0.0), pytest.approx(1.0))


# ------------------------------------------------------------------- the charge and the statement


@pytest.mark.parametrize("how", ["compose-pld", "repeat-geometric"])
def test_the_charge_is_for_all_rows_of_a_person(how, tmp_path):
    found = grouped(how=how, ledger=tmp_path / "l.db", recipe=few_persons)
    ledger = pv.Ledger(tmp_path / "l.db")
    assert ledger.unit == "person (all their rows)"
    statement = found.statement
    assert (statement.unit, found.epsilon() <= BUDGET.epsilon) == ("person", True)
    listed = " ".join(statement.assumptions)
    assert "Each person: all their rows" in listed
    assert "at most 3 of them" in listed
    assert "The number of persons, 100, is public" in listed
    assert "Each person, with all their rows, was set apart for scores by their own coin" in listed
    assert "is one row" not in listed
    with pytest.raises(pv.LedgerError, match="different units do not add up"):
        searched(ledger=tmp_path / "l.db")
    with pytest.raises(pv.LedgerError, match="different units do not add up"):
        grouped(ledger=tmp_path / "l.db", recipe=few_persons, unit="device")
    assert len(ledger.charges()) == 1


def few_persons(lr):
    return pv.selection.Candidate(
        nn.Linear(5, 2), nn.CrossEntropyLoss(), pv.methods.DPSGD(lr=lr), batch_size=20, steps=3
    )


def test_a_ledger_of_rows_is_refused_before_anything_else(tmp_path):
    searched(ledger=tmp_path / "l.db")
    before = pv.Ledger(tmp_path / "l.db").charges()
    made = []
    with pytest.raises(pv.LedgerError, match="different units do not add up"):
        grouped(ledger=tmp_path / "l.db", recipe=lambda lr: made.append(lr))
    assert (made, pv.Ledger(tmp_path / "l.db").charges()) == ([], before)


def test_the_price_is_that_of_persons():
    """A step draws 20 of 80 persons, whoever has how many rows."""
    given = {"recipe": few_persons, "noise_multiplier": 2.0, "delta": 1e-3, "budget": None}
    found = grouped(**given, how="repeat-geometric")
    listed = pv.selection.price(
        noise_multiplier=2.0, sampling_rate=20 / 80, steps=3, candidates=3, delta=1e-3
    )
    expected = next(each for each in listed if each.how == "repeat-geometric")
    assert found.price.epsilon == pytest.approx(expected.epsilon, rel=1e-9)


def test_candidates_train_on_persons(monkeypatch):
    seen = []
    kept = searching.CandidateRuns.trainer

    def trainer(self, *given):
        made = kept(self, *given)
        seen.append((self.parts, made))
        return made

    monkeypatch.setattr(searching.CandidateRuns, "trainer", trainer)
    grouped(recipe=few_persons, unit="customer", how="compose-pld")
    parts, made = seen[-1]
    assert "customer (all their rows)" in {made.gradients.account.ledger.unit}
    assert "Each customer: all their rows" in made.statement().assumptions[0]
    assert len(set(parts.train_groups.tolist())) + len(set(parts.scored_groups.tolist())) == 100


def test_public_scores_and_workers():
    public = pv.Public((X[:50].copy(), Y[:50].copy()))
    found = grouped(recipe=few_persons, validation=public, how="compose-pld")
    assert found.score_std == 0
    with parallel_config(backend="threading"):
        assert grouped(recipe=few_persons, n_jobs=2).epsilon() <= BUDGET.epsilon


def test_a_coupling_grid_protects_persons_too():
    found = pv.selection.coupling_grid(
        lambda lr, clip: few_persons(lr), DATA, test=pv.Public((X[:50].copy(), Y[:50].copy())),
        learning_rates=[0.1, 1.0], clips=[1.0], budget=BUDGET, groups=GROUPS, rows_per_unit=2,
    )  # fmt: skip
    assert found.statement.unit == "person"
    assert "at most 2 of them" in found.statement.assumptions[0]


def test_what_a_data_set_gives_is_said_to_depend_on_one_person_alone():
    found = grouped(data=Rows(X, Y), recipe=few_persons, unit="customer")
    assert any("gives for a customer depends" in each for each in found.statement.assumptions)
    plain = grouped(recipe=few_persons).statement.assumptions
    assert not any("data set gives" in each for each in plain)


# -------------------------------------------------------------------------------- killed searches


def test_a_killed_search_goes_on_with_the_same_persons(tmp_path, monkeypatch):
    asked = {
        "how": "compose-pld", "ledger": tmp_path / "l.db", "state": tmp_path / "s",
        "recipe": few_persons,
    }  # fmt: skip
    with monkeypatch.context() as patch:
        _killed_after(1, patch)
        with pytest.raises(Killed):
            grouped(**asked)
    mask = searching.states.read(tmp_path / "s").mask
    assert set(np.bincount(GROUPS, weights=mask)) == {0, 4}
    with pytest.raises(pv.ArgumentError, match="the same groups as before"):
        grouped(**asked, groups=np.arange(400) % 100)
    with pytest.raises(pv.CheckpointError, match="begun with other"):
        grouped(**asked, rows_per_unit=4)
    with pytest.raises(pv.PrivadaError):
        searched(**asked)
    found = grouped(**asked)
    assert len(found.tried) == 3
    assert len(pv.Ledger(tmp_path / "l.db").charges()) == 1
