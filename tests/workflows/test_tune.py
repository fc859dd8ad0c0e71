"""Searches on a table: what is chosen among, what is found before, and what both cost."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

import privada as pv
from privada import tables
from privada.accounting import epsilon_of, events
from privada.accounting.ledger import all_rows_of
from privada.core.errors import ArgumentError, CheckpointError, PrivadaError
from privada.workflows import TuneOptions, default_space, parse_space, tune_table
from privada.workflows.declarations import tally_of_run
from tests.workflows.conftest import visits

QUICK = {"epsilon": 2.0, "epochs": 1, "batch_size": 50, "space": {"lr": [0.1, 1.0]}}


def test_spaces_in_words():
    assert parse_space(["lr=0.1,1", "batch-size=32", "name=a"]) == {
        "lr": [0.1, 1], "batch_size": [32], "name": ["a"],
    }  # fmt: skip
    assert default_space("dp-sgd", 100)["lr"][-1] == 30.0
    for words in ("lr", "lr=", "=1", "lr=,"):
        with pytest.raises(ArgumentError, match="name=value"):
            parse_space([words])
    with pytest.raises(ArgumentError, match=r"lr twice. Write --set lr=1,2."):
        parse_space(["lr=1", "lr=2"])


ROWS = 2000
ASKED = TuneOptions(
    epsilon=2.0, target="kind", epochs=2, batch_size=100, space={"lr": [0.1, 1.0]}, delta=1e-4,
    how="repeat-geometric",
)  # fmt: skip


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Two columns: nothing is known of either."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age, kinds = rng.uniform(0, 100, ROWS), rng.choice(["a", "b", "c"], ROWS)
    lines = [f"{a:.2f},{kind}" for a, kind in zip(age, kinds, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["age,kind", *lines]) + "\n")
    return "t.csv"


def by_hand(noise, asked, rate, steps, candidates, failure, delta):
    """Return the epsilon of two Gaussian queries and the best of a geometric number of runs.

    By the formulas of Papernot and Steinke (2022), Theorem 2 with eta = 1, and dp_accounting's
    divergences and conversion. Scores on other records cost less than training, at every order.
    """
    orders = np.array(DEFAULT_RDP_ORDERS)
    accountant = RdpAccountant(orders)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
    one = np.array(accountant._rdp)
    once = np.min((1 - 1 / orders) * one + np.log(candidates) / orders)
    best = one + 2 * once + np.log(candidates) / (orders - 1)
    return compute_epsilon(orders, best + orders / asked**2, delta - failure)[0]


def test_queries_and_search_cost_what_they_do_together(table):
    tuned = tune_table(table, ASKED, "best")
    with pv.Ledger("best/ledger") as ledger:
        charges, spent = ledger.charges(), ledger.epsilon()
        assert ledger.kind == "planned"
        assert ledger.totals() == ledger.declared(charges[0].run)
    assert [each.purpose for each in charges] == ["statistics"] * (len(charges) - 1) + ["tuning"]
    assert len({each.run for each in charges}) == 1
    budget = pv.Budget(2.0, 1e-4)
    asked = tables.plan_queries(ROWS, budget, classes="kind", bounds=["age"])
    expected = by_hand(
        tuned.selection.noise_multiplier, asked.noise_multiplier, 100 / (0.8 * ROWS), 32, 2,
        asked.failure, 1e-4,
    )  # fmt: skip
    assert 0.98 * expected <= spent <= expected * (1 + 1e-9)
    assert 1.99 < spent == tuned.statement.epsilon == tuned.statement.run_epsilon <= 2.0
    alone = epsilon_of({charges[-1].event: 1}, 1e-4)
    assert tuned.selection.price.epsilon == alone < 0.99 * spent
    assert tuned.schema.target.classes == ("a", "b", "c")
    model = pv.load("best")
    assert set(model.predict({"age": [10.0, 90.0]})) <= {"a", "b", "c"}


@pytest.mark.parametrize("how", ["compose-pld", "liu-talwar", "repeat-poisson", "cheapest"])
def test_every_way_leaves_room_for_the_queries(how, table):
    tuned = tune_table(table, replace(ASKED, how=how), "best")
    with pv.Ledger("best/ledger") as ledger:
        assert {each.purpose for each in ledger.charges()} == {"statistics", "tuning"}
        assert ledger.epsilon() == tuned.statement.run_epsilon <= 2.0


def stopped(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "where",
    [
        "privada.workflows.pending_queries.tables.estimate_bounds",  # after the classes
        "privada.workflows.table_runs._kept",  # after all queries
        "privada.workflows.tune.select",  # before the search
        "privada.selection.search_loop.StartedRuns.create",  # before it is paid
        "privada.selection.search_loop.continue_search",  # after it was paid
        "privada.selection.runs.CandidateRuns.attempt",  # in a run
        "privada.workflows.tune._write_results",  # after all runs
    ],
)
def test_a_search_that_was_stopped_goes_on_and_nothing_is_charged_twice(where, table, monkeypatch):
    options = replace(ASKED, how="compose-pld")
    with monkeypatch.context() as patched:
        patched.setattr(where, stopped)
        if "continue" in where:
            patched.setattr("privada.selection.search.continue_search", stopped)
        with pytest.raises(KeyboardInterrupt):
            tune_table(table, options, "best")
    with pv.Ledger("best/ledger") as ledger:
        (run,) = ledger.runs()
        declared, before, spent = ledger.declared(run), ledger.totals(), ledger.epsilon()
    with pytest.raises(PrivadaError, match="stays charged"):
        tune_table(table, replace(options, epochs=3), "best", resume=True)
    with pv.Ledger("best/ledger") as ledger:
        assert ledger.totals() == before
    tuned = tune_table(table, options, "best", resume=True)
    with pv.Ledger("best/ledger") as ledger:
        assert ledger.totals() == ledger.declared(run) == declared
        assert ledger.epsilon() == spent == tuned.statement.epsilon
        assert not ledger.interrupted(run)
    names = {path.name for path in Path("best").iterdir()}
    assert "checkpoint" not in names
    assert not [name for name in names if name.startswith(("ledger.", "."))]
    with pytest.raises(CheckpointError, match="unfinished"):
        tune_table(table, options, "best", resume=True)


@pytest.mark.parametrize(
    ("held", "change", "words"),
    [
        ((0.5, "adaptive"), {}, "budget"),
        ((0.5, "planned"), {}, "budget"),
        ((9.0, "planned"), {}, "before the first look"),
        (None, {"space": {"lr": [0.1], "speed": [1.0]}}, "speed"),
        (None, {"space": {"lr": [0.1], "batch_size": [9000]}}, "batch_size"),
        (None, {"how": "free"}, "how"),
        (None, {"validation": 0.0001}, "validation"),
        (None, {"model": "no_such:thing"}, "no_such"),
        (None, {"epsilon": 1e-9, "classes": ("a", "b", "c")}, "reach"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_charge(held, change, words, table):
    if held is not None:
        epsilon, kind = held
        with pv.Ledger("account", pv.Budget(epsilon, 1e-4), kind=kind) as ledger:
            if epsilon > 1:
                ledger.charge({events.gaussian(9.0): 1}, run="another")
            before = ledger.totals()
    with pytest.raises(PrivadaError, match=words):
        tune_table(table, replace(ASKED, ledger="account", **change), "best")
    assert not Path("best").exists()
    assert Path("account").exists() == (held is not None)
    if held is not None:
        with pv.Ledger("account") as ledger:
            assert ledger.totals() == before


def test_a_ledger_for_several_runs_counts_both_through_its_filter(table):
    with pv.Ledger("account", pv.Budget(5.0, 1e-4), dataset="t", kind="adaptive") as ledger:
        ledger.charge({events.gaussian(9.0): 1}, run="another")
    tuned = tune_table(table, replace(ASKED, ledger="account"), "best")
    with pv.Ledger("account") as ledger:
        run = tuned.statement.run
        own = tally_of_run(ledger, run)
        assert sorted({each.purpose for each in ledger.charges() if each.run == run}) == [
            "statistics", "tuning",
        ]  # fmt: skip
        assert epsilon_of(own, 1e-4) <= 2.0
        assert ledger.epsilon() == tuned.statement.epsilon <= 5.0


def test_records_whose_class_is_not_found_are_left_out_and_counted(table):
    """How many there are is private, so that the rate is that of all records."""
    with Path(table).open("a") as file:
        file.writelines(f"50,rare {k}\n" for k in range(200))
    tuned = tune_table(table, ASKED, "best")
    assert tuned.schema.target.others == "leave-out"
    with pv.Ledger("best/ledger") as ledger:
        described = events.encode(ledger.charges()[-1].event)
    assert f"{100 / (0.8 * (ROWS + 200))!r}" in described
    assert "number of records, 2,200, is public" in " ".join(tuned.statement.assumptions)


def test_without_a_schema_all_rows_of_a_person_are_protected(folder):
    (folder / "visits.csv").write_text("\n".join(visits(3000)) + "\n")
    options = TuneOptions(
        epsilon=4.0, target="sick", person="patient", epochs=1, space={"lr": [0.1, 1.0]}
    )
    tuned = tune_table("visits.csv", options)
    assert tuned.output == Path("visits-tuned")
    with pv.Ledger("visits-tuned/ledger") as ledger:
        assert ledger.unit == all_rows_of("person")
        assert [each.purpose for each in ledger.charges()][-1] == "tuning"
        assert len(ledger.charges()) > 1
        assert ledger.epsilon() <= 4.0
    assert tuned.schema.person == "patient"
    assert "patient" not in tuned.schema.features
    assert "number of persons, 3,000, is public" in " ".join(tuned.statement.assumptions)


def test_a_setting_that_is_given_is_not_chosen(table):
    options = replace(ASKED, space={}, lr=0.3, classes=("a", "b", "c"))
    tuned = tune_table(table, options)
    assert tuned.space["lr"] == [0.3]
    assert len(tuned.space["clip"]) == 3
    assert tuned.selection.settings["lr"] == 0.3
    with pytest.raises(ArgumentError, match="one of --lr and --set"):
        tune_table(table, replace(ASKED, lr=0.3), "other")
    assert not Path("other").exists()


@pytest.mark.parametrize("method", ["dp-sgd", "adadps"])
def test_public_rows_say_what_the_columns_are(method, folder):
    (folder / "public.csv").write_text("\n".join(visits(300, seed=1, first=900)) + "\n")
    options = TuneOptions(
        target="sick", public="public.csv", person="patient", method=method, ledger="account",
        **QUICK,
    )  # fmt: skip
    tuned = tune_table("visits.csv", options, "best")
    said = " ".join(tuned.statement.assumptions)
    assert "rows that were declared public" in said
    assert pv.Ledger("account").epsilon() == tuned.selection.epsilon() <= 2.0
    assert "declared public" in (folder / "best" / "statement.txt").read_text()
    assert (
        set(tuned.baselines)
        == set(tuned.metrics)
        == {
            "accuracy on public rows",
            "area under the ROC curve on public rows",
        }
    )
    assert tuned.baselines["area under the ROC curve on public rows"] == 0.5
    assert "baseline" in (folder / "best" / "model_card.md").read_text()


def test_columns_of_text_alone_need_no_bounds(folder):
    lines = [line.split(",") for line in visits()]
    (folder / "text.csv").write_text("".join(f"{ward},{sick}\n" for _, _, ward, sick in lines))
    options = TuneOptions(target="sick", classes=("no", "yes"), **QUICK)
    tuned = tune_table("text.csv", options)
    assert "names and types of the columns are public" in " ".join(tuned.statement.assumptions)


def numbers(values):
    """Return a table whose target is a number."""
    place = np.arange(ROWS)
    return tables.Table({"age": place % 50, "kind": values(place)})


@pytest.mark.parametrize("said", [{}, {"regression": True}, {"classes": ("0", "1")}], ids=str)
def test_zero_and_one_are_classes_by_a_query_within_the_declared_price(tmp_path, said):
    table = numbers(lambda place: (place % 50 > 25).astype(int))
    asked = replace(ASKED, epochs=1, seed=0, **said)
    tuned = tune_table(table, asked, tmp_path / "out")
    target = tuned.schema.target
    if said:
        assert isinstance(target, tables.Classes) == ("classes" in said)
    else:
        assert target == tables.Classes("kind", ("0", "1"), others="leave-out")
    with pv.Ledger(tmp_path / "out" / "ledger") as ledger:
        (run,) = ledger.runs()
        assert tally_of_run(ledger, run) == ledger.declared(run)
        queries = tally_of_run(ledger, run, "statistics")
        assert sum(isinstance(event, events.Failure) for event in queries) == (not said)
        assert ledger.epsilon() <= 2.0 + 1e-9
    assert tuned.statement.epsilon <= 2.0


def test_a_search_costs_the_same_whatever_the_target_turns_out_to_be(tmp_path):
    bills, outputs = [], []
    for name, values in {
        "classes": lambda place: (place % 50 > 25).astype(int),
        "number": lambda place: place * 0.37,
    }.items():
        tuned = tune_table(numbers(values), replace(ASKED, epochs=1, seed=0), tmp_path / name)
        outputs.append(tuned.architecture.outputs)
        with pv.Ledger(tmp_path / name / "ledger") as ledger:
            bills.append(sorted((str(e), n) for e, n in ledger.totals().items()))
    assert outputs == [2, 1]
    assert bills[0] == bills[1]


def test_what_was_found_is_said_before_a_search_is_charged(table):
    said = []

    def no(found):
        said.append(str(found))
        assert not list(Path("out").glob("ledger*"))
        return False

    with pytest.raises(ArgumentError, match="Nothing was charged"):
        tune_table(table, ASKED, "out", confirm=no)
    assert not Path("out").exists()
    assert "'kind', classes that a charged query finds" in said[0]
    assert "age: number with bounds that a charged query finds" in said[0]
