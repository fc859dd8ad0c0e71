"""The search: what it charges, what it gives out, and what it refuses."""

import logging
import math
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from joblib import parallel_config
from scipy.stats import loguniform
from sklearn.model_selection import ParameterGrid
from torch.utils.data import Subset, TensorDataset

import privada as pv
from privada.accounting import events
from privada.accounting.ledger import Prepaid
from privada.selection import runs, search_loop, select
from privada.selection import search as searching
from privada.selection.search_plan import SEARCHES
from privada.train import checkpoint
from tests.forks import PATIENCE

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 5)).astype("float32")
Y = (X @ np.array([1.0, -2.0, 0.5, 0.0, 1.0]) > 0).astype(int)
DATA = (X, Y)
BUDGET = pv.Budget(3.0, 1e-4)


def recipe(lr, clip=1.0, batch_size=80, steps=3, hidden=0):
    layers = [torch.nn.Linear(5, 2)]
    if hidden:
        layers = [torch.nn.Linear(5, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 2)]
    return pv.selection.Candidate(
        torch.nn.Sequential(*layers),
        torch.nn.CrossEntropyLoss(),
        pv.methods.DPSGD(lr=lr, clip=clip),
        batch_size=batch_size,
        steps=steps,
    )


def searched(**changes):
    given = {"space": {"lr": [0.1, 1.0, 4.0]}, "budget": BUDGET, "how": "repeat-geometric"}
    given.update(changes)
    return select(given.pop("recipe", recipe), given.pop("data", DATA), **given)


@pytest.mark.parametrize("how", ["cheapest", *SEARCHES])
def test_every_way_keeps_to_its_budget_and_charges_it_once(how):
    found = searched(how=how)
    assert 0.99 * BUDGET.epsilon < found.price.epsilon <= BUDGET.epsilon or how == "liu-talwar"
    assert found.epsilon() <= BUDGET.epsilon
    (charge,) = found.statement.charges
    assert (charge.purpose, charge.count) == ("tuning", 1)
    assert found.settings["lr"] in (0.1, 1.0, 4.0)
    assert found.model(torch.zeros(2, 5)).shape == (2, 2)
    assert len(found.tried) == (3 if found.price.how.startswith("compose") else 0)


def test_the_price_is_that_of_the_price_list():
    found = searched(how="repeat-logarithmic", noise_multiplier=2.0, delta=1e-4, budget=None)
    rate = 80 / 320
    listed = pv.selection.price(
        noise_multiplier=2.0, sampling_rate=rate, steps=3, candidates=3, delta=1e-4
    )
    expected = next(each for each in listed if each.how == "repeat-logarithmic")
    assert found.price.epsilon == pytest.approx(expected.epsilon, rel=1e-9)


def test_composition_costs_as_much_as_its_runs_one_by_one():
    found = searched(how="compose-pld", noise_multiplier=2.0, delta=1e-4, budget=None)
    alone = pv.accounting.epsilon(noise_multiplier=2.0, sampling_rate=80 / 320, steps=9, delta=1e-4)
    assert alone <= found.price.epsilon <= 1.03 * alone


def test_the_most_expensive_candidate_decides_the_price():
    space = [{"lr": 1.0, "steps": 2}, {"lr": 1.0, "steps": 50}]
    both = searched(space=space, noise_multiplier=2.0, delta=1e-4, budget=None, candidates=5)
    dear = searched(space=space[1:], noise_multiplier=2.0, delta=1e-4, budget=None, candidates=5)
    assert both.price.epsilon == pytest.approx(dear.price.epsilon, rel=1e-9)


def test_with_a_budget_each_candidate_has_the_noise_that_it_needs():
    space = [{"lr": 1.0, "steps": 2}, {"lr": 1.0, "steps": 50}]
    found = searched(space=space, how="compose-pld")
    assert found.price.epsilon <= BUDGET.epsilon
    terms = _terms(space, "repeat-geometric")
    assert terms.noise_multipliers[0] < terms.noise_multipliers[1]
    assert 0.97 * BUDGET.epsilon < terms.price.epsilon <= BUDGET.epsilon


def _terms(space, how, **changes):
    found = {}
    kept = searching.continue_search

    def caught(session, *_, **__):
        found["terms"] = session.runs.plan
        raise StopIteration

    searching.continue_search = caught
    try:
        searched(space=space, how=how, **changes)
    except StopIteration:
        pass
    finally:
        searching.continue_search = kept
    return found["terms"]


def test_scores_cost_nothing_beside_training():
    with_scores = _terms([{"lr": 1.0}], "repeat-geometric")
    public = pv.Public((X[:50].copy(), Y[:50].copy()))
    same_size = (X[:320], Y[:320])
    without = _terms([{"lr": 1.0}], "repeat-geometric", data=same_size, validation=public)
    assert with_scores.score_noise is not None
    assert without.score_noise is None
    assert with_scores.price.epsilon == pytest.approx(without.price.epsilon, rel=1e-9)
    less = _terms(
        [{"lr": 1.0}], "repeat-geometric", score_noise=with_scores.score_noise / 3,
        budget=None, noise_multiplier=with_scores.noise_multipliers[0], delta=1e-4,
    )  # fmt: skip
    assert less.price.epsilon > 1.5 * with_scores.price.epsilon


def test_a_run_cannot_release_more_than_was_paid_for(monkeypatch):
    refused = []

    class Greedy(pv.Trainer):
        def fit(self, *_, **__):
            super().fit()
            with pytest.raises(pv.BudgetExceeded, match="paid for in advance") as raised:
                self.gradients.release(pv.preconditioning.isotropic(), self.noise_multiplier)
            refused.append(raised.value)
            raise raised.value

    monkeypatch.setattr(runs, "Trainer", Greedy)
    with pytest.raises(pv.ModelError, match="all of them did"):
        searched()
    assert refused


def test_a_prepaid_account_pays_for_its_allowance_alone():
    account = Prepaid({events.gaussian(2.0): 2}, "toy")
    reservation = account.charge({events.gaussian(2.0): 2}, run="a")
    reservation.use(events.gaussian(2.0))
    for event in (events.gaussian(2.0), events.gaussian(3.0)):
        with pytest.raises(pv.BudgetExceeded):
            account.charge({event: 1}, run="a")
    account.refund(reservation)
    account.charge({events.gaussian(2.0): 1}, run="a")


# ---------------------------------------------------------------------- choosing


def test_the_best_score_wins_and_composition_shows_all():
    found = searched(how="compose-pld", budget=pv.Budget(50.0, 1e-4), validation=0.5)
    scores = [each.score for each in found.tried]
    assert found.score == max(scores)
    assert found.tried[scores.index(found.score)].settings == found.settings
    lower = searched(
        how="compose-pld",
        budget=pv.Budget(50.0, 1e-4),
        score=pv.selection.bounded_loss(torch.nn.CrossEntropyLoss(), 5.0),
    )
    assert lower.score == min(each.score for each in lower.tried)


def test_scores_are_close_to_the_truth_where_noise_is_small():
    found = searched(
        how="compose-pld", space={"lr": [4.0]}, budget=None, noise_multiplier=0.5, delta=1e-4,
        validation=np.arange(200),
    )  # fmt: skip
    with torch.no_grad():
        right = (found.model(torch.tensor(X[:200])).argmax(1).numpy() == Y[:200]).mean()
    assert abs(found.score - right) < 6 * found.score_std  # passed once in 5e8
    assert found.score_std < 0.05


def test_a_seed_makes_it_reproducible_and_not_private():
    one, two = (searched(seed=3, how="repeat-poisson") for _ in range(2))
    assert one.score == two.score
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True)
    )
    assert not one.statement.private
    assert "seeded" in str(one.statement)
    assert searched(seed=4).score != one.score


def test_poisson_stopping_is_not_taken_where_it_often_has_no_run():
    asked = {"budget": None, "noise_multiplier": 3.0, "delta": 1e-6}
    space = [{"lr": 1.0, "steps": 2500, "batch_size": 3}]
    for mean in (2, 4, 10):
        assert _terms(space, "cheapest", candidates=mean, **asked).how != "repeat-poisson"
    assert _terms(space, "repeat-poisson", candidates=2, **asked).how == "repeat-poisson"


def test_no_run_at_all_gives_an_untrained_model(monkeypatch):
    monkeypatch.setattr(search_loop, "draw_runs", lambda *_: 0)
    found = searched(how="repeat-poisson")
    assert found.score is None
    assert found.epsilon() <= BUDGET.epsilon


@pytest.mark.parametrize(
    "space",
    [
        {"lr": [0.1, 1.0]},
        [{"lr": 0.1}, {"lr": 1.0, "clip": 0.5}],
        [{"lr": [0.1]}, {"lr": [1.0], "hidden": [3, 4]}],
        ParameterGrid({"lr": [0.1, 1.0]}),
        pv.selection.Grid({"lr": (0.1, 1.0)}),
        pv.selection.RandomSpace({"lr": loguniform(0.1, 1.0), "clip": [1.0, 2.0]}, pool=3),
        pv.selection.Suggest(lambda t: t.suggest_float("lr", 0.1, 1.0, log=True), pool=3),
    ],
    ids=["mapping", "list", "grids", "sklearn", "grid", "random", "suggest"],
)
def test_spaces(space):
    if isinstance(space, list) and isinstance(space[0]["lr"], list):
        space = pv.selection.Grid(space)
    found = searched(space=space, candidates=2)
    assert 0.1 <= found.settings["lr"] <= 1.0


def test_side_by_side():
    found = searched(how="compose-pld", n_jobs=2, seed=1)
    again = searched(how="compose-pld", seed=1)
    assert [each.score for each in found.tried] == [each.score for each in again.tried]
    with parallel_config(backend="threading", n_jobs=2):
        threads = searched(how="compose-pld", seed=1)
    assert [each.score for each in found.tried] == [each.score for each in threads.tried]


# ---------------------------------------------------------------------- secrets


def test_logs_and_bars_tell_nothing_secret(caplog, capsys):
    with caplog.at_level(logging.INFO):  # seeded, for a score may be 1.0 by chance, like a setting
        found = searched(how="repeat-poisson", candidates=7, progress=True, seed=2)
    shown = capsys.readouterr().out
    text = caplog.text + shown
    assert "repeat-poisson among 3 candidates, 7 runs expected" in text
    assert found.score not in (0.1, 1.0, 4.0)
    assert str(found.score) not in text
    assert "candidate 1 of" not in text
    assert "/" not in shown
    with caplog.at_level(logging.INFO):
        searched(how="compose-pld")
    assert "candidate 3 of 3" in caplog.text


def test_the_finished_state_does_not_tell_how_many_runs_there_were(tmp_path):
    ledger, path = tmp_path / "l.db", tmp_path / "s"
    searched(ledger=ledger, state=path, how="repeat-poisson", candidates=6)
    content = searching.states.read(path)
    assert content.draws == []
    assert content.done == set()
    assert len(content.outcomes) == 1
    assert path.stat().st_mode & 0o077 == 0


# ---------------------------------------------------------------------- crashes


class Killed(BaseException):
    pass


def _killed_after(runs, monkeypatch):
    """Kill a search in the run after so many."""
    kept, count = searching.CandidateRuns.attempt, [0]

    def attempt(self, number, index):
        if count[0] == runs:
            raise Killed
        count[0] += 1
        return kept(self, number, index)

    monkeypatch.setattr(searching.CandidateRuns, "attempt", attempt)
    return count


@pytest.mark.parametrize("how", ["compose-pld", "repeat-geometric"])
@pytest.mark.parametrize("runs", [0, 1, 2])
def test_a_killed_search_goes_on_without_a_second_charge(how, runs, tmp_path, monkeypatch):
    monkeypatch.setattr(search_loop, "draw_runs", lambda *_: 3)
    ledger, path = tmp_path / "l.db", tmp_path / "s"
    asked = {"how": how, "ledger": ledger, "state": path}
    with monkeypatch.context() as patch:
        _killed_after(runs, patch)
        with pytest.raises(Killed):
            searched(**asked)
    spent = pv.Ledger(ledger).epsilon()
    count = _killed_after(99, monkeypatch)
    found = searched(**asked)
    assert count[0] == 3 - runs - 1  # the one that was under way has looked, and is lost
    assert found.epsilon() == spent
    assert len(found.statement.charges) == 1
    again = searched(**asked)
    assert count[0] == 3 - runs - 1
    assert again.score == found.score
    assert torch.equal(next(again.model.parameters()), next(found.model.parameters()))


def test_killed_before_the_charge_is_charged_once(tmp_path, monkeypatch):
    ledger, path = tmp_path / "l.db", tmp_path / "s"
    with monkeypatch.context() as patch:
        patch.setattr(pv.Ledger, "charge", lambda *_, **__: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            searched(ledger=ledger, state=path)
    assert pv.Ledger(ledger).totals() == {}
    found = searched(ledger=ledger, state=path)
    assert len(found.statement.charges) == 1


@pytest.mark.parametrize("how", ["compose-pld", "repeat-geometric"])
def test_a_copy_of_the_state_gives_out_no_second_result(how, tmp_path, monkeypatch):
    monkeypatch.setattr(search_loop, "draw_runs", lambda *_: 3)
    ledger, path, other = tmp_path / "l.db", tmp_path / "s", tmp_path / "copy"
    with monkeypatch.context() as patch:
        _killed_after(1, patch)
        with pytest.raises(Killed):
            searched(how=how, ledger=ledger, state=path)
    other.write_bytes(path.read_bytes())
    first = searched(how=how, ledger=ledger, state=path)
    again, refused = None, ""
    try:
        again = searched(how=how, ledger=ledger, state=other)
    except pv.LedgerError as error:
        refused = str(error)
    if again is None:
        assert "given out" in refused
    else:  # the copy had the best run already, and no other is taken
        assert how == "repeat-geometric"
        assert again.score == first.score


def test_a_state_of_the_former_version_is_read(tmp_path):
    """Its outcomes call the seed of the first weights an origin."""
    outcome = {
        "candidate": 1, "score": 0.5, "score_std": 0.1, "parameters": {"w": torch.ones(2)},
        "origin": 7,
    }  # fmt: skip
    kept = {
        "fingerprint": "f", "run": "select-1", "draws": [0, 1], "mask": torch.zeros(0).bool(),
        "done": [1], "outcomes": {1: outcome},
    }  # fmt: skip
    checkpoint.write(tmp_path / "s", kept)
    state = searching.states.read(tmp_path / "s")
    assert (state.draws, state.done, state.outcomes[1].init_seed) == ([0, 1], {1}, 7)
    state.save(tmp_path / "s")
    assert searching.states.read(tmp_path / "s").outcomes[1].digest() == state.outcomes[1].digest()


def test_a_state_of_another_search_is_refused(tmp_path):
    ledger, path = tmp_path / "l.db", tmp_path / "s"
    searched(ledger=ledger, state=path)
    spent = pv.Ledger(ledger).totals()
    for changes in (
        {"space": {"lr": [0.1]}},
        {"how": "repeat-poisson"},
        {"sampling": "fixed-size"},
    ):
        with pytest.raises(pv.CheckpointError, match="another path"):
            searched(ledger=ledger, state=path, **changes)
    path.write_bytes(b"rubbish")
    with pytest.raises(pv.CheckpointError):
        searched(ledger=ledger, state=path)
    assert pv.Ledger(ledger).totals() == spent


def test_state_needs_a_ledger_file(tmp_path):
    with pytest.raises(pv.ArgumentError, match="ledger"):
        searched(state=tmp_path / "s")


# ---------------------------------------------------------------------- splits


def test_the_split_is_drawn_by_coins_and_disjoint():
    for sampling in (pv.participation.Poisson(), pv.participation.FixedSize()):
        found = searching.split(
            DATA, 0.25, sampling, lambda: searching.make_source(1, "split"), None
        )
        kept = {row.tobytes() for row in found.train[0]}
        apart = {row.tobytes() for row in found.scored[0]}
        assert not kept & apart
        assert len(kept) + len(apart) == 400
        assert (found.population, found.scored_population) == (300, 100)
        assert (len(apart) == 100) == sampling.fixed_count


@pytest.mark.parametrize(
    ("data", "validation"),
    [
        (DATA, DATA),
        (DATA, (X[:10], Y[:10])),
        ((X[:300], Y[:300].copy()), (X[299:], Y[299:].copy())),
        ((torch.tensor(X), torch.tensor(Y)), None),
        (TensorDataset(torch.tensor(X), torch.tensor(Y)), "same"),
        ("subsets", [1, 2, 3]),
        (DATA, pv.Public((X[:9], Y[:9]))),
    ],
    ids=["same", "slice", "views", "tensors", "dataset", "subsets", "public"],
)
def test_a_validation_split_that_overlaps_training_is_refused(data, validation):
    if validation is None:
        validation = (data[0][5:], data[1][5:])
    if validation == "same":
        validation = data
    if data == "subsets":
        dataset = TensorDataset(torch.tensor(X), torch.tensor(Y))
        data = Subset(dataset, list(range(300)))
        validation = Subset(dataset, list(range(299, 400)))
    ledger = pv.Ledger(None, BUDGET)
    with pytest.raises(pv.ArgumentError, match=r"validation=0\.2"):
        searched(data=data, validation=validation, ledger=ledger)
    assert ledger.totals() == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"validation": (X[:100].copy(), Y[:100].copy()), "data": (X[100:], Y[100:])},
        {"validation": np.arange(100)},
        {"validation": torch.arange(100)},
        {"validation": list(range(50))},
        {"validation": np.arange(400) < 50},
        {"validation": pv.Public((X[:20].copy(), Y[:20].copy()))},
        {"data": TensorDataset(torch.tensor(X), torch.tensor(Y))},
        {"data": list(zip(torch.tensor(X), Y.tolist(), strict=True))},
        {"sampling": "fixed-size"},
    ],
    ids=["apart", "rows", "tensor", "list", "mask", "public", "pair", "dataset", "fixed-size"],
)
def test_ways_to_set_records_apart(changes):
    assert searched(**changes).epsilon() <= BUDGET.epsilon


# ---------------------------------------------------------------------- rubbish


def _beyond(outputs, targets):
    return 7.0 + torch.zeros(len(targets))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": {}}, "at least one candidate"),
        ({"space": []}, "at least one candidate"),
        ({"space": {"lr": []}}, "empty list"),
        ({"space": {"lr": 0.1}}, "list of values"),
        ({"space": [0.1]}, "mapping"),
        ({"space": 3}, "space"),
        ({"space": {"momentum": [0.1]}}, "momentum"),
        ({"space": {"lr": [-1.0]}}, "lr"),
        ({"recipe": 3}, "recipe"),
        ({"recipe": lambda lr: torch.nn.Linear(5, 2)}, "Candidate"),
        ({"score": pv.selection.Score("seven", _beyond)}, "between low=0 and high=1"),
        ({"score": pv.selection.Score("mean", lambda o, t: o.mean())}, "one number for each"),
        ({"score": "accuracy"}, "Score"),
        ({"score_noise": 0.0}, "score_noise"),
        ({"budget": None}, "budget"),
        ({"budget": None, "noise_multiplier": 1.0}, "delta"),
        ({"how": "best"}, "how"),
        ({"how": "repeat-negative-binomial"}, "shape"),
        ({"how": "compose-pld", "candidates": 7}, "candidates"),
        ({"candidates": 0.5}, ">= 1"),
        ({"candidates": math.nan}, "finite"),
        ({"validation": 0.0}, "validation"),
        ({"validation": 1}, "validation"),
        ({"validation": np.array([400])}, "rows"),
        ({"validation": np.arange(400)}, "rows"),
        ({"validation": np.array([], dtype=int)}, "rows"),
        ({"data": (X[:1], Y[:1])}, "records"),
        ({"data": 3}, "data"),
        ({"sampling": "shuffle"}, "sampling"),
        ({"seed": -1}, "seed"),
        ({"space": {"lr": [0.1], "batch_size": [1000]}}, "batch_size"),
    ],
)  # fmt: skip
def test_rubbish_is_refused_and_nothing_is_charged(changes, words):
    ledger = pv.Ledger(None, BUDGET)
    with pytest.raises(pv.PrivadaError, match=words):
        searched(ledger=ledger, **changes)
    assert ledger.totals() == {}


def test_a_budget_that_does_not_pay_for_one_run_is_refused(tmp_path):
    ledger = pv.Ledger(tmp_path / "l.db", pv.Budget(0.1, 1e-4))
    state = tmp_path / "s"
    for how in ("repeat-geometric", "compose-pld"):
        with pytest.raises(pv.BudgetExceeded, match="Nothing was charged"):
            searched(ledger=ledger, state=state, how=how)
        state.unlink(missing_ok=True)
    assert ledger.totals() == {}
    assert searched(ledger=ledger, budget=pv.Budget(0.1, 1e-4)).epsilon() <= 0.1


@pytest.mark.parametrize("how", ["repeat-geometric", "compose-pld"])
def test_a_search_on_an_adaptive_ledger_fits_by_its_filter(how):
    """With the same budget for both, the noise is a little more than that of a search alone."""
    alone = searched(how=how)
    ledger = pv.Ledger(None, BUDGET)
    found = searched(how=how, ledger=ledger)
    assert found.statement.epsilon == ledger.epsilon() <= BUDGET.epsilon
    assert (alone.statement.kind, found.statement.kind) == ("planned", "adaptive")
    assert found.statement.accountant == "filter"
    assert min(alone.statement.epsilon, ledger.epsilon()) > 0.99 * BUDGET.epsilon
    assert alone.noise_multiplier < found.noise_multiplier < 1.4 * alone.noise_multiplier
    with pytest.raises(pv.BudgetExceeded, match="Nothing was charged"):
        searched(how=how, ledger=ledger)
    given = pv.Ledger(None, pv.Budget(0.999 * alone.price.epsilon, 1e-4))
    with pytest.raises(pv.BudgetExceeded):  # noise that is given is not changed
        searched(how=how, ledger=given, budget=None, noise_multiplier=alone.noise_multiplier,
                 delta=1e-4)  # fmt: skip
    assert given.totals() == {}


@pytest.mark.parametrize("others", [False, True])
def test_a_resumed_search_keeps_the_noise_that_it_was_charged_with(others, tmp_path, monkeypatch):
    """What the ledger holds by then would ask for another."""
    ledger, kept = pv.Ledger(tmp_path / "l.db", BUDGET), searching.CandidateRuns.attempt
    if others:
        ledger.charge({pv.accounting.events.gaussian(60.0): 1}, run="before")
    asked = {"how": "compose-pld", "ledger": tmp_path / "l.db", "state": tmp_path / "s"}

    def interrupted(self, number, index):
        if number == 1:
            raise KeyboardInterrupt
        return kept(self, number, index)

    with monkeypatch.context() as patch:
        patch.setattr(searching.CandidateRuns, "attempt", interrupted)
        with pytest.raises(KeyboardInterrupt):
            searched(**asked)
    spent = ledger.epsilon()
    found = searched(**asked)
    assert ledger.epsilon() == spent == found.statement.epsilon <= BUDGET.epsilon
    assert len(ledger.charges()) == 1 + others


def test_scores_that_are_not_numbers_count_as_the_worst():
    def score(outputs, targets):
        return torch.full((len(targets),), math.nan)

    found = searched(
        score=pv.selection.Score("nan", score), how="compose-pld", space={"lr": [0.1]},
    )  # fmt: skip
    assert abs(found.score) < 6 * found.score_std


def test_records_on_which_the_score_fails_count_as_the_worst():
    def score(outputs, targets):
        if bool((targets == 1).any()):
            raise ValueError("private")
        return torch.ones(len(targets))

    found = searched(
        score=pv.selection.Score("zeros", score), how="compose-pld", space={"lr": [0.1]},
        budget=None, noise_multiplier=0.4, delta=1e-4, validation=np.arange(200),
    )  # fmt: skip
    assert abs(found.score - (Y[:200] == 0).mean()) < 6 * found.score_std


_KILLED = """
import os, signal, sys
import numpy as np, torch
import privada as pv
from privada.selection import search as searching
from privada.selection import search_loop
from tests.selection.test_search import searched

kept, done = searching.CandidateRuns.attempt, [0]

def attempt(self, number, index):
    if done[0] == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    done[0] += 1
    return kept(self, number, index)

searching.CandidateRuns.attempt = attempt
search_loop.draw_runs = lambda *_: 3
searched(how=sys.argv[4], ledger=sys.argv[1], state=sys.argv[2])
"""


@pytest.mark.parametrize("how", ["compose-pld", "repeat-poisson"])
def test_a_search_that_is_killed_for_real_goes_on(how, tmp_path, monkeypatch):
    ledger, path = tmp_path / "l.db", tmp_path / "s"
    arguments = [sys.executable, "-c", _KILLED, str(ledger), str(path), "2", how]
    result = subprocess.run(arguments, capture_output=True, check=False, timeout=PATIENCE)
    assert result.returncode == -signal.SIGKILL
    assert len(searching.states.read(path).done) == 2
    count = _killed_after(99, monkeypatch)
    found = searched(how=how, ledger=ledger, state=path)
    assert count[0] == 0  # the third was under way, and is lost
    assert len(found.statement.charges) == 1
    assert found.epsilon() <= BUDGET.epsilon
