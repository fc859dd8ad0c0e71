import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import privada as pv
import privada.cli
from privada.cli.app import app, main
from privada.core.errors import LedgerError
from tests.forks import PATIENCE


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command line in this process; return exit code, output and errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["privada", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        return stopped.value.code, shown.out, shown.err

    return run


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def test_demo_compares_methods_and_writes_the_report(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--epochs", "10"])
    assert result.exit_code == 0
    assert "Accuracy on 360 other images" in result.output
    for name in ("dp-sgd", "dp-adam", "dp-adam-wosm", "adadp"):
        assert name in result.output
    assert "PRIVACY STATEMENT" in result.output
    assert "adadp" in (tmp_path / "privada-demo.html").read_text()


def test_tables_keep_their_words_on_a_narrow_terminal(monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "40")
    for words, arguments in {
        "dp-adam-wosm": ("demo", "--epochs", "1", "--output", "x.html"),
        "repeat-poisson": ("plan", "--records", "1000", "--epsilon", "1", "--batch-size", "100",
                           "--epochs", "1"),
        "papers.honest-selection.coupling": ("papers",),
    }.items():  # fmt: skip
        code, output, _ = command(*arguments)
        assert code == 0
        assert words in output
        assert "…" not in output


def test_demo_as_json_is_only_json_and_keeps_the_budget():
    program = "from privada.cli import main; main()"
    options = ["demo", "--epochs", "20", "--epsilon", "3", "--json"]
    output = subprocess.check_output([sys.executable, "-c", program, *options], timeout=PATIENCE)
    fields = json.loads(output)
    assert 2.9 < fields["statement"]["run_epsilon"] <= 3
    assert fields["statement"]["epsilon"] == fields["together"]
    assert fields["statement"]["private"]
    assert fields["accuracy"] > 0.75
    assert len(fields["runs"]) == 4
    assert fields["together"] > 3


def test_runs_on_one_ledger_add_up_until_the_budget_ends(command, tmp_path):
    path = str(tmp_path / "digits.ledger")
    assert command("demo", "--epochs", "2", "--ledger", path)[0] == 0
    assert len({charge.run for charge in pv.Ledger(path).charges()}) == 4
    code, output, errors = command("demo", "--epochs", "2", "--ledger", path)
    assert code == 2
    assert output == ""
    assert "is spent" in errors
    assert len(errors.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--epsilon", "0"), "epsilon"),
        (("--epsilon", "much"), "--epsilon to be a number, got 'much'"),
        (("--delta", "2"), "delta"),
        (("--batch-size", "-1"), "--batch-size > 0, got -1.0. privada demo --help"),
        (("--batch-size", "100000"), "--batch-size"),
        (("--epochs", "nan"), "epochs"),
        (("--ledger", "/no/such/folder/x"), "folder"),
        (("--frobnicate",), "frobnicate"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(command, arguments, named):
    code, _, errors = command("demo", *arguments)
    assert code == 2
    assert named in errors
    assert errors.startswith("privada: Expected ") or "folder" in named
    assert len(errors.strip().splitlines()) == 1


def test_the_version_is_printed(command):
    assert command("--version") == (0, f"privada {pv.__version__}\n", "")


COMMANDS = ("demo", "plan", "schema", "train", "tune", "report", "ledger", "papers", "federated")


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_plain(name, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, output, errors = command(*filter(None, [name]), "--help")
    assert (code, errors) == (0, "")
    assert not re.search(r"(?<![\d\w./-])\.\d", output)  # numbers have a leading zero
    if not name:
        assert all(each in output for each in COMMANDS)


def test_a_command_is_short():
    """Beside its options: parse, call a workflow, print."""
    for path in (Path(privada.cli.__file__).parent).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.body[0].lineno < 60, f"{path.name}: {node.name}"


def test_help_names_the_commands(command):
    code, output, _ = command("--help")
    assert code == 0
    assert "demo" in output


def test_papers_are_listed_and_cited(command):
    code, output, _ = command("papers")
    assert code == 0
    for number in ("2202.05963", "2111.04906", "1809.03832", "2110.07435", "2106.13756"):
        assert number in output
    assert command("papers", "adadp", "--bibtex")[1].startswith("@inproceedings{koskela2020")
    listed = json.loads(command("papers", "--json")[1])
    known = pv.methods.names()
    assert all(method in known for paper in listed for method in paper["methods"])
    root = Path(__file__).parent.parent.parent
    for recipe in (recipe for paper in listed for recipe in paper["recipes"]):
        assert (root / f"{recipe.replace('.', '/')}.py").is_file()
    code, _, errors = command("papers", "dp-sgd")
    assert code == 2
    assert "another paper" in errors


def test_debug_shows_where_an_error_arose(monkeypatch, capsys):
    for words in (["--debug", "ledger", "none"], ["ledger", "none", "--debug"]):
        monkeypatch.setattr(sys, "argv", ["privada", *words])
        with pytest.raises(LedgerError):
            main()
    monkeypatch.setattr(sys, "argv", ["privada", "ledger", "none"])
    with pytest.raises(SystemExit):
        main()
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_what_should_not_happen_is_one_line_too(command, monkeypatch):
    def fails(*_, **__):
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr("privada.workflows.ledger_contents", fails)
    code, output, errors = command("ledger", "file")
    assert (code, output) == (1, "")
    assert "ZeroDivisionError: a b" in errors
    assert len(errors.strip().splitlines()) == 1


def commands_of(group, words=()):
    """Yield each command with the words that call it."""
    for name, command in getattr(group, "commands", {}).items():
        yield (*words, name), command
        yield from commands_of(command, (*words, name))


LEAVES = dict(commands_of(typer.main.get_command(app)))


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_parameter_is_described(words, command, monkeypatch):
    """By the help that is shown: releases of the parser have lost it on the way."""
    monkeypatch.setenv("COLUMNS", "400")
    _, output, _ = command(*words, "--help")
    shown = " ".join(output.split())
    for parameter in LEAVES[words].params:
        if not getattr(parameter, "hidden", False):
            line = re.search(rf"│ \*? *{max(parameter.opts, key=len)} .*?│", shown)
            assert line, parameter.name
            said = re.sub(r"\[(required|default)[^]]*\]", "", line[0])
            assert re.search(r"[A-Za-z].*\.", said), line[0]
