"""`privada train`: from a table to a folder, and what it makes of rubbish."""

import gzip
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import privada as pv
from privada import tables
from privada.accounting import epsilon_of, events
from privada.cli.app import main
from privada.core.errors import ArgumentError
from privada.models import load
from privada.train import checkpoint
from tests.datasets import data_folder
from tests.forks import PATIENCE
from tests.schemas import SCHEMA

QUICK = ("--epochs", "2", "--batch-size", "50")


def releases(ledger):
    """Return how many releases a ledger holds for each purpose."""
    found = Counter()
    for charge in ledger.charges():
        found[charge.purpose] += events.release_count({charge.event: charge.count})
    return found


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
        "model_card.md", "model.safetensors", "report.html", "schema.toml", "statement.json",
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


def test_without_a_schema_bounds_and_classes_are_estimated_and_charged(folder, train):
    rare = [f"50,a,sicker {k}" for k in range(3)]
    (folder / "t.csv").write_text("\n".join([*rows(3000), *rare]) + "\n")
    # seeded: now and then secure noise makes the bounds wider
    result = train("--target", "sick", *QUICK, "--json", "--seed", 1)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    ledger = pv.Ledger(folder / "out" / "ledger")
    charges = ledger.charges()
    assert [(c.purpose, c.count, events.kind_of(c.event).name) for c in charges] == [
        ("statistics", 2, "gaussian"),
        ("statistics", 1, "failure"),
        ("training", 1, "gaussian"),  # the look at the features
        ("training", 121, "poisson"),
    ]
    assert len({charge.run for charge in charges}) == 1
    assert load(folder / "out")[1]["classes"] == ["no", "yes"]
    said = " ".join(found["statement"]["assumptions"])
    assert "a public population of 3,003" in said
    assert "names and types of the columns are public" in said
    assert found["epsilon"] == ledger.epsilon()
    assert 1.9 < ledger.epsilon() <= 2.0
    schema = tables.Schema.read(folder / "out" / "schema.toml")
    assert schema.columns["age"].high == 128
    assert isinstance(schema.columns["ward"], tables.Hashed)


def test_what_is_wrong_shows_before_a_query_is_paid_for(folder, train):
    (folder / "t.csv").write_text("\n".join([*rows(3000), "old,a,no"]) + "\n")
    (folder / "few.csv").write_text("\n".join(rows(60)) + "\n")
    (folder / "alone.csv").write_text("sick\n" + "no\nyes\n" * 2000)
    account = folder / "account"
    with pv.Ledger(account, pv.Budget(9.0, 1e-5), dataset="t"):
        pass
    for table, more, words in [
        ("t.csv", (), "age"),
        ("few.csv", (), "Name the classes"),
        ("few.csv", ("--class", "no", "--class", "yes", "--method", "adam"), "method"),
        ("few.csv", ("--class", "no", "--class", "yes", "--model", "no_such:model"), "no_such"),
        ("few.csv", ("--class", "no"), "class"),
        ("alone.csv", (), "column"),
    ]:
        result = train("--target", "sick", "--ledger", account, *more, table=table)
        assert result.code == 2, result.err
        assert re.search(words, result.err), result.err
        assert not (folder / "out").exists()
        assert not pv.Ledger(account).totals()


def test_classes_that_do_not_stand_out_stay_charged_and_can_be_named(folder, train):
    ages = [row.split(",")[0] for row in rows(3000)[1:]]
    text = ["age,sick", *(f"{age},person {k}" for k, age in enumerate(ages))]
    (folder / "t.csv").write_text("\n".join(text) + "\n")
    refused = train("--target", "sick", *QUICK)
    assert refused.code == 2
    assert "stays charged" in refused.err
    ledger = pv.Ledger(folder / "out" / "ledger")
    charged, spent = ledger.totals(), ledger.epsilon()
    assert 0 < ledger.price(charged) < 0.2  # a tenth for both queries, and one was made
    assert 1.9 < spent <= 2.0  # of all that was declared
    again = train("--target", "sick", *QUICK, "--resume")
    assert again.code == 2  # the same answer, for nothing
    assert "two classes" in again.err
    assert (ledger.totals(), ledger.epsilon()) == (charged, spent)
    (folder / "t.csv").write_text("\n".join(text).replace("person 1", "yes") + "\n")
    missing = train("--target", "sick", "--class", "no", "--class", "yes", *QUICK, "--resume")
    assert missing.code == 2  # most rows have neither, which is said
    assert "sick" in missing.err
    assert (ledger.totals(), ledger.epsilon()) == (charged, spent)


def cancer(folder):
    """Write scikit-learn's breast cancer, 569 rows, with its diagnoses as text."""
    from sklearn import datasets

    loaded = datasets.load_breast_cancer()
    names = [name.replace(" ", "_") for name in loaded.feature_names]
    lines = (
        ",".join([*map(str, values), str(loaded.target_names[label])])
        for values, label in zip(loaded.data, loaded.target, strict=True)
    )
    (folder / "cancer.csv").write_text("\n".join([",".join([*names, "kind"]), *lines]) + "\n")


def test_all_queries_of_a_small_table_are_checked_before_the_first_is_charged(folder, train):
    """At an epsilon of 0.2 its classes cannot be found; at 1, all of it can."""
    cancer(folder)
    account = folder / "account"
    with pv.Ledger(account, pv.Budget(9.0, 1e-4), dataset="cancer"):
        pass
    asked = ("--target", "kind", "--ledger", account, *QUICK)
    refused = train(*asked, table="cancer.csv", epsilon="0.2")
    assert refused.code == 2
    assert "Name the classes" in refused.err
    assert not pv.Ledger(account).totals()
    assert not (folder / "out").exists()
    done = train(*asked, "--json", table="cancer.csv", epsilon="1")
    assert done.code == 0, done.err
    said = json.loads(done.out)["statement"]
    with pv.Ledger(account) as ledger:
        assert said["epsilon"] == ledger.epsilon() == ledger.price(ledger.totals())
        assert said["run_epsilon"] == epsilon_of(ledger.totals(), said["delta"])
    assert 0.99 < said["run_epsilon"] <= 1.0  # which is what was asked for
    alone = train("--target", "kind", *QUICK, "--json", table="cancer.csv", epsilon="1", output="b")
    assert alone.code == 0, alone.err
    assert 0.99 < json.loads(alone.out)["epsilon"] <= 1.0
    assert pv.Ledger(folder / "b" / "ledger").epsilon() <= 1.0


def test_training_that_the_ledger_cannot_pay_for_is_refused_before_the_queries(folder, train):
    (folder / "t.csv").write_text("\n".join(rows(3000)) + "\n")
    account = folder / "account"
    with pv.Ledger(account, pv.Budget(1.0, 1e-4), dataset="t"):
        pass
    # the queries alone, a tenth of 2, would fit
    result = train("--target", "sick", "--ledger", account, "--delta", "1e-4", *QUICK)
    assert result.code == 2
    assert "budget" in result.err
    assert not pv.Ledger(account).totals()
    assert not (folder / "out").exists()


def diabetes(folder):
    """Write scikit-learn's diabetes: 442 rows, ten columns of both signs, a target of numbers."""
    from sklearn import datasets

    loaded = datasets.load_diabetes()
    lines = (",".join(map(str, [*x, y])) for x, y in zip(loaded.data, loaded.target, strict=True))
    header = ",".join([*loaded.feature_names, "y"])
    (folder / "diabetes.csv").write_text("\n".join([header, *lines]) + "\n")
    return loaded


@pytest.mark.parametrize("seed", range(5))
def test_bounds_of_a_small_table_are_found(seed, folder, train):
    loaded = diabetes(folder)
    result = train("--target", "y", "--seed", seed, table="diabetes.csv", epsilon="3")
    assert result.code == 0, result.err
    schema = tables.Schema.read(folder / "out" / "schema.toml")
    assert len(schema.defaulted) <= 1
    model, _ = load(folder / "out")
    inputs = tables.encode_inputs(tables.read(folder / "diabetes.csv", schema=schema), schema)
    found = schema.target.restore(model(torch.from_numpy(inputs)).detach().numpy()[:, 0])
    errors = np.mean((found - loaded.target) ** 2)
    assert 1 - errors / loaded.target.var() > 0.3  # 0.5 without privacy


def test_columns_without_bounds_have_defaults_and_the_statement_says_so(folder, train):
    """Sixty rows at an epsilon of 0.02: no query could find bounds, so none is paid for."""
    (folder / "few.csv").write_text("\n".join(rows(60)) + "\n")
    named = ("--target", "sick", "--class", "no", "--class", "yes", "--batch-size", "30")
    result = train(*named, "--json", table="few.csv", epsilon="0.02")
    assert result.code == 0, result.err
    said = " ".join(json.loads(result.out)["statement"]["assumptions"])
    assert "No bounds were found for 'age'" in said
    schema = tables.Schema.read(folder / "out" / "schema.toml")
    assert schema.defaulted == ("age",)
    assert {c.purpose for c in pv.Ledger(folder / "out" / "ledger").charges()} == {"training"}


@pytest.mark.parametrize(
    ("choice", "kind", "statistics"),
    [
        (choice, kind, statistics)
        for choice, statistics in (("pay-again", 2), ("defaults", 1))
        for kind in ("adaptive", "planned")
    ],
)
def test_a_run_that_died_between_charge_and_answer_asks_before_it_pays_again(
    choice, kind, statistics, folder, train, monkeypatch
):
    def dies(*_, **__):
        raise KeyboardInterrupt

    account = folder / "account"
    if kind == "adaptive":
        pv.Ledger(account, pv.Budget(20.0, 1e-4), dataset="t").close()
    asked = ("--target", "age", "--regression", "--ledger", account, *QUICK)
    with monkeypatch.context() as patched:
        patched.setattr("privada.query.histograms.histogram_sum", dies)
        died = train(*asked, epsilon="5")
    assert died.code == 130
    assert "stays charged" in died.err
    assert "--resume" in died.err

    def charged():
        with pv.Ledger(account) as ledger:
            assert ledger.kind == kind
            return releases(ledger)["statistics"]

    assert charged() == 1
    refused = train(*asked, "--resume", epsilon="5")
    assert refused.code == 2
    assert "--when-lost pay-again" in refused.err
    assert "--when-lost defaults" in refused.err
    assert charged() == 1
    done = train(*asked, "--resume", "--when-lost", choice, "--json", epsilon="5")
    assert done.code == 0, done.err
    assert charged() == statistics
    assert json.loads(done.out)["statement"]["run_epsilon"] <= 5.0
    found = tables.Schema.read(folder / "out" / "schema.toml")
    assert found.defaulted == (("age",) if choice == "defaults" else ())


def test_an_interrupt_before_the_first_charge_leaves_nothing(folder, train, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("privada.workflows.table_runs.read_rows", stopped)
    result = train("--target", "sick", *QUICK)
    assert result.code == 130
    assert "Nothing was charged" in result.err
    assert not (folder / "out").exists()


def test_an_error_after_charges_says_so_and_the_run_goes_on_with_other_options(folder, train):
    """A method that fails when it is made of the real bounds, say."""
    (folder / "t.csv").write_text("\n".join(rows(3000)) + "\n")
    asked = ("--target", "sick", *QUICK)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("privada.workflows.train.Trainer.fit", _out_of_memory)
        failed = train(*asked)
    assert failed.code == 2
    assert "stays charged, 2 releases on the ledger" in failed.err
    assert "keep the folder" in failed.err
    assert "--resume" in failed.err
    taken = train(*asked)
    assert taken.code == 2
    assert "Keep it" in taken.err
    assert "remove" not in taken.err
    assert f"--ledger {folder / 'out' / 'ledger'}" not in taken.err  # which is for one run
    assert train(*asked, "--resume").code == 0
    with pv.Ledger(folder / "out" / "ledger") as ledger:
        assert releases(ledger)["statistics"] == 2


def _out_of_memory(*_, **__):
    raise ArgumentError("Expected more memory.")


@pytest.mark.parametrize("content", ["charges", "damaged", "no charges", "no ledger"])
def test_a_folder_with_a_ledger_is_never_to_be_removed(content, folder, train):
    (folder / "out").mkdir()
    path = folder / "out" / "ledger"
    if content != "no ledger":
        with pv.Ledger(path, dataset="t") as ledger:
            if content != "no charges":
                ledger.charge({pv.accounting.events.gaussian(2.0): 1}, run="r")
    if content == "damaged":
        path.write_bytes(b"rubbish" + path.read_bytes()[7:])
    result = train("--target", "sick", *QUICK)
    assert result.code == 2
    assert "exists" in result.err
    assert "remove" not in result.err
    assert ("Keep it" in result.err) == (content in ("charges", "damaged"))
    assert (folder / "out").exists()


def test_a_ledger_that_is_none_leaves_no_folder(folder, train):
    (folder / "account").write_text("rubbish")
    result = train("--target", "sick", "--ledger", folder / "account", *QUICK)
    assert result.code == 2
    assert "account" in result.err
    assert not (folder / "out").exists()


def test_a_public_table_says_what_columns_are_and_helps_a_method(folder, train):
    (folder / "p.csv").write_text("\n".join(rows(300, seed=1)) + "\n")
    public = ("--target", "sick", "--public", folder / "p.csv")
    result = train(*public, "--method", "adadps", "--lr", "0.1", *QUICK, "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    schema = tables.Schema.read(folder / "out" / "schema.toml")
    assert schema.columns["ward"] == tables.Category(["a", "b"], other=True)
    assert {c.purpose for c in pv.Ledger(folder / "out" / "ledger").charges()} == {"training"}
    assert "adadps" in found["method"]
    assert "300 rows that were declared public" in " ".join(found["statement"]["assumptions"])
    assert "accuracy on public rows" in found["metrics"]
    for method in ("dp-r-pub", "dp-adam-pub", "pda-dpmd", "pdp-sgd", "pasan", "pagan", "dp-sgd"):
        again = train(*public, "--method", method, "--lr", "0.1", *QUICK, output=method)
        assert again.code == 0, again.err
    both = train(*public, "--public-rows", "ward=a", *QUICK, output="both")
    assert both.code == 2
    assert "--public-rows" in both.err
    alone = train("--schema", folder / "s.toml", "--method", "adadps", *QUICK, output="alone")
    assert alone.code == 2
    assert "public" in alone.err


@pytest.mark.parametrize("schema", [True, False])
@pytest.mark.parametrize("kind", ["file", "link", "copy", "rows", "written anew"])
def test_the_private_table_is_not_public(kind, schema, folder, train):
    public = folder / "p.csv"
    lines = rows()
    if kind == "file":
        public = folder / "t.csv"
    elif kind == "link":
        public.symlink_to(folder / "t.csv")
    elif kind == "copy":
        public.write_bytes((folder / "t.csv").read_bytes())
    elif kind == "rows":
        public.write_text("\n".join([lines[0], *lines[200:300]]) + "\n")
    else:
        cells = [line.split(",") for line in lines[1:]]
        text = [f"{sick},{float(age):.4f},{ward}" for age, ward, sick in reversed(cells)]
        public.write_text("\n".join(["sick,age,ward", *text]) + "\n")
    given = ("--schema", folder / "s.toml") if schema else ("--target", "sick")
    result = train(*given, "--public", public, *QUICK)
    assert result.code == 2, result.out
    assert "private" in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert not (folder / "out").exists()


@pytest.mark.parametrize("public", [False, True])
def test_a_key_of_one_record_is_not_shown(public, folder, train):
    header, *lines = [line.split(",") for line in rows()]
    records = [dict(zip(header, line, strict=True)) for line in lines]
    records[137]["Smith"] = "1"
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, records)))
    (folder / "public.csv").write_text("\n".join(rows(seed=1)))
    more = ("--public", folder / "public.csv") if public else ()
    result = train("--target", "sick", *more, *QUICK, table="t.jsonl")
    assert result.code == 2
    assert "privada schema" in result.err
    assert "Smith" not in result.err + result.out
    assert not (folder / "out").exists()


def test_private_text_is_not_public_text(folder, train):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefghij"), 30)) for _ in range(300)]
    (folder / "reviews.csv").write_text(
        "words,liked\n" + "".join(f"{text},{'ny'[k % 2]}\n" for k, text in enumerate(texts))
    )
    (folder / "copy.txt").write_text("\n".join(texts[:200]) + "\n")
    (folder / "other.txt").write_text("\n".join(text[::-1] for text in texts) + "\n")
    for name, code in (("reviews.csv", 2), ("copy.txt", 2), ("other.txt", 0)):
        (folder / "r.toml").write_text(
            '[target]\ncolumn = "liked"\nclasses = ["n", "y"]\n\n[columns.words]\nkind = "text"\n'
            f'weighting = "tf-idf"\npublic_text = "{name}"\nfeatures = 16\n'
        )
        result = train("--schema", folder / "r.toml", *QUICK, table="reviews.csv")
        assert result.code == code, result.err
        assert ("private" in result.err) == (code == 2)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_text_becomes_a_bag_of_words(ending, folder, train):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["good", "bad", "film", "plot", "long"], 9)) for _ in range(3000)]
    liked = ["yes" if t.count("good") > t.count("bad") else "no" for t in texts]
    path = folder / f"reviews.{ending}"
    if ending == "csv":
        path.write_text("words,liked\n" + "".join(map("{},{}\n".format, texts, liked)))
    elif ending == "jsonl":
        pairs = zip(texts, liked, strict=True)
        path.write_text("".join(json.dumps({"words": t, "liked": y}) + "\n" for t, y in pairs))
    else:
        arrow = pytest.importorskip("pyarrow")
        columns = arrow.table({"words": texts, "liked": liked})
        pytest.importorskip("pyarrow.parquet").write_table(columns, path)
    declared = ("--text", "words") if ending == "parquet" else ()
    result = train("--target", "liked", *declared, "--json", table=path.name, epsilon="8")
    assert result.code == 0, result.err
    model, _ = load(folder / "out")
    schema = tables.Schema.read(folder / "out" / "schema.toml")
    assert isinstance(schema.columns["words"], tables.Text)
    encoded = tables.encode(tables.read(path, schema=schema), schema)
    right = model(torch.from_numpy(encoded.inputs.toarray())).argmax(dim=1).numpy()
    assert (right == encoded.targets).mean() > 0.75
    refused = train("--target", "liked", "--text", "liked", table=path.name, output="x")
    assert refused.code == 2
    assert "--text" in refused.err


def test_a_folder_of_text(folder, train):
    rng = np.random.default_rng(0)
    for name, word in (("good", "fine"), ("bad", "dull")):
        (folder / "reviews" / name).mkdir(parents=True)
        for number in range(1000):
            words = rng.permutation([word, *rng.choice(["film", "plot", "long", "cast"], 6)])
            (folder / "reviews" / name / f"{number}.txt").write_text(" ".join(words))
    result = train("--target", "label", "--json", table="reviews", epsilon="8")
    assert result.code == 0, result.err
    assert load(folder / "out")[1]["classes"] == ["bad", "good"]
    assert pv.Ledger(folder / "out" / "ledger").dataset == "reviews"


def test_matrices_of_an_archive(folder, train):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (800, 6))
    np.savez(folder / "a.npz", pixels=pixels, label=pixels.argmax(axis=1))
    alone = train("--target", "label", table="a.npz")
    assert alone.code == 2
    assert "privada schema" in alone.err
    (folder / "a.toml").write_text(
        '[target]\ncolumn = "label"\nclasses = [0, 1, 2, 3, 4, 5]\n\n'
        '[columns.pixels]\nkind = "matrix"\nwidth = 6\nlow = 0\nhigh = 255\n'
    )
    result = train("--schema", folder / "a.toml", "--json", table="a.npz", epsilon="8")
    assert result.code == 0, result.err
    model, _ = load(folder / "out")
    found = model(torch.from_numpy(pixels / 255).float()).argmax(dim=1).numpy()
    assert (found == pixels.argmax(axis=1)).mean() > 0.6


@pytest.mark.parametrize("kind", ["planned", "adaptive"])
def test_a_killed_run_goes_on_and_costs_no_more_than_was_asked_for(kind, folder, train):
    """It is killed between two checkpoints, on a ledger of its own or on one for far more."""
    account = folder / "account"
    if kind == "adaptive":
        pv.Ledger(account, pv.Budget(9.0, 1e-4), dataset="t").close()
    asked = [
        "train", folder / "t.csv", "--target", "age", "--epsilon", "2", "--delta", "1e-4",
        "--regression",
        "--ledger", account, "--epochs", "20", "--batch-size", "50", "--output", folder / "out",
    ]  # fmt: skip
    program = """
import os, signal, sys
from privada.train.trainer import Trainer
step = Trainer.step
def killed(self):
    if self.steps_done == 118:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self)
Trainer.step = killed
from privada.cli import main
main()
"""
    killed = subprocess.run([sys.executable, "-c", program, *map(str, asked)], timeout=PATIENCE)
    assert killed.returncode == -signal.SIGKILL
    assert not (folder / "out" / "statement.json").exists()
    with pv.Ledger(account) as ledger:
        before = releases(ledger)
    kept = checkpoint.read(folder / "out" / "checkpoint", {})["step"]
    assert kept < 118 <= before["training"]
    lost = before["training"] - kept  # with what was reserved, which is more where disks are slow
    done = train(*asked[2:-2], "--resume", "--json", epsilon=None)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert 240 - lost <= found["steps"] < 240  # some were paid for twice
    said = " ".join(found["statement"]["assumptions"])
    assert "names and types of the columns are public" in said  # as before it was killed
    assert "was said without looking" not in said
    assert f"{found['steps']} of 240 steps" in str(found["statement"])
    with pv.Ledger(account) as ledger:
        assert ledger.kind == kind
        assert found["epsilon"] == ledger.epsilon()
        assert epsilon_of(ledger.totals(), 1e-4) <= found["statement"]["run_epsilon"] <= 2.0
        if kind == "planned":
            assert ledger.totals() <= ledger.declared(ledger.runs()[0])
            assert ledger.epsilon() <= 2.0
        else:
            assert ledger.epsilon() == ledger.price(ledger.totals()) <= 9.0
        assert releases(ledger)["statistics"] == 1
    finished = train(*asked[2:-2], "--resume", epsilon=None)
    assert finished.code == 2
    assert "unfinished" in finished.err


def full(*_, **__):
    raise OSError(28, "No space left on device")


def test_a_folder_that_cannot_be_begun_is_removed(folder, train, monkeypatch):
    monkeypatch.setattr("os.fsync", full)
    result = train("--schema", folder / "s.toml", *QUICK)
    assert result.code == 2
    assert "No space left" in result.err
    assert "charged" not in result.err
    assert not (folder / "out").exists()


@pytest.mark.parametrize("kept", ["config.json", "schema.toml"])
def test_a_crash_leaves_what_a_run_needs_whole(kept, folder, train, monkeypatch):
    """A file is in place with all of its content, or as it was before."""
    replaced, done = Path.replace, []

    def dies(draft, target):
        if Path(target).name == kept and (folder / "out" / "answers.json").exists():
            done.append(Path(draft).read_text())
            raise KeyboardInterrupt
        return replaced(draft, target)

    asked = ("--target", "sick", *QUICK)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", dies)
        assert train(*asked, epsilon="8").code == 130
    assert len(done) == 1  # it was about to be put in place
    assert json.loads((folder / "out" / "config.json").read_text())["run"]
    assert not (folder / "out" / "schema.toml").exists()
    finished = train(*asked, "--resume", "--json", epsilon="8")
    assert finished.code == 0, finished.err
    with pv.Ledger(folder / "out" / "ledger") as ledger:
        assert releases(ledger)["statistics"] == 2
        assert json.loads(finished.out)["epsilon"] == ledger.epsilon() <= 8.0


@pytest.mark.parametrize("other", ["gone", "another", "begun elsewhere"])
def test_a_run_does_not_go_on_without_the_ledger_that_paid_for_its_schema(
    other, folder, train, monkeypatch
):
    def dies(*_, **__):
        raise KeyboardInterrupt

    asked = ("--target", "sick", *QUICK)
    own = folder / "out" / "ledger"
    began = asked
    if other == "begun elsewhere":
        own = folder / "mine"
        began = (*asked, "--ledger", own)
    with monkeypatch.context() as patched:
        patched.setattr(pv.Trainer, "fit", dies)
        assert train(*began, epsilon="8").code == 130
    assert (folder / "out" / "schema.toml").exists()
    more = ()
    if other == "gone":
        own = own.rename(folder / "copy")
    elif other == "another":
        more = ("--ledger", folder / "other")
        pv.Ledger(folder / "other", pv.Budget(8.0, 1e-4), dataset="t").close()
    refused = train(*asked, *more, "--resume", epsilon="8")
    assert refused.code == 2
    assert "ledger" in refused.err
    if other == "begun elsewhere":
        assert f"--ledger {own}" in refused.err
    if other == "gone":
        assert not (folder / "out" / "ledger").exists()
        own = own.rename(folder / "out" / "ledger")
    done = train(*began, "--resume", "--json", epsilon="8")
    assert done.code == 0, done.err
    with pv.Ledger(own) as ledger:
        assert releases(ledger)["statistics"] == 2
        assert json.loads(done.out)["statement"]["epsilon"] == ledger.epsilon() <= 8.0


def test_advice_on_a_run_whose_training_has_begun_does_not_contradict_itself(
    folder, train, monkeypatch
):
    step, taken = pv.Trainer.step, []

    def dies(trainer):
        if len(taken) == 3:
            raise KeyboardInterrupt
        taken.append(step(trainer))

    asked = ("--schema", folder / "s.toml", *QUICK)
    with monkeypatch.context() as patched:
        patched.setattr(pv.Trainer, "step", dies)
        assert train(*asked).code == 130
    refused = train(*asked, "--lr", "3", "--resume")
    assert refused.code == 2
    assert "with the settings that the run was started with" in refused.err
    assert "stays charged" in refused.err
    assert "other options" not in refused.err


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"run": 1}'])
def test_a_folder_that_has_forgotten_its_run_says_so(content, folder, train):
    (folder / "out").mkdir()
    (folder / "out" / "config.json").write_text(content)
    result = train("--schema", folder / "s.toml", *QUICK, "--resume")
    assert result.code == 2
    assert "keep the folder" in result.err


@pytest.mark.parametrize("part", ["privada.workflows.train.save", "pathlib.Path.write_text"])
def test_a_full_disk_at_the_end_says_what_was_charged(part, folder, train, monkeypatch):
    asked = ("--schema", folder / "s.toml", *QUICK)
    with monkeypatch.context() as patched:
        patched.setattr(part, full)
        result = train(*asked)
    assert result.code == 2
    assert "No space left" in result.err
    assert "stays charged" in result.err
    with pv.Ledger(folder / "out" / "ledger") as ledger:
        before = ledger.epsilon()
    assert train(*asked, "--resume").code == 0
    with pv.Ledger(folder / "out" / "ledger") as ledger:
        assert ledger.epsilon() == before


def test_results_that_could_not_be_written_are_written_later(folder, train, monkeypatch):
    def full(*_, **__):
        raise ArgumentError("No space left.")

    asked = ("--schema", folder / "s.toml", *QUICK)
    with monkeypatch.context() as patched:
        patched.setattr("privada.workflows.train.write", full)
        assert train(*asked).code == 2
    before = pv.Ledger(folder / "out" / "ledger").epsilon()
    assert train(*asked, "--resume").code == 0
    assert (folder / "out" / "report.html").exists()
    assert not (folder / "out" / "checkpoint").exists()
    assert pv.Ledger(folder / "out" / "ledger").epsilon() == before


def test_without_an_output_the_folder_has_the_tables_name(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    asked = ["train", "t.csv", "--schema", "s.toml", "--epsilon", "2", *QUICK]
    for code in (0, 2):  # the second time it is there
        monkeypatch.setattr(sys, "argv", ["privada", *asked])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == code
    assert "t-private" in capsys.readouterr().err
    assert (folder / "t-private" / "statement.txt").exists()


def test_public_rows_are_not_trained_on(folder, train):
    result = train("--schema", folder / "s.toml", "--public-rows", "ward=a", *QUICK, "--json")
    found = json.loads(result.out)
    names = ["accuracy on public rows", "area under the ROC curve on public rows"]
    assert list(found["metrics"]) == list(found["baselines"]) == names
    private = sum(",b," in row for row in rows())
    assert f"{private:,}" in " ".join(found["statement"]["assumptions"])


def test_public_rows_are_evaluated_on_while_training(folder, train):
    public = ("--schema", folder / "s.toml", "--public-rows", "ward=a")
    result = train(*public, *QUICK, "--log", folder / "run.jsonl")
    assert result.code == 0, result.err
    shares = [",yes" in row for row in rows() if ",a," in row]
    share = max(np.mean(shares), 1 - np.mean(shares))
    assert re.search(rf"accuracy on public rows: [\d.]+, baseline {share:.4g}", result.out)
    name = "accuracy on public rows"
    metrics = json.loads((folder / "out" / "metrics.json").read_text())
    assert metrics[f"{name}, baseline"] == pytest.approx(share)
    evaluations = json.loads((folder / "out" / "evaluations.json").read_text())
    assert 5 < len(evaluations) <= 10
    assert evaluations[-1][name] == metrics[name]
    logged = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    assert [row["validation/accuracy"] for row in logged if "validation/accuracy" in row] == [
        each[name] for each in evaluations
    ]
    assert "plot-score-0" in (folder / "out" / "report.html").read_text()


def test_a_log_that_cannot_be_written_is_refused_before_a_charge(folder, train):
    result = train("--schema", folder / "s.toml", *QUICK, "--log", folder / "none" / "run.csv")
    assert result.code == 2
    assert "Cannot write to" in result.err
    assert not (folder / "out").exists()


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
    named = ("--target", "sick", "--class", "no", "--class", "yes", "--method", "dp-sgd")
    assert train(*named, "--lr", "1", *QUICK, output="x").code == 0


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


def test_a_configuration_file_names_classes_as_the_option_does(folder, train):
    (folder / "c.toml").write_text(
        'target = "sick"\nclass = ["no", "yes"]\nepsilon = 5.0\nepochs = 2\nbatch-size = 50\n'
    )
    assert train("--config", folder / "c.toml", epsilon=None).code == 0
    assert load(folder / "out")[1]["classes"] == ["no", "yes"]


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
    try:
        until = time.monotonic() + PATIENCE
        while not (folder / "out" / "checkpoint").exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < until, "the run does not begin"
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait(PATIENCE)
    assert process.returncode == 130, said
    assert len(said.strip().splitlines()) == 1
    assert (folder / "out" / "checkpoint").exists()
    assert not (folder / "out" / "model.json").exists()
    done = subprocess.run(
        [*map(str, command), "--resume", "--json"],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == 4_800
    assert found["epsilon"] <= 2.0
    assert not (folder / "out" / "checkpoint").exists()


def test_persons_are_named_on_the_command_line_and_in_a_file(folder, train):
    header, *lines = rows()
    visits = [f"p{number // 3},{line}" for number, line in enumerate(lines)]
    (folder / "t.csv").write_text("\n".join([f"id,{header}", *visits]) + "\n")
    (folder / "c.toml").write_text('person = "id"\nrows-per-person = 2\n')
    asked = ("--schema", folder / "s.toml", *QUICK, "--json")
    for output, more in {"a": ("--person", "id"), "b": ("--config", folder / "c.toml")}.items():
        result = train(*asked, *more, output=output)
        assert result.code == 0, result.err
        found = json.loads(result.out)
        assert found["statement"]["unit"] == "person"
        assert found["statement"]["assumptions"][0].startswith("Each person: all their rows")
        assert found["steps"] == 2 * 200 / 50  # of 200 persons with 3 rows each
    assert "at most 2 of them" in found["statement"]["assumptions"][0]
    refused = train(*asked, "--ledger", folder / "a" / "ledger", output="x")
    assert refused.code == 2
    assert "no data was read" in refused.err
    assert not (folder / "x").exists()


# ---------------------------------------------------------------------- bad inputs


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
    "one row": (_content("age,ward,sick\n30,a,no\n"), ("--batch-size", "2"), "--batch-size"),
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
    "batch": (_nothing, ("--batch-size", "100000"), "--batch-size"),
    "public rows": (_nothing, ("--public-rows", "ward=z"), "public-rows"),
    "public rows, no column": (_nothing, ("--public-rows", "x=1"), "public-rows"),
    "nothing to resume": (_nothing, ("--resume",), "resume"),
    "config": (_nothing, ("--config", "no_such.toml"), "no_such.toml"),
    "other target": (_nothing, ("--target", "age"), "target"),
    "clip": (_nothing, ("--clip", "0"), "clip"),
    "person": (_nothing, ("--person", "nobody"), "--person to be a column"),
    "person to predict": (_nothing, ("--person", "sick"), "target"),
    "person without a name": (_nothing, ("--person", ""), "person"),
    "rows of nobody": (_nothing, ("--rows-per-person", "3"), "--person"),
    "no rows of a person": (
        _nothing,
        ("--person", "ward", "--rows-per-person", "0"),
        "--rows-per-person >= 1",
    ),
    "missing person": (
        _replace("age,ward,sick\n", "age,ward,sick\n30,?,no\n"),
        ("--person", "ward"),
        "ward",
    ),
    "one person in a batch of more": (_nothing, ("--person", "ward"), "--batch-size"),
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
    # what is made of the columns is said first, and nothing after it
    assert not result.out or result.out.startswith("Records: ")
    assert not result.out.partition("\n\n")[2]


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
    """`privada train adult.csv.gz --target income --epsilon 1` reaches 0.84 on the test rows."""
    source = data_folder("adult.csv.gz") / "adult.csv.gz"
    whole = gzip.decompress(source.read_bytes()).decode().splitlines()
    split = whole[0].split(",").index("split")
    for name in ("train", "test"):
        some = [line for line in whole[1:] if line.split(",")[split] == name]
        text = "\n".join([whole[0], *some]) + "\n"
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode(), 1))
    asked = ("--target", "income", "--seed", 0, "--json")  # without a seed: 0.843 to 0.851
    result = train(*asked, table="train.csv.gz", epsilon="1")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert pv.Ledger(folder / "out" / "ledger").epsilon() == found["epsilon"] <= 1.0
    model, facts = load(folder / "out")
    schema = tables.Schema.read(folder / "out" / "schema.toml")
    test = tables.encode(tables.read(folder / "test.csv.gz", schema=schema), schema)
    assert facts["classes"] == list(schema.target.classes)
    right = model(torch.from_numpy(test.inputs.toarray())).argmax(dim=1).numpy() == test.targets
    assert right.mean() >= 0.84


def test_adult_with_public_rows(folder, train):
    source = data_folder("adult.csv.gz") / "adult.csv.gz"
    (folder / "adult.csv.gz").write_bytes(source.read_bytes())
    asked = ("--target", "income", "--public-rows", "split=test", "--seed", 0, "--json")
    result = train(*asked, table="adult.csv.gz", epsilon="1")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["metrics"]["accuracy on public rows"] >= 0.82  # 0.835 to 0.849 were seen
    assert {c.purpose for c in pv.Ledger(folder / "out" / "ledger").charges()} == {"training"}


def test_how_the_table_is_understood_is_shown_first(folder, train):
    done = train("--target", "sick", *QUICK)
    assert done.code == 0, done.err
    assert done.out.index("Target: 'sick', classes that a charged query finds.") < done.out.index(
        "Trained a"
    )
    assert "age: number with bounds that a charged query finds" in done.out


@pytest.mark.parametrize(
    ("terminal", "yes", "answer", "asked"),
    [
        (True, False, True, True),
        (True, False, False, True),
        (True, True, None, False),
        (False, False, None, False),
    ],
)
def test_a_person_is_asked_on_a_terminal_alone(monkeypatch, capsys, terminal, yes, answer, asked):
    from privada.cli.printing import confirmed
    from privada.workflows.findings import Findings

    calls = []
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: terminal)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: calls.append(1) or answer)
    found = Findings("7 rows", "a number", {"age": "not used"}, "nothing")
    assert confirmed("Train like this?", yes)(found) is (answer if asked else True)
    assert bool(calls) is asked
    assert "age: not used" in capsys.readouterr().out
