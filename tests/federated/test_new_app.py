"""The app that `privada federated new` writes."""

import importlib
import logging
import re
import sys
import tomllib

import pytest
from typer.testing import CliRunner

import privada as pv
from privada.cli.app import app
from privada.core.errors import ArgumentError
from privada.workflows import new_federated_app

pytest.importorskip("flwr", reason="Flower is not installed: the new app is not tested")

from flwr.app import Context, RecordDict

from tests.federated.grids import InProcessGrid, in_a_run

__all__ = ["in_a_run"]


@pytest.mark.usefixtures("in_a_run")
def test_it_runs_with_the_settings_of_its_project(tmp_path, monkeypatch, capsys, caplog):
    folder = tmp_path / "two-hospitals"
    new_federated_app(folder)
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    settings = {**project["tool"]["flwr"]["app"]["config"], "rounds": 3, "evaluate-every": 2}
    monkeypatch.syspath_prepend(str(folder))
    parts = project["tool"]["flwr"]["app"]["components"]
    server, client = (
        importlib.import_module(parts[each].partition(":")[0])
        for each in ("serverapp", "clientapp")
    )
    nodes = settings["clients"]

    class Grid(InProcessGrid):
        def context(self, node):
            place = {"partition-id": node - 100, "num-partitions": nodes}
            return Context(1, node, place, RecordDict(), settings)

    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, logger="flwr")
    try:
        server.app(Grid(client.app, nodes), Context(1, 0, {}, RecordDict(), settings))
    finally:
        for name in [each for each in sys.modules if each.startswith("two_hospitals")]:
            del sys.modules[name]
    said = capsys.readouterr().out
    assert "PRIVACY STATEMENT" in said
    assert re.search(r"Accuracy on public records: 0\.\d+, baseline 0\.1\d+", said)
    logged = [line for line in caplog.messages if "validation" in line]
    assert len(logged) == 2  # after the second round, and at the end
    assert all("accuracy" in line and "(baseline" in line for line in logged)
    assert sorted(path.name for path in (folder / "output").iterdir()) == [
        "checkpoint.pt", "model.pt", "statement.txt",
    ]  # fmt: skip
    with pv.Ledger(folder / "clients.ledger") as ledger:
        assert sum(ledger.totals().values()) == 3


def test_every_record_is_with_one_client_and_none_is_public():
    from privada.federated.template import task

    inputs, _ = task._digits()
    shares = [task.load_records(k, 200) for k in range(200)]
    assert sum(len(rows) for rows, _ in shares) == len(inputs) - task.PUBLIC
    assert min(len(rows) for rows, _ in shares) > 0
    private = {tuple(row.tolist()) for rows, _ in shares for row in rows}
    public, _ = task.load_public_records()
    assert len(public) == task.PUBLIC
    assert not private & {tuple(row.tolist()) for row in public}


@pytest.mark.parametrize("name", ["Hospitals", "my app", "1st", "class", "a--b", "a.b", "é"])
def test_a_name_that_is_no_package_is_refused(name, tmp_path):
    with pytest.raises(ArgumentError, match="name is lower-case"):
        new_federated_app(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_folder_that_exists_or_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(ArgumentError, match="File exists"):
        new_federated_app(tmp_path / "there")
    with pytest.raises(ArgumentError, match="No such file"):
        new_federated_app(tmp_path / "not" / "there")
    odd = tmp_path / 'a "quoted" folder'
    odd.mkdir()
    with pytest.raises(ArgumentError, match="without quotes"):
        new_federated_app(odd / "app")


def test_the_command_writes_it_and_says_how_to_go_on(tmp_path):
    run = CliRunner()
    done = run.invoke(app, ["federated", "new", str(tmp_path / "digits")])
    assert done.exit_code == 0
    assert "flwr run . --stream --federation-config num-supernodes=200" in done.output
    assert (tmp_path / "digits" / "digits" / "server_app.py").exists()
    again = run.invoke(app, ["federated", "new", str(tmp_path / "digits")])
    assert isinstance(again.exception, ArgumentError)
