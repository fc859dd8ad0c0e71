"""Where tables come from, what is decided about them, and what is said before a charge."""

import sqlite3

import numpy as np
import pandas as pd
import pytest

import privada as pv
from privada import tables
from privada.core.errors import ArgumentError, DataError
from privada.workflows import TrainOptions, TuneOptions, read_options, train_table
from privada.workflows.requests import check_request
from privada.workflows.table_source import source_name

ROWS = 6000


def frame(target, rows=ROWS):
    return pd.DataFrame({"age": [20 + i % 50 for i in range(rows)], "y": target(np.arange(rows))})


def options(**given):
    return TrainOptions(**{"epsilon": 3.0, "target": "y", "epochs": 1, "seed": 0, **given})


def zero_or_one(place):
    return (place % 50 > 25).astype(int)


def trained(table, tmp_path, **given):
    return train_table(table, options(**given), tmp_path / "out")


# ---------------------------------------------------------------------- sources


def test_the_statement_says_what_a_query_must_not_do(tmp_path):
    table = frame(lambda place: np.where(place % 50 > 25, "yes", "no"), rows=300)
    with sqlite3.connect(tmp_path / "t.db") as connection:
        table.to_sql("t", connection, index=False)
    connection.close()
    url, classes = f"sqlite:///{tmp_path / 't.db'}", ("no", "yes")
    asked = train_table(url, options(query="select * from t", classes=classes), tmp_path / "a")
    read = train_table(table, options(classes=classes), tmp_path / "b")
    words = "query of the database returned follows from one record alone"
    assert any(words in each for each in asked.statement.assumptions)
    assert not any(words in each for each in read.statement.assumptions)
    assert words in " ".join((tmp_path / "a" / "statement.txt").read_text().split())


def test_a_frame_a_file_and_a_database_give_one_model(tmp_path):
    table = frame(lambda place: np.where(place % 50 > 25, "yes", "no"))
    table.to_csv(tmp_path / "t.csv", index=False, sep=";")
    with sqlite3.connect(tmp_path / "t.db") as connection:
        table.to_sql("t", connection, index=False)
    connection.close()
    found = []
    for place, (source, given) in enumerate(
        [
            (table, {}),
            (tmp_path / "t.csv", {}),
            (f"sqlite:///{tmp_path / 't.db'}", {"query": "select * from t"}),
        ]
    ):
        made = train_table(source, options(**given), tmp_path / str(place))
        found.append(made.trainer.model.state_dict()["weight"])
        assert (tmp_path / str(place) / "statement.txt").exists()
    for other in found[1:]:
        assert np.array_equal(found[0], other)


def test_names_of_sources():
    assert source_name(pd.DataFrame()) == "table"
    assert source_name("postgresql://me:secret@host/clinic?x=1") == "clinic"
    assert source_name("duckdb://") == "query"


def test_how_a_file_is_written_stays_with_the_schema(tmp_path):
    lines = "".join(f"{i % 9},5|{'ab'[i % 9 > 4]}\n" for i in range(3000))
    (tmp_path / "t.csv").write_text("x|y\n" + lines)
    made = trained(tmp_path / "t.csv", tmp_path, decimal=",", separator="|", classes=("a", "b"))
    schema = tables.Schema.read(made.output / "schema.toml")
    assert (schema.separator, schema.decimal) == ("|", ",")
    assert 4 < schema.columns["x"].high <= 16
    predicted = pv.load(made.output).predict(tmp_path / "t.csv")
    assert len(predicted) == 3000


# ---------------------------------------------------------------------- which task it is


def test_zero_and_one_are_classes_by_a_charged_query(tmp_path):
    made = trained(frame(zero_or_one), tmp_path)
    target = made.data.schema.target
    assert target == tables.Classes("y", ("0", "1"), others="leave-out")
    assert made.architecture.outputs == 2
    charges = [charge.purpose for charge in made.trainer.ledger.charges()]
    assert charges.count("statistics") >= 2
    assert made.statement.epsilon <= 3.0


def test_other_numbers_stay_numbers(tmp_path):
    for place, target in enumerate((lambda i: i % 3, lambda i: i % 2 + 1.5, lambda i: i * 0.37)):
        made = train_table(frame(target), options(), tmp_path / str(place))
        assert isinstance(made.data.schema.target, tables.Range)
        assert made.data.schema.target.bounds in ("estimated", "default")


def test_what_is_said_is_not_asked(tmp_path):
    number = trained(frame(zero_or_one), tmp_path, regression=True)
    assert isinstance(number.data.schema.target, tables.Range)
    named = train_table(frame(zero_or_one), options(classes=("0", "1")), tmp_path / "named")
    assert named.data.schema.target == tables.Classes("y", ("0", "1"))
    asked = {
        name: sum(c.count for c in made.trainer.ledger.charges() if c.purpose == "statistics")
        for name, made in {"number": number, "named": named}.items()
    }
    assert asked == {"number": 1, "named": 1}


def test_too_few_rows_to_ask_are_a_number(tmp_path):
    made = trained(frame(zero_or_one, rows=80), tmp_path, epsilon=1.0)
    assert isinstance(made.data.schema.target, tables.Range)


def test_the_cost_does_not_depend_on_what_the_query_finds(tmp_path):
    bills = []
    for place, target in enumerate((zero_or_one, lambda i: i * 0.37)):
        made = train_table(frame(target), options(), tmp_path / str(place))
        bills.append(
            sorted(
                (charge.purpose, str(charge.event), charge.count)
                for charge in made.trainer.ledger.charges()
            )
        )
    assert bills[0] == bills[1]


def test_regression_is_held_to_what_else_is_said(tmp_path):
    with pytest.raises(ArgumentError, match="--class and --regression"):
        options(regression=True, classes=("0", "1"))
    tables.Schema(tables.Classes("y", [0, 1]), {"age": tables.Number(0, 99)}).write(
        tmp_path / "s.toml"
    )
    with pytest.raises(ArgumentError, match="--regression with a target"):
        trained(frame(zero_or_one), tmp_path, regression=True, schema=tmp_path / "s.toml")
    public = tables.Table({"x": [1, 2, 3], "y": [0, 1, 1]})
    by_values = tables.infer_schema(public, target="y", public=True, regression=True)
    assert by_values.target == tables.Range("y", 0, 1)
    with pytest.raises(DataError, match="numbers in the target"):
        tables.infer_schema(
            tables.Table({"x": [1, 2], "y": ["a", "b"]}), target="y", public=True, regression=True
        )
    assert not TuneOptions(epsilon=1.0).regression


def test_a_column_without_a_first_value_is_used_for_its_numbers(tmp_path):
    """It was hashed because its first cell is empty."""
    rows = [f"{'' if i % 7 == 0 else i % 50},{int(i % 50 > 25)}" for i in range(ROWS)]
    (tmp_path / "t.csv").write_text("age,y\n" + "\n".join(rows) + "\n")
    made = trained(tmp_path / "t.csv", tmp_path)
    kind = made.data.schema.columns["age"]
    assert isinstance(kind, tables.Mixed)
    assert kind.bounds == "estimated"
    assert any("type that is missing there" in said for said in made.statement.assumptions)


# ---------------------------------------------------------------------- what is said beforehand


def test_what_was_found_is_said_before_anything_is_charged(tmp_path):
    said = []

    def no(found):
        said.append(found)
        assert not list(tmp_path.glob("out/ledger*"))
        return False

    with pytest.raises(ArgumentError, match="Nothing was charged"):
        train_table(frame(zero_or_one), options(), tmp_path / "out", confirm=no)
    assert not (tmp_path / "out").exists()
    text = str(said[0])
    assert "6,000 rows" in text
    assert "classes if a charged query finds them to be 0 and 1" in text
    assert "age: number with bounds that a charged query finds" in text
    assert train_table(frame(zero_or_one), options(), tmp_path / "out", confirm=lambda _: True)


def test_what_is_said_is_the_same_whatever_the_values_are(tmp_path):
    said = []
    first = frame(zero_or_one)
    second = first.assign(age=first.age * -1000, y=first.y * 7.5)
    for table in (first, second):
        with pytest.raises(ArgumentError):
            train_table(
                table, options(), tmp_path / "out", confirm=lambda found: said.append(str(found))
            )
    assert said[0] == said[1]


def test_every_kind_is_described(tmp_path):
    columns = {
        "n": tables.Number(0, 9, "log"),
        "m": tables.Mixed(0, 1),
        "d": tables.Date("2000-01-01", "2020-01-01", parts=["month"]),
        "c": tables.Category(["a", "b"], other=True),
        "h": tables.Hashed(8),
        "w": tables.Text(features=8),
        "i": tables.Ignore(),
        "p": tables.Person(),
    }
    tables.Schema(tables.Range("y", 0, 1), columns).write(tmp_path / "s.toml")
    table = tables.Table(
        {"n": [1, 2], "m": ["a", 1], "d": ["2001-01-01"] * 2, "c": ["a", "z"], "h": [1, 2],
         "w": ["x y", "z"], "i": [0, 0], "p": [1, 2], "y": [0, 1]}
    )  # fmt: skip
    said = []
    with pytest.raises(ArgumentError):
        train_table(
            table, TrainOptions(epsilon=1.0, schema=tmp_path / "s.toml"), tmp_path / "out",
            confirm=lambda found: said.append(found),
        )  # fmt: skip
    assert said[0].columns == {
        "n": "number from 0 to 9, on the log scale",
        "m": "number from 0 to 1, or else hashed to 32 buckets, each cell by itself",
        "d": "date from 2000-01-01 to 2020-01-01; month",
        "c": "one of 2 values, or another",
        "h": "hashed to 8 buckets",
        "w": "a bag of words",
        "i": "not used",
        "p": "says whose a row is",
    }
    assert said[0].task == "'y', a number from 0 to 1"
    assert said[0].queries == "nothing"


# ---------------------------------------------------------------------- what a user says of columns


def codes(tmp_path, rows=3000):
    """Write a table with codes that begin with one that looks like a number."""
    lines = [
        f"{('250.83', 'V27', '8')[i % 3]},{i % 50},{'no' if i % 3 else 'yes'}" for i in range(rows)
    ]
    (tmp_path / "t.csv").write_text("diag,age,y\n" + "\n".join(lines) + "\n")
    return tmp_path / "t.csv"


def test_the_refusal_of_codes_names_the_option_that_takes_them(tmp_path):
    table = codes(tmp_path)
    with pytest.raises(DataError) as raised:
        trained(table, tmp_path)
    assert '--column "diag=mixed"' in str(raised.value)
    assert "V27" not in str(raised.value)
    made = trained(table, tmp_path, columns=["diag=mixed", "age=number:0..49"])
    kinds = made.data.schema.columns
    assert isinstance(kinds["diag"], tables.Mixed)
    assert kinds["diag"].bounds == "estimated"
    assert (kinds["age"].low, kinds["age"].high, kinds["age"].bounds) == (0, 49, "given")
    assert "What 'diag', 'age' holds was said without" in " ".join(made.statement.assumptions)
    assert list(pv.load(made.output).predict(table)[:3]) == ["yes", "no", "no"]


def test_what_is_said_of_columns_changes_a_schema_and_public_rows_too(tmp_path):
    table = codes(tmp_path)
    columns = {"diag": tables.Hashed(8), "age": tables.Number(0, 99)}
    schema = tables.Schema(tables.Classes("y", ["no", "yes"]), columns)
    schema.write(tmp_path / "s.toml")
    made = train_table(
        table, options(schema=tmp_path / "s.toml", columns={"diag": "ignore"}), tmp_path / "a"
    )
    assert made.data.schema.columns["diag"] == tables.Ignore()
    with pytest.raises(ArgumentError, match="Did you mean 'diag'"):
        train_table(
            table, options(schema=tmp_path / "s.toml", columns={"diga": "ignore"}), tmp_path / "b"
        )
    public = tmp_path / "public.csv"
    public.write_text("diag,age,y\n250.83,1,yes\nV45,48,no\n401,20,no\n")
    made = train_table(
        table, options(public=public, columns=["diag=mixed", "age=category"]), tmp_path / "c"
    )
    assert made.data.schema.columns["diag"] == tables.Mixed(250, 410)
    assert made.data.schema.columns["age"] == tables.Category(["1", "20", "48"], other=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"columns": ["y=text"]}, "--class or --regression"),
        ({"columns": ["agee=text"]}, "Did you mean 'age'"),
        ({"columns": ["age=category"]}, "age=category:yes,no"),
        ({"columns": ["diag=text"], "text": ["diag"]}, "both"),
        ({"columns": ["age=text"], "person": "age"}, "--column with a column"),
    ],
    ids=str,
)
def test_what_is_wrong_with_it_is_said_first(tmp_path, given, words):
    with pytest.raises(ArgumentError, match=words):
        check_request(codes(tmp_path), options(**given), tmp_path / "out")


def test_a_file_of_options_says_it_in_the_same_words(tmp_path):
    (tmp_path / "run.toml").write_text('epsilon = 1\ncolumn = ["diag=mixed"]\n')
    (tmp_path / "other.toml").write_text('epsilon = 1\n[columns]\ndiag = "mixed"\n')
    for file in ("run.toml", "other.toml"):
        found = read_options(TrainOptions, tmp_path / file, {})
        assert found.columns == {"diag": "mixed"}
    given = read_options(TrainOptions, tmp_path / "run.toml", {"columns": ["diag=text"]})
    assert given.columns == {"diag": "text"}


def test_the_bounds_of_dates_are_said_with_the_option_that_sets_them(tmp_path):
    (tmp_path / "t.csv").write_text("day,y\n" + "2021-05-01,a\n2024-05-01,b\n" * 300)
    said = []

    def confirm(found):
        said.append(found.columns["day"])
        return False

    for place, columns in enumerate(([], ["day=date:2020-01-01..2025-01-01"])):
        with pytest.raises(ArgumentError):
            train_table(
                tmp_path / "t.csv", options(columns=columns), tmp_path / str(place), confirm=confirm
            )
    assert said == [
        'date from 1950-01-01 to 2050-01-01, unless --column "day=date:FIRST..LAST" says '
        "otherwise; month, weekday",
        "date from 2020-01-01 to 2025-01-01; month, weekday",
    ]
