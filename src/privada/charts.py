"""Charts: one look for all of them, and files that open anywhere."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privada import image_export
from privada.core.errors import ArgumentError

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Okabe and Ito's colours, which people who do not see all colours can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_PICTURES = (".png", ".svg", ".pdf")
_SECONDS = 60.0  # for one picture, which takes about two


def new(title: str, x: str = "", y: str = "", **layout: Any) -> "go.Figure":
    """Return an empty figure with a title and names for its axes."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        template="plotly_white",
        title={"text": title, "x": 0.02, "xanchor": "left"},
        colorway=list(COLOURS),
        font={"family": "system-ui, -apple-system, Segoe UI, sans-serif", "size": 14},
        margin={"l": 70, "r": 30, "t": 60, "b": 60},
        hovermode="closest",
        xaxis={"title": {"text": x}},
        yaxis={"title": {"text": y}},
    )
    figure.update_layout(**layout)
    return figure


def write(figures: "go.Figure | Sequence[go.Figure]", path: str | os.PathLike[str]) -> Path:
    """Write figures to one HTML page that needs no network, or one figure to a picture.

    Edge cases: .png, .svg and .pdf need the extra `pictures` and a Chrome or Chromium browser;
    other endings are refused.
    """
    target = Path(path)
    listed = list(figures) if isinstance(figures, Sequence) else [figures]
    if target.suffix == ".html":
        _write(target, _page(listed))
        return target
    if target.suffix not in _PICTURES:
        raise ArgumentError(
            f"Expected a chart to end in .html, {', '.join(_PICTURES)}, got {str(target)!r}."
        )
    if len(listed) != 1:
        raise ArgumentError(
            f"Expected one figure for a picture, got {len(listed)}. Write them to .html together."
        )
    made = _picture(listed[0], target)
    _write(target, made)
    return target


def _picture(figure: "go.Figure", target: Path) -> bytes:
    """Draw a figure in a process of its own, twice if the browser does not answer."""
    if importlib.util.find_spec("kaleido") is None:
        raise _no_picture(target, "kaleido is not installed.")
    with tempfile.TemporaryDirectory(prefix="privada-") as folder:
        source, made = Path(folder, "figure.json"), Path(folder, "picture" + target.suffix)
        source.write_text(figure.to_json(), encoding="utf-8")
        asked = [str(source), str(made), str(_SECONDS)]
        for _ in range(2):
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "privada.image_export", *asked],
                    env={**os.environ, "TMPDIR": folder},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=2 * _SECONDS,
                )
            except subprocess.TimeoutExpired as error:
                raise _no_picture(target, "the drawing does not end.") from error
            if done.returncode == 0:
                return made.read_bytes()
            if done.returncode != image_export.SILENT:
                break
    said = done.stderr.strip().splitlines() or [f"the drawing ended with code {done.returncode}."]
    raise _no_picture(target, said[-1])


def _no_picture(target: Path, why: str) -> ArgumentError:
    return ArgumentError(
        f"Cannot make the picture {str(target)!r}: {why} Install privada[pictures] and a Chrome "
        "or Chromium browser (BROWSER_PATH says where), or write .html."
    )


def _page(figures: Sequence["go.Figure"]) -> str:
    import plotly.io

    parts = [
        plotly.io.to_html(
            each, full_html=False, include_plotlyjs=number == 0, config={"displaylogo": False}
        )
        for number, each in enumerate(figures)
    ]
    title = figures[0].layout.title.text or "Privada"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title></head>\n<body>{''.join(parts)}</body></html>\n"
    )


def _write(target: Path, content: str | bytes) -> None:
    try:
        if isinstance(content, str):
            target.write_text(content, encoding="utf-8")
        else:
            target.write_bytes(content)
    except OSError as error:
        raise ArgumentError(
            f"Cannot write {str(target)!r}: {error.strerror}. Check that the folder exists and "
            "may be written."
        ) from error
