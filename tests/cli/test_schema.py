"""`privada schema`."""

import sqlite3
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from privada.cli.schema import schema
from privada.core.errors import ArgumentError, DataError
from privada.tables import Schema
from privada.workflows import draft_schema
from tests.datasets import data_folder

app = typer.Typer()
app.command()(schema)


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("age,sick\n39,no\n50,yes\n")
    return path


def test_it_prints_a_draft_from_types(people):
    result = CliRunner().invoke(app, [str(people), "--target", "sick"])
    assert result.exit_code == 0
    assert 'low = "?"' in result.output


def test_it_writes_a_draft_from_public_values(people, tmp_path):
    output = tmp_path / "schema.toml"
    options = [str(people), "--target", "sick", "--public", "--output", str(output)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0
    assert "Wrote" in result.output
    assert Schema.read(output).task == "classification"
    again = CliRunner().invoke(app, options)
    assert isinstance(again.exception, ArgumentError)
    assert "exists" in str(again.exception)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"target": "age2"}, ArgumentError, "target='age2'"),
        ({"table": Path("none.csv")}, DataError, "none.csv"),
        ({"output": Path("no/such/folder.toml")}, ArgumentError, "Cannot write"),
        ({"output": Path()}, ArgumentError, "exists"),
    ],
)
@pytest.mark.parametrize("public", [True, False])
def test_mistakes_are_one_line(people, monkeypatch, change, kind, words, public):
    monkeypatch.chdir(people.parent)
    settings = {"table": people, "target": "sick", "public": public, "output": None, **change}
    with pytest.raises(kind, match=words) as raised:
        draft_schema(**settings)
    assert "\n" not in str(raised.value)


def test_adult_is_drafted_on_the_command_line(tmp_path):
    path = data_folder("adult.csv.gz") / "adult.csv.gz"
    text = draft_schema(path, target="income", public=True, output=tmp_path / "adult.toml")
    assert Schema.read(tmp_path / "adult.toml").features
    assert text.startswith("# Drafted from the values of a table that was declared public.")


@pytest.mark.parametrize("public", [(), ("--public",)])
def test_a_column_of_persons_is_named(people, public):
    options = [str(people), "--target", "sick", "--person", "age", *public]
    people.write_text("age,dose,sick\n39,1,no\n50,2,yes\n")
    result = CliRunner().invoke(app, options)
    assert '[columns.age]\nkind = "person"' in result.output


def test_it_drafts_by_what_is_said_of_columns_and_from_a_database(people, monkeypatch):
    monkeypatch.chdir(people.parent)
    with sqlite3.connect("clinic.db") as connection:
        connection.execute("create table visits (diag text, note text, sick text)")
        connection.execute("insert into visits values ('250.83', 'x', 'no'), ('V27', 'y', 'yes')")
    connection.close()
    source = ["sqlite:///clinic.db", "--query", "select * from visits", "--target", "sick"]
    said = ["--column", "diag=mixed", "--column", "note=ignore"]
    drafted = CliRunner().invoke(app, [*source, *said])
    assert '[columns.diag]\nkind = "mixed"\nlow = "?"' in drafted.output
    assert '[columns.note]\nkind = "ignore"' in drafted.output
    inferred = CliRunner().invoke(app, [*source, *said, "--public"])
    assert '[columns.diag]\nkind = "mixed"\nlow = 249' in inferred.output
    wrong = CliRunner().invoke(app, [*source, "--column", "sick=text"])
    assert "--class" in str(wrong.exception)


def test_how_a_file_is_written_is_kept_in_the_draft(tmp_path):
    (tmp_path / "t.csv").write_text("a|y\n1,5|no\n2,5|yes\n")
    given = [str(tmp_path / "t.csv"), "--target", "y", "--separator", "|", "--decimal", ","]
    for more in ([], ["--public"]):
        drafted = CliRunner().invoke(app, [*given, *more]).output
        assert '[options]\nseparator = "|"\ndecimal = ","' in drafted
        assert '[columns.a]\nkind = "number"' in drafted
