"""Models that are loaded to predict: the same figures as in training, from whatever rows."""

import contextlib
import csv
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas
import polars
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import privada as pv
from privada import tables
from privada.tables import Category, Classes, Hashed, Ignore, Matrix, Number, Range, Schema, Text
from privada.workflows import TrainOptions, TuneOptions, train_table, tune_table
from tests.workflows.saved_models import saved

AGES = Schema(
    Classes("sick", ["no", "yes"]),
    {"id": Ignore(), "age": Number(0, 100), "ward": Category(["a", "b"])},
)
ROWS = {"age": [10, 90.5, None], "ward": ["a", "b", None]}
PRICES = Schema(Range("price", 0, 1000), {"size": Number(0, 10)})


@pytest.fixture
def model(tmp_path):
    saved(tmp_path / "out", AGES)
    return pv.load(tmp_path / "out")


# ---------------------------------------------------------------------- the same as in training

NAMES = st.text(st.sampled_from("ab ,'\"=.[]é1"), min_size=1, max_size=6).filter(
    lambda name: name == name.strip()
)
WORDS = st.text(st.sampled_from("abc xyz1'"), max_size=9)
NUMBERS = st.one_of(st.floats(-1e6, 1e6), st.integers(-1000, 1000), st.none())


@st.composite
def columns(draw):
    """Return the kind of a column, and what its cells may be."""
    kind = draw(st.sampled_from(["number", "category", "hashed", "text", "ignore"]))
    if kind == "number":
        low = draw(st.integers(-100, 100))
        missing = draw(st.sampled_from(["low", "middle", "flag"]))
        scale = draw(st.sampled_from(["linear", "log"]))
        return Number(low, low + draw(st.integers(1, 100)), scale, missing), NUMBERS
    if kind == "category":
        values = draw(st.lists(st.sampled_from("pqrs"), min_size=1, unique=True))
        other = draw(st.booleans())
        cells = st.sampled_from([*values, *(["t", "1.0"] if other else [])])
        return Category(values, other=other), st.one_of(cells, st.none())
    if kind == "hashed":
        # a file's 1.0 is another text than 1
        return Hashed(draw(st.integers(2, 9))), st.one_of(WORDS, st.integers(-9, 9), st.none())
    if kind == "text":
        return Text(features=draw(st.integers(2, 300))), WORDS
    return Ignore(), WORDS


@st.composite
def problems(draw):
    """Return a schema, rows that fit it, and the widths of a model's hidden layers."""
    names = draw(st.lists(NAMES, min_size=3, max_size=6, unique=True))
    target, extra, *inputs = names
    found = {name: draw(columns()) for name in inputs}
    if all(isinstance(kind, Ignore) for kind, _ in found.values()):
        found[inputs[0]] = Number(0, 1), NUMBERS
    classes = Classes(target, ["u", "v", "w"][: draw(st.integers(2, 3))])
    goal = draw(st.sampled_from([classes, Range(target, -5, 5, "log")]))
    schema = Schema(goal, {name: kind for name, (kind, _) in found.items()})
    size = draw(st.integers(1, 6))
    rows = {
        name: draw(st.lists(cells, min_size=size, max_size=size))
        for name, (_, cells) in found.items()
    }
    rows[extra] = draw(st.lists(WORDS, min_size=size, max_size=size))
    return schema, rows, draw(st.sampled_from([(), (5,)]))


def as_csv(rows, path):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows)
        writer.writerows(zip(*rows.values(), strict=True))


@settings(max_examples=30, deadline=None)
@given(problems())
def test_predictions_are_those_of_the_model_on_encoded_rows(problem):
    schema, rows, hidden = problem
    with tempfile.TemporaryDirectory() as folder:
        trained = saved(Path(folder) / "out", schema, hidden=hidden)
        loaded = pv.load(Path(folder) / "out")
        known = {name: values for name, values in rows.items() if name in schema.columns}
        features = tables.encode_inputs(tables.Table(known), schema)
        dense = features if isinstance(features, np.ndarray) else features.toarray()
        with torch.no_grad():
            scores = trained(torch.from_numpy(dense))
        as_csv(rows, Path(folder) / "new.csv")
        if isinstance(schema.target, Classes):
            expected = np.array(schema.target.classes)[scores.argmax(1).numpy()]
            chances = torch.softmax(scores.double(), 1).numpy()
        else:
            expected, chances = schema.target.restore(scores[:, 0].double().numpy()), None
        by_row = [dict(zip(rows, cells, strict=True)) for cells in zip(*rows.values(), strict=True)]
        for given_as in (
            rows, by_row, tables.Table(rows), Path(folder) / "new.csv", pandas.DataFrame(rows),
            polars.DataFrame({name: polars.Series(values, strict=False) for name, values in
                              rows.items()}) if uniform(rows) else rows,
        ):  # fmt: skip
            assert np.array_equal(loaded.encode(given_as), dense)
            assert np.array_equal(loaded.predict(given_as), expected)
            if chances is not None:
                assert np.allclose(loaded.predict_proba(given_as), chances, rtol=0, atol=1e-12)


def uniform(rows):
    """Whether each column has cells of one type, as Polars wants them."""
    kinds = [{type(cell) for cell in cells if cell is not None} for cells in rows.values()]
    return all(len(kind) <= 1 for kind in kinds)


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("target", ["sick", "age"])
def test_a_trained_table_predicts_as_its_trainer_does(model, target, folder):
    options = TrainOptions(
        2.0, target=target, person="patient", epochs=1, model=model, hidden=(4,), seed=0,
        classes=("no", "yes") if target == "sick" else (),
    )  # fmt: skip
    trained = train_table("visits.csv", options, "out")
    loaded = pv.load("out")
    inputs = torch.from_numpy(loaded.encode("visits.csv"))
    with torch.no_grad():
        scores = trained.trainer.model(inputs).double().numpy()
    if target == "age":
        expected = loaded.schema.target.restore(scores[:, 0])
    else:
        expected = loaded.classes_[scores.argmax(axis=1)]
    assert np.array_equal(loaded.predict("visits.csv"), expected)
    assert loaded.statement == trained.statement
    assert loaded.feature_names == trained.data.schema.features
    assert (loaded.trained_on, loaded.method) == ("visits.csv", trained.trainer.method.describe())


def test_a_tuned_table_predicts(folder):
    options = TuneOptions(2.0, schema="s.toml", epochs=1, space={"lr": [0.1, 1.0]}, seed=0)
    (folder / "s.toml").write_text(
        (folder / "s.toml").read_text() + '\n[columns.patient]\nkind = "ignore"\n'
    )
    tuned = tune_table("visits.csv", options, "best")
    loaded = pv.load("best")
    with torch.no_grad():
        scores = tuned.selection.model(torch.from_numpy(loaded.encode("visits.csv")))
    assert loaded.predict("visits.csv").tolist() == [["no", "yes"][k] for k in scores.argmax(1)]
    assert loaded.statement == tuned.statement


# ---------------------------------------------------------------------- rows as people have them


def test_columns_that_are_not_needed_are_ignored(model, tmp_path):
    expected = model.predict(ROWS).tolist()
    more = ROWS | {"sick": ["?", None, "rubbish"], "id": [1, "x", None], "\x1b": [object()] * 3}
    assert model.predict(more).tolist() == expected
    for text in ("age,ward,sick,x\n10,a,?,1\n90.5,b,,2\n,,rubbish,3\n",):
        (tmp_path / "new.csv").write_text(text)
        assert model.predict(tmp_path / "new.csv").tolist() == expected
    lines = ['{"age": 10, "ward": "a"}', '{"age": 90.5, "ward": "b", "late": 1}', '{"sick": 2}']
    (tmp_path / "new.jsonl").write_text("\n".join(lines))
    assert model.predict(tmp_path / "new.jsonl").tolist() == expected
    pandas.DataFrame(more).drop(columns="\x1b").astype({"id": str}).to_parquet(
        tmp_path / "new.parquet"
    )
    assert model.predict(str(tmp_path / "new.parquet")).tolist() == expected


def test_the_column_of_persons_is_not_needed(tmp_path):
    saved(tmp_path / "out", AGES.with_person("patient"))
    loaded = pv.load(tmp_path / "out")
    with_person = ROWS | {"patient": [None, 1, "x"]}
    assert loaded.predict(ROWS).tolist() == loaded.predict(with_person).tolist()


def test_one_row_is_a_dict(model):
    assert model.predict({"age": 10, "ward": "a"}).tolist() == model.predict(ROWS)[:1].tolist()
    assert model.predict_proba({"age": None, "ward": None}).shape == (1, 2)
    assert model.predict(pandas.DataFrame(ROWS).iloc[1]).tolist() == [model.predict(ROWS)[1]]


def test_frames_of_several_types(model):
    frame = pandas.DataFrame(
        {
            "age": pandas.array([10, 90, None], dtype="Int64"),
            "ward": pandas.Categorical(["a", "b", None]),
        }
    )
    plain = model.predict_proba({"age": [10, 90, None], "ward": ["a", "b", None]})
    assert np.array_equal(model.predict_proba(frame), plain)
    numpy_strings = frame.astype({"age": "float32", "ward": object})
    assert np.array_equal(model.predict_proba(numpy_strings), plain)
    lazy = polars.LazyFrame({"age": [10, 90, None], "ward": ["a", "b", None], "x": [None] * 3})
    assert np.array_equal(model.predict_proba(lazy), plain)
    kind = polars.Enum(["a", "b"])
    assert np.array_equal(model.predict_proba(lazy.cast({"ward": kind}).collect()), plain)


def test_a_matrix_is_a_column_of_rows(tmp_path):
    saved(tmp_path / "out", Schema(Range("y", 0, 1), {"pixels": Matrix(3, 0, 255)}))
    loaded = pv.load(tmp_path / "out")
    pixels = [[0, 10, 255], [1, 2, 3]]
    expected = loaded.predict({"pixels": np.array(pixels)})
    assert np.array_equal(loaded.predict([{"pixels": row} for row in pixels]), expected)
    np.savez(tmp_path / "new.npz", pixels=np.array(pixels), y=np.zeros(2))
    assert np.array_equal(loaded.predict(tmp_path / "new.npz"), expected)
    with pytest.raises(pv.DataError, match="'pixels'"):
        loaded.predict([{"pixels": [1, 2, 3]}, {"pixels": [1, 2]}])


def test_batches_make_no_difference(model, monkeypatch):
    rows = {"age": list(range(100)), "ward": ["a", "b"] * 50}
    whole = model.predict_proba(rows)
    monkeypatch.setattr("privada.workflows.new_rows._NUMBERS", 7 * len(model.feature_names))
    monkeypatch.setattr("privada.workflows.private_model._NUMBERS", 3 * len(model.feature_names))
    assert np.array_equal(model.predict_proba(rows), whole)
    with pytest.raises(pv.DataError, match=r"'ward'.*row 38\."):
        model.predict(rows | {"ward": ["a"] * 37 + ["z"] * 63})


def test_a_file_is_read_and_predicted_in_parts(model, tmp_path, monkeypatch):
    rows = {"age": list(range(400)), "ward": ["a", "b"] * 200, "id": list(range(400))}
    as_csv(rows, tmp_path / "new.csv")
    whole = model.predict_proba(rows)
    monkeypatch.setattr("privada.tables.formats.delimited.BLOCK", 256)
    sizes = [table.size for table, _, _ in model.outcomes(tmp_path / "new.csv")]
    assert len(sizes) > 9
    assert sum(sizes) == 400
    assert np.array_equal(model.predict_proba(tmp_path / "new.csv"), whole)
    for wrong in ("age", "ward"):  # in a later part, and one that the reader or the encoder refuses
        cells = [*map(str, rows[wrong])]
        cells[317] = "SECRET"
        as_csv(rows | {wrong: cells}, tmp_path / "new.csv")
        with pytest.raises(pv.DataError, match=rf"'{wrong}'.* row 318\.") as caught:
            model.predict(tmp_path / "new.csv")
        assert "SECRET" not in str(caught.value)
        found = [table.size for table in stopped(model.outcomes(tmp_path / "new.csv"))]
        assert 256 < sum(found) <= 317
    (tmp_path / "new.csv").write_text("age,ward\n" + "1,a\n" * 300 + "1\n")
    with pytest.raises(pv.DataError, match="cells in each line"):
        model.predict(tmp_path / "new.csv")
    (tmp_path / "new.csv").write_text("age,ward\n")
    with pytest.raises(pv.DataError, match="at least one"):
        model.predict(tmp_path / "new.csv")


def stopped(outcomes):
    """Yield tables until an error."""
    with contextlib.suppress(pv.DataError):
        for table, _, _ in outcomes:
            yield table


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"ward": ["a"]}, "Expected the column 'age', which the model predicts from, got columns"),
        ({"Age": [1], "ward": ["a"]}, "Did you mean 'Age'"),
        ({}, "Expected the columns 'age', 'ward'"),
        ([{"age": 1, "ward": "a"}, {"age": 1}], "Expected the column 'ward'"),
        ({"age": [], "ward": []}, "at least one row"),
        ({"p17": {"age": 1, "ward": "a"}}, r"got a dict of dicts\. "),
        (pandas.DataFrame(index=[0, 1]), "got no column"),
        ([], "empty list"),
        ([1, 2], "a list of something else"),
        ({"age": 1, "ward": ["a"]}, "single value of 'age'"),
        ({"age": [1, 2], "ward": ["a"]}, "columns of one length"),
        (7, "got int"),
        (None, "got NoneType"),
        (np.zeros((2, 2)), "got ndarray"),
        ("none.csv", "none.csv"),
        ("new.xyz", "new.xyz"),
    ],
    ids=str,
)
def test_rows_that_cannot_be_used_are_refused(rows, words, model):
    with pytest.raises(pv.PrivadaError, match=words):
        model.predict(rows)


def test_errors_show_no_keys_of_single_rows_and_few_names(model):
    for rows in ([{"age": 1, "SECRET": 2}], {"SECRET": {"age": 1}}):
        with pytest.raises(pv.PrivadaError) as caught:
            model.predict(rows)
        assert "SECRET" not in str(caught.value)
    with pytest.raises(pv.DataError) as caught:
        model.predict({f"x{k}": [1] for k in range(9999)})
    assert len(str(caught.value)) < 500


def test_columns_of_one_name_are_refused(model):
    frame = pandas.DataFrame([[1, 2, "a"]], columns=["age", "age", "ward"])
    with pytest.raises(pv.DataError, match="'age' more than once"):
        model.predict(frame)


@pytest.mark.parametrize(
    ("rows", "column", "row"),
    [
        ({"age": [1, 2, 3], "ward": ["a", "SECRET", "SECRET"]}, "ward", 2),
        ({"age": [1, 2, "SECRET"], "ward": ["a"] * 3}, "age", 3),
        ({"age": [float("inf"), 2], "ward": ["a"] * 2}, "age", 1),
    ],
)
def test_a_wrong_cell_is_named_by_column_and_row_and_not_shown(rows, column, row, model, tmp_path):
    as_csv(rows, tmp_path / "new.csv")
    for given_as in (rows, tmp_path / "new.csv"):
        with pytest.raises(pv.DataError, match=rf"column '{column}'.* row {row}\.") as caught:
            model.predict(given_as)
        assert "SECRET" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None


def test_a_regression_has_no_probabilities_and_no_classes(tmp_path):
    saved(tmp_path / "out", PRICES)
    loaded = pv.load(tmp_path / "out")
    with pytest.raises(pv.ArgumentError, match=r"numbers of 'price'. Use predict"):
        loaded.predict_proba({"size": 3})
    assert not hasattr(loaded, "classes_")
    found = loaded.predict({"size": [-1e9, 1e9]})
    assert ((found >= 0) & (found <= 1000)).all()


def test_its_repr_says_what_it_is(model):
    assert repr(model).endswith("out': 'sick' from 2 columns)")


# ---------------------------------------------------------------------- folders that do not fit


def change(folder, name, **changes):
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("part", ["task", "classes", "features"])
def test_a_schema_that_does_not_fit_the_weights_is_refused(part, model):
    change(model.path, "model.json", **{part: ["other"]})
    with pytest.raises(pv.ArgumentError, match=f"the {part} in model.json and schema.toml differ"):
        pv.load(model.path)


def test_a_schema_of_another_order_is_refused(model):
    moved = Schema(AGES.target, {"ward": AGES.columns["ward"], "age": AGES.columns["age"]})
    moved.write(model.path / "schema.toml")
    with pytest.raises(pv.ArgumentError, match=r"the features in model\.json"):
        pv.load(model.path)


def test_bounds_that_are_pending_and_schemas_that_are_not_there_are_refused(tmp_path):
    waiting = Schema(Range("price", 0, 1), {"size": Number(bounds="estimate")})
    saved(tmp_path / "out", waiting)
    with pytest.raises(pv.ArgumentError, match="not estimated"):
        pv.load(tmp_path / "out")
    (tmp_path / "out" / "schema.toml").write_text("rubbish")
    with pytest.raises(pv.ArgumentError, match="TOML"):
        pv.load(tmp_path / "out")
    (tmp_path / "out" / "schema.toml").unlink()
    with pytest.raises(pv.ArgumentError, match=r"no file schema\.toml"):
        pv.load(tmp_path / "out")
    os.mkfifo(tmp_path / "out" / "schema.toml")
    with pytest.raises(pv.ArgumentError, match=r"no file schema\.toml"):
        pv.load(tmp_path / "out")


def test_a_vocabulary_that_is_not_there_is_named(tmp_path):
    (tmp_path / "words.txt").write_text("good\nbad\n")
    schema = Schema(Range("stars", 1, 5), {"text": Text(vocabulary="words.txt")}, folder=tmp_path)
    saved(tmp_path / "out", schema)
    assert pv.load(tmp_path / "out").predict({"text": "very good"}).shape == (1,)
    (tmp_path / "words.txt").write_text("SECRET\nbad\n")
    with pytest.raises(pv.ArgumentError, match=r"features in model\.json") as caught:
        pv.load(tmp_path / "out")
    assert "SECRET" not in str(caught.value)
    (tmp_path / "words.txt").unlink()
    with pytest.raises(pv.ArgumentError, match=r"cannot be read.*words\.txt"):
        pv.load(tmp_path / "out")


def test_places_without_a_model_are_named(tmp_path):
    with pytest.raises(pv.ArgumentError, match="not there"):
        pv.load(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(pv.ArgumentError, match="a file"):
        pv.load(tmp_path / "file")
    with pytest.raises(pv.ArgumentError, match=r"no file model\.json"):
        pv.load(tmp_path)
    (tmp_path / "checkpoint").touch()
    with pytest.raises(pv.ArgumentError, match="--resume"):
        pv.load(tmp_path)


def test_a_model_of_ones_own_is_trusted_by_name(tmp_path, monkeypatch):
    (tmp_path / "my_own_model.py").write_text(
        "import torch\n"
        "def make(i, o):\n    return torch.nn.Sequential(torch.nn.Linear(i, o))\n"
        "def wide(i, o):\n    return torch.nn.Linear(i, o + 1)\n"
        "def odd(i, o):\n    return torch.nn.Linear(i + 1, o)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, words in (("make", None), ("wide", "scores for a row"), ("odd", "fails on its")):
        kind = f"my_own_model:{name}"
        trained = saved(tmp_path / name, AGES, kind=kind)
        with pytest.raises(pv.ArgumentError, match="which is code"):
            pv.load(name)
        if words:
            with pytest.raises(pv.ArgumentError, match=words):
                pv.load(name, trust=kind)
            continue
        loaded = pv.load(name, trust=kind)
        expected = trained(torch.from_numpy(loaded.encode(ROWS))).argmax(1)
        assert loaded.predict(ROWS).tolist() == [AGES.target.classes[k] for k in expected]


def test_scores_beyond_floats_are_refused(tmp_path):
    saved(tmp_path / "out", AGES, hidden=(3,))
    loaded = pv.load(tmp_path / "out")
    with torch.no_grad():
        loaded.model[2].bias.fill_(torch.inf)
    with pytest.raises(pv.ModelError, match="finite scores"):
        loaded.predict({"age": 100, "ward": "a"})


def test_a_statement_that_is_damaged_is_named(model):
    for content in (None, "rubbish", "{}", "[]"):
        if content is not None:
            (model.path / "statement.json").write_text(content)
        with pytest.raises(pv.ArgumentError, match=r"statement\.json"):
            _ = pv.load(model.path).statement


# ---------------------------------------------------------------------- directories of old

OLD = Path(__file__).parent / "folders"
PEOPLE = {"age": [10, 50, 90, None], "ward": ["a", "b", "a", None], "sick": ["no", "yes", "", None]}


def test_a_directory_of_version_0_2_0_predicts():
    # as version 0.2.0 computed it: privada.models.load, tables.encode_inputs and a softmax
    expected = [0.0014401674392679512, 0.09244972654089147, 0.9996573768922198, 0.8418874839337636]
    loaded = pv.load(OLD / "0.2.0")
    assert np.allclose(loaded.predict_proba(PEOPLE)[:, 1], expected, rtol=0, atol=1e-6)
    assert loaded.predict(PEOPLE).tolist() == ["no", "no", "yes", "yes"]
    assert loaded.statement.epsilon <= 3
    assert loaded.trained_on == "visits.csv"
    assert one_line(loaded.statement.promise()) in one_line(loaded.card)


def test_a_directory_of_version_0_1_predicts():
    # as version 0.1 computed it, by a network with a hidden layer
    rows = PEOPLE | {"sick": ["no", "yes", None, "yes"]}
    expected = [52.79265213012695, 58.96686553955078, 51.289533615112305, 56.179325103759766]
    loaded = pv.load(OLD / "0.1")
    assert np.allclose(loaded.predict(rows), expected, rtol=0, atol=1e-3)
    assert loaded.statement.unit == "record"
    assert "a number between 4 and 256, which a charged query has found" in loaded.card


def one_line(words):
    return " ".join(words.replace("\\", "").split())
