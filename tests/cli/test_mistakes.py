"""What is wrong with the words of a command is one line: the option, what it got, what to do."""

import shlex
import sys

import pytest

from privada.cli.app import main
from privada.cli.mistakes import error_in_words


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("age,sick\n39,no\n50,yes\n")
    (tmp_path / "run").mkdir()

    def run(line):
        monkeypatch.setattr(sys, "argv", ["privada", *shlex.split(line)])
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        return stopped.value.code, shown.out, shown.err

    return run


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("trian", "got 'trian'. Did you mean train? Try privada --help."),
        ("--nope", "Expected an option of privada, got --nope. Try privada --help."),
        ("plan", "Expected --records, got none. Try privada plan --help."),
        ("plan --records", "Expected a value after --records, got none. Try privada plan --help."),
        ("plan --records 1e5 --epsilon 1", "--records to be a whole number, got '1e5'. Write it"),
        ("plan --records 9 --epsilon 0,5", "--epsilon to be a number, got '0,5'. Write it"),
        ("plan --records 9 --epsilon 1 --batchsize 2", "Did you mean --batch-size?"),
        ("plan --records 9 --epsilon 1 more", "Expected no further words, got 'more'."),
        ("plan --records 9 --epsilon -1", "Expected --epsilon > 0, got -1.0. privada plan --help"),
        ("plan --records=9 --epsilon=-1", "Expected --epsilon > 0, got -1.0. privada plan --help"),
        ("train", "Expected TABLE, got none. Try privada train --help."),
        ("ledger", "Expected FILE, got none. Try privada ledger --help."),
        ("ledger copy", "Expected FROM, got none. Try privada ledger copy --help."),
        ("ledger run", "Expected a ledger file, got the folder 'run'."),
        ("ledger none", "--new EPSILON --delta DELTA makes a ledger."),
        ("federated old", "Expected one of new, got 'old'."),
        ("train t.csv --target sick --epsilon 1 --processes 0", "--processes >= 1, got 0."),
        ("train t.csv --target sick --epsilon 1 --rows-per-person 0 --person age",
         "Expected --rows-per-person >= 1, got 0."),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(command, line, words):
    code, output, errors = command(line)
    assert (code, output) == (2, "")
    assert errors.startswith("privada: ")
    assert len(errors.strip().splitlines()) == 1
    assert words in errors


@pytest.mark.parametrize("line", ["", "federated"])
def test_no_words_at_all_show_the_help(command, line):
    code, output, errors = command(line)
    assert code == 2
    assert "Usage: privada" in output + errors


def test_words_that_say_enough_stay_as_they_are():
    for words in ("Expected lr > 0, got lr=0. Give more.", "Cannot open 'a': it is no file."):
        assert error_in_words(words, ["train", "t.csv", "--epsilon", "1"]) == words
    assert error_in_words("Expected one, got two.", []) == "Expected one, got two."
    named = error_in_words(
        "Expected classes to differ, got classes=('a', 'a').", ["train", "--class=a"]
    )
    assert named.startswith("Expected --class to differ, got ('a', 'a').")
