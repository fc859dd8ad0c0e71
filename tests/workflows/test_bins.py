"""Bins of numbers, which a schema has that the workflow makes itself."""

import json

import numpy as np
import pytest

from privada import tables
from privada.models import load
from privada.workflows import TrainOptions, train_table

BENT = TrainOptions(epsilon=3.0, target="sick", classes=("no", "yes"), seed=0)


@pytest.fixture
def bent(tmp_path, monkeypatch):
    """Return a table in which the young and the old are sick, and those between are not."""
    monkeypatch.chdir(tmp_path)
    ages = np.random.default_rng(0).uniform(0, 128, 2000)
    lines = [f"{age:.1f},{'yes' if abs(age - 64) > 32 else 'no'}" for age in ages]
    (tmp_path / "people.csv").write_text("\n".join(["age,sick", *lines]) + "\n")
    return tmp_path


def accuracy(folder, rows):
    """Return the share of rows that a model finds right."""
    schema = tables.Schema.read(folder / "schema.toml")
    encoded = tables.encode(tables.read(rows, schema=schema), schema)
    inputs, targets = encoded.data
    model, facts = load(folder)
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    found = (inputs @ weights["weight"].T + weights["bias"]).argmax(axis=1)
    assert facts["features"] == list(schema.features)
    return float((found == targets).mean())


def test_a_linear_model_follows_a_bend(bent):
    trained = train_table("people.csv", BENT, "out")
    assert trained.data.schema.columns["age"].bins == 16
    assert "bins = 16" in (bent / "out" / "schema.toml").read_text()
    assert accuracy(bent / "out", bent / "people.csv") > 0.9


def test_bins_are_those_that_a_given_schema_says_and_a_network_has_none(bent):
    train_table("people.csv", BENT, "out")
    text = (bent / "out" / "schema.toml").read_text().replace("bins = 16", "")
    (bent / "s.toml").write_text(text)
    options = TrainOptions(epsilon=3.0, schema="s.toml", seed=0)
    assert train_table("people.csv", options, "plain").data.schema.columns["age"].bins == 0
    assert accuracy(bent / "plain", bent / "people.csv") < 0.7
    network = TrainOptions(epsilon=3.0, target="sick", classes=("no", "yes"), model="mlp", epochs=1)
    assert train_table("people.csv", network, "net").data.schema.columns["age"].bins == 0


def test_a_schema_of_public_rows_has_bins_by_the_private_ones(bent):
    held = (bent / "people.csv").read_text().splitlines()
    (bent / "public.csv").write_text("\n".join([held[0], *held[-40:]]) + "\n")
    (bent / "private.csv").write_text("\n".join(held[:400]) + "\n")
    options = TrainOptions(epsilon=3.0, target="sick", public="public.csv", epochs=1)
    assert train_table("private.csv", options, "out").data.schema.columns["age"].bins == 8
    assert "accuracy on public rows" in json.loads((bent / "out" / "metrics.json").read_text())
