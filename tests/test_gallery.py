"""The notebooks of the gallery run, and draw what they say."""

import os
import runpy
from pathlib import Path
from types import SimpleNamespace

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


def test_what_a_notebook_drew_is_kept_for_as_long_as_the_library_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = runpy.run_path(str(ROOT / "docs" / "build_settings.py"))
    on_config = hook["on_config"]
    monkeypatch.setitem(on_config.__globals__, "_ROOT", tmp_path)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # which is put back
        monkeypatch.delenv(name)
    code = tmp_path / "src" / "privada" / "part.py"
    code.parent.mkdir(parents=True)
    plugin = SimpleNamespace(config={})
    found = []
    for text in ("a = 1", "a = 1", "a = 2"):
        code.write_text(text)
        on_config(SimpleNamespace(plugins={"mkdocs-jupyter": plugin}))
        found.append(Path(plugin.config["cache_dir"]))
        found[-1].mkdir(parents=True, exist_ok=True)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert found[0] == found[1] != found[2]
    assert [path for path in found if path.exists()] == [found[2]]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    on_config(SimpleNamespace(plugins={"mkdocs-jupyter": plugin}))
    assert os.environ["OMP_NUM_THREADS"] == "3"
