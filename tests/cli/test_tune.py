"""`privada tune`: a search on a table, from the command line."""

import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import privada as pv
from privada.cli.app import main
from privada.core.errors import ArgumentError
from privada.models import load
from tests.schemas import SCHEMA

QUICK = ("--epochs", "1", "--batch-size", "50", "--set", "lr=0.1,1", "--set", "clip=1")


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, 300)
    ward = rng.choice(["a", "b"], 300)
    sick = np.where(age + 20 * (ward == "a") > 60, "yes", "no")
    lines = [
        "age,ward,sick",
        *(f"{a:.1f},{w},{s}" for a, w, s in zip(age, ward, sick, strict=True)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "s.toml").write_text(SCHEMA)
    return tmp_path


@pytest.fixture
def tuned(table, monkeypatch, capsys):
    """Run the command on the table; return its exit code, output and errors."""

    def run(*more):
        asked = ["tune", table / "t.csv", "--schema", table / "s.toml", "--epsilon", "2", *more]
        monkeypatch.setattr(sys, "argv", ["privada", *map(str, asked)])
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        return SimpleNamespace(returncode=stopped.value.code, stdout=shown.out, stderr=shown.err)

    return run


def test_a_search_writes_a_folder(table, tuned):
    output = table / "best"
    result = tuned(*QUICK, "--output", output, "--ledger", table / "l.db")
    assert result.returncode == 0, result.stderr
    assert "PRIVACY STATEMENT" in result.stdout
    names = {path.name for path in output.iterdir()}
    assert names == {
        "model_card.md", "model.safetensors", "model.json", "schema.toml", "statement.txt",
        "statement.json", "tuning.json", "report.html",
    }  # fmt: skip
    model, facts = load(output)
    assert model(torch.zeros(2, len(facts["features"]))).shape == (2, 2)
    assert facts["classes"] == ["no", "yes"]
    found = json.loads((output / "tuning.json").read_text())
    ledger = pv.Ledger(table / "l.db")
    assert found["epsilon"] == ledger.epsilon() <= 2.0
    assert json.loads((output / "statement.json").read_text())["epsilon"] == found["epsilon"]
    assert not [path for path in table.iterdir() if path.name.startswith(".best")]


def test_json_alone_is_printed(table, tuned):
    result = tuned(*QUICK, "--how", "compose-pld", "--json")
    found = json.loads(result.stdout)
    assert [each["settings"]["lr"] for each in found["tried"]] == [0.1, 1]
    assert found["score"] == max(each["score"] for each in found["tried"])


def test_candidates_are_listed_where_they_are_released(table, tuned):
    result = tuned(*QUICK, "--how", "compose-pld", "--model", "mlp", "--hidden", "4")
    assert "Candidates" in result.stdout
    assert "Candidates" not in tuned(*QUICK, "--how", "repeat-geometric").stdout


def test_a_search_goes_on_from_its_state(table, tuned):
    more = (*QUICK, "--ledger", table / "l.db", "--state", table / "state", "--json")
    first, again = (json.loads(tuned(*more).stdout) for _ in range(2))
    assert first == again
    assert len(pv.Ledger(table / "l.db").charges()) == 1


def test_regression(table, tuned):
    schema = SCHEMA.replace('classes = ["no", "yes"]', "low = 0\nhigh = 100").replace("sick", "age")
    schema = schema.replace("[columns.age]", "[columns.sick]").replace(
        'kind = "number"\nlow = 0\nhigh = 100', 'kind = "category"\nvalues = ["no", "yes"]'
    )
    (table / "s.toml").write_text(schema)
    result = tuned(*QUICK, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["model"]["inputs"] == 6


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--set", "lr"), "name=value"),
        (("--set", "lr="), "name=value"),
        (("--set", "speed=1"), "speed"),
        (("--method", "magic"), "method"),
        (("--method", "adadps", "--set", "lr=1"), "side information"),
        (("--model", "forest"), "linear"),
        (("--model", "no_such:thing"), "no_such"),
        (("--how", "free"), "how"),
        (("--validation", "1.5"), "validation"),
        (("--batch-size", "5000"), "batch_size"),
        (("--state", "x"), "ledger"),
        (("--seed", "-1"), "seed"),
        (("--output", "."), "exists"),
        (("--output", "no/such/folder"), "Cannot write"),
        (("--candidates", "0"), "mean"),
        (("--person", "nobody"), "--person"),
        (("--person", "sick"), "target"),
        (("--rows-per-person", "2"), "--person"),
        (("--target", "age"), "--target"),
        (("--public", "t.csv"), "t.csv"),
        (("--config", "none.toml"), "none.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_rubbish_is_one_line_and_charges_nothing(table, tuned, more, words):
    given = [*QUICK, *more] if "--set" not in more else ["--epochs", "1", *more]
    ledger = () if "--state" in more else ("--ledger", table / "l.db")
    result = tuned(*given, *ledger)
    assert result.returncode == 2, result.stdout
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert re.search(words, result.stderr), result.stderr
    if (table / "l.db").exists():
        assert pv.Ledger(table / "l.db").totals() == {}


def test_a_spent_budget_is_one_line(table, tuned):
    pv.Ledger(table / "l.db", pv.Budget(0.01, 1e-5))
    result = tuned(*QUICK, "--ledger", table / "l.db")
    assert result.returncode == 2
    assert "Nothing was charged" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_an_error_after_the_charge_says_what_stays_charged(table, tuned, monkeypatch):
    def full(*_, **__):
        raise ArgumentError("Expected room on the disk, got none.")

    asked = (*QUICK, "--ledger", table / "l.db", "--output", table / "best")
    with monkeypatch.context() as patched:
        patched.setattr("privada.workflows.tune.write", full)
        failed = tuned(*asked)
    assert failed.returncode == 2
    assert "stay charged" in failed.stderr
    assert str(table / "l.db") in failed.stderr
    with pv.Ledger(table / "l.db") as ledger:
        charged = sum(ledger.totals().values())
    assert f"{charged:,} releases were charged" in failed.stderr
    (table / "best").mkdir()
    (table / "best" / "ledger").write_bytes((table / "l.db").read_bytes())
    taken = tuned(*asked)
    assert taken.returncode == 2
    assert "Keep it" in taken.stderr
    assert "remove" not in taken.stderr


def test_the_prices_have_the_one_that_was_paid(table, tuned):
    found = json.loads(tuned(*QUICK, "--how", "repeat-geometric", "--json").stdout)
    assert found["prices"]["repeat-geometric"] == pytest.approx(found["price"]["epsilon"], rel=1e-9)
