"""`privada plan`: tables, JSON, charts and mistakes."""

import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import privada as pv
from privada.cli.app import main
from tests.forks import PATIENCE

QUICK = (
    "--records", "60000", "--epsilon", "1", "--batch-size", "1024", "--batch-size", "4096",
    "--epochs", "10", "--candidates", "4",
)  # fmt: skip


@pytest.fixture
def command(monkeypatch, capsys):
    """Run `privada plan` in this process; return exit code, output and errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["privada", "plan", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        return stopped.value.code, shown.out, shown.err

    return run


def test_it_prints_tables_and_a_recommendation(command):
    code, output, errors = command(*QUICK, "--parameters", "100000")
    assert code == 0
    assert errors == ""
    sigma = pv.accounting.noise_multiplier(
        epsilon=1.0, delta=1e-6, sampling_rate=1024 / 60_000, steps=586
    )
    assert f"{sigma:.4g}" in output
    for words in ("largest power of ten", "100,000 parameters", "repeat-poisson", "compose-pld",
                  "Recommendation", "not a promise of accuracy", "4 clip norms"):  # fmt: skip
        assert words in output


def test_a_pipe_gets_no_colours_and_lines_that_fit():
    program = "from privada.cli import main; main()"
    without = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-c", program, "plan", *QUICK],
        env=without,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_delta_that_is_given_is_used_and_a_large_one_is_warned_about(command):
    _, output, _ = command(*QUICK, "--delta", "1e-4")
    assert "delta 0.0001" in output
    assert "largest power" not in output
    assert "Warning: delta=0.0001 is not below 1 / n" in " ".join(output.split())


def test_json_is_only_json(command):
    code, output, errors = command(*QUICK, "--json")
    assert (code, errors) == (0, "")
    fields = json.loads(output)
    assert fields["delta"] == 1e-6
    assert [each["batch_size"] for each in fields["settings"]] == [1024, 4096]
    assert {each["how"] for each in fields["searches"]} == set(pv.selection.WAYS)


def test_help_teaches_with_an_example(command):
    code, output, _ = command("--help")
    assert code == 0
    assert "privada plan --records 60000 --epsilon 1" in output


def test_a_page_holds_both_charts(command, tmp_path):
    target = tmp_path / "plan.html"
    assert command(*QUICK, "--chart", str(target))[0] == 0
    page = target.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "Noise of the run" in page
    assert "Price of a search" in page


def browser():
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, names)), None)


def pixels(path: Path) -> tuple[int, int, bytes]:
    """Return width, height and the unpacked rows of a PNG."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    packed, place = b"", 8
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        kind, data = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            width, height = struct.unpack(">II", data[:8])
        elif kind == b"IDAT":
            packed += data
        place += 12 + length
    return width, height, zlib.decompress(packed)


@pytest.mark.skipif(
    browser() is None or importlib.util.find_spec("kaleido") is None,
    reason="pictures need kaleido and a Chrome or Chromium browser",
)
def test_a_picture_is_one_and_is_not_blank(command, tmp_path):
    target = tmp_path / "plan.png"
    assert command(*QUICK, "--chart", str(target))[0] == 0
    width, height, rows = pixels(target)
    assert (width, height) == (2000, 1240)
    assert len(set(rows)) > 100  # a blank one has a handful of different bytes


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--records", "0"), "records"),
        (("--epsilon", "-1"), "epsilon"),
        (("--delta", "2"), "delta"),
        (("--parameters", "0"), "parameters"),
        (("--batch-size", "60001"), "--batch-size <= records"),
        (("--epochs", "0"), "epochs"),
        (("--candidates", "0"), "candidates"),
        (("--sampling", "shuffled"), "sampling"),
        (("--chart", "plan.gif"), ".html, .png"),
        (("--chart", "/no/such/folder/plan.html"), "folder"),
    ],
)
def test_a_mistake_is_one_line(command, arguments, named):
    code, output, errors = command(*QUICK, *arguments)
    assert code == 2
    assert output == ""
    assert named in errors
    assert len(errors.strip().splitlines()) == 1


@pytest.mark.parametrize("missing", ["--records", "--epsilon"])
def test_what_is_required_is_asked_for(command, missing):
    given = {"--records": "1000", "--epsilon": "1"}
    del given[missing]
    code, _, errors = command(*(word for pair in given.items() for word in pair))
    assert code == 2
    assert missing in errors
