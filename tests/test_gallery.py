"""The notebooks of the gallery run, and draw what they say."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "gallery").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_and_draws(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip(
        "matplotlib", reason="NOT TESTED: the gallery, for want of Matplotlib"
    )
    matplotlib.use("Agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    drawn = []
    monkeypatch.setattr(pyplot, "show", lambda: drawn.append(pyplot.gcf()))
    monkeypatch.chdir(tmp_path)
    try:
        runpy.run_path(str(notebook))
    finally:
        pyplot.close("all")
    assert drawn
    assert all(axis.has_data() for figure in drawn for axis in figure.axes)


def test_all_are_listed() -> None:
    index = (ROOT / "docs" / "gallery" / "index.md").read_text(encoding="utf-8")
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert NOTEBOOKS
    for notebook in NOTEBOOKS:
        assert f'href="{notebook.stem}.html"' in index
        assert f"gallery/{notebook.name}\n" in site
