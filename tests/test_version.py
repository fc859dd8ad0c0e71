"""One version everywhere: the package, its metadata, the citation and the changelog."""

import re
import tomllib
from pathlib import Path

import privada

ROOT = Path(__file__).parent.parent


def found(pattern: str, name: str) -> str:
    match = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert match, f"{name} names no version"
    return match[1]


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == privada.__version__
    assert found(r'^version: "?([\d.]+)"?$', "CITATION.cff") == privada.__version__


def test_the_changelog_has_a_section_for_the_version() -> None:
    assert found(r"^## \[(\d[\d.]*)\] - \d{4}-\d{2}-\d{2}$", "CHANGELOG.md") == privada.__version__


def test_the_changelog_and_the_citation_have_one_date() -> None:
    day = found(r"^## \[\d[\d.]*\] - (\d{4}-\d{2}-\d{2})$", "CHANGELOG.md")
    assert found(r'^date-released: "?([\d-]+)"?$', "CITATION.cff") == day


def test_the_five_papers_are_cited() -> None:
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for number in ("2202.05963", "2111.04906", "1809.03832", "2110.07435", "2106.13756"):
        assert f'value: "arXiv:{number}"' in cited
