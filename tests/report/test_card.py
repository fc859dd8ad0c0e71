"""Model cards: the statement's own words, what hubs read, and names as text."""

import json
import os
import re

import pytest
from markdown_it import MarkdownIt

import privada as pv
from privada.report import Entry, model_card, write_model_card
from privada.report.entries import with_baselines
from privada.tables import (
    Category,
    Classes,
    Date,
    Hashed,
    Ignore,
    Mixed,
    Number,
    Range,
    Schema,
    Text,
)
from privada.workflows import TrainOptions, TuneOptions, train_table, tune_table, write_report
from tests.report.conftest import results, trained
from tests.workflows.saved_models import saved

SICK = Schema(
    Classes("sick", ["no", "yes"]),
    {
        "patient": Ignore(),
        "age": Number(0, 100, bins=5),
        "pay": Number(-1, 1, bounds="estimated"),
        "ward": Category(["a", "b"], other=True),
        "town": Hashed(),
        "grade": Mixed(0, 9, bounds="default"),
        "seen": Date("2000-01-01", "2020-01-01", parts=["month", "hour"]),
    },
)


def page_of(card):
    """Return the header's values, and the rest as the HTML and the words that a hub shows."""
    _, header, body = card.split("---\n", 2)
    values = dict(line.split(": ", 1) for line in header.strip().splitlines())
    html = MarkdownIt("gfm-like", {"linkify": False}).disable("linkify").render(body)
    words = re.sub(r"<[^>]+>", " ", html)
    for name, sign in (("lt", "<"), ("gt", ">"), ("quot", '"'), ("amp", "&")):
        words = words.replace(f"&{name};", sign)
    return {name: json.loads(value) for name, value in values.items()}, html, one_line(words)


def one_line(words):
    return " ".join(words.split())


@pytest.fixture
def folder(tmp_path):
    """Return a folder as training leaves it, of a schema."""

    def make(schema=SICK, metrics=None, trainer=None, **facts):
        entry = Entry.of_trainer(trainer or trained(), metrics=metrics or {})
        place = results(tmp_path / "out", entry)
        saved(place, schema, **facts)
        return place

    return make


def test_it_says_what_the_statement_says(folder):
    place = folder(units=450)
    stated = Entry.of_folder(place).stated
    header, html, words = page_of(model_card(place))
    assert header == {
        "library_name": "privada",
        "pipeline_tag": "tabular-classification",
        "tags": ["differential-privacy", "tabular"],
    }
    said = [stated.promise(), *(value for _, value in stated.facts())]
    said += [item for _, items in stated.sections() for item in items]
    for sentence in said:
        assert one_line(sentence) in words, sentence
    assert "How many there are is public: 450." in words
    assert "pay number clipped to -1 to 1, which a charged query has found" in words
    assert "age number clipped to 0 to 100, shared between 5 bins" in words
    assert "ward category 2 values, or another one" in words
    assert "sick target one of no, yes" in words
    assert "None: there were no public rows" in words
    assert "from 6 columns" in words
    assert "place between 2000-01-01 and 2020-01-01, with its month, hour" in words
    assert "by default, since no query has found any; other text hashed to 32" in words
    assert html.count("<h1>") == 1
    assert 'pv.load("out")' in model_card(place)


def test_metrics_are_there_for_hubs(folder):
    place = folder(metrics={"accuracy on public rows": 0.75, "odd": float("nan")})
    header, _, words = page_of(model_card(place))
    found = header["model-index"][0]["results"][0]["metrics"]
    assert found == [
        {"type": "accuracy_on_public_rows", "name": "accuracy on public rows", "value": 0.75}
    ]
    assert "accuracy on public rows 0.75" in words


def test_metrics_have_a_baseline_beside_them(folder):
    name = "accuracy on public rows"
    place = folder(metrics={name: 0.75})
    (place / "metrics.json").write_text(json.dumps(with_baselines({name: 0.75}, {name: 0.5})))
    header, _, words = page_of(model_card(place))
    assert "metric value baseline accuracy on public rows 0.75 0.5" in words
    assert len(header["model-index"][0]["results"][0]["metrics"]) == 1


def test_a_seeded_run_is_said_to_be_no_private_release(folder):
    _, html, words = page_of(model_card(folder(trainer=trained(seed=1))))
    assert "Seeded: not a private release." in words
    assert "<strong>Seeded: not a private release." in html


def test_text_regression_and_own_models(folder):
    schema = Schema(Range("stars", 1, 5), {"note": Text(features=8)})
    place = folder(schema)
    facts = json.loads((place / "model.json").read_text())
    facts["architecture"]["kind"] = "mine:make"
    (place / "model.json").write_text(json.dumps(facts))
    header, _, words = page_of(model_card(place))
    assert header["pipeline_tag"] == "tabular-regression"
    assert "a number between 1 and 5" in words
    assert "predict_proba" not in words
    assert 'trust="mine:make"' in words
    Schema(Classes("up", ["0", "1"]), schema.columns).write(place / "schema.toml")
    assert page_of(model_card(place))[0]["pipeline_tag"] == "text-classification"


NASTY = ["<script>x</script>", "a|b", "`c` *d* __e__", "[f](http://g)", "# h", "1. i", "$j$ &lt;"]


def test_names_are_text_whatever_is_in_them(folder):
    columns = {name: Number(0, 1) for name in NASTY} | {"two\nlines: ---": Hashed()}
    place = folder(Schema(Classes("=t", ["*no*", "<yes>"]), columns))
    _, html, words = page_of(model_card(place, name="--- [x] <b>"))
    for name in [*NASTY, "two lines: ---", "=t", "one of *no*, <yes>", "--- [x] <b>"]:
        assert name in words, name
    assert not any(f"<{tag}>" in html for tag in ("script", "b", "em", "code>c"))
    assert "href" not in html.replace('href="https://en.wikipedia.org/', "")
    assert html.count("<h1>") == 1


def test_privada_report_writes_it_anew(folder, tmp_path, monkeypatch):
    place = folder()
    write_model_card(place)
    whole = (place / "model_card.md").read_text()
    assert whole == model_card(place)
    (place / "model_card.md").write_text("old")
    write_report([place], tmp_path / "r.html")
    assert (place / "model_card.md").read_text() == whole
    (place / "model_card.md").write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)
    write_report([place], tmp_path / "r.html")
    assert (place / "model_card.md").read_text() == "old"
    (place / "schema.toml").unlink()
    write_report([place], tmp_path / "r.html")
    with pytest.raises(pv.ArgumentError, match=r"schema\.toml"):
        model_card(place)


def test_trained_and_tuned_folders_have_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{k % 90},{'yes' if k % 90 > 40 else 'no'}" for k in range(300)]
    (tmp_path / "t.csv").write_text("age,sick\n" + "\n".join(lines))
    (tmp_path / "s.toml").write_text(Schema(SICK.target, {"age": Number(0, 100)}).to_toml())
    train_table("t.csv", TrainOptions(2.0, schema="s.toml", epochs=1), "trained")
    options = TuneOptions(2.0, schema="s.toml", epochs=1, space={"lr": [0.1, 1.0]})
    tune_table("t.csv", options, "tuned")
    for name in ("trained", "tuned"):
        card = (tmp_path / name / "model_card.md").read_text()
        assert card == model_card(name) == pv.load(name).card
        words = page_of(card)[2]
        assert one_line(pv.load(name).statement.promise()) in words
        assert "How many there are is public: 300." in words
        assert words.startswith(f"{name} A linear model that predicts the class of sick from one")
        assert str(tmp_path) not in card
