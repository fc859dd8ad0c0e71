"""One value has one text, however a file, a database or a frame writes it."""

import datetime
import decimal
import json
import sqlite3
from contextlib import closing

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privada as pv
from privada import tables
from privada.core.errors import ArgumentError
from privada.tables.cells import canonical, text_of
from privada.workflows import TrainOptions, train_table

LISTED = ("1", "0", "true", "2.5", "100000", "2024-05-31", "a")
KINDS = {"h": tables.Hashed(4096), "c": tables.Category(LISTED, other=True),
         "m": tables.Mixed(0, 1, buckets=4096)}  # fmt: skip
SCHEMA = tables.Schema(tables.Classes("y", ["no", "yes"]), KINDS)
UTC = datetime.UTC


def encoded(source, schema=SCHEMA, **given):
    return tables.encode_inputs(tables.read(source, **given), schema).toarray()


def sources(values, folder, leave_out=()):
    """Yield what the features of values are, from each place that they can be in."""
    cells = dict.fromkeys(KINDS, values)
    frame = pd.DataFrame(cells)
    yield "frame", encoded(frame)
    yield "table", encoded(tables.Table(cells))
    frame.to_csv(folder / "t.csv", index=False)
    yield "csv", encoded(folder / "t.csv")
    frame.to_parquet(folder / "t.parquet")
    yield "parquet", encoded(folder / "t.parquet")
    if "excel" not in leave_out:
        frame.to_excel(folder / "t.xlsx", index=False)
        yield "excel", encoded(folder / "t.xlsx")
    if "json" not in leave_out:
        plain = [None if value != value else value for value in values]
        lines = [json.dumps(dict.fromkeys(KINDS, value), default=str) for value in plain]
        (folder / "t.jsonl").write_text("\n".join(lines))
        yield "json", encoded(folder / "t.jsonl")
    if "sql" not in leave_out:
        (folder / "t.db").unlink(missing_ok=True)
        with closing(sqlite3.connect(folder / "t.db")) as connection:
            frame.to_sql("t", connection, index=False)
        yield "sql", encoded(f"sqlite:///{folder / 't.db'}", query="select * from t")


def check_agreement(values, folder, leave_out=()):
    found = dict(sources(values, folder, leave_out))
    for name, features in found.items():
        assert np.array_equal(features, found["frame"]), (name, values)


def lists(values):
    return st.lists(values, min_size=1, max_size=6)


FLOATS = st.one_of(
    st.floats(allow_infinity=False, allow_nan=False),
    st.sampled_from([1.0, -0.0, 0.0, 1e5, 1e16, 1e22, 2.5, -1e-7, 5e-324, 2.0**53]),
)
WHOLE = st.integers(-(2**53), 2**53)
DAYS = st.dates(datetime.date(1900, 3, 1), datetime.date(2100, 1, 1))
MOMENTS = st.datetimes(datetime.datetime(1900, 3, 1), datetime.datetime(2100, 1, 1)).map(
    lambda moment: moment.replace(microsecond=0)
)


@pytest.mark.parametrize(
    ("values", "leave_out"),
    [
        (lists(WHOLE), ()),
        (lists(st.integers(-(2**63), 2**63 - 1)), ("excel",)),  # which has floats alone
        (lists(FLOATS), ("excel",)),  # which keeps fifteen digits
        (lists(FLOATS | st.just(np.nan)), ("excel",)),
        (lists(st.sampled_from([1.0, -0.0, 1e5, 2.5, 0.1])), ()),
        (lists(st.booleans()), ("sql",)),  # where they are 0 and 1
        (lists(st.sampled_from(["a", "007", "1.50x", "x,y", "+1"])), ()),
        (lists(DAYS.map(pd.Timestamp)), ("json", "sql")),
        (lists(MOMENTS.map(pd.Timestamp)), ("json", "sql")),
        (lists(st.decimals(-(10**9), 10**9, places=3)), ("excel", "sql")),
    ],
    ids=["whole", "big", "float", "NaN", "plain", "bool", "text", "day", "moment", "decimal"],
)
def test_sources_agree(values, leave_out, tmp_path):
    @settings(max_examples=25, deadline=None)
    @given(values)
    def check(found):
        check_agreement(found, tmp_path, leave_out)

    check()


@given(st.one_of(FLOATS, st.integers(), st.booleans(), DAYS, MOMENTS, st.text(max_size=12)))
def test_one_text_is_that_of_the_value_and_its_own(value):
    once = canonical(text_of(value))
    assert canonical(once) == once
    if isinstance(value, (bool, float, int, datetime.date)):
        assert canonical(str(value)) == once
        assert canonical(repr(value)) == once or isinstance(value, datetime.date)


@pytest.mark.parametrize(
    ("texts", "one"),
    [
        (["1", "1.0", "1.00", "1e0", "10e-1", "1E+0"], "1"),
        (["0", "-0", "0.0", "-0.0", "0e9"], "0"),
        (["100000", "1e5", "1E5", "1e+05", "100000.0"], "100000"),
        (["2.5", "2.50", "25e-1"], "2.5"),
        (["true", "True", "TRUE"], "true"),
        (["2024-05-31", "2024-05-31 00:00:00", "2024-05-31T00:00", "2024-05-31 00:00:00.000000"],
         "2024-05-31"),
        (["2024-05-31T12:30:00+02:00", "2024-05-31 12:30+02:00"], "2024-05-31T12:30:00+02:00"),
        ([str(decimal.Decimal("1.10")), "1.1"], "1.1"),
    ],
)  # fmt: skip
def test_spellings_of_one_value(texts, one):
    assert {canonical(text) for text in texts} == {one}


@pytest.mark.parametrize(
    "text",
    ["007", "00.5", "+1", "1.", ".5", "1e999", "1_0", "tRUE", "yes", "2024-13-31 00:00", "1.0.0",
     "12345678901234567890", "2024-05-31", "1,5", "0x10", "nan", "", "１.0"],
)  # fmt: skip
def test_other_text_stays(text):
    assert canonical(text) == text


def test_a_missing_value_is_one_in_any_spelling():
    schema = tables.Schema(SCHEMA.target, KINDS, missing=["-9"])
    for cell in ("-9", "-9.0", -9, -9.0):
        features = encoded(tables.Table({name: [cell] for name in KINDS}), schema)
        assert features.sum() == 1  # of the category


def test_a_missing_number_is_one_in_a_file_and_in_a_frame(tmp_path):
    columns = {"x": tables.Number(-10, 10, missing="flag")}
    schema = tables.Schema(SCHEMA.target, columns, missing=["-9"])
    (tmp_path / "t.csv").write_text("x\n-9\n-9.0\n5\n")
    for source in (tmp_path / "t.csv", pd.DataFrame({"x": [-9.0, -9.0, 5.0]})):
        made = tables.encode_inputs(tables.read(source, schema), schema)
        assert made.tolist() == [[0, 1], [0, 1], [0.5, 0]]


def test_listed_values_are_compared_in_the_same_way():
    schema = tables.Schema(
        tables.Classes("y", ["0.0", "1.0"], others="leave-out"),
        {"x": tables.Category(["1.0", "2"])},
    )
    made = tables.encode(tables.Table({"x": ["1", "2.0", 2], "y": ["1", 0, "x"]}), schema)
    assert made.inputs.tolist() == [[1, 0, 0], [0, 1, 0]]
    assert made.targets.tolist() == [1, 0]


# ---------------------------------------------------------------------- versions


def test_schemas_of_models_made_before_keep_the_texts_that_files_have(tmp_path):
    columns = {"x": tables.Hashed(64)}
    old = tables.Schema(tables.Classes("y", ["a", "b"]), columns, version=1)
    new = tables.Schema(tables.Classes("y", ["a", "b"]), columns)
    (tmp_path / "t.csv").write_text("x\n1.0\n")
    frame = pd.DataFrame({"x": [1.0]})
    first, second = (encoded(source, old) if old.sparse else tables.encode_inputs(
        tables.read(source), old) for source in (tmp_path / "t.csv", frame))  # fmt: skip
    assert not np.array_equal(first, second)
    third = tables.encode_inputs(tables.read(tmp_path / "t.csv"), new)
    assert np.array_equal(third, second)
    with pytest.raises(ArgumentError, match="version to be 1 or 2, got version=3"):
        tables.Schema(tables.Classes("y", ["a", "b"]), columns, version=3)


def test_a_folder_says_its_version_and_one_that_does_not_is_of_the_first(tmp_path):
    rows = [f"{i % 3}.0,{'no' if i % 3 else 'yes'}" for i in range(600)]
    (tmp_path / "t.csv").write_text("x,y\n" + "\n".join(rows) + "\n")
    options = TrainOptions(
        epsilon=20.0, target="y", classes=("no", "yes"), epochs=5, seed=0, columns={"x": "hashed"}
    )
    made = train_table(tmp_path / "t.csv", options, tmp_path / "out")
    frame = pd.DataFrame({"x": [0.0, 1.0, 2.0]})
    assert pv.load(made.output).predict(frame).tolist() == ["yes", "no", "no"]
    kept = tmp_path / "out" / "schema.toml"
    assert "version = 2" in kept.read_text()
    kept.write_text(kept.read_text().replace("version = 2", ""))
    assert pv.load(made.output).schema.version == 1
    assert pv.load(made.output).schema.to_toml().count("version = 1") == 1
