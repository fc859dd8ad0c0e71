"""`privada report`."""

import sys

import pytest

import privada as pv
from privada.cli.app import main


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run `privada report` in this process; return exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["privada", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        return stopped.value.code, shown.out, shown.err

    return run


def test_it_writes_a_page_of_folders(command, world, tmp_path):
    code, output, errors = command(world.folder / "plain", world.folder / "falling")
    assert (code, errors) == (0, "")
    assert output == "Wrote report.html.\n"
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "falling" in page
    assert f'data-figure="epsilon" data-value="{world.second.statement["epsilon"]!r}"' in page


def test_it_shows_a_ledger_as_it_is(command, world, tmp_path):
    ledger = world.folder / "patients.ledger"
    code, _, errors = command(
        world.folder / "plain", "--ledger", ledger, "--output", "now.html", "--title", "A & B"
    )
    assert (code, errors) == (0, "")
    page = (tmp_path / "now.html").read_text("utf-8")
    assert f'data-figure="epsilon" data-value="{pv.Ledger(ledger).epsilon()!r}"' in page
    assert "<h1>A &amp; B</h1>" in page
    assert command("--ledger", ledger)[0] == 0


def test_folders_of_one_name_are_told_apart(command, world, tmp_path):
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "run").symlink_to(world.folder / "plain")
    assert command("a/run", "b/run")[0] == 0
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "a/run" in page
    assert "b/run" in page


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "got neither"),
        (("none",), "not there"),
        (("plain", "--ledger", "none.ledger"), "at 'none.ledger', got none"),
        (("plain", "--output", "page.txt"), "end in .html"),
        (("plain", "--output", "none/page.html"), "Check that the folder exists"),
    ],
)
def test_a_mistake_is_one_line(command, world, tmp_path, arguments, says):
    (tmp_path / "plain").symlink_to(world.folder / "plain")
    code, output, errors = command(*arguments)
    assert (code, output) == (2, "")
    assert says in errors
    assert len(errors.strip().splitlines()) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["plain"]


def test_help_says_what_it_does(command):
    code, output, _ = command("--help")
    assert code == 0
    assert "needs no network" in output
