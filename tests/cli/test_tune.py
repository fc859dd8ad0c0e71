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
def table(tmp_path, monkeypatch):
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
    monkeypatch.chdir(tmp_path)
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
    assert result.stdout.startswith(
        "Records: 300 rows.\nTarget: 'sick', one of the classes no, yes."
    )
    names = {path.name for path in output.iterdir()}
    assert names == {
        "model.safetensors", "model.json", "schema.toml", "statement.txt", "statement.json",
        "tuning.json", "report.html", "metrics.json", "config.json", "model_card.md",
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
    other = tuned(*QUICK, "--how", "repeat-geometric", "--output", "other")
    assert "Output: other" in other.stdout
    assert "Candidates" not in other.stdout


def test_a_ledger_and_an_output_directory_are_the_default(table, tuned):
    found = json.loads(tuned(*QUICK, "--json").stdout)
    with pv.Ledger("t-tuned/ledger") as ledger:
        assert ledger.epsilon() == found["epsilon"] <= 2.0
        assert ledger.kind == "planned"
    again = tuned(*QUICK)
    assert again.returncode == 2
    assert "Keep it" in again.stderr


def test_a_stopped_search_goes_on(table, tuned, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("privada.selection.runs.CandidateRuns.attempt", stopped)
        first = tuned(*QUICK)
    assert first.returncode == 130
    assert "stays charged. Go on with --resume" in first.stderr
    with pv.Ledger("t-tuned/ledger") as ledger:
        charged = ledger.totals()
    refused = tuned(*QUICK, "--epochs", "2", "--resume")
    assert refused.returncode == 2
    result = tuned(*QUICK, "--resume")
    assert result.returncode == 0, result.stderr
    with pv.Ledger("t-tuned/ledger") as ledger:
        assert ledger.totals() == charged


def test_train_does_not_go_on_with_a_search(table, tuned, monkeypatch, capsys):
    assert tuned(*QUICK).returncode == 0
    for name in ("statement.json", "checkpoint"):
        (table / "t-tuned" / name).unlink(missing_ok=True)
    asked = ["train", "t.csv", "--schema", "s.toml", "--epsilon", "2", "--output", "t-tuned"]
    monkeypatch.setattr(sys, "argv", ["privada", *asked, "--resume"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "by privada tune, which began it" in capsys.readouterr().err


def test_the_former_state_still_goes_on(table, tuned, monkeypatch):
    def full(*_, **__):
        raise ArgumentError("Expected room on the disk, got none.")

    asked = (*QUICK, "--ledger", "l.db", "--state", "state")
    with monkeypatch.context() as patched:
        patched.setattr("privada.workflows.tune.write", full)
        with pytest.warns(DeprecationWarning, match="--resume"):
            assert tuned(*asked).returncode == 2
    with pv.Ledger("l.db") as ledger:
        charged = ledger.totals()
    with pytest.warns(DeprecationWarning, match="--resume"):
        assert tuned(*asked).returncode == 0
    with pv.Ledger("l.db") as ledger:
        assert ledger.totals() == charged


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
        (("--batch-size", "5000"), "--batch-size"),
        (("--lr", "0.1"), "--lr"),
        (("--resume",), "unfinished"),
        (("--when-lost", "maybe"), "--when-lost to be one of"),
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
    result = tuned(*given, "--ledger", table / "l.db")
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
    assert "stays charged" in failed.stderr
    assert str(table / "l.db") in failed.stderr
    assert "1 release on the ledger" in failed.stderr
    assert "--resume" in failed.stderr
    done = tuned(*asked, "--resume")
    assert done.returncode == 0, done.stderr
    with pv.Ledger(table / "l.db") as ledger:
        assert sum(ledger.totals().values()) == 1
    taken = tuned(*asked)
    assert taken.returncode == 2
    assert "exists" in taken.stderr


def test_the_prices_have_the_one_that_was_paid(table, tuned):
    found = json.loads(tuned(*QUICK, "--how", "repeat-geometric", "--json").stdout)
    assert found["prices"]["repeat-geometric"] == pytest.approx(found["price"]["epsilon"], rel=1e-9)
