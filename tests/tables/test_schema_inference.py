import numpy as np
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
    Table,
    Text,
    encode,
    infer_schema,
    read,
    schema_template,
)
from tests.datasets import data_folder

ROWS = 200


def kind_of(values):
    table = Table({"x": values, "also": [1] * len(values), "y": ["a", "b"] * (len(values) // 2)})
    return infer_schema(table, target="y", public=True).columns["x"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([17, 90] * 100, Number(17, 90)),
        ([1950, 2010] * 100, Number(1950, 2010)),
        ([0.123, 0.987] * 100, Number(0.12, 0.99)),
        ([12_285, 1_490_400] * 100, Number(0, 1_500_000)),
        ([-3, 3] * 100, Number(-3, 3)),
        ([7, None] * 100, Number(6, 8)),
        ([0, 5e-324] * 100, Number(0, 1e-15)),
        ([0] * 199 + [99_999], Number(0, 100_000, "log")),
        (["1", "2", "?", "4"] * 50, Number(1, 4)),
        (["F", "M", "?", "F"] * 50, Category(["F", "M"], other=True)),
        ([f"town {i % 100}" for i in range(ROWS)], Hashed(128)),
        ([f"id-{i}" for i in range(ROWS)], Ignore()),
        ([f"a long review of film {i}" for i in range(ROWS)], Text()),
        (["?", None] * 100, Ignore()),
        (np.full((ROWS, 3), 255, dtype=np.uint8), Matrix(3, 254, 256)),
    ],
)
def test_kinds_are_drafted_from_public_values(values, kind):
    assert kind_of(values) == kind


@pytest.mark.parametrize(
    ("values", "target"),
    [
        (["b", "a"] * 10, Classes("y", ["a", "b"])),
        ([10, 2] * 10, Classes("y", [2, 10])),
        ([0.5, 2] * 10, Range("y", 0.5, 2)),
        (list(range(20)), Range("y", 0, 19)),
    ],
)
def test_the_task_is_drafted_from_the_target(values, target):
    assert infer_schema(Table({"x": values, "y": values}), target="y", public=True).target == target


@given(st.lists(st.floats(-1e9, 1e9), min_size=2))
def test_drafted_bounds_hold_all_values(values):
    kind = kind_of(values if len(values) % 2 == 0 else values[1:])
    kept = values if len(values) % 2 == 0 else values[1:]
    assert kind.low <= min(kept) <= max(kept) <= kind.high


@pytest.mark.parametrize("public", [False, None, 1])
def test_values_are_not_looked_at_unless_they_are_public(public):
    with pytest.raises(ArgumentError, match="public=True"):
        infer_schema(Table({"x": [1], "y": [1]}), target="y", public=public)


def test_the_target_must_be_there():
    with pytest.raises(ArgumentError, match="target='z'"):
        infer_schema(Table({"x": [1], "y": [1]}), target="z", public=True)
    with pytest.raises(DataError, match="values in the target"):
        infer_schema(Table({"x": [1], "y": [None]}), target="y", public=True)
    with pytest.raises(ArgumentError, match="at least 2"):
        infer_schema(Table({"x": [1], "y": ["a"]}), target="y", public=True)


# ---------------------------------------------------------------------- types alone


@pytest.fixture
def private(tmp_path):
    path = tmp_path / "private.csv"
    path.write_text("age,town,sick\n39,Ulm,no\n50,Bonn,yes\n")
    return path


def test_a_draft_from_types_depends_on_types_alone(private):
    first = schema_template(private, target="sick")
    private.write_text("age,town,sick\n-1e9,secret,maybe\nx,y\n")
    assert schema_template(private, target="sick") == first


def test_a_draft_from_types_is_refused_until_it_is_filled_in(private, tmp_path):
    path = tmp_path / "schema.toml"
    text = schema_template(private, target="sick")
    steps = [
        ('classes = "?"', 'classes = ["no", "yes"]', "classes"),
        ('low = "?"', "low = 0", "low"),
        ('high = "?"', "high = 120", "high"),
    ]
    for old, new, named in steps:
        path.write_text(text)
        with pytest.raises(ArgumentError, match=f"expected {named} to be filled in"):
            Schema.read(path)
        text = text.replace(old, new)
    path.write_text(text)
    schema = Schema.read(path)
    assert schema.columns == {"age": Number(0, 120), "town": Hashed(32)}
    assert encode(read(private, schema), schema).targets.tolist() == [0, 1]


def test_a_target_of_numbers_may_be_either_task(private):
    text = schema_template(private, target="age")
    assert 'low = "?"' in text
    assert "If the target is a class" in text


def test_types_of_archives_and_text(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.zeros((2, 5)), y=np.zeros(2), s=np.array(["a", "b"]))
    text = schema_template(tmp_path / "t.npz", target="y")
    assert 'kind = "matrix"\nwidth = 5\nlow = "?"' in text
    assert '[columns.s]\nkind = "hashed"' in text
    (tmp_path / "t.txt").write_text("words\n")
    with pytest.raises(ArgumentError, match="target='y'"):
        schema_template(tmp_path / "t.txt", target="y")


def test_adult_is_drafted():
    path = data_folder("adult.csv.gz") / "adult.csv.gz"
    schema = infer_schema(read(path), target="income", public=True)
    assert schema.target == Classes("income", ["<=50K", ">50K"])
    assert schema.columns["age"] == Number(17, 90)
    assert schema.columns["capital_gain"].scale == "log"
    assert len(schema.columns["native_country"].values) == 41
    assert 'kind = "hashed"' in schema_template(path, target="income")
