"""`privada ledger`: the account of a data set."""

import json
import sys
from types import SimpleNamespace

import pytest

import privada as pv
from privada.accounting import epsilon_of, events
from privada.cli.app import main
from privada.core.formatting import round_up
from tests.postgres_server import shared_server

STEP, LOOK = events.poisson(0.01, 2.0), events.gaussian(20.0)


@pytest.fixture
def path(tmp_path):
    ledger = pv.Ledger(tmp_path / "l.db", pv.Budget(3.0, 1e-5), dataset="patients")
    ledger.charge({STEP: 500}, run="first")
    ledger.charge({LOOK: 1}, run="bounds", purpose="statistics")
    return tmp_path / "l.db"


@pytest.fixture
def command(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["privada", "ledger", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        return SimpleNamespace(code=stopped.value.code, out=shown.out, err=shown.err)

    return run


def test_it_says_what_was_spent_and_what_is_left(path, command, tmp_path):
    result = command(path, "--json", "--export", tmp_path / "e.json")
    found = json.loads(result.out)
    ledger = pv.Ledger(path)
    assert found["spent"] == ledger.epsilon()
    assert found["left"] == 3.0 - ledger.epsilon()
    assert found["runs"]["first"] == ledger.price({STEP: 500}) > epsilon_of({STEP: 500}, 1e-5)
    assert [each["count"] for each in found["charges"]] == [500, 1]
    assert json.loads((tmp_path / "e.json").read_text()) == found
    words = command(path).out
    assert "patients: epsilon" in words
    assert "statistics" in words
    assert "Adaptive: each charge may be chosen" in words
    assert "counted by a Renyi filter" in " ".join(words.split())
    assert found["meaning"] in " ".join(words.split())


def test_a_planned_ledger_says_that_it_counts_what_was_declared(tmp_path, command):
    with pv.Ledger(tmp_path / "l.db", pv.Budget(3.0, 1e-5), kind="planned") as ledger:
        ledger.declare({"first": {STEP: 500}, "second": {STEP: 100}})
        ledger.charge({STEP: 200}, run="first")
    found = json.loads(command(tmp_path / "l.db", "--json").out)
    assert found["kind"] == "planned"
    assert found["spent"] == epsilon_of({STEP: 600}, 1e-5)
    assert found["runs"] == {"first": epsilon_of({STEP: 500}, 1e-5)}
    words = " ".join(command(tmp_path / "l.db").out.split())
    assert "Epsilon is that of everything declared, whether used or not." in words
    assert "Nothing but what was declared can be charged to it." in words
    assert "valid at any time" not in words


LONG = (
    "monthly retraining of the cardiology model, fourth attempt after the review: final [b] :bug:"
)


@pytest.mark.parametrize("width", ["40", "80", "200"])
def test_a_run_is_named_whole_and_its_epsilon_is_said_once(path, command, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    ledger = pv.Ledger(path)
    for sigma in (3.0, 4.0, 5.0):
        ledger.charge({events.poisson(0.01, sigma): 10}, run=LONG)
    words = command(path).out
    assert words.count(LONG) == 1
    own = round_up(json.loads(command(path, "--json").out)["runs"][LONG])
    assert f"Run {LONG}: epsilon {own} alone\n" in words
    assert words.count(own) == 1
    rows = [line for line in words.splitlines() if line.startswith("  training: 10 releases")]
    assert len(rows) == 3
    assert all(f"multiplier {sigma}," in row for sigma, row in zip((3, 4, 5), rows, strict=True))


def test_another_delta(path, command):
    found = json.loads(command(path, "--json", "--delta", "1e-7").out)
    assert found["spent"] > pv.Ledger(path).epsilon()
    assert found["left"] is None


def test_a_ledger_without_a_limit(tmp_path, command):
    pv.Ledger(tmp_path / "l.db").charge({STEP: 1}, run="a")
    assert "--delta" in command(tmp_path / "l.db").err
    assert "no limit" in command(tmp_path / "l.db", "--delta", "1e-5").out


@pytest.mark.parametrize("content", [None, b"", b"rubbish" * 100])
def test_what_is_no_ledger_is_one_line_and_stays_as_it_is(content, tmp_path, command):
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    result = command(path)
    assert result.code == 2
    assert len(result.err.strip().splitlines()) == 1
    assert (path.read_bytes() if path.exists() else None) == content


def test_damage_is_noticed(path, command):
    content = bytearray(path.read_bytes())
    place = content.find(b"noise_multiplier")
    content[place + 20] ^= 1
    path.write_bytes(content)
    result = command(path)
    assert result.code == 2
    assert "malformed" in result.err or "damaged" in result.err


def test_an_export_is_not_overwritten(path, command, tmp_path):
    (tmp_path / "e.json").write_text("mine")
    assert command(path, "--export", tmp_path / "e.json").code == 2
    assert (tmp_path / "e.json").read_text() == "mine"


def test_an_adaptive_ledger_is_made_for_several_runs(command, tmp_path):
    path = tmp_path / "visits.ledger"
    made = command(path, "--new", "3", "--delta", "1e-5")
    assert made.code == 0
    assert "visits: epsilon 0 of 3 spent, at delta 1e-05." in made.out
    assert "Adaptive" in made.out
    ledger = pv.Ledger(path)
    assert (ledger.kind, ledger.budget) == ("adaptive", pv.Budget(3.0, 1e-5))
    ledger.charge({STEP: 500}, run="first")
    ledger.charge({LOOK: 1}, run="second")
    again = command(path, "--new", "3", "--delta", "1e-5")
    assert again.code == 2
    assert "does not exist with --new" in again.err
    assert len(ledger.charges()) == 2


def test_a_new_ledger_needs_a_whole_budget(command, tmp_path):
    for given, words in (((), "--delta"), (("--delta", "2"), "delta"), (("--delta", "0"), "delta")):
        refused = command(tmp_path / "l", "--new", "3", *given)
        assert refused.code == 2
        assert words in refused.err
    assert command(tmp_path / "l", "--new", "-1", "--delta", "1e-5").code == 2
    assert not (tmp_path / "l").exists()


# ---------------------------------------------------------------------- other places


def test_a_ledger_is_copied_and_the_old_one_is_closed(path, command, tmp_path):
    new = tmp_path / "new.ledger"
    before = json.loads(command(path, "--json").out)
    done = command("copy", path, new)
    assert done.code == 0
    assert "501 releases" in done.out
    assert "is closed" in done.out
    after = json.loads(command(new, "--json").out)
    assert after == before | {"closed": None}
    old = json.loads(command(path, "--json").out)
    assert old == before | {"closed": f"it was moved to {str(new)!r}: use that one"}
    assert f"Closed: it was moved to {str(new)!r}" in command(path).out
    again = json.loads(command("copy", path, new, "--json").out)
    assert again["releases"] == 501
    other = command("copy", path, tmp_path / "other.ledger")
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "was moved to" in other.err
    assert command("copy", tmp_path / "none", new).code == 2


@pytest.mark.parametrize("name", ["copy", "grant", "accept", "show"])
def test_a_file_that_is_called_like_a_command_is_reached(name, path, command, monkeypatch):
    monkeypatch.chdir(path.parent)
    path.rename(name)
    assert "patients: epsilon" in command(f"./{name}").out
    assert "patients: epsilon" in command("--delta", "1e-5", name).out


def test_the_help_of_each_command(command):
    for words, said in {
        (): "--new",
        ("copy",): "FROM TO",
        ("grant",): "--read",
        ("accept",): "restored",
    }.items():
        shown = command(*words, "--help")
        assert shown.code == 0
        assert said in shown.out
    assert command("copy").code == 2
    assert command().code == 2


def test_a_ledger_in_postgresql(command, path, tmp_path):
    url = shared_server().new()
    missing = command(url)
    assert missing.code == 2
    assert "no such ledger in that database" in missing.err
    assert "spent" in command(url, "--new", "3", "--delta", "1e-5").out
    assert "does not exist with --new" in command(url, "--new", "3", "--delta", "1e-5").err
    other = shared_server().new()
    before = json.loads(command(path, "--json").out)
    assert command("copy", path, other).code == 0
    assert json.loads(command(other, "--json").out) == before | {"closed": None}
    assert "Nothing to accept" in command("accept", other).out
    sql = command("grant", other, "trainer").out
    assert "GRANT INSERT" in sql
    assert "GRANT INSERT" not in command("grant", other, "trainer", "--read").out
    assert command("grant", path, "trainer").code == 2
    assert command("accept", path).code == 2
    assert command(other, "--export", tmp_path / "e.json").code == 0
