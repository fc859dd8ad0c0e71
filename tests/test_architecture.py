"""The architecture page is true: the picture, the folders, the walk of one step."""

import importlib.util
import re
from pathlib import Path

import pytest
from benchmarks.trace import trace_step, trainer

from tests.test_imports import RANK, files, part_of

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
# Before the middle was rebuilt, the median step changed folders 65 times by this count.
MOST_CHANGES = 32
LARGEST_FAN_OUT = 11


def graph():
    spec = importlib.util.spec_from_file_location("import_graph", ROOT / "docs" / "import_graph.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_that_of_the_imports():
    drawn = graph()
    assert drawn.PICTURE.read_text(encoding="utf-8") == drawn.draw(), (
        "run python docs/import_graph.py"
    )


def test_the_picture_shows_every_folder_and_no_import_upwards():
    drawn = graph()
    found = drawn.imports()
    assert set(found) == {part_of(path) for path in files()} - drawn.LEFT_OUT
    height = drawn.levels(found)
    for own, others in found.items():
        assert all(height[other] < height[own] for other in others)
        assert all(RANK[other] < RANK[own] for other in others)


def test_no_folder_imports_too_many_others():
    counts = {own: len(others) for own, others in graph().imports().items()}
    # which put everything together, processes included
    assert counts.pop("workflows") <= LARGEST_FAN_OUT + 1
    assert max(counts.values()) <= LARGEST_FAN_OUT


def test_the_page_names_every_folder_and_existing_files():
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert set(graph().imports()) - {"models"} <= named
    extending = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:tests|docs|benchmarks)/[\w/.]+)`", PAGE + extending):
        assert (ROOT / path).exists(), path
    package = r"`((?:methods|clipping|accounting|tables|report|execute|query|train)/[\w/.]+)`"
    for path in re.findall(package, PAGE + extending):
        assert (ROOT / "src" / "privada" / path).exists(), path


def test_thirteen_changes_have_a_section_each():
    extending = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    assert re.findall(r"^## An? (.*)$", extending, re.MULTILINE) == [
        "method", "layer rule", "noise", "noise schedule", "sampler", "accountant", "storage",
        "file format", "chart", "clip", "executor", "query", "unit",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def steps():
    made = trainer()
    return sorted((trace_step(made) for _ in range(60)), key=lambda step: step["changes of folder"])


def test_a_step_changes_folders_at_most_half_as_often_as_before(steps):
    assert steps[30]["changes of folder"] <= MOST_CHANGES


def test_no_file_calls_too_many_others_in_a_step(steps):
    assert steps[30]["its fan-out"] <= LARGEST_FAN_OUT


def test_a_step_goes_down_and_one_place_pays(steps):
    path = steps[30]["path"]
    assert path.count("query/gradients.py") >= 4
    order = ["train/step.py", "query/gradients.py", "query/account.py", "participation/poisson.py",
             "clipping/one_pass.py", "noise/gaussian.py", "updates/rules.py"]  # fmt: skip
    assert [path.index(name) for name in order] == sorted(path.index(name) for name in order)
