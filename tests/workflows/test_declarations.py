"""Queries and training of one run: declared together, before the first answer."""

import json
from dataclasses import replace

import numpy as np
import pytest

import privada as pv
from privada import defaults, methods, tables
from privada.accounting import epsilon_of, events
from privada.core.errors import (
    ArgumentError,
    DataError,
    LedgerError,
    PrivadaError,
)
from privada.workflows import TrainOptions, train_table
from privada.workflows.declarations import declare_run, tally_of_run

ROWS = 2000
ASKED = TrainOptions(epsilon=4.0, target="kind", epochs=1, batch_size=100, seed=1)
ESTIMATED = """[target]
column = "kind"
classes = ["a", "b", "c"]

[columns.age]
kind = "number"
bounds = "estimate"
"""


def lines(count=ROWS, seed=0, kinds=("a", "b", "c")):
    rng = np.random.default_rng(seed)
    listed = zip(rng.uniform(0, 100, count), rng.choice(kinds, count), strict=True)
    return "\n".join(["age,kind", *(f"{age:.3f},{kind}" for age, kind in listed)]) + "\n"


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(lines())
    (tmp_path / "public.csv").write_text(lines(300, seed=1))
    (tmp_path / "s.toml").write_text(ESTIMATED)
    return tmp_path / "t.csv"


PUBLIC = (np.zeros((2, 1), np.float32), np.zeros(2, np.int64))


def options_for(name):
    """Return how the command makes a method, None if it cannot."""
    known = replace(ASKED, target=None, schema="s.toml", public="public.csv")
    for options in (ASKED, replace(ASKED, lr=0.1), known, replace(known, lr=0.1)):
        try:
            defaults.named(name, PUBLIC if options.public else None, lr=options.lr)
        except ArgumentError:
            continue
        size = None if name == "newton" else options.batch_size  # it takes all records
        return replace(options, method=name, batch_size=size)
    return None


MADE = {name: options for name in methods.names() if (options := options_for(name)) is not None}


def test_all_methods_but_one_are_made_by_the_command():
    assert set(methods.names()) - set(MADE) == {"dp2-rmsprop"}  # it has two learning rates
    assert {bool(options.public) for options in MADE.values()} == {True, False}


@pytest.mark.parametrize("name", MADE)
def test_a_run_is_charged_what_was_declared_before_its_first_query(name, table, monkeypatch):
    """Three classes are found where the dry run has two, and bounds are not those it made up."""
    declared, charge = [], pv.Ledger.charge

    def noted(ledger, charged, **how):
        if ledger.durable and not ledger.runs():
            declared.append(ledger.declared(how["run"]))
        return charge(ledger, charged, **how)

    monkeypatch.setattr(pv.Ledger, "charge", noted)
    trained = train_table(table, MADE[name], "out")
    assert len(trained.data.schema.target.classes) == 3
    with pv.Ledger("out/ledger") as ledger:
        assert ledger.kind == "planned"
        assert ledger.totals() == declared[0]
        assert {each.purpose for each in ledger.charges()} == {"statistics", "training"}
        assert ledger.epsilon() == epsilon_of(declared[0], ledger.budget.delta)
        assert 3.9 < ledger.epsilon() == trained.statement.epsilon <= 4.0


@pytest.mark.parametrize("values", [("0", "1"), ("0", "1", "2.5")], ids=["classes", "a number"])
def test_a_target_of_numbers_is_charged_the_same_whatever_it_turns_out_to_be(values, table):
    table.write_text(lines(kinds=values))
    train_table(table, ASKED, "out")
    with pv.Ledger("out/ledger") as ledger:
        (run,) = ledger.runs()
        assert ledger.totals() == ledger.declared(run)
        training = tally_of_run(ledger, run, "training")
    assert sum(training.values()) == ROWS / 100  # steps, and no look at the features before them


def test_a_target_of_classes_is_trained_on_after_a_look_at_the_features(table):
    done = train_table(table, ASKED, "out")
    with pv.Ledger("out/ledger") as ledger:
        training = tally_of_run(ledger, ledger.runs()[0], "training")
    assert sum(training.values()) == ROWS / 100 + 1
    assert training[events.gaussian(defaults.look(ASKED.budget(ROWS)))] == 1
    assert any("second moments of the features" in each for each in done.statement.assumptions)


@pytest.mark.parametrize("kinds", [("0", "1"), ("a", "b")], ids=["numbers", "words"])
def test_a_run_that_is_stopped_goes_on_with_the_same_method(kinds, table, monkeypatch):
    table.write_text(lines(kinds=kinds))
    whole = train_table(table, ASKED, "whole")
    with monkeypatch.context() as patched:
        patched.setattr("privada.train.trainer.take_step", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_table(table, ASKED, "out")
    again = train_table(table, ASKED, "out", resume=True)
    assert again.trainer.method.describe() == whole.trainer.method.describe()
    assert "looks" not in json.loads((table.parent / "out" / "config.json").read_text())


def stopped(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "where",
    [
        "privada.workflows.pending_queries.tables.estimate_bounds",  # after the classes
        "privada.workflows.table_runs._kept",  # after all queries
        "privada.workflows.train.Trainer.fit",
        "privada.train.trainer.take_step",
    ],
)
@pytest.mark.parametrize("lr", [None, 0.05], ids=["after a look", "at a rate that is said"])
def test_a_run_that_was_stopped_goes_on_within_what_was_declared(where, lr, table, monkeypatch):
    asked = replace(ASKED, lr=lr)
    with monkeypatch.context() as patched:
        patched.setattr(where, stopped)
        with pytest.raises(KeyboardInterrupt):
            train_table(table, asked, "out")
    run = json.loads((table.parent / "out" / "config.json").read_text())["run"]
    with pv.Ledger("out/ledger") as ledger:
        declared, spent, charged = ledger.declared(run), ledger.epsilon(), ledger.totals()
    assert spent == epsilon_of(declared, 1e-4)
    assert sum(charged.values()) <= 3 + (lr is None)
    begun = (table.parent / "out" / "checkpoint").exists()  # which knows all settings
    words = "with the settings" if begun else "as it was declared"
    with pytest.raises(PrivadaError, match=words):
        train_table(table, replace(asked, epochs=2), "out", resume=True)
    if lr is None and not begun:  # another model would have no look, and so would a rate
        for other in ({"model": "mlp"}, {"lr": 0.05}):
            with pytest.raises(PrivadaError, match=words):
                train_table(table, replace(asked, **other), "out", resume=True)
    with pv.Ledger("out/ledger") as ledger:
        assert ledger.totals() == charged
    model = "linear" if begun or lr is None else "mlp"
    done = train_table(table, replace(asked, model=model), "out", resume=True)
    assert done.trainer.steps_done == done.trainer.steps == 20
    assert done.statement.epsilon == spent
    with pv.Ledger("out/ledger") as ledger:
        assert ledger.totals() == ledger.declared(run) == declared
        assert not ledger.interrupted(run)


def test_classes_that_were_not_found_can_be_named_at_no_further_cost(table):
    kinds = tuple(f"kind {k}" for k in range(200))
    table.write_text(lines(kinds=kinds))
    with pytest.raises(DataError, match="two classes"):
        train_table(table, ASKED, "out")
    with pv.Ledger("out/ledger") as ledger:
        (run,), spent = ledger.runs(), ledger.epsilon()
    done = train_table(table, replace(ASKED, classes=kinds), "out", resume=True)
    with pv.Ledger("out/ledger") as ledger:
        assert ledger.totals() == ledger.declared(run)
        assert ledger.epsilon() == spent == done.statement.epsilon


def test_bounds_that_were_to_be_defaults_are_not_asked_for_later(table):
    """With the classes named there would be enough for them, but nobody declared it."""
    count, columns = 130, 80
    kinds = np.random.default_rng(0).choice(["a", "b"], count)
    names = [f"x{k}" for k in range(columns)]
    wide = [",".join([*names, "kind"]), *(",".join([*["1.5"] * columns, kind]) for kind in kinds)]
    table.write_text("\n".join(wide) + "\n")
    budget = pv.Budget(2.0, 1e-3)
    both, alone = (
        tables.plan_queries(count, budget, classes=name, bounds=names) for name in ("kind", None)
    )
    assert both.defaults == alone.bounds == tuple(names)
    options = replace(ASKED, epsilon=2.0, batch_size=20, delta=1e-3)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("privada.workflows.table_runs._kept", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_table(table, options, "out")
    with pv.Ledger("out/ledger") as ledger:
        before = ledger.totals()
    done = train_table(table, replace(options, classes=("a", "b")), "out", resume=True)
    assert done.data.schema.defaulted == tuple(names)
    with pv.Ledger("out/ledger") as ledger:
        assert tally_of_run(ledger, ledger.runs()[0], "statistics") == before


@pytest.mark.parametrize("limit", [None, 9.0])
def test_an_answer_that_was_lost_is_paid_for_again(limit, table, monkeypatch):
    """The steps then have more noise; the dearer of both plans counts."""
    asked = replace(ASKED, target="age", delta=1e-4, ledger="account")
    if limit is not None:
        pv.Ledger("account", pv.Budget(limit, 1e-4), dataset="t", kind="planned").close()
    with monkeypatch.context() as patched:
        patched.setattr("privada.query.histograms.histogram_sum", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_table(table, asked, "out")
    ledger = pv.Ledger("account")
    (run,), before, lost = ledger.runs(), ledger.declared(ledger.runs()[0]), ledger.totals()
    done = train_table(table, replace(asked, when_lost="pay-again"), "out", resume=True)
    assert "was interrupted and planned anew" in " ".join(done.statement.assumptions)
    assert ledger.interrupted(run)
    assert ledger.totals() <= ledger.declared(run) != before
    assert all(ledger.totals()[event] > count for event, count in lost.items())
    both = max(epsilon_of(ledger.declared(run), 1e-4), epsilon_of(before, 1e-4))
    assert ledger.run_epsilon(run) == both
    assert epsilon_of(ledger.totals(), 1e-4) <= ledger.epsilon() <= ledger.budget.epsilon
    assert "queries" not in json.loads((table.parent / "out" / "config.json").read_text())


def test_an_answer_that_was_lost_can_be_done_without(table, monkeypatch):
    asked = replace(ASKED, target="age", delta=1e-4, ledger="account")
    with monkeypatch.context() as patched:
        patched.setattr("privada.query.histograms.histogram_sum", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_table(table, asked, "out")
    ledger = pv.Ledger("account")
    (run,), before = ledger.runs(), ledger.declared(ledger.runs()[0])
    train_table(table, replace(asked, when_lost="defaults"), "out", resume=True)
    assert not ledger.interrupted(run)
    assert ledger.totals() == before


@pytest.mark.parametrize("held", [False, True])
def test_a_run_that_fails_before_its_first_charge_leaves_no_declaration(held, table, monkeypatch):
    """Its ledger is elsewhere than its folder; one that was there before stays."""
    options = replace(ASKED, ledger="account")
    if held:
        pv.Ledger("account", pv.Budget(9.0, 1e-4), dataset="t").close()
    with monkeypatch.context() as patched:
        patched.setattr("privada.workflows.table_runs.ask_and_encode", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_table(table, options, "out")
    assert not (table.parent / "out").exists()
    assert (table.parent / "account").exists() == held
    assert train_table(table, options, "out").statement.run_epsilon <= 4.0


def test_a_ledger_that_was_made_for_one_run_is_refused_for_another(table):
    options = replace(ASKED, ledger="account")
    train_table(table, options, "out")
    with pytest.raises(LedgerError, match=r"before the first look.* make one by"):
        train_table(table, options, "second")
    with pytest.raises(LedgerError, match=r"before the first look.* make one by"):
        train_table(table, replace(options, schema="out/schema.toml", target=None), "third")
    assert not (table.parent / "second").exists()
    assert not (table.parent / "third").exists()


def test_a_ledger_for_several_runs_is_charged_through_its_filter(table):
    with pv.Ledger("account", pv.Budget(12.0, 1e-4), dataset="t") as ledger:
        options = replace(ASKED, ledger="account")
        one = train_table(table, options, "one").statement
        two = train_table(table, options, "two").statement
        assert ledger.kind == one.kind == "adaptive"
        assert ledger.declared(one.run) is None
        assert one.epsilon < two.epsilon == ledger.epsilon() == ledger.price(ledger.totals())
        assert epsilon_of(ledger.totals(), 1e-4) < two.epsilon <= 12.0


def test_what_fits_by_the_filter_of_a_ledger_is_known_before_the_queries(table, monkeypatch):
    """The copy that is tried counts by the orders that the ledger's first charge has fixed."""
    with pv.Ledger("account", pv.Budget(5.0, 1e-4), dataset="t") as ledger:
        ledger.charge({events.gaussian(2.0): 1}, run="before")
        ledger.charge({events.poisson(0.01, 0.7): 5}, run="before")
        from privada.workflows.folders import RunFolder

        folder = RunFolder(table.parent / "out", replace(ASKED, ledger="account"))
        more = {events.poisson(0.05, 1.0): 100}
        with folder.copied_ledger() as copy:
            assert copy.cost("r", more) == ledger.cost("r", more)
            copy.charge(more, run="r")
        assert not ledger.totals()[next(iter(more))]


def test_declaring_is_for_ledgers_that_ask_for_it():
    event = events.gaussian(9.0)
    adaptive = pv.Ledger(None, pv.Budget(1.0, 1e-5))
    declare_run(adaptive, "a", {event: 9999})
    assert adaptive.declared("a") is None
    planned = pv.Ledger(None, pv.Budget(1.0, 1e-5), kind="planned")
    declare_run(planned, "a", {event: 2})
    declare_run(planned, "a", {event: 2})  # within it
    planned.charge(event, run="a")
    declare_run(planned, "a", {event: 1})
    with pytest.raises(ArgumentError, match="as it was declared"):
        declare_run(planned, "a", {event: 2})
    declare_run(planned, "a", {event: 2}, interrupted=True)
    assert planned.declared("a") == {event: 3}
    with pytest.raises(LedgerError, match="before the first look"):
        declare_run(planned, "b", {event: 1})
