"""Tables by method="newton"."""

import numpy as np
import pytest

import privada as pv


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ages = np.random.default_rng(0).uniform(20, 80, 1000)
    rows = (f"{age:.1f},{'yes' if age > 50 else 'no'}" for age in ages)
    (tmp_path / "t.csv").write_text("age,sick\n" + "\n".join(rows) + "\n")
    return "t.csv"


ASKED = pv.workflows.TrainOptions(
    epsilon=2.0, target="sick", classes=("no", "yes"), method="newton", seed=0
)


def test_a_table_is_solved_within_its_budget_queries_included(table):
    trained = pv.workflows.train_table(table, ASKED)
    assert 1.9 < trained.statement.epsilon <= 2.0
    assert trained.trainer.method.name == "newton"
    assert trained.trainer.steps_done == 40
    rows = {"age": [25.0, 75.0]}
    assert pv.load(trained.output).predict(rows).tolist() == ["no", "yes"]


def test_several_processes_are_refused_before_a_query_is_charged(table, tmp_path):
    with pytest.raises(pv.ArgumentError, match="processes=1"):
        pv.workflows.train_table(table, ASKED, "out", processes=2)
    assert not (tmp_path / "out").exists()
