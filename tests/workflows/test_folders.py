"""Output folders: whole or not there, and never removed with charges in them."""

import json

import pytest

import privada as pv
from privada.accounting import events
from privada.core.errors import ArgumentError, CheckpointError, LedgerError
from privada.workflows import TrainOptions, train_table, write_report
from privada.workflows.charges import count_charges, holds_charges
from privada.workflows.folders import RunFolder, new_folder, refuse_existing

OPTIONS = TrainOptions(2.0, schema="s.toml", epochs=2, batch_size=40, person="patient")


def test_a_folder_is_whole_or_not_there(tmp_path):
    def half():
        with new_folder(tmp_path / "a") as draft:
            (draft / "file").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert list(tmp_path.iterdir()) == []
    with new_folder(tmp_path / "a") as draft:
        (draft / "file").write_text("whole")
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a" / "file").read_text() == "whole"
    with pytest.raises(ArgumentError, match=r"exists.* Give another"):
        refuse_existing(tmp_path / "a")
    with pytest.raises(ArgumentError, match="Cannot write to"):
        refuse_existing(tmp_path / "no" / "such")


def test_charges_are_counted_by_run_and_kept(tmp_path):
    path = tmp_path / "ledger"
    assert (count_charges(path), holds_charges(path)) == (0, False)
    with pv.Ledger(path, dataset="d") as ledger:
        ledger.charge({events.gaussian(2.0): 3}, run="a")
        ledger.charge({events.gaussian(2.0): 1}, run="b")
    assert (count_charges(path), count_charges(path, "a"), holds_charges(path)) == (4, 3, True)
    folder = RunFolder(tmp_path, OPTIONS)
    folder.remove_if_unpaid()
    assert path.exists()
    assert "3 releases" in folder.charged_in_words("a")
    assert folder.charged_in_words("c") == ""
    path.write_text("rubbish")
    assert holds_charges(path)


@pytest.mark.parametrize("kind", ["planned", "adaptive"])
def test_a_copy_of_a_ledger_has_all_that_it_holds_and_is_apart(kind, tmp_path):
    folder, more = RunFolder(tmp_path, OPTIONS), {events.gaussian(9.0): 1}
    with folder.copied_ledger() as copy:
        assert copy is None
    with pv.Ledger(tmp_path / "ledger", pv.Budget(3.0, 1e-5), kind=kind) as ledger:
        ledger.declare({"a": {events.gaussian(9.0): 3}, "b": {events.gaussian(5.0): 1}})
        ledger.charge({events.gaussian(9.0): 2}, run="a", unit=OPTIONS.charged_unit)
        held = ledger.totals()
        with folder.copied_ledger() as copy:
            assert (copy.totals(), copy.unit) == (held, OPTIONS.charged_unit)
            assert (copy.budget, copy.kind) == (pv.Budget(3.0, 1e-5), kind)
            assert copy.declared("b") == ledger.declared("b")
            assert copy.cost("a", more) == ledger.cost("a", more)
            copy.charge(more, run="a", unit=OPTIONS.charged_unit)
        assert ledger.totals() == held
    assert [path.name for path in tmp_path.iterdir()] == ["ledger"]


@pytest.mark.parametrize("kind", ["planned", "adaptive"])
def test_only_a_ledger_for_several_runs_is_offered_to_the_next(kind, tmp_path):
    with pv.Ledger(tmp_path / "ledger", pv.Budget(3.0, 1e-5), kind=kind) as ledger:
        ledger.charge({events.gaussian(9.0): 1}, run="a")
    with pytest.raises(ArgumentError, match="Keep it") as refused:
        refuse_existing(tmp_path)
    assert (f"--ledger {tmp_path / 'ledger'}" in str(refused.value)) == (kind == "adaptive")
    assert ("Make it by privada ledger FILE --new" in str(refused.value)) == (kind == "planned")
    words = RunFolder(tmp_path, OPTIONS).charged_in_words("a")
    assert ("which takes other options that cost the same" in words) == (kind == "planned")


def test_a_run_does_not_go_on_without_its_ledger(tmp_path):
    folder = RunFolder.create(tmp_path / "out", OPTIONS)
    folder.run_name(tmp_path / "t.csv")
    folder.check_ledger()
    folder.checkpoint.write_text("")
    with pytest.raises(LedgerError, match="A new one would forget"):
        folder.check_ledger()
    with pytest.raises(CheckpointError, match="unfinished run"):
        RunFolder.reopen(tmp_path / "none", OPTIONS)


# What version 0.1 wrote to config.json: no person, and no rows of one.
OLD = (
    "run", "table", "epsilon", "target", "schema", "classes", "text", "delta", "method", "model",
    "hidden", "batch_size", "epochs", "lr", "clip", "public", "public_rows", "unit", "ledger",
    "when_lost", "seed", "assumptions",
)  # fmt: skip


@pytest.mark.parametrize("when", ["fit", "step"])
def test_a_folder_of_version_0_1_goes_on(when, folder, monkeypatch):
    (folder / "s.toml").write_text(
        (folder / "s.toml").read_text() + '\n[columns.patient]\nkind = "ignore"\n'
    )
    options = TrainOptions(2.0, schema="s.toml", epochs=2, batch_size=100)

    def dies(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pv.Trainer, when, dies)
        with pytest.raises(KeyboardInterrupt):
            train_table("visits.csv", options, "out")
    # a run that was stopped before its first charge leaves nothing
    if not (folder / "out").exists():
        RunFolder.create(folder / "out", options).run_name(folder / "visits.csv")
    path = folder / "out" / "config.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({name: kept[name] for name in OLD if name in kept}))
    with pytest.raises(ArgumentError, match="to go on without --person"):
        train_table("visits.csv", OPTIONS, "out", resume=True)
    done = train_table("visits.csv", options, "out", resume=True)
    assert done.statement.epsilon <= 2.0
    assert done.trainer.steps_done == done.trainer.steps
    assert write_report(["out"], "page.html").exists()
