"""Attempts to get more out of a search than it was charged for, or to make it give out rubbish."""

import copy
import functools
import math
import re
import signal
import subprocess
import sys
import traceback
import warnings

import numpy as np
import pytest
import torch
from joblib import parallel_config
from torch.utils.data import Subset, TensorDataset

import privada as pv
from privada.core.randomness import SeededSource
from privada.selection import runs, search_loop
from privada.selection import search as searching
from privada.selection.candidates import mechanism_of
from privada.selection.search_plan import plan_search
from privada.selection.stopping import draw_runs
from tests.alarms import alarmed
from tests.forks import PATIENCE, in_fork
from tests.selection.test_search import BUDGET, DATA, Killed, X, Y, _killed_after, recipe, searched

RICH = pv.Budget(100.0, 1e-4)


def _killed(runs, monkeypatch, **asked):
    """Begin a search that is killed after some runs."""
    with monkeypatch.context() as patch:
        _killed_after(runs, patch)
        with pytest.raises(Killed):
            searched(**asked)


def _candidate(model, **changes):
    given = {"method": pv.methods.DPSGD(lr=1.0), "batch_size": 80, "steps": 3}
    return pv.selection.Candidate(model, torch.nn.CrossEntropyLoss(), **(given | changes))


# ---------------------------------------------------------------------- two results for one charge


def test_a_copy_that_is_tried_again_and_again_gives_out_no_second_set(tmp_path, monkeypatch):
    asked = {"how": "compose-pld", "ledger": tmp_path / "l.db", "state": tmp_path / "s"}
    _killed(1, monkeypatch, **asked)
    copied = tmp_path / "copy"
    copied.write_bytes(asked["state"].read_bytes())
    searched(**asked)
    count = _killed_after(99, monkeypatch)
    for _ in range(4):
        with pytest.raises(pv.LedgerError, match="given out"):
            searched(**(asked | {"state": copied}))
    assert count[0] == 0


def test_what_was_noted_and_not_given_out_is_given_out_once(tmp_path, monkeypatch):
    """Killed between the state and the ledger's note, which the next call must make up for."""
    asked = {"how": "compose-pld", "ledger": tmp_path / "l.db", "state": tmp_path / "s"}
    with monkeypatch.context() as patch:
        patch.setattr(pv.Ledger, "publish", lambda *_, **__: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            searched(**asked)
    found = searched(**asked)
    ledger = pv.Ledger(asked["ledger"])
    labels = [f"{found.statement.run}, candidate {number}" for number in (1, 2, 3)]
    assert all(ledger.published(label) is not None for label in labels)


def test_once_given_out_no_further_run_is_taken(tmp_path, monkeypatch):
    """Else a copy would tell, again and again, whether a fresh run beats the one given out."""
    monkeypatch.setattr(search_loop, "draw_runs", lambda *_: 3)
    monkeypatch.setattr(searching.CandidateRuns, "better", lambda _self, one, _other: one)
    asked = {"ledger": tmp_path / "l.db", "state": tmp_path / "s"}
    _killed(1, monkeypatch, **asked)
    copied = tmp_path / "copy"
    copied.write_bytes(asked["state"].read_bytes())
    first = searched(**asked)
    count = _killed_after(99, monkeypatch)
    again = searched(**(asked | {"state": copied}))
    assert (again.score, count[0]) == (first.score, 0)


@pytest.mark.parametrize("how", ["compose-pld", "repeat-geometric"])
def test_who_is_taken_over_gives_out_nothing(how, tmp_path, monkeypatch):
    monkeypatch.setattr(search_loop, "draw_runs", lambda *_: 2)
    asked = {"how": how, "ledger": tmp_path / "l.db", "state": tmp_path / "s"}
    kept, inner = searching.CandidateRuns.attempt, []

    def attempt(self, number, index):
        if not inner:
            inner.append(None)  # another process comes in the middle of the first run
            inner[0] = searched(**asked)
        return kept(self, number, index)

    monkeypatch.setattr(searching.CandidateRuns, "attempt", attempt)
    with pytest.raises(pv.LedgerError, match="taken over"):
        searched(**asked)
    assert searched(**asked).score == inner[0].score


def test_a_state_is_of_one_ledger(tmp_path, monkeypatch):
    """On another ledger of the same name it would give out a second result of the same runs."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    state, copied = tmp_path / "s", tmp_path / "copy"
    _killed(1, monkeypatch, how="compose-pld", ledger=tmp_path / "a/l.db", state=state)
    copied.write_bytes(state.read_bytes())
    with pytest.raises(pv.CheckpointError, match="another ledger"):
        searched(how="compose-pld", ledger=tmp_path / "b/l.db", state=copied)


@pytest.mark.parametrize("kind", ["planned", "adaptive"])
def test_a_charge_for_something_else_does_not_pay_for_a_search(kind, tmp_path, monkeypatch):
    ledger, path = tmp_path / "l.db", tmp_path / "s"
    if kind == "adaptive":
        pv.Ledger(ledger, pv.Budget(2 * BUDGET.epsilon, BUDGET.delta)).close()
    small = pv.accounting.events.gaussian(1e6)
    with monkeypatch.context() as patch:
        patch.setattr(pv.Ledger, "charge", lambda *_, **__: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            searched(ledger=ledger, state=path)
    pv.Ledger(ledger).charge({small: 1}, run=searching.states.read(path).run, purpose="tuning")
    if kind == "planned":  # on which that charge has declared itself, and nothing else
        with pytest.raises(pv.BudgetExceeded, match="what was declared before the first look"):
            searched(ledger=ledger, state=path)
        assert pv.Ledger(ledger).totals() == {small: 1}
        return
    found = searched(ledger=ledger, state=path)
    assert [each.count for each in found.statement.charges] == [1, 1]
    assert found.epsilon() > 0.9 * BUDGET.epsilon


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"validation": np.arange(80)}, {"validation": np.arange(80, 160)}),
        ({}, {"score": pv.selection.Score("accuracy", pv.selection.accuracy().each, 0.0, 2.0)}),
    ],
    ids=["rows", "bounds"],
)
def test_a_search_goes_on_as_it_was_begun(one, other, tmp_path, monkeypatch):
    asked = {"how": "compose-pld", "ledger": tmp_path / "l.db", "state": tmp_path / "s"}
    _killed(1, monkeypatch, **asked, **one)
    with pytest.raises(pv.PrivadaError, match=r"begun with|same rows"):
        searched(**asked, **other)


# --------------------------------------------------------------------- runs apart from each other


@functools.cache
def _kept_model():
    return torch.nn.Linear(5, 2)


@functools.cache
def _kept_backbone():
    return torch.nn.Linear(5, 5)


@pytest.mark.parametrize(
    ("space", "recipe"),
    [
        ({"lr": [0.1, 1.0]}, lambda lr: _candidate(_kept_model())),
        (
            {"lr": [0.1, 1.0]},
            lambda lr: _candidate(torch.nn.Sequential(_kept_backbone(), torch.nn.Linear(5, 2))),
        ),
        ({"model": [torch.nn.Linear(5, 2), torch.nn.Linear(5, 2)]}, _candidate),
    ],
    ids=["model", "backbone", "settings"],
)
def test_no_run_starts_from_what_another_has_learnt(space, recipe, monkeypatch):
    starts = []

    class Watched(pv.Trainer):
        def fit(self, *arguments, **options):
            starts.append(copy.deepcopy(next(self.model.parameters()).detach()))
            return super().fit(*arguments, **options)

    monkeypatch.setattr(runs, "Trainer", Watched)
    monkeypatch.setattr(search_loop, "draw_runs", lambda *_: 6)
    monkeypatch.setattr(search_loop, "integers", lambda _bits, _below, n: np.zeros(n, dtype=int))
    searched(recipe=recipe, space=space)
    assert len(starts) == 6
    assert all(torch.equal(start, starts[0]) for start in starts)


def test_each_candidate_that_is_shown_is_a_model_of_its_own():
    found = searched(recipe=lambda lr: _candidate(_kept_model()), how="compose-pld", budget=RICH)
    first, second, third = (each.model.weight for each in found.tried)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


# ---------------------------------------------------------------------- what would tell of runs


@pytest.mark.parametrize("runs", [1, 6])
def test_warnings_do_not_count_the_runs(runs, monkeypatch):
    monkeypatch.setattr(search_loop, "draw_runs", lambda *_: runs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)  # of what other tests have left behind
        searched(budget=pv.Budget(3.0, 0.01))  # which is more than 1 / n, and warned about
    assert len(caught) == 3


def test_joblib_does_not_count_the_runs(capsys):
    with parallel_config(verbose=50):
        searched()
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def _failing(monkeypatch, error, failing):
    """Make runs of some candidates fail."""
    kept = searching.CandidateRuns._attempt

    def attempt(self, number, index):
        if index in failing:
            raise error(f"run-{number} of {index}")
        return kept(self, number, index)

    monkeypatch.setattr(searching.CandidateRuns, "_attempt", attempt)


@pytest.mark.parametrize("how", ["compose-pld", "repeat-geometric"])
@pytest.mark.parametrize(
    "score", [None, pv.selection.bounded_loss(torch.nn.CrossEntropyLoss(), 2.0)]
)
def test_a_run_that_fails_is_the_worst_and_does_not_end_the_search(how, score, monkeypatch):
    monkeypatch.setattr(search_loop, "draw_runs", lambda *_: 3)
    monkeypatch.setattr(search_loop, "integers", lambda _bits, _below, n: np.arange(n))
    _failing(monkeypatch, ArithmeticError, {0, 2})
    found = searched(how=how, score=score)
    assert found.settings == {"lr": 1.0}
    assert math.isfinite(found.score)


def test_a_search_of_which_every_run_fails_is_over(tmp_path, monkeypatch):
    asked = {"ledger": tmp_path / "l.db", "state": tmp_path / "s"}
    with monkeypatch.context() as patch:
        _failing(patch, ArithmeticError, {0, 1, 2})
        with pytest.raises(pv.ModelError, match="all of them did") as raised:
            searched(**asked)
    assert "run-" not in "".join(traceback.format_exception(raised.value))
    with pytest.raises(pv.ModelError, match="all of them did"):
        searched(**asked)


def test_a_refused_search_leaves_no_state(tmp_path):
    ledger = pv.Ledger(tmp_path / "l.db", pv.Budget(0.1, 1e-4))
    with pytest.raises(pv.BudgetExceeded):
        searched(ledger=ledger, state=tmp_path / "s")
    assert {each.name for each in tmp_path.iterdir()} == {"l.db"}


_KILLED_IN_A_WRITE = """
import os, signal, sys
from privada.train import checkpoint
from privada.selection import search as searching
from privada.selection import search_loop
from tests.selection.test_search import searched

kept, count = checkpoint.write, [0]

def fsync(handle):
    os.kill(os.getpid(), signal.SIGKILL)

def write(*given):
    count[0] += 1
    if count[0] == 2:
        os.fsync = fsync
    return kept(*given)

checkpoint.write = write
search_loop.draw_runs = lambda *_: 2
searched(ledger=sys.argv[1], state=sys.argv[2])
"""


def test_nothing_secret_is_left_of_a_write_that_was_killed(tmp_path):
    ledger, path = tmp_path / "l.db", tmp_path / "s"
    arguments = [sys.executable, "-c", _KILLED_IN_A_WRITE, str(ledger), str(path)]
    done = subprocess.run(arguments, check=False, timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL
    assert any(each.name.endswith(".new") for each in tmp_path.iterdir())
    searched(ledger=ledger, state=path)
    assert {each.name for each in tmp_path.iterdir()} == {"l.db", "s"}
    assert searching.states.read(path).mask is None


def test_a_part_that_may_be_empty_is_refused_whatever_the_coins_say():
    for seed in range(20):
        with pytest.raises(pv.ArgumentError, match="coins leave no part empty"):
            searched(data=(X[:12], Y[:12]), space=[{"lr": 0.1, "batch_size": 2}], seed=seed)


# ---------------------------------------------------------------------- scores


class _OneUnreadable:
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        if index == 3:
            raise OSError("unreadable")
        return torch.tensor(X[index]), int(Y[index])


@pytest.mark.parametrize(
    "each",
    [
        lambda outputs, _targets: 0 * outputs.sum(dim=1).squeeze() + 1,
        lambda outputs, _targets: (outputs[:, 0] > outputs[:, 0].median()).float(),
        lambda outputs, targets: (outputs.argmax(1) == targets).float().numpy(),
    ],
    ids=["squeezed", "mixed", "array"],
)
def test_scores_by_which_one_record_could_move_all_others_are_refused(each):
    ledger = pv.Ledger(None, BUDGET)
    with pytest.raises(pv.ArgumentError, match="Expected the score"):
        searched(
            data=_OneUnreadable(), validation=np.arange(200), ledger=ledger,
            score=pv.selection.Score("odd", each),
        )  # fmt: skip
    assert ledger.totals() == {}


def test_models_that_squeeze_a_batch_of_one_are_refused():
    class Squeezed(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).squeeze() if not self.training else super().forward(x)

    with pytest.raises(pv.ArgumentError, match="single example"):
        searched(recipe=lambda lr: _candidate(Squeezed(5, 2)))


def test_bounds_so_wide_that_no_noise_covers_them_are_refused():
    with pytest.raises(pv.ArgumentError, match="finite"):
        pv.selection.Score("wide", len, -1e308, 1e308)


def test_a_score_that_fails_on_public_records_is_found_before_the_charge():
    def each(outputs, targets):
        if bool((targets == 1).any()):
            raise ValueError("one")
        return torch.ones(len(targets))

    ledger = pv.Ledger(None, BUDGET)
    with pytest.raises(ValueError, match="one"):
        searched(
            score=pv.selection.Score("zeros", each), ledger=ledger,
            validation=pv.Public((X[:20].copy(), Y[:20].copy())),
        )  # fmt: skip
    assert ledger.totals() == {}


# ---------------------------------------------------------------------- splits


def test_overlaps_through_subsets_are_refused():
    whole = TensorDataset(torch.tensor(X), torch.tensor(Y))
    front, back = Subset(whole, range(300)), Subset(whole, range(200, 400))
    for data, validation in (
        (whole, Subset(whole, range(10))),
        (front, whole),
        (front, Subset(back, range(100))),
        (whole, pv.Public(Subset(whole, range(10)))),
    ):
        with pytest.raises(pv.ArgumentError, match=r"validation=0\.2"):
            searched(data=data, validation=validation)
    assert searched(data=front, validation=Subset(back, range(100, 200))).epsilon() <= 3.0


# ---------------------------------------------------------------------- terms


def test_the_cheapest_way_is_one_that_the_budget_reaches():
    mechanisms = [mechanism_of(recipe(1.0), 320, pv.participation.Poisson())]
    terms = plan_search(
        mechanisms, how="cheapest", expected_runs=10, shape=None, budget=pv.Budget(0.05, 1e-5),
        noise_multiplier=None, delta=None, score_noise=None, scored=True,
    )  # fmt: skip
    assert terms.price.epsilon <= 0.05


def test_a_delta_beside_the_budgets_is_refused():
    with pytest.raises(pv.ArgumentError, match="delta"):
        searched(delta=1e-2)


def test_runs_can_be_drawn_at_any_shape():
    drawn = [draw_runs(1000, 1e4, SeededSource(seed, "runs")) for seed in range(2000)]
    # the variance is mean + mean^2 / shape, all but exactly
    assert abs(np.mean(drawn) - 1000) < 6 * math.sqrt(1100 / 2000)
    assert 0.8 < np.var(drawn) / 1100 < 1.25


# ---------------------------------------------------------------------- what is given out


def test_the_statement_says_what_the_methods_know_of_private_records():
    def with_side_information(lr):
        method = pv.methods.AdaDPS(lr=lr, preconditioner=pv.preconditioning.ideal(DATA))
        return _candidate(torch.nn.Linear(5, 2), method=method)

    statement = searched(recipe=with_side_information).statement
    assert not statement.private
    assert "gradients of the private records, un-noised" in str(statement)


@pytest.mark.parametrize("how", ["compose-pld", "repeat-geometric"])
def test_the_model_given_out_is_the_one_that_was_scored(how):
    """Also in what it draws when it is made and does not keep among its parameters."""

    class RandomFeatures(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.nn.Linear(20, 2)
            self.register_buffer("directions", torch.randn(5, 20), persistent=False)
            self.shifts = torch.randn(20)

        def forward(self, x):
            return self.last(torch.tanh(x @ self.directions + self.shifts))

    found = searched(
        recipe=lambda lr: _candidate(RandomFeatures(), steps=60), how=how, budget=RICH,
        space={"lr": [1.0]}, validation=np.arange(200), seed=1,
    )  # fmt: skip
    with torch.no_grad():
        right = (found.model(torch.tensor(X[:200])).argmax(1).numpy() == Y[:200]).mean()
    assert right > 0.8
    assert abs(found.score - right) < 5 * found.score_std


def test_functions_among_settings_do_not_keep_a_search_from_going_on(tmp_path, monkeypatch):
    """Their addresses differ from process to process."""

    def activated(activation):
        return _candidate(torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 2)))

    def space():
        return {"activation": [lambda x: x]}

    asked = {"recipe": activated, "ledger": tmp_path / "l.db", "state": tmp_path / "s"}
    kept = space()
    with monkeypatch.context() as patch:
        patch.setattr(pv.Ledger, "lease", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            searched(space=kept, **asked)
    other = space()
    assert re.search("0x", repr(kept))
    assert repr(kept) != repr(other)
    assert len(searched(space=other, **asked).statement.charges) == 1


def test_what_cannot_be_given_out_is_found_before_the_charge():
    class Extra(torch.nn.Linear):
        def get_extra_state(self):
            return {"seen": 1}

        def set_extra_state(self, state):
            pass

    sizes = iter(range(2, 100))

    def changing(lr):
        hidden = next(sizes)
        return _candidate(
            torch.nn.Sequential(torch.nn.Linear(5, hidden), torch.nn.Linear(hidden, 2))
        )

    for made in (lambda lr: _candidate(Extra(5, 2)), changing):
        ledger = pv.Ledger(None, BUDGET)
        with pytest.raises(pv.PrivadaError, match=r"get_extra_state|the same model"):
            searched(recipe=made, ledger=ledger)
        assert ledger.totals() == {}


def test_records_are_scored_in_the_type_that_is_trained():
    class Frozen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(5, 5).double().requires_grad_(False)
            self.last = torch.nn.Linear(5, 2)

        def forward(self, x):
            assert x.dtype == torch.float32
            return self.last(self.first(x.double()).float())

    assert searched(recipe=lambda lr: _candidate(Frozen())).epsilon() <= 3.0


def test_a_search_within_a_recipe_does_not_wait_for_itself(monkeypatch):
    kept, within = searching.CandidateRuns._attempt, []

    def attempt(self, number, index):
        if not within:
            within.append(None)
            within[0] = searched(space={"lr": [0.1]}, recipe=recipe)
        return kept(self, number, index)

    monkeypatch.setattr(searching.CandidateRuns, "_attempt", attempt)

    def stuck(*_):
        raise TimeoutError("the search waits for itself")

    with alarmed(stuck, PATIENCE):
        assert searched().epsilon() <= 3.0
    assert within[0].epsilon() <= 3.0


def test_a_process_that_is_forked_in_the_middle_of_a_run_can_run_its_own():
    def child():
        assert runs._alone.acquire(timeout=1)
        runs._alone.release()
        assert runs._alone.acquire(blocking=False)

    with runs._alone:
        assert in_fork(child) == 0
