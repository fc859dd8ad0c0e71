import sqlite3

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import privada as pv
from privada.core.errors import ArgumentError, DataError
from privada.tables import (
    Category,
    Classes,
    Date,
    Ignore,
    Number,
    Schema,
    Table,
    column_types,
    encode,
    read,
    schema_template,
)
from tests.postgres_server import ADMIN, shared_server

ROWS = {
    "age": [39, None, 50],
    "job": ["clerk ", None, "nurse"],
    "w": [0.5, float("nan"), 2.0],
    "old": [True, False, None],
    "born": pd.to_datetime(["1970-01-02 00:00", None, "1980-05-06 12:00"]),
    "sick": ["no", "yes", "no"],
}
SCHEMA = Schema(
    Classes("sick", ["no", "yes"]),
    {
        "age": Number(0, 100),
        "job": Category(["clerk", "nurse"]),
        "w": Number(0, 4),
        "old": Ignore(),
        "born": Date("1960-01-01", "1990-01-01", parts=["month"]),
    },
)
FRAME = pd.DataFrame(ROWS)
FRAMES = {
    "pandas": FRAME,
    "pandas, nullable": FRAME.convert_dtypes(),
    "pandas, categorical": FRAME.astype({"job": "category"}),
    "pandas, objects": FRAME.astype(object),
    "polars": pl.from_pandas(FRAME),
    "polars, lazy": pl.from_pandas(FRAME).lazy(),
    "polars, categorical": pl.from_pandas(FRAME).with_columns(pl.col("job").cast(pl.Categorical)),
    "pyarrow": pa.Table.from_pandas(FRAME, preserve_index=False),
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_are_tables(name):
    table = read(FRAMES[name])
    assert table.size == 3
    assert table.texts("job").tolist() == ["clerk", None, "nurse"]
    np.testing.assert_array_equal(table.numbers("age"), [39, np.nan, 50])
    np.testing.assert_array_equal(table.numbers("w"), [0.5, np.nan, 2])
    assert table.texts("old").tolist() == ["true", "false", None]
    expected = encode(read(FRAME), SCHEMA)
    found = encode(read(FRAMES[name], SCHEMA), SCHEMA)
    assert np.array_equal(found.inputs, expected.inputs)
    assert found.targets.tolist() == [0, 1, 0]
    assert "old" not in read(FRAMES[name], SCHEMA).names


def test_frames_declare_their_types():
    declared = {
        "age": "number", "job": "text", "w": "number", "old": "text", "born": "date",
        "sick": "text",
    }  # fmt: skip
    for name in ("pandas", "pandas, nullable", "polars", "polars, lazy", "pyarrow"):
        assert column_types(FRAMES[name]) == declared
    assert 'kind = "date"' in schema_template(FRAME, target="sick")
    assert column_types(Table({"a": [1], "b": ["x"]})) == {"a": "text", "b": "text"}


def test_a_table_is_read_as_it_is():
    table = Table({"age": [1], "sick": ["no"], "x": [2]})
    schema = Schema(Classes("sick", ["no", "yes"]), {"age": Number(0, 9), "x": Ignore()})
    assert read(table) is table
    assert read(table, schema).names == ("age", "sick")


def test_faults_of_frames_say_no_value():
    twice = pd.DataFrame([[1, 2]], columns=["secret", "secret"])
    with pytest.raises(DataError, match="different names"):
        read(twice)
    with pytest.raises(DataError, match="at least one record in the frame"):
        read(FRAME[:0])
    nested = pd.DataFrame({"a": [["secret"]]})
    with pytest.raises(DataError, match="text or a number in column 'a'") as raised:
        read(nested)
    assert raised.value.__context__ is None
    with pytest.raises(DataError, match="numbers or text, got the type large_list") as raised:
        read(pl.DataFrame({"a": [["secret"]]}))
    assert raised.value.__context__ is None
    few = Schema(Classes("sick", ["no", "yes"]), {"age": Number(0, 100)})
    with pytest.raises(DataError, match="every column to be in the schema"):
        read(FRAME, few)
    odd = read(pd.DataFrame({"a": ["\ud800", "b"]}, dtype=object))
    assert odd.texts("a").tolist() == ["\ud800", "b"]


@pytest.mark.parametrize("name", ["pandas", "polars", "pyarrow"])
def test_a_trainer_takes_a_frame_with_a_schema(name):
    def trained(**how):
        model = torch.nn.Linear(len(SCHEMA.features), 2)
        torch.nn.init.zeros_(model.weight)
        torch.nn.init.zeros_(model.bias)
        return pv.Trainer(
            model, torch.nn.CrossEntropyLoss(), method=pv.methods.DPSGD(lr=1.0), batch_size=2,
            epochs=2, noise_multiplier=1.0, delta=1e-3, seed=0, **how,
        ).fit()  # fmt: skip

    by_frame = trained(data=FRAMES[name], schema=SCHEMA)
    by_arrays = trained(data=encode(read(FRAME), SCHEMA).data)
    assert torch.equal(by_frame.model.weight, by_arrays.model.weight)
    said = {*by_frame.statement().assumptions} - {*by_arrays.statement().assumptions}
    assert len(said) == 1
    assert "without looking at these records" in said.pop()


def test_a_trainer_takes_persons_and_the_population_from_the_schema():
    frame = pd.DataFrame(
        {"p": ["a", "a", "b", "c"], "x": [1, 2, 3, 4], "y": ["no", "yes", "no", "maybe"]}
    )
    columns = {"x": Number(0, 5)}
    leaves = Classes("y", ["no", "yes"], others="leave-out")

    def trainer(schema, **how):
        return pv.Trainer(
            torch.nn.Linear(1, 2), torch.nn.CrossEntropyLoss(), frame, schema=schema,
            method=pv.methods.DPSGD(lr=1.0), batch_size=1, steps=1, noise_multiplier=1.0,
            delta=1e-3, seed=0, **how,
        )  # fmt: skip

    persons = Schema(leaves, columns).with_person("p")
    said = " ".join(trainer(persons).statement().assumptions)
    assert "3" in said
    with pytest.raises(ArgumentError, match="groups, or a schema"):
        trainer(persons, groups=[0, 0, 1, 2])
    with pytest.raises(ArgumentError, match=r"tables\.Schema"):
        trainer("schema.toml")


# ---------------------------------------------------------------------- databases


@pytest.fixture
def sqlite(tmp_path):
    path = tmp_path / "a b%20c.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (age int, job text, w real, sick text)")
        rows = [(39, "clerk ", 0.5, "no"), (None, None, None, "yes"), (50, "nurse", 2.0, "no")]
        connection.executemany("insert into t values (?, ?, ?, ?)", rows)
    connection.close()
    return "sqlite:///" + str(path).replace("%", "%25")


def check_query(url, monkeypatch):
    monkeypatch.setattr("privada.tables.database._ROWS", 2)
    table = read(url, query="select * from t")
    np.testing.assert_array_equal(table.numbers("age"), [39, np.nan, 50])
    assert table.texts("job").tolist() == ["clerk", None, "nurse"]
    types = column_types(url, query="select * from t")
    assert types == {"age": "number", "job": "text", "w": "number", "sick": "text"}
    schema = Schema(
        SCHEMA.target, {n: kind for n, kind in SCHEMA.columns.items() if n in ("age", "job", "w")}
    )
    found = read(url, schema, query="select sick, w, job, age from t where age > 40")
    assert found.columns["age"].tolist() == [50]
    for query, words in [
        ("select * from t where age > 99", "at least one record"),
        ("select age, age from t", "different names"),
        ("select secret from t", "Cannot run the query"),
        ("delete from t", "Cannot run the query|returns rows"),
        ("rubbish", "Cannot run the query"),
    ]:
        with pytest.raises((DataError, ArgumentError), match=words) as raised:
            read(url, query=query)
        assert "secret" not in str(raised.value)
        assert raised.value.__cause__ is raised.value.__context__ is None
    assert read(url, query="select * from t").size == 3
    with pytest.raises(ArgumentError, match="Expected a query"):
        read(url)


def test_sqlite_is_read_by_a_query(sqlite, monkeypatch):
    check_query(sqlite, monkeypatch)
    with pytest.raises(DataError, match="Cannot run the query"):
        read("sqlite:///nowhere/at/all.db", query="select 1")


def test_postgresql_is_read_by_a_query(monkeypatch):
    server = shared_server()
    server.sql(
        "drop table if exists t",
        "create table t (age int, job text, w numeric, sick text)",
        "insert into t values (39, 'clerk ', 0.5, 'no'), (null, null, null, 'yes'), "
        "(50, 'nurse', 2.0, 'no')",
    )
    check_query(f"postgresql://{ADMIN}@127.0.0.1:{server.port}/postgres", monkeypatch)


def test_duckdb_is_read_by_a_query(tmp_path, monkeypatch):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "t.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("create table t (age int, job text, w double, sick text)")
        connection.execute(
            "insert into t values (39, 'clerk ', 0.5, 'no'), (null, null, null, 'yes'), "
            "(50, 'nurse', 2.0, 'no')"
        )
    check_query(f"duckdb:///{path}", monkeypatch)
    (tmp_path / "t.csv").write_text("a,b\n1,x\n")
    query = f"select * from '{tmp_path / 't.csv'}'"
    assert read("duckdb://", query=query).texts("b").tolist() == ["x"]


def test_a_password_is_never_shown():
    from privada.tables.database import shown

    assert shown("postgresql://me:secret@host:1/clinic") == "postgresql://host:1/clinic"


def test_a_query_is_for_databases_only(tmp_path):
    (tmp_path / "t.csv").write_text("a\nx\n")
    for source in (tmp_path / "t.csv", FRAME):
        with pytest.raises(ArgumentError, match="URL of a database only"):
            read(source, query="select 1")
