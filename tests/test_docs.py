"""The documentation runs: every snippet, every docstring example, every link between files."""

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import privada as pv
import privada.report

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(
    r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
MODULES = [
    info.name
    for info in pkgutil.walk_packages(pv.__path__, "privada.")
    if not info.name.endswith("__main__")
]
PARTS = (
    pv,
    pv.accounting,
    pv.clipping,
    pv.features,
    pv.loggers,
    pv.metrics,
    pv.preconditioning,
    pv.methods,
    pv.mechanism,
    pv.noise,
    pv.objective,
    pv.participation,
    privada.report,
    pv.selection,
    pv.tables,
    pv.updates,
)
PUBLIC = [(part, name) for part in PARTS for name in part.__all__]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def snippets(page: Path) -> list[tuple[int, str]]:
    """Return the line and the text of each block that is to be run."""
    text = page.read_text(encoding="utf-8")
    found = []
    for block in FENCED.finditer(text):
        language, *tags = block["info"].split() or [""]
        if language == "python" and "no-run" not in tags:
            line = text.count("\n", 0, block.start("code")) + 1
            found.append((line, textwrap.dedent(block["code"])))
    return found


def run_session(code: str, names: dict[str, Any], page: str, line: int) -> None:
    """Run a block that shows prompts and answers, and compare the answers."""
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    test = doctest.DocTestParser().get_doctest(code, names, page, page, line - 1)
    said: list[str] = []
    runner.run(test, out=said.append, clear_globs=False)
    names.update(test.globs)
    assert not runner.failures, "".join(said)


@pytest.mark.parametrize("page", [p for p in PAGES if snippets(p)], ids=name_of)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, code in snippets(page):
        if code.startswith(">>>"):
            run_session(code, names, name_of(page), line)
        else:
            # blank lines in front keep the page's own line numbers in a traceback
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)


def test_pages_have_snippets() -> None:
    with_code = {name_of(page) for page in PAGES if snippets(page)}
    assert {"README.md", "docs/tutorial.md", "docs/own_loop.md", "docs/accounting.md"} <= with_code


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = doctest.testmod(importlib.import_module(name))
    assert said.failed == 0


@pytest.mark.parametrize(("part", "name"), PUBLIC, ids=lambda v: getattr(v, "__name__", v))
def test_public_names_are_documented(part: ModuleType, name: str) -> None:
    value = getattr(part, name)
    if not (inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value)):
        return  # a plain value or a type alias has no docstring of its own
    words = inspect.getdoc(value) if not inspect.isclass(value) else value.__doc__
    assert words
    assert words.strip()
    if inspect.ismodule(value) or getattr(value, "_is_protocol", False):
        return
    if inspect.isclass(value) and issubclass(value, Exception):
        return
    assert "Example" in words


def test_links_between_files() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        text = FENCED.sub("", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" not in target and not target.startswith(("#", "mailto:")):
                assert (page.parent / target.split("#")[0]).exists(), f"{page.name}: {target}"


def test_every_page_is_in_the_navigation() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    docs = ROOT / "docs"
    pages = [page.relative_to(docs).as_posix() for page in docs.rglob("*.md")]
    assert [page for page in pages if f": {page}\n" not in f"{site}\n"] == []


def test_notebook_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("imdb_notebook", ROOT / "docs" / "imdb.py")
    assert spec is not None
    assert spec.loader is not None
    notebook = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "imdb_notebook", notebook)
    spec.loader.exec_module(notebook)
    monkeypatch.setenv("PRIVADA_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"imdb\.npz"):
        notebook.main()
