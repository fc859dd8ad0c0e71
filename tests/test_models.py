"""Models from descriptions, and the files that they are kept in."""

import json
import os
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
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
    again, facts = load(tmp_path, trust=architecture.kind)
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


# ---------------------------------------------------------------------- hostile and damaged folders


@pytest.fixture
def kept(tmp_path):
    """Return a folder with a model, and what changes its model.json."""
    architecture = Architecture("mlp", 3, 2, (4,))
    save(tmp_path, architecture.build(), architecture)

    def change(**changes):
        path = tmp_path / "model.json"
        facts = json.loads(path.read_text())
        for name, value in changes.items():
            (facts if name in facts else facts["architecture"])[name] = value
        path.write_text(json.dumps(facts))
        return tmp_path

    return change


def test_code_is_run_only_if_it_is_trusted_by_its_whole_name(tmp_path, monkeypatch, kept):
    (tmp_path / "evil.py").write_text("open('ran', 'w')\ndef make(i, o): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    kept(kind="evil:make", hidden=[])
    for trust in (None, "", "evil", "evil:other", "linear", "*"):
        with pytest.raises(pv.ArgumentError, match=r"which is code.*trust='evil:make'"):
            load(tmp_path, trust=trust)
    assert not (tmp_path / "ran").exists()
    assert "evil" not in sys.modules
    with pytest.raises(pv.ModelError, match="return a torch module"):
        load(tmp_path, trust="evil:make")
    assert (tmp_path / "ran").exists()
    del sys.modules["evil"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "format 2, and this version .* up to 1"),
        ({"format": "1"}, "not of Privada's format"),
        ({"format": None}, "not of Privada's format"),
        ({"architecture": 7}, "not of Privada's format"),
        ({"inputs": 5}, "does not fit the architecture"),
        ({"outputs": 10**9, "inputs": 10**9}, "does not fit the architecture"),
        ({"inputs": 10**30}, "does not fit the architecture"),
        ({"inputs": "3"}, "describes no model"),
        ({"hidden": 4}, "describes no model"),
        ({"hidden": [[4]]}, "describes no model"),
        ({"hidden": [4] * 10**5}, "too few layers"),
        ({"kind": 3}, "describes no model"),
        ({"more": 3}, "describes no model"),
    ],
    ids=str,
)
def test_facts_that_do_not_fit_are_refused(changes, words, kept):
    with pytest.raises(pv.ArgumentError, match=words):
        load(kept(**changes))


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "[" * 100_000, '{"format": 1}'])
def test_a_model_json_that_is_none_is_refused(content, tmp_path, kept):
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(pv.ArgumentError, match=r"Cannot read a model .* restore it from a copy"):
        load(tmp_path)


def with_weights(folder, **changes):
    weights = {**load_file(folder / "model.safetensors"), **changes}
    save_file({k: v for k, v in weights.items() if v is not None}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"0.bias": torch.full((4,), torch.nan)}, "'0.bias' has weights that are not finite"),
        ({"2.weight": torch.full((2, 4), -torch.inf)}, "'2.weight' has weights that are not"),
        ({"0.bias": torch.zeros(5)}, "does not fit"),
        ({"0.bias": torch.zeros(4, dtype=torch.int64)}, "does not fit"),
        ({"0.bias": None}, "does not fit"),
        ({"3.bias": torch.zeros(4)}, "does not fit"),
    ],
)
def test_weights_that_do_not_fit_are_refused(changes, words, tmp_path, kept):
    with_weights(tmp_path, **changes)
    with pytest.raises(pv.ArgumentError, match=words):
        load(tmp_path)


def test_weights_that_are_cut_short_or_not_there_are_refused(tmp_path, kept):
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for content in (b"", whole[:50], whole[:-1], b"rubbish" * 100):
        path.write_bytes(content)
        with pytest.raises(pv.ArgumentError, match="damaged or of another format"):
            load(tmp_path)
    path.unlink()
    with pytest.raises(pv.ArgumentError, match=r"no file model\.safetensors"):
        load(tmp_path)
    os.mkfifo(path)
    with pytest.raises(pv.ArgumentError, match=r"no file model\.safetensors"):
        load(tmp_path)


def test_weights_of_half_precision_are_read_as_float32(tmp_path, kept):
    with_weights(tmp_path, **{"0.bias": torch.ones(4, dtype=torch.bfloat16)})
    assert load(tmp_path)[0][0].bias.dtype == torch.float32


def test_trusted_weights_that_do_not_fit_are_refused(tmp_path):
    own = Architecture(OWN, 3, 2)
    save(tmp_path, own.build(), own)
    with_weights(tmp_path, **{"0.bias": torch.zeros(7)})
    with pytest.raises(pv.ArgumentError, match=r"does not fit .* size mismatch"):
        load(tmp_path, trust=OWN)
