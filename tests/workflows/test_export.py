"""Exported networks: the same scores in another runtime, and a description that is enough."""

import hashlib
import json
import logging
import math
import re
import sys
import warnings
from datetime import UTC, datetime

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import privada as pv
from privada.tables import (
    Category,
    Classes,
    Date,
    Hashed,
    Ignore,
    Matrix,
    Mixed,
    Number,
    Range,
    Schema,
    Text,
)
from tests.workflows.saved_models import saved

COLUMNS = {
    "id": Ignore(),
    "age": Number(0, 100, missing="flag"),
    "income": Number(-10, 1e6, scale="log", missing="low"),
    "height": Number(1, 2, bins=4),
    "weight": Number(1, 200, scale="log", missing="flag", bins=3),
    "ward": Category(["a", "b"], other=True),
    "town": Hashed(7),
    "grade": Mixed(0, 9, scale="log", buckets=5),
    "seen at": Date("2000-01-01", "2020-06-01T12:00", ["month", "weekday", "hour"], missing="flag"),
    "born": Date("1900-01-01", "2000-01-01", ["day"], format="%d.%m.%Y"),
    "note": Text(features=40),
    "review": Text(vocabulary="words.txt", public_text="docs.txt", weighting="tf-idf"),
    "seen": Text(features=9, weighting="presence", unit_norm=False),
    "said": Text(features=5, weighting="log"),
}
ROWS = {
    "age": [10, None, 150, 33.25],
    "income": [0, 12345.6, None, -3],
    "height": [1.5, None, 1.75, 99],
    "weight": [1, None, 77.5, 300],
    "ward": ["a", "z", None, "b"],
    "town": ["Ulm", None, "7", "Bonn"],
    "grade": ["7", "B", None, "-3.5"],
    "seen at": ["2010-05-06T07:08", None, "1999-01-01", "2015-12-31T23:59:00+05:00"],
    "born": ["06.05.1954", None, "31.12.2011", "01.01.1900"],
    "note": ["It's late, late", None, "", "Words words"],
    "review": ["good bad good", "unknown", None, "Good!"],
    "seen": ["a b a", "c", None, ""],
    "said": ["so so so it is", None, "is", ""],
}


@pytest.fixture
def everything(tmp_path):
    (tmp_path / "words.txt").write_text("good\nbad\nugly\n")
    (tmp_path / "docs.txt").write_text("good good\nbad\ngood ugly\n")
    schema = Schema(Classes("sick", ["no", "yes", "so"]), COLUMNS, folder=tmp_path)
    saved(tmp_path / "out", schema, hidden=(6,))
    return pv.load(tmp_path / "out")


@pytest.fixture
def regression(tmp_path):
    columns = {"pixels": Matrix(3, -5, 255), "size": Number(0, 10)}
    saved(tmp_path / "price", Schema(Range("price", 1, 1000, "log"), columns))
    return pv.load(tmp_path / "price")


def run(path, features):
    """Return what an exported network gives."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(torch.from_numpy(features)).detach().numpy()
    session = onnxruntime.InferenceSession(path)
    assert [(put.name, put.shape) for put in session.get_inputs()] == [
        ("features", ["rows", features.shape[1]])
    ]
    return session.run(None, {"features": features})[0]


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
@pytest.mark.parametrize("proba", [False, True])
def test_another_runtime_gives_the_same_for_any_number_of_rows(ending, proba, everything, tmp_path):
    path = everything.export(tmp_path / f"m.{ending}", proba=proba)
    features = everything.encode(ROWS)
    rng = np.random.default_rng(0)
    many = rng.uniform(-1, 1, (1000, features.shape[1])).astype(np.float32)
    for inputs in (features, features[:1], many):
        with torch.no_grad():
            expected = everything.model(torch.from_numpy(inputs))
        if proba:
            expected = torch.softmax(expected, 1)
        assert np.allclose(run(path, inputs), expected, rtol=0, atol=1e-5)
    if proba:
        assert np.allclose(run(path, features), everything.predict_proba(ROWS), rtol=0, atol=1e-5)


def test_the_model_itself_stays_as_it_is(everything, tmp_path):
    everything.model.double()
    features = everything.encode(ROWS)
    path = everything.export(tmp_path / "m.pt2")
    assert next(everything.model.parameters()).dtype == torch.float64
    assert run(path, features).dtype == np.float32


def test_onnx_is_valid_and_holds_its_description(everything, tmp_path):
    path = everything.export(tmp_path / "m.onnx", proba=True)
    made = onnx.load(path)
    onnx.checker.check_model(made, full_check=True)
    assert [output.name for output in made.graph.output] == ["probabilities"]
    held = {each.key: each.value for each in made.metadata_props}["privada"]
    assert json.loads(held) == json.loads((tmp_path / "m.onnx.json").read_text())
    extra = {"privada.json": ""}
    torch.export.load(everything.export(tmp_path / "m.pt2", proba=True), extra_files=extra)
    assert json.loads(extra["privada.json"]) == json.loads(held)
    # nothing of the machine that it was made on
    assert str(tmp_path).encode() not in path.read_bytes() + (tmp_path / "m.pt2").read_bytes()


# ---------------------------------------------------------------------- the description is enough


def by_rules(described, row):
    """Return the features of a row by the description alone, in plain Python."""
    made = [0.0] * len(described["features"])
    absent = {None, *described["missing"]}

    def bucket(text, width):
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % width

    def number(value, kind):
        low, high = (scaled(kind[end], kind["scale"]) for end in ("low", "high"))
        value = scaled(min(max(value, kind["low"]), kind["high"]), kind["scale"])
        return 2 * (value - low) / (high - low) - 1

    def moment(text, format=None):
        read = datetime.strptime(text, format) if format else datetime.fromisoformat(text)
        return read.astimezone(UTC) if read.tzinfo else read.replace(tzinfo=UTC)

    def scaled(x, scale):
        return math.copysign(math.log1p(abs(x)), x) if scale == "log" else x

    for name, kind in described["columns"].items():
        value, first, width = row[name], kind["first"], kind["features"]
        if kind["kind"] == "number":
            if value in absent:
                made[first] = -1.0 if kind["missing"] == "low" else 0.0
                if kind["missing"] == "flag":
                    made[first + 1] = 1.0
                continue
            made[first] = x = number(value, kind)
            if bins := kind["bins"]:
                p = (x + 1) / 2 * (bins - 1)
                k = min(math.floor(p), bins - 2)
                start = first + width - bins
                made[start + k], made[start + k + 1] = 1 - (p - k), p - k
        elif kind["kind"] == "mixed":
            try:
                made[first] = 0 if value in absent else number(float(value), kind)
            except ValueError:
                made[first + 1 + bucket(value, kind["buckets"])] = 1.0
        elif kind["kind"] == "date":
            assert kind["zone"] == "UTC"
            if value in absent:
                made[first + width - 1] = float(kind["missing"] == "flag")
                continue
            when = moment(value, kind["format"])
            low, high = (moment(kind[end]).timestamp() for end in ("low", "high"))
            share = (min(max(when.timestamp(), low), high) - low) / (high - low)
            made[first] = 2 * share - 1
            places = {
                "month": (when.month - 1) / 12,
                "day": (when.day - 1) / 31,
                "weekday": when.weekday() / 7,
                "hour": (when.hour + when.minute / 60) / 24,
            }
            for place, part in enumerate(kind["parts"]):
                angle = 2 * math.pi * places[part]
                made[first + 1 + 2 * place] = math.sin(angle)
                made[first + 2 + 2 * place] = math.cos(angle)
        elif kind["kind"] == "category":
            values = kind["values"]
            place = width - 1 if value in absent else len(values)
            made[first + (values.index(value) if value in values else place)] = 1.0
        elif kind["kind"] == "hashed":
            if value not in absent:
                made[first + bucket(value, kind["buckets"])] = 1.0
        elif kind["kind"] == "matrix":
            largest = max(abs(kind["low"]), abs(kind["high"]))
            for place, cell in enumerate(value):
                made[first + place] = min(max(cell, kind["low"]), kind["high"]) / largest
        else:
            words, part = kind["words"], [0.0] * width
            for word in re.findall(r"\w+(?:'\w+)?", (value or "").lower()):
                if words is None:
                    part[bucket(word, width)] += 1
                elif word in words:
                    part[words.index(word)] += 1
            if kind["weighting"] == "presence":
                part = [float(count > 0) for count in part]
            if kind["weighting"] == "log":
                part = [1 + math.log(count) if count else 0.0 for count in part]
            part = [x * w for x, w in zip(part, kind["weights"] or [1] * width, strict=True)]
            norm = math.sqrt(sum(x * x for x in part)) if kind["unit_norm"] else 0
            made[first : first + width] = [x / (norm or 1) for x in part]
    return made


def test_the_description_is_enough_to_build_the_features(everything, regression, tmp_path):
    everything.export(tmp_path / "m.pt2")
    described = json.loads((tmp_path / "m.pt2.json").read_text())
    assert described["features"] == list(everything.feature_names)
    assert described["target"]["classes"] == everything.classes_.tolist()
    assert set(described["rules"]) == {
        "number", "mixed", "date", "category", "hashed", "text",
    }  # fmt: skip
    by_row = [dict(zip(ROWS, cells, strict=True)) for cells in zip(*ROWS.values(), strict=True)]
    made = [by_rules(described, row) for row in by_row]
    assert np.allclose(made, everything.encode(ROWS), rtol=0, atol=1e-6)
    regression.export(tmp_path / "price.pt2")
    described = json.loads((tmp_path / "price.pt2.json").read_text())
    assert set(described["rules"]) == {"number", "matrix"}
    rows = [{"pixels": [-9.0, 0.0, 999.0], "size": 3.0}, {"pixels": [1.0, 2.0, 3.0], "size": 0.0}]
    features = np.array([by_rules(described, row) for row in rows], np.float32)
    assert np.allclose(features, regression.encode(rows), rtol=0, atol=1e-6)
    target = described["target"]
    low, high = math.log1p(target["low"]), math.log1p(target["high"])
    scores = np.clip(run(tmp_path / "price.pt2", features)[:, 0], -1, 1)
    prices = np.expm1((scores + 1) / 2 * (high - low) + low)
    assert np.allclose(prices, regression.predict(rows), rtol=1e-4)


# ---------------------------------------------------------------------- what is refused


def test_places_and_formats_that_cannot_be_used_are_refused(everything, regression, tmp_path):
    with pytest.raises(pv.ArgumentError, match=r"ends in \.onnx or \.pt2"):
        everything.export(tmp_path / "m.pt")
    with pytest.raises(pv.ArgumentError, match="Cannot write"):
        everything.export(tmp_path / "no" / "m.pt2")
    with pytest.raises(pv.ArgumentError, match="model of classes for probabilities"):
        regression.export(tmp_path / "m.pt2", proba=True)
    before = sorted(tmp_path.iterdir())
    for taken in ("m.pt2", "m.pt2.json"):
        (tmp_path / taken).write_text("mine")
        with pytest.raises(pv.ArgumentError, match="which exists"):
            everything.export(tmp_path / "m.pt2")
        assert (tmp_path / taken).read_text() == "mine"
        (tmp_path / taken).unlink()
    assert sorted(tmp_path.iterdir()) == before


def test_without_onnx_the_remedy_is_named(everything, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(pv.ArgumentError, match=r"privada\[export\]"):
        everything.export(tmp_path / "m.onnx")
    assert sorted(tmp_path.iterdir()) == before


class ByRow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)

    def forward(self, features):
        return torch.stack([self.inner(row) for row in features if row.sum() < 99])


def test_a_model_that_torch_cannot_export_is_refused(regression, tmp_path):
    own = pv.workflows.PrivateModel(ByRow(), regression.schema, tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(pv.ModelError, match=r"torch\.export"):
        own.export(tmp_path / "m.pt2")
    assert sorted(tmp_path.iterdir()) == before


def test_an_export_says_nothing_and_leaves_logging_as_it_was(everything, tmp_path, capfd):
    level = logging.getLogger("torch.onnx").level
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        everything.export(tmp_path / "m.onnx")
        everything.export(tmp_path / "m.pt2")
    assert logging.getLogger("torch.onnx").level == level
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")
