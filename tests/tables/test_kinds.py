"""Kinds of columns in short words, by which names and types are overruled."""

import pytest

from privada import tables
from privada.core.errors import ArgumentError, DataError
from privada.tables.kinds import FORMS, column_kinds, column_type, usual_type

# What each form stands for, where nothing else is known of the column.
MEANT = {
    "number": tables.Number(bounds="estimate"),
    "number:0..120": tables.Number(0, 120),
    "number:-1.5..2e3": tables.Number(-1.5, 2000),
    "mixed": tables.Mixed(bounds="estimate"),
    "mixed:0..9": tables.Mixed(0, 9),
    "date": tables.Date("1950-01-01", "2050-01-01", parts=["month", "weekday"]),
    "date:2015-01-01..2025-06-30": tables.Date("2015-01-01", "2025-06-30", ["month", "weekday"]),
    "date:%d.%m.%Y": tables.Date("1950-01-01", "2050-01-01", ["month", "weekday"], "%d.%m.%Y"),
    "date:2015-01-01..2025-01-01:%d.%m.%Y %H:%M": tables.Date(
        "2015-01-01", "2025-01-01", ["month", "weekday"], "%d.%m.%Y %H:%M"
    ),
    "category:yes, no": tables.Category(["yes", "no"], other=True),
    "hashed": tables.Hashed(),
    "hashed:64": tables.Hashed(64),
    "text": tables.Text(),
    "text:256": tables.Text(features=256),
    "ignore": tables.Ignore(),
}


@pytest.mark.parametrize(("words", "kind"), MEANT.items(), ids=MEANT)
def test_each_form_says_what_a_column_is(words, kind):
    assert usual_type("x", column_kinds([f"x={words}"])["x"]) == kind
    assert usual_type("x", kind) == kind
    assert words.partition(":")[0] in FORMS


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["x"], "--column NAME=KIND, got 'x'"),
        (["=number"], "NAME=KIND"),
        (["x="], "NAME=KIND"),
        (["x=numbre"], "Did you mean 'number'"),
        (["x=number", "x=text"], "'x' twice"),
        (["x=number:5"], "In --column x=number:5: expected LOW..HIGH"),
        (["x=number:a..b"], "in numbers"),
        (["x=number:5..1"], "low < high"),
        (["x=mixed:1..inf"], "high"),
        (["x=date:2020-13-01..2021-01-01"], "In --column .*date"),
        (["x=date:2021-01-01..2020-01-01"], "low < high"),
        (["x=category:a,a"], "all different"),
        (["x=category:"], "values"),
        (["x=hashed:many"], "BUCKETS to be a whole number"),
        (["x=hashed:1"], "BUCKETS"),
        (["x=text:-5"], "FEATURES"),
        (["x=ignore:5"], "ignore alone"),
        (["x=matrix"], "KIND"),
        ({"x": tables.Person()}, "--person"),
        ({"x": 5}, "column type"),
    ],
    ids=str,
)
def test_mistakes_say_what_to_write(given, words):
    with pytest.raises(ArgumentError, match=words) as raised:
        column_kinds(given)
    assert "\n" not in str(raised.value)


def test_a_category_needs_its_values_unless_public_rows_have_them():
    with pytest.raises(ArgumentError, match="x=category:yes,no, or take hashed"):
        usual_type("x", "category")
    public = tables.Table({"x": [2, 1, 2], "y": ["a", "b", "a"]})
    found = tables.infer_schema(public, target="y", public=True, columns={"x": "category"})
    assert found.columns["x"] == tables.Category(["1", "2"], other=True)


def test_a_column_type_is_taken_as_it_is():
    kind = tables.Number(0, 9, missing="flag")
    assert column_type("x", kind, str) is kind


# ---------------------------------------------------------------------- public values

PUBLIC = tables.Table(
    {
        "code": ["250", "V27", "8", "V27"],
        "number": [1, 5, 9, 4],
        "day": ["2020-01-05", "2021-03-01", "2020-12-31", "2020-06-06"],
        "y": ["a", "b"] * 2,
    }
)


@pytest.mark.parametrize(
    ("column", "word", "kind"),
    [
        ("code", "mixed", tables.Mixed(0, 250)),
        ("day", "mixed", tables.Mixed(0, 1)),
        ("code", "hashed", tables.Hashed(32)),
        ("code", "text", tables.Text()),
        ("code", "ignore", tables.Ignore()),
        ("number", "number", tables.Number(1, 9)),
        ("number", "number:0..9", tables.Number(0, 9)),
        ("number", "category", tables.Category(["1", "4", "5", "9"], other=True)),
        ("day", "date", tables.Date("2020-01-01", "2022-01-01", ["month", "weekday"])),
    ],
)
def test_public_values_say_what_a_word_leaves_open(column, word, kind):
    found = tables.infer_schema(PUBLIC, target="y", public=True, columns={column: word})
    assert found.columns[column] == kind


@pytest.mark.parametrize(("column", "word"), [("code", "number"), ("code", "date")])
def test_public_values_of_another_kind_are_refused(column, word):
    with pytest.raises(DataError, match="column 'code'"):
        tables.infer_schema(PUBLIC, target="y", public=True, columns={column: word})


@pytest.mark.parametrize(("name", "words"), [("y", "--class"), ("cod", "Did you mean 'code'")])
def test_a_column_that_is_no_input_is_refused(name, words, tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("code,y\n1,a\n")
    with pytest.raises(ArgumentError, match=words):
        tables.infer_schema(PUBLIC, target="y", public=True, columns={name: "text"})
    with pytest.raises(ArgumentError, match=words):
        tables.schema_template(file, target="y", columns={name: "text"})


# ---------------------------------------------------------------------- templates


def test_a_template_has_what_is_said_and_asks_for_the_rest(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("a;b;c;y\n250,83;1;x;no\n")
    said = {"a": "mixed", "b": "category", "c": "hashed:8"}
    text = tables.schema_template(file, target="y", columns=said, decimal=",")
    assert '[columns.a]\nkind = "mixed"\nlow = "?"' in text
    assert '[columns.b]\nkind = "category"\nvalues = "?"\nother = true' in text
    assert '[columns.c]\nkind = "hashed"\nbuckets = 8' in text
    assert '[options]\ndecimal = ","' in text
    (tmp_path / "s.toml").write_text(text.replace('classes = "?"', 'classes = ["no", "yes"]'))
    with pytest.raises(ArgumentError, match=r"\[columns.a\].*low to be filled in"):
        tables.Schema.read(tmp_path / "s.toml")
