"""`privada train`: from a table to a folder, and what it makes of rubbish."""

import gzip
import json
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import privada as pv
from privada import tables
from privada.cli.app import main
from privada.models import load
from tests.data import data_folder

SCHEMA = """
[target]
column = "sick"
classes = ["no", "yes"]

[columns.age]
kind = "number"
low = 0
high = 100

[columns.ward]
kind = "category"
values = ["a", "b"]
"""
QUICK = ("--epochs", "2", "--batch-size", "50")


def rows(count=600, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 100, count)
    ward = rng.choice(["a", "b"], count)
    sick = np.where(age + 20 * (ward == "a") > 60, "yes", "no")
    return ["age,ward,sick", *(f"{a:.1f},{w},{s}" for a, w, s in zip(age, ward, sick, strict=True))]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(rows()) + "\n")
    (tmp_path / "s.toml").write_text(SCHEMA)
    return tmp_path


@pytest.fixture
def train(folder, monkeypatch, capsys):
    """Run the command; return its exit code, output and errors."""

    def run(*more, table="t.csv", epsilon="2", output="out"):
        asked = ["train", folder / table, "--output", folder / output]
        asked += [*([] if epsilon is None else ["--epsilon", epsilon]), *more]
        monkeypatch.setattr(sys, "argv", ["privada", *map(str, asked)])
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        return SimpleNamespace(code=stopped.value.code, out=shown.out, err=shown.err)

    return run


def test_a_run_by_a_schema_fills_a_folder(folder, train):
    result = train("--schema", folder / "s.toml", *QUICK)
    assert result.code == 0, result.err
    assert "PRIVACY STATEMENT" in result.out
    names = {path.name for path in (folder / "out").iterdir()}
    assert names == {
        "config.json", "history.json", "ledger", "metrics.json", "model.json",
        "model.safetensors", "report.html", "run.json", "schema.toml", "statement.json",
        "statement.txt",
    }  # fmt: skip
    ledger = pv.Ledger(folder / "out" / "ledger")
    statement = json.loads((folder / "out" / "statement.json").read_text())
    assert statement["epsilon"] == ledger.epsilon() <= 2.0
    assert ledger.dataset == "t"
    assert {charge.purpose for charge in ledger.charges()} == {"training"}
    history = json.loads((folder / "out" / "history.json").read_text())
    assert len(history) == 24
    model, facts = load(folder / "out")
    schema = tables.Schema.read(folder / "out" / "schema.toml")
    inputs = tables.encode_inputs(tables.read(folder / "t.csv", schema=schema), schema)
    assert model(torch.from_numpy(inputs)).shape == (600, 2)
    assert facts["classes"] == ["no", "yes"]


def test_without_a_schema_bounds_are_estimated_and_charged(folder, train):
    result = train("--target", "sick", *QUICK, "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    ledger = pv.Ledger(folder / "out" / "ledger")
    purposes = [charge.purpose for charge in ledger.charges()]
    assert purposes == ["statistics", "training"]
    assert found["epsilon"] == ledger.epsilon()
    assert 1.9 < ledger.epsilon() <= 2.0
    schema = tables.Schema.read(folder / "out" / "schema.toml")
    assert schema.columns["age"].high == 128
    assert isinstance(schema.columns["ward"], tables.Hashed)


def test_public_rows_are_not_trained_on(folder, train):
    result = train("--schema", folder / "s.toml", "--public-rows", "ward=a", *QUICK, "--json")
    found = json.loads(result.out)
    (name,) = found["metrics"]
    assert name == "accuracy on public rows"
    private = sum(",b," in row for row in rows())
    assert f"{private:,}" in " ".join(found["statement"]["assumptions"])


def test_regression_and_other_models(folder, train):
    number, category = "low = 0\nhigh = 100", '["no", "yes"]'
    schema = SCHEMA.replace(f'"sick"\nclasses = {category}', f'"age"\n{number}')
    schema = schema.replace(
        f'[columns.age]\nkind = "number"\n{number}',
        f'[columns.sick]\nkind = "category"\nvalues = {category}',
    )
    (folder / "r.toml").write_text(schema)
    result = train("--schema", folder / "r.toml", *QUICK, "--model", "mlp", "--hidden", "4")
    assert result.code == 0, result.err
    assert load(folder / "out")[1]["task"] == "regression"
    guessed = train("--target", "age", *QUICK, output="again", epsilon="5")
    assert guessed.code == 0, guessed.err
    assert (
        train("--target", "sick", "--method", "dp-sgd", "--lr", "1", *QUICK, output="x").code == 0
    )


def test_a_configuration_file_says_the_same(folder, train):
    (folder / "c.toml").write_text(
        f'schema = "{folder}/s.toml"\nepsilon = 2.0\nepochs = 2\nbatch-size = 50\nseed = 1\n'
    )
    first = train("--config", folder / "c.toml", "--json", epsilon=None, output="a")
    again = train("--schema", folder / "s.toml", *QUICK, "--seed", 1, "--json", output="b")
    one, two = json.loads(first.out), json.loads(again.out)
    assert one["noise_multiplier"] == two["noise_multiplier"]
    weights = [load(folder / name)[0].weight for name in "ab"]
    assert torch.equal(*weights)


def test_a_ledger_of_ones_own_adds_up(folder, train):
    path = folder / "patients.ledger"
    pv.Ledger(path, pv.Budget(2.5, 1e-4))
    asked = ("--schema", folder / "s.toml", "--delta", "1e-4", "--ledger", path, *QUICK)
    assert train(*asked, output="a").code == 0
    refused = train(*asked, output="b")
    assert refused.code == 2
    assert "Nothing was charged" in refused.err
    assert not (folder / "b").exists()


@pytest.mark.slow
def test_a_run_that_is_interrupted_goes_on(folder):
    command = [
        sys.executable, "-c", "from privada.cli import main; main()", "train", folder / "t.csv",
        "--schema", folder / "s.toml", "--epsilon", "2", "--output", folder / "out",
        "--epochs", "40", "--batch-size", "5",
    ]  # fmt: skip
    process = subprocess.Popen(
        list(map(str, command)), stderr=subprocess.PIPE, text=True,
        # a test that runs in the background may have been told to ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while not (folder / "out" / "config.json").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert len(said.strip().splitlines()) == 1
    assert (folder / "out" / "checkpoint").exists()
    assert not (folder / "out" / "model.json").exists()
    done = subprocess.run(
        [*map(str, command), "--resume", "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == 4_800
    assert found["epsilon"] <= 2.0
    assert not (folder / "out" / "checkpoint").exists()


# ---------------------------------------------------------------------- twenty bad inputs


def _replace(old, new):
    def change(folder):
        text = (folder / "t.csv").read_text()
        (folder / "t.csv").write_text(text.replace(old, new, 1))

    return change


def _content(text):
    def change(folder):
        content = text if isinstance(text, bytes) else text.encode()
        (folder / "t.csv").write_bytes(content)

    return change


def _schema(old, new):
    def change(folder):
        (folder / "s.toml").write_text(SCHEMA.replace(old, new))

    return change


def _nothing(folder):
    pass


def _file_instead(folder):
    (folder / "out").write_text("")


def _taken(folder):
    (folder / "out").mkdir()


BAD = {
    "missing column": (_replace("age,ward,sick", "years,ward,sick"), (), "age"),
    "wrong type": (_replace("age,ward,sick\n", "age,ward,sick\nold,a,no\n"), (), "age"),
    "unseen category": (_replace("age,ward,sick\n", "age,ward,sick\n30,z,no\n"), (), "ward"),
    "unseen class": (_replace("age,ward,sick\n", "age,ward,sick\n30,a,perhaps\n"), (), "sick"),
    "missing target": (_replace("age,ward,sick\n", "age,ward,sick\n30,a,\n"), (), "sick"),
    "empty file": (_content(""), (), "empty"),
    "header alone": (_content("age,ward,sick\n"), (), "record|row"),
    "one row": (_content("age,ward,sick\n30,a,no\n"), ("--batch-size", "2"), "batch_size"),
    "one class": (_schema('["no", "yes"]', '["no"]'), (), "class"),
    "huge integers": (_replace("age,ward,sick\n", f"age,ward,sick\n{10**30},a,no\n"), (), "age"),
    "infinite": (_replace("age,ward,sick\n", "age,ward,sick\ninf,a,no\n"), (), "age"),
    "latin-1": (_content("age,ward,sick\n30,a,n\xf6\n".encode("latin-1")), (), "UTF-8"),
    "ragged": (_replace("age,ward,sick\n", "age,ward,sick\n30,a\n"), (), "line|row"),
    "binary": (_content(bytes(range(256)) * 12), (), "t.csv"),
    "bad schema": (_schema("[target]", "[target"), (), "s.toml"),
    "unknown kind": (_schema('"number"', '"nmber"'), (), "number"),
    "unwritable folder": (_file_instead, (), "exists"),
    "taken folder": (_taken, (), "exists"),
    "no such ledger folder": (_nothing, ("--ledger", "no/such/ledger"), "ledger"),
    "negative epsilon": (_nothing, ("--epsilon", "-1"), "epsilon"),
    "delta": (_nothing, ("--delta", "2"), "delta"),
    "method": (_nothing, ("--method", "adam"), "method"),
    "model": (_nothing, ("--model", "no_such:model"), "no_such"),
    "batch": (_nothing, ("--batch-size", "100000"), "batch_size"),
    "public rows": (_nothing, ("--public-rows", "ward=z"), "public-rows"),
    "public rows, no column": (_nothing, ("--public-rows", "x=1"), "public-rows"),
    "nothing to resume": (_nothing, ("--resume",), "resume"),
    "config": (_nothing, ("--config", "no_such.toml"), "no_such.toml"),
    "other target": (_nothing, ("--target", "age"), "target"),
    "clip": (_nothing, ("--clip", "0"), "clip"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_clear_line(kind, folder, train):
    change, more, words = BAD[kind]
    change(folder)
    before = {path.name for path in folder.iterdir()}
    result = train("--schema", folder / "s.toml", *QUICK, *more)
    assert result.code == 2, result.err
    assert len(result.err.strip().splitlines()) == 1, result.err
    assert re.search(words, result.err), result.err
    assert "Traceback" not in result.err
    assert {path.name for path in folder.iterdir()} == before
    assert not result.out


@pytest.mark.parametrize(
    ("table", "more", "words"),
    [
        ("no.csv", (), "no.csv"),
        (".", (), "folder|directory|file"),
        ("t.csv", ("--target", "nobody"), "nobody"),
        ("t.csv", (), "--target"),
        ("t.xyz", ("--target", "sick"), "xyz"),
    ],
)
def test_bad_input_without_a_schema(table, more, words, folder, train):
    (folder / "t.xyz").write_text("a")
    result = train(*more, table=table)
    assert result.code == 2, result.err
    assert len(result.err.strip().splitlines()) == 1
    assert re.search(words, result.err), result.err
    assert not (folder / "out").exists()


def test_adult_with_defaults_alone(folder, train):
    """`privada train adult.csv.gz --target income --epsilon 1` reaches .84 on the test rows."""
    source = data_folder("adult.csv.gz") / "adult.csv.gz"
    (folder / "adult.csv.gz").write_bytes(gzip.compress(gzip.decompress(source.read_bytes()), 1))
    result = train(
        "--target", "income", "--public-rows", "split=test", "--json", table="adult.csv.gz",
        epsilon="1",
    )  # fmt: skip
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["metrics"]["accuracy on public rows"] >= 0.84
    assert pv.Ledger(folder / "out" / "ledger").epsilon() == found["epsilon"] <= 1.0
