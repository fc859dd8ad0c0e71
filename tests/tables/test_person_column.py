"""The column of identifiers: never a feature, given as groups, never quoted."""

import numpy as np
import pytest

import privada as pv
from privada.accounting.ledger import all_rows_of
from privada.core.errors import ArgumentError, DataError
from privada.tables import (
    Classes,
    Hashed,
    Ignore,
    Number,
    Person,
    Range,
    Schema,
    Table,
    encode,
    encode_inputs,
    estimate_bounds,
    identifiers,
    infer_schema,
    read,
    refuse_overlap,
    schema_template,
)

TARGET = Classes("sick", ["no", "yes"])
SCHEMA = Schema(TARGET, {"patient": Person(), "age": Number(low=0, high=100)})
ROWS = {"patient": ["ann", "bob", "ann"], "age": [25, 50, 75], "sick": ["no", "yes", "no"]}


def test_it_is_no_feature_and_is_given_as_groups():
    encoded = encode(Table(ROWS), SCHEMA)
    assert encoded.names == ("age",)
    assert encoded.inputs.shape == (3, 1)
    assert encoded.groups.tolist() == ["ann", "bob", "ann"]
    assert (
        encode(Table(ROWS), Schema(TARGET, {**SCHEMA.columns, "patient": Ignore()})).groups is None
    )


def test_rows_that_are_left_out_take_their_identifiers_along():
    schema = Schema(Classes("sick", ["no", "maybe"], others="leave-out"), SCHEMA.columns)
    encoded = encode(Table(ROWS), schema)
    assert encoded.groups.tolist() == ["ann", "ann"]
    assert len(encoded.inputs) == len(encoded.targets) == 2


@pytest.mark.parametrize("missing", [None, "", "?", float("nan")])
def test_a_missing_identifier_is_refused_without_quoting_anything(missing):
    rows = {**ROWS, "patient": ["secret", missing, "secret"]}
    for use in (encode, identifiers):
        with pytest.raises(DataError, match="'patient', got a missing one") as raised:
            use(Table(rows), SCHEMA)
        assert "secret" not in str(raised.value)


def test_it_is_needed_to_train_and_not_to_predict():
    without = {name: values for name, values in ROWS.items() if name != "patient"}
    assert encode_inputs(Table(without), SCHEMA).shape == (3, 1)
    with pytest.raises(DataError, match="Expected a column 'patient'"):
        encode(Table(without), SCHEMA)


def test_it_is_read_from_a_file_and_written_to_one(tmp_path):
    (tmp_path / "rows.csv").write_text("patient,age,sick\n007,25,no\n007,50,yes\n")
    SCHEMA.write(tmp_path / "schema.toml")
    schema = Schema.read(tmp_path / "schema.toml")
    assert schema == SCHEMA
    assert 'kind = "person"' in (tmp_path / "schema.toml").read_text()
    assert identifiers(read(tmp_path / "rows.csv", schema), schema).tolist() == ["007", "007"]


def test_there_is_one_such_column_and_it_is_not_the_target_nor_all_there_is():
    with pytest.raises(ArgumentError, match="one column of identifiers at most"):
        Schema(TARGET, {**SCHEMA.columns, "other": Person()})
    with pytest.raises(ArgumentError, match="other than the target"):
        SCHEMA.with_person("sick")
    with pytest.raises(ArgumentError, match="at least one column"):
        Schema(TARGET, {"patient": Person(), "x": Ignore()})


def test_another_column_can_be_named_instead():
    schema = Schema(TARGET, {"patient": Hashed(), "age": Number(low=0, high=100)})
    assert schema.person is None
    named = schema.with_person("patient")
    assert (named.person, named.features) == ("patient", ("age",))
    assert named.with_person("home").person == "home"
    assert "patient" not in named.with_person("home").columns


def test_schemas_are_inferred_with_it(tmp_path):
    inferred = infer_schema(Table(ROWS), target="sick", public=True, person="patient")
    assert (inferred.person, inferred.features) == ("patient", ("age",))
    with pytest.raises(ArgumentError, match="Expected person to be one of the columns"):
        infer_schema(Table(ROWS), target="sick", public=True, person="nobody")
    (tmp_path / "rows.csv").write_text("patient,age,sick\n007,25,no\n")
    text = schema_template(tmp_path / "rows.csv", target="sick", person="patient")
    assert '[columns.patient]\nkind = "person"\n' in text
    with pytest.raises(ArgumentError, match="Expected person"):
        schema_template(tmp_path / "rows.csv", target="sick", person="sick")


def test_bounds_are_estimated_for_persons_without_being_told():
    schema = Schema(Range("y", low=0, high=1), {"id": Person(), "x": Number(bounds="estimate")})
    people = np.repeat(np.arange(500), 4)
    table = Table({"id": people, "x": people % 50 + 20.0, "y": people * 0.0})
    ledger = pv.Ledger(None)
    found = estimate_bounds(table, schema, ledger=ledger, noise_multiplier=4.0, seed=1)
    assert ledger.unit == all_rows_of("person")
    assert (found.columns["x"].low, found.columns["x"].high) == (16, 128)
    few = pv.Ledger(None)
    with pytest.raises(DataError, match="persons"):
        estimate_bounds(table, schema, ledger=few, noise_multiplier=200.0)


def test_identifiers_do_not_hide_that_rows_are_shared():
    rows = {"patient": range(200), "age": range(200), "sick": ["no", "yes"] * 100}
    private, renamed = Table(rows), Table({**rows, "patient": range(1000, 1200)})
    with pytest.raises(DataError, match="shares too many rows"):
        refuse_overlap(renamed, private, SCHEMA)


def test_the_groups_are_what_a_trainer_takes():
    import torch

    people = np.repeat(np.arange(60), 3)
    table = Table(
        {"patient": people, "age": people % 50 + 20, "sick": ["no", "yes"] * (len(people) // 2)}
    )
    encoded = encode(table, SCHEMA)
    trainer = pv.Trainer(
        torch.nn.Linear(1, 2),
        torch.nn.CrossEntropyLoss(),
        encoded.data,
        method=pv.methods.DPSGD(lr=0.1, clip=1.0),
        batch_size=20,
        steps=2,
        noise_multiplier=2.0,
        delta=1e-3,
        groups=encoded.groups,
    ).fit()
    assert trainer.statement().unit == "person"
