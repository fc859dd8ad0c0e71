"""Pictures when the browser is wrong: words instead of waiting, and nothing left behind."""

import importlib.util
import os
import tempfile
import time
from pathlib import Path

import pytest

from privada import charts
from privada.core.errors import ArgumentError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("kaleido") is None or not hasattr(os, "killpg"),
    reason="pictures need kaleido, and this browser is a shell script",
)


@pytest.fixture
def browser(tmp_path, monkeypatch):
    """Return a function that makes a shell script the browser."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()

    def use(script: str) -> None:
        path = tmp_path / "browser"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("BROWSER_PATH", str(path))

    return use


def chart():
    figure = charts.new("squares", "x", "y")
    figure.add_scatter(x=[1, 2, 3], y=[1, 4, 9])
    return figure


def gone(process: int) -> bool:
    """Return whether a process ends within ten seconds (a killed one waits for its reaper)."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_a_browser_that_does_not_answer_is_killed_and_tried_once_more(
    browser, tmp_path, monkeypatch
):
    started = tmp_path / "started"
    browser(f'echo $$ >> "{started}"\nexec sleep 600')
    monkeypatch.setattr(charts, "_SECONDS", 5.0)  # in which a busy machine starts a shell
    with pytest.raises(ArgumentError, match=r"browser does not answer.*or write \.html"):
        charts.write(chart(), tmp_path / "squares.png")
    processes = [int(line) for line in started.read_text().split()]
    assert len(processes) == 2
    assert all(map(gone, processes))
    assert not (tmp_path / "squares.png").exists()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_browser_that_fails_is_not_tried_again(browser, tmp_path):
    started = tmp_path / "started"
    browser(f'echo $$ >> "{started}"\nexit 1')
    with pytest.raises(ArgumentError, match="browser seemed to close immediately") as refused:
        charts.write(chart(), tmp_path / "squares.png")
    assert len(str(refused.value).splitlines()) == 1
    assert len(started.read_text().split()) == 1


def test_no_browser_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    with pytest.raises(ArgumentError, match="No browser found at BROWSER_PATH"):
        charts.write(chart(), tmp_path / "squares.svg")
