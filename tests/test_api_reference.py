"""The API reference names everything that is public, and nothing else."""

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

PAGES = Path(__file__).parent.parent / "docs" / "api"
PACKAGES = (
    "privada",
    "privada.accounting",
    "privada.audit",
    "privada.clipping",
    "privada.execute",
    "privada.features",
    "privada.federated",
    "privada.huggingface",
    "privada.loggers",
    "privada.preconditioning",
    "privada.methods",
    "privada.metrics",
    "privada.mechanism",
    "privada.noise",
    "privada.objective",
    "privada.participation",
    "privada.report",
    "privada.selection",
    "privada.tables",
    "privada.updates",
    "privada.workflows",
)
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
NAMED = Counter(
    name
    for page in sorted(PAGES.glob("*.md"))
    for name in DIRECTIVE.findall(page.read_text(encoding="utf-8"))
)
PUBLIC = [
    (package, name) for package in PACKAGES for name in importlib.import_module(package).__all__
]


def value_of(path: str) -> object:
    package, _, name = path.rpartition(".")
    return getattr(importlib.import_module(package), name)


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_public_names_are_on_a_page(package: str, name: str) -> None:
    path = f"{package}.{name}"
    if path in PACKAGES:
        assert (PAGES / f"{name}.md").is_file()
        return
    # what two packages have in common is described once
    homes = [
        p for p, other in PUBLIC if other == name and value_of(f"{p}.{name}") is value_of(path)
    ]
    assert sum(NAMED[f"{home}.{name}"] for home in homes) == 1


@pytest.mark.parametrize("path", sorted(NAMED))
def test_pages_name_what_is_public(path: str) -> None:
    package, _, name = path.rpartition(".")
    assert (package, name) in PUBLIC
    assert value_of(path) is not None


def test_pages_are_listed() -> None:
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    site = (PAGES.parent.parent / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES.glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index
        assert f"api/{page.name}" in site
