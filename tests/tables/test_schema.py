import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privada.core.errors import ArgumentError, DataError
from privada.tables import (
    Category,
    Classes,
    Hashed,
    Ignore,
    Matrix,
    Number,
    Range,
    Schema,
    Text,
)

WHOLE = """
[target]
column = "income"
classes = ["<=50K", ">50K"]

[options]
missing = ["", "?"]

[columns.age]
kind = "number"
low = 17
high = 90
missing = "flag"

[columns.gain]
kind = "number"
low = 0
high = 1e5
scale = "log"

[columns.sex]
kind = "category"
values = ["F", "M"]
other = true

[columns."marital status"]
kind = "hashed"
buckets = 4

[columns.review]
kind = "text"
features = 8
weighting = "presence"

[columns.pixels]
kind = "matrix"
width = 2
low = 0
high = 255

[columns.id]
kind = "ignore"
"""


@pytest.fixture
def parsed(tmp_path):
    def parse(text):
        path = tmp_path / "schema.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return Schema.read(path)

    return parse


def test_a_schema_says_what_it_says(parsed):
    schema = parsed(WHOLE)
    assert schema.task == "classification"
    assert schema.target == Classes("income", ["<=50K", ">50K"])
    assert schema.columns["age"] == Number(17, 90, missing="flag")
    assert schema.columns["sex"] == Category(["F", "M"], other=True)
    assert schema.ignored == {"id"}
    assert schema.number_columns == {"age", "gain"}
    assert schema.pending == ()
    assert schema.missing == ("", "?")
    assert schema.features == (
        *("age", "age (missing)", "gain"),
        *("sex=F", "sex=M", "sex (other)", "sex (missing)"),
        *(f"marital status#{i}" for i in range(4)),
        *(f"review#{i}" for i in range(8)),
        *("pixels[0]", "pixels[1]"),
    )
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_a_schema_is_written_and_read_again(parsed, tmp_path):
    schema = parsed(WHOLE)
    schema.write(tmp_path / "again.toml", "by hand")
    assert Schema.read(tmp_path / "again.toml") == schema
    assert (tmp_path / "again.toml").read_text().startswith("# by hand\n\n[target]")


def test_regression_is_told_by_bounds(parsed):
    schema = parsed('[target]\ncolumn = "y"\nlow = 0\nhigh = 9\n[columns.x]\nkind = "hashed"')
    assert schema.task == "regression"
    assert schema.number_columns == {"y"}
    text = '[target]\ncolumn = "y"\nbounds = "estimate"\n[columns.x]\nkind = "hashed"'
    assert parsed(text).pending == ("y",)


names = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1)
bounds = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e300))
kinds = (
    st.builds(
        lambda pair, s, bins: Number(pair[0], sum(pair), s, bins=bins),
        bounds,
        st.sampled_from(["linear", "log"]),
        st.sampled_from([0, 2, 16]),
    )
    | st.builds(Hashed, st.integers(2, 99))
    | st.builds(
        Category,
        st.lists(names.map(str.strip), min_size=1, unique=True),
        st.booleans(),
    )
    | st.builds(Text, st.integers(2, 99), st.sampled_from(["count", "presence"]))
    | st.just(Number(bounds="estimate"))
    | st.just(Ignore())
)


@given(st.dictionaries(names.filter(lambda n: n != "target y"), kinds, max_size=4), bounds)
def test_every_schema_survives_its_file(tmp_path_factory, columns, pair):
    path = tmp_path_factory.mktemp("schema") / "schema.toml"
    schema = Schema(
        Range("target y", pair[0], sum(pair)), {**columns, "used": Hashed()}, missing=["\x00"]
    )
    schema.write(path)
    assert Schema.read(path) == schema


def edited(old, new):
    assert old in WHOLE
    return WHOLE.replace(old, new)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("'target'", "[target]")),
        ("[target]\ncolumn = 1 2", ("TOML", "line 2")),
        (b"\xff", ("UTF-8",)),
        ('target = "income"', ("section 'target'",)),
        ('[target]\ncolumn = "y"\nclasses = [0, 1]', ("section 'columns'",)),
        ('[target]\ncolumn = "y"\nclasses = [0, 1]\n[columns]', ("at least one column",)),
        ('[target]\ncolumn = "y"\nclasses = [0, 1]\ncolumns.x = 3', ("columns",)),
        (WHOLE + "[colums.x]\n", ("'colums'", "Did you mean 'columns'?")),
        (edited("missing = [", "mising = ["), ("[options]", "'mising'", "Did you mean 'missing'?")),
        (edited('missing = ["", "?"]', 'missing = "?"'), ("missing to be a list",)),
        (edited('missing = ["", "?"]', "missing = [1]"), ("missing to be a list",)),
        (edited('missing = ["", "?"]', 'missing = ["F"]'), ("'sex'", "missing", "'F'")),
        (edited('"<=50K", ">50K"', '"<=50K"'), ("[target]", "at least 2", "single")),
        (edited('"<=50K", ">50K"', '"a", "a"'), ("[target]", "all different")),
        (edited('"<=50K", ">50K"', '"", "a"'), ("'income'", "missing")),
        (edited('["<=50K", ">50K"]', '"a"'), ("[target]", "classes to be a list")),
        (edited('["<=50K", ">50K"]', '"?"'), ("[target]", "filled in")),
        (edited('["<=50K", ">50K"]', "[[1], [2]]"), ("[target]", "text or numbers")),
        (edited("classes", "clases"), ("[target]", "Did you mean 'classes'?")),
        (edited('classes = ["<=50K", ">50K"]', ""), ("[target]", "classification", "regression")),
        (edited('column = "income"', ""), ("[target]", "'column'", "Add it")),
        (edited('column = "income"', "column = 3"), ("[target]", "column", "3")),
        (edited('column = "income"', 'column = "age"'), ("'age'", "from itself")),
        (edited("low = 17", 'low = "?"'), ("[columns.age]", "low", "estimate")),
        (edited("low = 17", "low = 91"), ("[columns.age]", "low < high", "91")),
        (edited("low = 17", "low = nan"), ("[columns.age]", "low to be finite")),
        (edited("low = 17", "low = true"), ("[columns.age]", "low to be a number")),
        (edited("low = 17", ""), ("[columns.age]", "low", "estimate")),
        (edited("low = 17", "lo = 17"), ("[columns.age]", "'lo'", "Did you mean 'low'?")),
        (edited("low = 17", 'low = 17\nbounds = "estimate"'), ("[columns.age]", "no low")),
        (edited("low = 17", 'low = 17\nbounds = "guess"'), ("[columns.age]", "bounds", "guess")),
        (edited('"flag"', '"mean"'), ("[columns.age]", "missing", "'middle'", "'mean'")),
        (edited('"log"', '"square"'), ("[columns.gain]", "scale", "'square'")),
        (edited('"category"', '"categories"'), ("[columns.sex]", "kind", "'categories'")),
        (edited('kind = "category"', ""), ("[columns.sex]", "kind", "'category'")),
        (edited('values = ["F", "M"]', ""), ("[columns.sex]", "'values'")),
        (edited('values = ["F", "M"]', "values = []"), ("[columns.sex]", "at least 1", "hashed")),
        (edited("other = true", "other = 1"), ("[columns.sex]", "other", "true or false")),
        (edited("buckets = 4", "buckets = 1"), ('[columns."marital status"]', "buckets >= 2")),
        (edited("buckets = 4", "buckets = 2.5"), ("buckets to be a whole number",)),
        (edited("features = 8", "features = 0"), ("[columns.review]", "features >= 2")),
        (edited('"presence"', '"bm25"'), ("[columns.review]", "weighting", "'bm25'")),
        (edited('"presence"', '"tf-idf"'), ("[columns.review]", "public_text", "private table")),
        (edited("features = 8", 'public_text = "x"'), ("[columns.review]", "tf-idf")),
        (edited("width = 2", "width = 0"), ("[columns.pixels]", "width >= 1")),
        (
            edited("width = 2", 'width = 2\nlow = "?"').replace("low = 0\nhigh = 255", "high = 1"),
            ("[columns.pixels]", "low", "filled in"),
        ),
        (edited("high = 255", "high = 255\nsparse = 2"), ("[columns.pixels]", "sparse")),
        (edited("low = 0\nhigh = 255", "low = 1\nhigh = 9\nsparse = true"), ("low <= 0 <= high",)),
        (edited('kind = "ignore"', 'kind = "ignore"\nlow = 3'), ("[columns.id]", "'low'")),
    ],
)
def test_a_fault_is_told_with_its_place_in_one_line(parsed, text, words):
    with pytest.raises(ArgumentError) as raised:
        parsed(text)
    said = str(raised.value)
    assert "\n" not in said
    assert "schema.toml" in said
    for word in words:
        assert word in said, said


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(ArgumentError, match="No such file"):
        Schema.read(tmp_path / "none.toml")
    with pytest.raises(ArgumentError, match="directory"):
        Schema.read(tmp_path)
    with pytest.raises(ArgumentError, match="path"):
        Schema.read(None)
    schema = Schema(Range("y", 0, 1), {"x": Hashed()})
    with pytest.raises(ArgumentError, match="Cannot write"):
        schema.write(tmp_path)
    with pytest.raises(ArgumentError, match="Cannot write"):
        schema.write(tmp_path / "no" / "schema.toml")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Schema("y", {"x": Hashed()}), "Classes or Range"),
        (lambda: Schema(Range("y", 0, 1), {"x": "number"}), "'x' to have a kind"),
        (lambda: Schema(Range("y", 0, 1), {"x": Ignore()}), "at least one column"),
        (lambda: Number(-1e308, 1e308), "low < high"),
        (lambda: Number(1e16, 1e16 + 2, "log"), "by more than rounding"),
        (lambda: Matrix(2, None, 1), "low to be a number"),
        (lambda: Category("FM"), "values to be a list"),
    ],
)
def test_rubbish_in_code_is_refused_too(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


def test_numbers_in_lists_are_text():
    assert Classes("y", [0, 1.0, 2.5, True]).classes == ("0", "1", "2.5", "true")


# ---------------------------------------------------------------------- public files


def with_text(folder, **settings):
    return Schema(Classes("y", ["a", "b"]), {"x": Text(**settings)}, folder=folder)


def test_a_vocabulary_is_read_from_beside_the_schema(tmp_path):
    (tmp_path / "words.txt").write_text("Good\nbad\n\ngood\nugly\n")
    assert with_text(tmp_path, vocabulary="words.txt").features == ("x: good", "x: bad", "x: ugly")
    assert with_text(tmp_path, vocabulary="words.txt", features=2).features == (
        "x: good",
        "x: bad",
    )
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(DataError, match="a word on each line"):
        with_text(tmp_path, vocabulary="empty.txt")
    with pytest.raises(DataError, match="got none"):
        with_text(tmp_path, vocabulary="none.txt")


def test_paths_follow_a_schema_to_another_folder(tmp_path):
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "words.txt").write_text("good\nbad\n")
    schema = with_text(tmp_path, vocabulary="public/words.txt")
    (tmp_path / "runs").mkdir()
    schema.write(tmp_path / "runs" / "schema.toml")
    again = Schema.read(tmp_path / "runs" / "schema.toml")
    assert again.features == schema.features
    assert again.columns["x"].vocabulary == str(Path("..", "public", "words.txt"))


# ---------------------------------------------------------------------- dense or sparse


@pytest.mark.parametrize(
    ("columns", "sparse"),
    [
        ({"a": Number(0, 1), "b": Hashed(8)}, False),
        ({"a": Hashed(256)}, True),
        ({"a": Text(features=4)}, True),
        ({"a": Matrix(500, 0, 1)}, False),
        ({"a": Matrix(500, 0, 1, sparse=True)}, True),
        ({f"n{i}": Number(0, 1) for i in range(100)} | {"a": Hashed(256)}, False),
        ({f"n{i}": Hashed(200) for i in range(10)}, True),
        ({f"n{i}": Number(0, 1, bins=16) for i in range(100)}, False),
        ({f"n{i}": Number(0, 1, bins=32) for i in range(100)}, True),
    ],
)
def test_wide_features_of_few_entries_are_sparse(columns, sparse):
    assert Schema(Classes("y", ["a", "b"]), columns).sparse is sparse
