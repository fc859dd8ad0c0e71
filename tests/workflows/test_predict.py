"""Predictions as files, and scores on public rows."""

import csv
import io
import json

import numpy as np
import pytest

import privada as pv
from privada.tables import Category, Classes, Number, Range, Schema
from privada.workflows import score, write_predictions
from privada.workflows.predict import predictions
from tests.workflows.saved_models import saved

SICK = Schema(Classes("sick", ["no", "yes"]), {"age": Number(0, 100), "ward": Category(["a", "b"])})
PRICE = Schema(Range("price", 0, 1000), {"size": Number(0, 10)})
LINES = 'id,age,ward,sick\n007,10,a,no\n"x,1",90.50,b,yes\n,,,no\n'


@pytest.fixture
def model(tmp_path):
    saved(tmp_path / "out", SICK)
    return pv.load(tmp_path / "out")


@pytest.fixture
def table(tmp_path):
    (tmp_path / "new.csv").write_text(LINES)
    return tmp_path / "new.csv"


def test_a_file_has_the_columns_to_keep_and_the_predictions(model, table, tmp_path):
    place = tmp_path / "p.csv"
    assert write_predictions(model, table, place, proba=True, columns=["id", "sick", "age"]) == 3
    with place.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == [
        "id",
        "sick",
        "age",
        "prediction",
        "probability_no",
        "probability_yes",
    ]
    assert [row["id"] for row in found] == ["007", "x,1", ""]
    assert [row["age"] for row in found] == ["10", "90.5", ""]
    assert [row["prediction"] for row in found] == model.predict(table).tolist()
    chances = [[float(row["probability_no"]), float(row["probability_yes"])] for row in found]
    assert np.allclose(chances, model.predict_proba(table), atol=1e-8)
    text = io.StringIO()
    write_predictions(model, table, text, proba=True, columns=["id", "sick", "age"])
    assert text.getvalue() == place.read_text()


def test_json_lines_are_predicted_a_part_at_a_time(model, tmp_path, monkeypatch):
    """A key that some parts lack is missing there; one that all lack is refused before a row."""
    listed = [{"id": i, "age": i % 90, "ward": "ab"[i % 2]} for i in range(300)]
    for record in listed[120:200]:
        del record["ward"]
    place = tmp_path / "new.jsonl"
    place.write_text("".join(json.dumps(each) + "\n" for each in listed))
    columns = {name: [each.get(name) for each in listed] for name in ("age", "ward")}
    expected = [{"id": str(i), **row} for i, row in enumerate(predictions(model, columns))]
    monkeypatch.setattr("privada.tables.formats.json_lines.BLOCK", 1000)
    monkeypatch.setattr(pv.tables, "read", lambda *_: pytest.fail("it is read as a whole"))
    assert list(predictions(model, place, columns=["id"])) == expected
    place.write_text("".join(json.dumps({"age": each["age"]}) + "\n" for each in listed))
    with pytest.raises(pv.DataError, match="'ward'"):
        next(predictions(model, place))


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_wrong_row_of_a_late_part_leaves_no_file(ending, model, tmp_path, monkeypatch):
    rows = [{"age": str(i), "ward": "z" if i == 280 else "a"} for i in range(300)]
    place = tmp_path / f"new.{ending}"
    texts = {
        "csv": "age,ward\n" + "".join(f"{row['age']},{row['ward']}\n" for row in rows),
        "jsonl": "".join(json.dumps(row) + "\n" for row in rows),
    }
    place.write_text(texts[ending])
    for module in ("delimited", "json_lines"):
        monkeypatch.setattr(f"privada.tables.formats.{module}.BLOCK", 500)
    with pytest.raises(pv.DataError, match="first such row is row 281"):
        write_predictions(model, place, tmp_path / "p.csv")
    assert not [each.name for each in tmp_path.iterdir() if "p." in each.name]


def test_a_file_is_whole_or_not_there(model, table, tmp_path, monkeypatch):
    place = tmp_path / "p.csv"
    with pytest.raises(pv.DataError, match="'ward'"):
        write_predictions(model, {"age": [1, 2], "ward": ["a", "z"]}, place)
    monkeypatch.setattr("privada.workflows.new_rows._NUMBERS", 1)

    def dies(*_):
        if len(drafts := list(tmp_path.glob(".p.*"))) == 1 and drafts[0].exists():
            raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", dies)
    with pytest.raises(KeyboardInterrupt):
        write_predictions(model, table, place)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "new.csv"}


def test_nothing_is_written_over(model, table):
    for place in (table, model.path / "model.json", model.path):
        with pytest.raises(pv.ArgumentError, match="which exists"):
            write_predictions(model, table, place)
    assert table.read_text() == LINES
    with pytest.raises(pv.ArgumentError, match="Cannot write"):
        write_predictions(model, table, table.parent / "no" / "p.csv")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["ID"], "It has columns 'id', 'age'"),
        (["id", "id"], "named once"),
        (["prediction"], "none of prediction, probability_no"),
        (["probability_yes"], "none of prediction"),
    ],
)
def test_columns_that_cannot_be_kept_are_named(columns, words, model, table):
    with pytest.raises(pv.ArgumentError, match=words):
        list(predictions(model, table, proba=True, columns=columns))


def test_scores_have_a_baseline_beside_them(model, tmp_path):
    rng = np.random.default_rng(0)
    rows = {"age": rng.uniform(0, 100, 200), "ward": rng.choice(["a", "b"], 200)}
    truth = np.where(rng.random(200) < 0.3, "yes", "no")
    found = score(model, rows | {"sick": truth}, public=True)
    accuracy, area = found["accuracy"], found["area under the ROC curve"]
    assert accuracy["value"] == np.mean(model.predict(rows) == truth)
    assert accuracy["baseline"] == np.mean(truth == "no")
    # the share of pairs in the right order, by hand
    chance = model.predict_proba(rows)[:, 1]
    pairs = np.subtract.outer(chance[truth == "yes"], chance[truth == "no"])
    assert area["value"] == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)))
    assert area["baseline"] == 0.5
    saved(tmp_path / "price", PRICE)
    priced = pv.load(tmp_path / "price")
    sizes, prices = {"size": np.arange(11.0)}, np.arange(11.0) ** 2 * 10
    found = score(priced, sizes | {"price": prices}, public=True)
    r2, root = found["R^2"], found["root mean squared error"]
    errors = prices - priced.predict(sizes)
    assert root["value"] == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert root["baseline"] == pytest.approx(np.std(prices))
    assert r2["value"] == pytest.approx(
        1 - np.sum(errors**2) / np.sum((prices - prices.mean()) ** 2)
    )
    assert r2["baseline"] == 0


def test_rows_that_have_no_figure_leave_it_out(model, tmp_path):
    rows = {"age": [1, 2], "ward": ["a", "b"]}
    assert list(score(model, rows | {"sick": ["no", "no"]}, public=True)) == ["accuracy"]
    unknown = score(model, rows | {"sick": ["perhaps", "maybe"]}, public=True)
    assert unknown == {"accuracy": {"value": 0.0, "baseline": 0.5}}
    saved(tmp_path / "price", PRICE)
    same = score(pv.load(tmp_path / "price"), {"size": [1, 2], "price": [5, 5]}, public=True)
    assert list(same) == ["root mean squared error"]


def test_a_score_is_refused_unless_rows_are_declared_public(model, table):
    for said in (False, None, 1, "yes"):
        with pytest.raises(pv.ArgumentError, match="declare public=True"):
            score(model, table, public=said)
    assert score(model, table, public=True)


def test_the_private_table_is_not_scored_by_its_name(tmp_path, table):
    saved(tmp_path / "out", SICK)
    (tmp_path / "out" / "config.json").write_text('{"table": "new.csv"}')
    loaded = pv.load(tmp_path / "out")
    assert loaded.trained_on == "new.csv"
    with pytest.raises(pv.ArgumentError, match="would reveal private rows"):
        score(loaded, table, public=True)
    assert score(loaded, table.rename(tmp_path / "test.csv"), public=True)


@pytest.mark.parametrize("missing", [None, "", "?"])
def test_a_missing_target_is_refused(missing, model, tmp_path):
    rows = {"age": [1, 2], "ward": ["a", "b"], "sick": ["no", missing]}
    with pytest.raises(pv.DataError, match="target in every row of column 'sick'"):
        score(model, rows, public=True)
    with pytest.raises(pv.ArgumentError, match="'sick'"):
        score(model, {"age": [1], "ward": ["a"]}, public=True)
    saved(tmp_path / "price", PRICE)
    with pytest.raises(pv.DataError, match="target in every row of column 'price'"):
        score(pv.load(tmp_path / "price"), {"size": [1], "price": [missing]}, public=True)
