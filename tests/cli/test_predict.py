"""`privada predict`."""

import csv
import io
import json
import sqlite3
import sys

import pytest

import privada as pv
from privada.cli.app import main
from privada.tables import Category, Classes, Number, Schema
from tests.workflows.saved_models import saved

SCHEMA = Schema(
    Classes("sick", ["no", "yes"]), {"age": Number(0, 100), "ward": Category(["a", "b"])}
)


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run `privada predict` in a folder with a model and a table; return code, output, errors."""
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "out", SCHEMA)
    (tmp_path / "new.csv").write_text("id,age,ward,sick\n7,10,a,no\n8,90,b,yes\n")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["privada", "predict", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        return stopped.value.code, shown.out, shown.err

    return run


def test_it_prints_predictions(command):
    code, output, errors = command("out", "new.csv")
    assert (code, errors) == (0, "")
    assert output.split() == ["prediction", *pv.load("out").predict("new.csv").tolist()]
    code, output, _ = command("out", "new.csv", "--columns", "id,sick", "--proba")
    found = list(csv.DictReader(io.StringIO(output)))
    assert [row["id"] for row in found] == ["7", "8"]
    assert float(found[0]["probability_no"]) == pytest.approx(
        pv.load("out").predict_proba("new.csv")[0, 0], abs=1e-8
    )


def test_it_writes_a_file(command, tmp_path):
    assert command("out", "new.csv", "--output", "p.csv")[1] == "Wrote 2 predictions to p.csv.\n"
    assert (tmp_path / "p.csv").read_text().split()[0] == "prediction"
    code, _, errors = command("out", "new.csv", "--output", "p.csv")
    assert code == 2
    assert "which exists" in errors


def test_json_is_for_machines(command):
    found = json.loads(command("out", "new.csv", "--json", "--proba", "--columns", "id")[1])
    assert [set(row) for row in found["predictions"]] == [
        {"id", "prediction", "probability_no", "probability_yes"}
    ] * 2
    found = json.loads(command("out", "new.csv", "--json", "--output", "p.csv")[1])
    assert found == {"rows": 2, "output": "p.csv"}
    found = json.loads(command("out", "new.csv", "--json", "--score", "--public")[1])
    assert list(found["metrics"]) == ["accuracy", "area under the ROC curve"]
    assert found["metrics"]["accuracy"]["baseline"] == 0.5


def test_it_prints_scores_of_rows_that_are_declared_public(command):
    code, output, errors = command("out", "new.csv", "--score", "--public")
    assert (code, errors) == (0, "")
    assert output.startswith("accuracy: ")
    assert "(baseline: 0.5)" in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("none", "new.csv"), "not there"),
        (("out", "none.csv"), "none.csv"),
        (("out", "new.csv", "--score"), "--public on the command line"),
        (("out", "new.csv", "--public"), "--score only"),
        (("out", "new.csv", "--score", "--public", "--proba"), "in place of predictions"),
        (("out", "new.csv", "--columns", "ID"), "It has columns 'id', 'age'"),
        (("out", "few.csv"), "Expected the column 'ward', which the model predicts from"),
        (("out", "odd.csv"), "column 'age', got something else"),
    ],
)
def test_a_mistake_is_one_line(arguments, says, command, tmp_path):
    (tmp_path / "few.csv").write_text("age\n1\n")
    (tmp_path / "odd.csv").write_text("age,ward\n1,a\nSECRET,a\n")
    before = sorted(tmp_path.rglob("*"))
    code, output, errors = command(*arguments)
    assert (code, output) == (2, "")
    assert says in errors
    assert "SECRET" not in errors
    assert len(errors.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_code_is_run_only_if_it_is_trusted(command, tmp_path):
    (tmp_path / "tiny.py").write_text(
        "import torch\ndef make(i, o):\n    return torch.nn.Linear(i, o)\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        saved(tmp_path / "own", SCHEMA, kind="tiny:make")
        code, _, errors = command("own", "new.csv")
        assert code == 2
        assert "--trust tiny:make" in errors
        assert command("own", "new.csv", "--trust", "tiny:make")[0] == 0
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("tiny", None)


def test_rows_of_a_database_are_predicted_by_a_query(command):
    with sqlite3.connect("clinic.db") as connection:
        connection.execute("create table visits (id int, age int, ward text, note text)")
        connection.execute("insert into visits values (7, 10, 'a', 'x'), (8, 90, 'b', 'y')")
    connection.close()
    asked = ("out", "sqlite:///clinic.db", "--columns", "id")
    code, output, errors = command(*asked, "--query", "select * from visits")
    assert (code, errors) == (0, "")
    assert output == command("out", "new.csv", "--columns", "id")[1]
    code, _, errors = command(*asked)
    assert code == 2
    assert "--query" in errors
    code, _, errors = command("out", "new.csv", "--query", "select 1")
    assert code == 2
    assert "for the URL of a database only" in errors
