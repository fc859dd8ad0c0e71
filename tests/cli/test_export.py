"""`privada export`."""

import json
import sys

import pytest

from privada.cli.app import main
from privada.tables import Classes, Number, Schema
from tests.workflows.saved_models import saved


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run `privada export` in a folder with a model; return code, output and errors."""
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "out", Schema(Classes("sick", ["no", "yes"]), {"age": Number(0, 100)}))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["privada", "export", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        return stopped.value.code, shown.out, shown.err

    return run


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ((), "out/model.onnx"),
        (("--format", "pt2"), "out/model.pt2"),
        (("--output", "a.pt2", "--proba"), "a.pt2"),
        (("--output", "a.onnx", "--format", "onnx"), "a.onnx"),
    ],
)
def test_it_writes_a_network_and_its_inputs(more, place, command, tmp_path):
    code, output, errors = command("out", *more)
    assert (code, errors) == (0, "")
    assert output == f"Wrote {place} and {place}.json.\n"
    assert (tmp_path / place).stat().st_size > 1000
    described = json.loads((tmp_path / f"{place}.json").read_text())
    assert described["output"] == ("probabilities" if "--proba" in more else "scores")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("none",), "not there"),
        (("out", "--format", "torchscript"), "'onnx', 'pt2'"),
        (("out", "--format", "pt2", "--output", "a.onnx"), "to end in .pt2"),
        (("out", "--output", "a.txt"), "ends in .onnx or .pt2"),
    ],
)
def test_a_mistake_is_one_line(arguments, says, command, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    code, output, errors = command(*arguments)
    assert (code, output) == (2, "")
    assert says in errors
    assert sorted(tmp_path.rglob("*")) == before
