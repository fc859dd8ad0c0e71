"""Persons: all their rows are protected together, from the first query to the statement."""

import json
from dataclasses import replace

import numpy as np
import pytest

import privada as pv
from privada import tables
from privada.accounting import events
from privada.accounting.ledger import ROW, all_rows_of
from privada.core.errors import ArgumentError, DataError, LedgerError, PrivadaError
from privada.selection.planning import default_delta
from privada.workflows import TrainOptions, TuneOptions, train_table, tune_table
from tests.workflows.conftest import PATIENTS, SCHEMA, visits

KNOWN = TrainOptions(epsilon=2.0, schema="s.toml", person="patient", epochs=2, batch_size=40)


def test_persons_are_drawn_and_counted(folder):
    trained = train_table("visits.csv", KNOWN, "out")
    assert trained.data.population == PATIENTS < len(trained.data.train[1])
    assert len(trained.data.persons) == len(trained.data.train[1])
    assert trained.trainer.steps == 2 * PATIENTS / 40
    (charge,) = pv.Ledger("out/ledger").charges()
    assert charge.event.sampling_probability == pytest.approx(40 / PATIENTS)
    statement = trained.statement
    assert statement.unit == "person"
    assert statement.delta == default_delta(PATIENTS)
    assert statement.assumptions[0].startswith("Each person: all their rows")
    assert "Rows with one value of column 'patient' are one person's." in statement.assumptions
    assert pv.Ledger("out/ledger").unit == all_rows_of("person")
    assert not any("patient" in name for name in trained.data.schema.features)
    kept = json.loads((folder / "out" / "config.json").read_text())
    assert (kept["person"], kept["unit"]) == ("patient", "person")
    assert "Each person: all their rows" in (folder / "out" / "report.html").read_text()
    assert tables.Schema.read("out/schema.toml").person == "patient"


def test_without_a_schema_queries_are_for_persons_too(folder):
    (folder / "visits.csv").write_text("\n".join(visits(3000)) + "\n")
    options = TrainOptions(epsilon=4.0, target="sick", person="patient", epochs=1, seed=1)
    trained = train_table("visits.csv", options, "out")
    ledger = pv.Ledger("out/ledger")
    assert ledger.unit == all_rows_of("person")
    assert [charge.purpose for charge in ledger.charges()] == [
        "statistics", "statistics", "training", "training",  # a look at the features, and steps
    ]  # fmt: skip
    assert ledger.epsilon() <= 4.0
    assert set(trained.data.schema.features).isdisjoint({"patient"})
    assert trained.data.schema.columns["age"].high == 128
    assert "a public population of 3,000" in " ".join(trained.statement.assumptions)


def test_too_few_persons_are_too_few_however_many_rows_they_have(folder):
    lines = visits(30)
    (folder / "visits.csv").write_text("\n".join([lines[0], *(100 * lines[1:])]) + "\n")
    options = TrainOptions(epsilon=1.0, target="sick", person="patient")
    with pytest.raises(DataError, match="Name the classes"):
        train_table("visits.csv", options, "out")
    assert not (folder / "out").exists()
    # each row by itself would be enough
    assert train_table("visits.csv", replace(options, person=None, unit="row", epochs=1), "out")


def test_a_schema_that_names_the_persons_protects_them(folder):
    (folder / "p.toml").write_text(SCHEMA + '\n[columns.patient]\nkind = "person"\n')
    options = TrainOptions(epsilon=2.0, schema="p.toml", epochs=1, rows_per_person=None)
    trained = train_table("visits.csv", options, "out")
    assert trained.statement.unit == "person"
    assert pv.Ledger("out/ledger").unit == all_rows_of("person")
    with pytest.raises(ArgumentError, match="'patient', as the schema says, got 'ward'"):
        train_table("visits.csv", replace(options, person="ward"), "other")


def test_a_column_that_was_a_feature_is_none(folder):
    (folder / "s.toml").write_text(SCHEMA + '\n[columns.patient]\nkind = "hashed"\n')
    trained = train_table("visits.csv", KNOWN, "out")
    assert not any("patient" in name for name in trained.data.schema.features)


@pytest.mark.parametrize(("held", "person"), [(ROW, "patient"), (all_rows_of("person"), None)])
@pytest.mark.parametrize("work", ["train", "tune"])
def test_a_ledger_for_another_unit_is_refused_before_anything_is_read(
    work, held, person, folder, monkeypatch
):
    with pv.Ledger("account", pv.Budget(9.0, 1e-4), dataset="visits") as ledger:
        ledger.charge({events.gaussian(5.0): 1}, run="before", unit=held)

    def read(*_, **__):
        raise AssertionError("the table was read")

    monkeypatch.setattr("privada.workflows.table_runs.read_rows", read)
    given = {"epsilon": 2.0, "schema": "s.toml", "person": person, "ledger": "account"}
    ways = {"train": (train_table, TrainOptions), "tune": (tune_table, TuneOptions)}
    call, options = ways[work]
    with pytest.raises(LedgerError, match="no data was read"):
        call("visits.csv", options(**given), "out")
    assert not (folder / "out").exists()


def stopped(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("when", ["before training", "in training"])
def test_a_stopped_run_goes_on_for_the_same_persons(when, folder, monkeypatch):
    (folder / "visits.csv").write_text("\n".join(visits(2000)) + "\n")
    options = TrainOptions(epsilon=6.0, target="sick", person="patient", epochs=2, seed=3)
    step, taken = pv.Trainer.step, []

    def dies(trainer):
        if len(taken) == 3:
            raise KeyboardInterrupt
        taken.append(step(trainer))

    with monkeypatch.context() as patched:
        if when == "in training":
            patched.setattr(pv.Trainer, "step", dies)
        else:
            patched.setattr(pv.Trainer, "fit", stopped)
        with pytest.raises(KeyboardInterrupt):
            train_table("visits.csv", options, "out")
    for other in ({"person": None, "unit": "record"}, {"person": "ward"}):
        with pytest.raises(ArgumentError, match="with --person patient, as it was begun"):
            train_table("visits.csv", replace(options, **other), "out", resume=True)
    done = train_table("visits.csv", options, "out", resume=True)
    ledger = pv.Ledger("out/ledger")
    assert ledger.epsilon() == done.statement.epsilon <= 6.0
    statistics = [each for each in ledger.charges() if each.purpose == "statistics"]
    assert sum(each.count for each in statistics) == 3  # bounds, classes, and what may fail


def test_rows_per_person_are_those_of_the_steps(folder):
    few = train_table("visits.csv", replace(KNOWN, rows_per_person=2, unit="patient"), "out")
    assert "at most 2 of them" in few.statement.assumptions[0]
    assert few.statement.unit == "patient"
    assert pv.Ledger("out/ledger").unit == all_rows_of("patient")


def test_rows_without_a_known_class_take_their_persons_along(folder):
    """Their number is private: the rate is that of all persons."""
    lines = visits(3000)
    odd = [f"q{k},50.0,a,odd {k}" for k in range(100)]
    (folder / "visits.csv").write_text("\n".join([*lines, *odd]) + "\n")
    options = TrainOptions(epsilon=8.0, target="sick", person="patient", epochs=1, batch_size=100)
    trained = train_table("visits.csv", options, "out")
    assert trained.data.schema.target.classes == ("no", "yes")
    assert trained.data.population == 3100
    assert len(set(trained.data.persons.tolist())) == 3000
    assert len(trained.data.persons) == len(lines) - 1
    training = pv.Ledger("out/ledger").charges()[-1]
    assert training.event.sampling_probability == pytest.approx(100 / 3100)


@pytest.mark.parametrize("schema", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_public_rows_need_no_persons(named, schema, folder):
    lines = visits(300, seed=1, first=5000)
    if not named:
        lines = [line.partition(",")[2] for line in lines]
    (folder / "public.csv").write_text("\n".join(lines) + "\n")
    known = {"schema": "s.toml"} if schema else {"target": "sick"}
    options = TrainOptions(
        epsilon=2.0, person="patient", epochs=1, public="public.csv", method="adadps", lr=0.1,
        **known,
    )  # fmt: skip
    trained = train_table("visits.csv", options, "out")
    assert "accuracy on public rows" in trained.metrics
    assert not any("patient" in name for name in trained.data.schema.features)


@pytest.mark.parametrize("schema", [True, False])
def test_other_identifiers_do_not_make_private_rows_public(schema, folder):
    renamed = [line.replace("p", "q", 1) if k else line for k, line in enumerate(visits())]
    (folder / "public.csv").write_text("\n".join(renamed) + "\n")
    known = {"schema": "s.toml"} if schema else {"target": "sick"}
    options = TrainOptions(epsilon=2.0, person="patient", public="public.csv", **known)
    with pytest.raises(DataError, match="shares too many rows"):
        train_table("visits.csv", options, "out")
    assert not (folder / "out").exists()


@pytest.mark.parametrize("cell", ["", "?", "NA"])
@pytest.mark.parametrize("schema", [True, False])
def test_a_row_of_nobody_is_refused_before_the_first_charge(schema, cell, folder):
    lines = visits(3000)
    lines[7] = f"{cell},50.0,a,no"
    (folder / "visits.csv").write_text("\n".join(lines) + "\n")
    known = {"schema": "s.toml"} if schema else {"target": "sick"}
    if cell not in tables.Schema.read("s.toml").missing:
        pytest.skip("stands for no missing value")
    with pytest.raises(DataError, match="'patient', got a missing one") as raised:
        train_table("visits.csv", TrainOptions(epsilon=4.0, person="patient", **known), "out")
    assert "charged" not in str(raised.value)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"person": "nobody", "target": "sick"}, "--person to be a column"),
        ({"person": "sick", "schema": "s.toml"}, "other than the target"),
        ({"person": "patient", "target": "sick", "text": ["patient"]}, "--text"),
        ({"person": "patient", "target": "patient"}, "--target"),
        ({"rows_per_person": 3, "target": "sick"}, "--rows-per-person"),
        ({"rows_per_person": 0, "person": "patient"}, "rows_per_person"),
        ({"person": " ", "target": "sick"}, "person"),
        ({"person": 3, "target": "sick"}, "person"),
    ],
)
def test_mistakes_are_refused_in_words(change, words, folder):
    with pytest.raises(PrivadaError, match=words):
        train_table("visits.csv", TrainOptions(epsilon=2.0, **change), "out")
    assert not (folder / "out").exists()


def test_a_search_protects_persons(folder):
    options = TuneOptions(
        epsilon=2.0, schema="s.toml", person="patient", epochs=1, space={"lr": [0.1, 1.0]},
        ledger="account", how="compose-pld",
    )  # fmt: skip
    tuned = tune_table("visits.csv", options, "best")
    assert tuned.statement.unit == "person"
    assert tuned.statement.assumptions[0].startswith("Each person: all their rows")
    assert (
        "Rows with one value of column 'patient' are one person's." in tuned.statement.assumptions
    )
    ledger = pv.Ledger("account")
    assert ledger.unit == all_rows_of("person")
    assert ledger.epsilon() <= 2.0
    assert "number of persons, 400, is public" in " ".join(tuned.statement.assumptions)


def test_neighbouring_tables_differ_in_one_unit(folder):
    """All rows of a person go together: without them, the others' groups are the same."""
    lines = visits()
    whole = train_table("visits.csv", KNOWN, "a").data
    (folder / "visits.csv").write_text(
        "\n".join(line for line in lines if not line.startswith("p7,")) + "\n"
    )
    less = train_table("visits.csv", KNOWN, "b").data
    kept = whole.persons != 7
    assert np.array_equal(whole.persons[kept] - (whole.persons[kept] > 7), less.persons)
    assert np.array_equal(whole.train[0][kept], less.train[0])
    assert less.population == whole.population - 1
