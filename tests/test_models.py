"""Models from descriptions, and the files that they are kept in."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import privada as pv
from privada.models import Architecture, load, save


def double(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Linear(outputs, outputs))


def nothing(inputs, outputs):
    return None


def failing(inputs, outputs):
    raise RuntimeError("no such size")


OWN = f"{__name__}:double"


@pytest.mark.parametrize(
    "architecture",
    [
        Architecture("linear", 3, 2),
        Architecture("mlp", 3, 1, (5, 4)),
        Architecture(OWN, 3, 2),
    ],
    ids=["linear", "mlp", "own"],
)
def test_what_was_written_is_read(architecture, tmp_path):
    model = architecture.build()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    save(tmp_path, model, architecture, task="regression", features=["a", "b", "c"])
    again, facts = load(tmp_path)
    inputs = torch.randn(4, 3)
    assert torch.equal(again(inputs), model(inputs))
    assert facts == {"format": 1, "task": "regression", "features": ["a", "b", "c"]}
    weights = load_file(tmp_path / "model.safetensors")  # without Privada
    assert {k: v.shape for k, v in weights.items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }
    assert json.loads((tmp_path / "model.json").read_text())["architecture"]["inputs"] == 3


def test_tied_weights_are_kept(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    save(tmp_path, model, Architecture("linear", 3, 3))
    assert len(load_file(tmp_path / "model.safetensors")) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tree", 3, 2), "linear"),
        (("mlp", 3, 2), "hidden"),
        (("linear", 3, 2, (4,)), "hidden"),
        (("linear", 0, 2), "inputs"),
        (("mlp", 3, 2, (0,)), "hidden"),
    ],
)
def test_rubbish_is_refused(arguments, words):
    with pytest.raises(pv.ArgumentError, match=words):
        Architecture(*arguments)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("no_such_module:make", "no_such_module"),
        (f"{__name__}:missing", "missing"),
        (f"{__name__}:nothing", "torch module"),
        (f"{__name__}:failing", "no such size"),
        (":", "module:factory"),
    ],
)
def test_a_factory_that_does_not_work_is_named(kind, words):
    with pytest.raises(pv.PrivadaError, match=words):
        Architecture(kind, 3, 2).build()


def test_a_factory_is_found_beside_the_user(tmp_path, monkeypatch):
    (tmp_path / "my_model_of_here.py").write_text(
        "import torch\ndef make(i, o):\n    return torch.nn.Linear(i, o)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert isinstance(Architecture("my_model_of_here:make", 3, 2).build(), nn.Linear)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(pv.ArgumentError, match="Cannot read a model"):
        load(tmp_path)
