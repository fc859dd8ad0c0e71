"""The scripts in examples/ run, in a short form, on data that is always there."""

import difflib
import importlib
import math
import sys
from pathlib import Path

import pytest

import privada as pv

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture(autouse=True)
def small_data(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delenv("PRIVADA_DATA", raising=False)
    for name in ("data", "mnist", "char_lstm", "sst2_classifier", "lora_shakespeare"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("data", "mnist", "char_lstm", "sst2_classifier", "lora_shakespeare"):
        sys.modules.pop(name, None)


def run(name, *options):
    return importlib.import_module(name).main([str(each) for each in options])


def test_images_of_digits():
    accuracy, epsilon = run("mnist", "--epochs", 2, "--lr", 0.5, "--sigma", 0.6, "--rows", 1280)
    assert accuracy > 0.3
    planned = pv.accounting.epsilon(
        sampling_rate=64 / 1280, noise_multiplier=0.6, steps=40, delta=1e-5
    )
    assert epsilon == pytest.approx(planned)


def test_names_letter_by_letter():
    accuracy, epsilon = run("char_lstm", "--epochs", 3, "--rows", 2000, "--hidden", 16)
    assert accuracy > 0.5
    planned = pv.accounting.epsilon(sampling_rate=0.1, noise_multiplier=1.0, steps=30, delta=1e-5)
    assert epsilon == pytest.approx(planned)


def test_feelings_of_sentences(tmp_path):
    pytest.importorskip("datasets")
    found, epsilon = run(
        "sst2_classifier", "--epochs", 3, "--rows", 1000, "--batch-size", 200, "--epsilon", 8,
        "--length", 12, "--output", tmp_path / "model",
    )  # fmt: skip
    assert found["eval_accuracy"] > 0.6
    assert 7.0 < epsilon <= 8.0
    assert (tmp_path / "model" / "privacy_statement.json").exists()


def test_roles_of_plays():
    pytest.importorskip("peft")
    before, after, epsilon = run(
        "lora_shakespeare", "--plays", 3, "--warm-up", 5, "--steps", 4, "--batch-size", 30,
        "--length", 16, "--delta", 0.001,
    )  # fmt: skip
    assert math.isfinite(after)
    assert before != after
    assert 7.0 < epsilon <= 8.0


def differing(private, other):
    """Return the statements of one script that the other does not have, apart from its words."""
    ours, theirs = (
        (EXAMPLES / f"{name}.py").read_text().split('"""', 2)[2].splitlines()
        for name in (private, other)
    )
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    return [ours[a:b] for kind, a, b, _, _ in matcher.get_opcodes() if kind != "equal"]


@pytest.mark.parametrize("name", ["mnist", "char_lstm"])
def test_a_script_differs_from_the_one_with_opacus_in_three_places(name):
    text = (EXAMPLES / f"{name}.py").read_text().splitlines()
    marked = {each for each in text if each.endswith(("# 1", "# 2", "# 3"))}
    assert {each[-1] for each in marked} == {"1", "2", "3"}
    start = next(place for place, each in enumerate(text) if each.endswith("# 2"))
    end = text.index("    model, optimizer, criterion, loader = engine")
    allowed = marked | set(text[start : end + 1])
    for lines in differing(name, f"{name}_opacus"):
        assert set(lines) <= allowed, lines
