"""The map of a coupling grid."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from privada import charts
from privada.selection.coupling import Coupling, Values

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Beyond so many rows and columns, numbers in the cells would not be readable.
_NUMBERED = (20, 12)
_TICKS = 16
_DARK, _BRIGHT = "#222222", "#FFFFFF"


def heat_map(grid: Coupling) -> "go.Figure":
    """Return a heat map of the mean scores, as `Coupling.figure` describes it."""
    x, y = np.log10(grid.clips), np.log10(grid.learning_rates)
    many = f"means of {len(grid.each)} runs" if len(grid.each) > 1 else "one run for each pair"
    figure = charts.new(
        f"{grid.method}: {grid.score.name} by learning rate and clip norm"
        f"<br><sup>{many}; {grid.price.runs:g} runs cost epsilon {grid.price.epsilon:.3g} at "
        f"delta {grid.price.delta:g} together</sup>",
        "clip norm",
        "learning rate",
        legend={"orientation": "h", "x": 0, "y": -0.16, "yanchor": "top"},
        margin={"l": 90, "r": 30, "t": 80, "b": 110},
    )
    figure.add_heatmap(
        x=x,
        y=y,
        z=_shades(grid),
        zmin=_shades(grid).min(),
        zmax=max(_shades(grid).max(), _shades(grid).min() + 1e-9),
        colorscale="Cividis",
        reversescale=not grid.score.greater,
        xgap=1,
        ygap=1,
        customdata=np.stack([*np.meshgrid(grid.clips, grid.learning_rates), grid.scores], -1),
        hovertemplate="clip %{customdata[0]:.4g}, lr %{customdata[1]:.4g}: "
        f"{grid.score.name} %{{customdata[2]:.4g}}<extra></extra>",
        colorbar={
            "title": {"text": grid.score.name},
            "thickness": 16,
            "outlinewidth": 0,
            **_colour_ticks(grid),
        },
    )
    if len(y) <= _NUMBERED[0] and len(x) <= _NUMBERED[1]:
        _number(grid, figure, _edges(x), _edges(y))
    _mark(grid, figure, _edges(x), _edges(y))
    for axis, values, places in (("xaxis", grid.clips, x), ("yaxis", grid.learning_rates, y)):
        some = slice(None, None, math.ceil(len(values) / _TICKS))
        ends = _edges(places)
        figure.layout[axis].update(
            tickvals=places[some],
            ticktext=[_plain(value) for value in values[some]],
            range=[ends[0], ends[-1]],
            showgrid=False,
            zeroline=False,
        )
    return figure


def _shades(grid: Coupling) -> Values:
    """Return what decides the colours."""
    return np.log10(grid.scores) if _logarithmic(grid) else grid.scores


def _logarithmic(grid: Coupling) -> bool:
    """Return whether colours are those of logarithms."""
    return not grid.score.greater and float(grid.scores.min()) > 0


def _colour_ticks(grid: Coupling) -> dict[str, Any]:
    """Return plain numbers to stand beside colours that are logarithms."""
    if not _logarithmic(grid):
        return {}
    decade = math.floor(float(_shades(grid).min()))
    last = math.ceil(float(_shades(grid).max()))
    ticks = [m * 10.0**e for e in range(decade, last + 1) for m in (1, 2, 5)]
    return {"tickvals": np.log10(ticks), "ticktext": [f"{tick:g}" for tick in ticks]}


def _number(grid: Coupling, figure: "go.Figure", x: Values, y: Values) -> None:
    """Write scores into the lower left of their cells, where neither dots nor the line are."""
    span = float(np.ptp(_shades(grid))) or 1.0
    height = (_shades(grid) - _shades(grid).min()) / span
    light = height > 0.45 if grid.score.greater else height < 0.55
    places = max(0, 2 - math.floor(math.log10(float(np.abs(grid.scores).max()) or 1.0)))
    left, foot = np.meshgrid(x[:-1], y[:-1])
    figure.add_scatter(
        x=left.ravel(),
        y=foot.ravel(),
        mode="text",
        text=[f"\u00a0{score:.{places}f}" for score in grid.scores.ravel()],
        textposition="top right",
        textfont={"size": 11, "color": np.where(light, _DARK, _BRIGHT).ravel().tolist()},
        showlegend=False,
        hoverinfo="skip",
    )


def _mark(grid: Coupling, figure: "go.Figure", x: Values, y: Values) -> None:
    """Draw the best cell, its diagonal and the best of each column; x and y are the edges."""
    rate, clip = grid.best
    column, row = grid.clips.index(clip), grid.learning_rates.index(rate)
    total = math.log10(rate * clip)
    ends = np.clip([total - y[-1], total - y[0]], x[0], x[-1])
    colour = charts.COLOURS[1]
    figure.add_scatter(
        x=ends,
        y=total - ends,
        mode="lines",
        line={"color": colour, "width": 2, "dash": "dash"},
        name=f"lr × clip = {rate * clip:.3g}",
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=x[[column, column + 1, column + 1, column, column]],
        y=y[[row, row, row + 1, row + 1, row]],
        mode="lines",
        line={"color": colour, "width": 4},
        name=f"best: lr {_plain(rate)}, clip {_plain(clip)}, "
        f"{grid.score.name} {grid.best_score:.3g}",
        hoverinfo="skip",
    )
    peaks = grid.peaks()
    figure.add_scatter(
        x=[math.log10(peak.clip) for peak in peaks],
        y=[math.log10(peak.learning_rate) for peak in peaks],
        mode="markers",
        marker={
            "size": 10,
            "color": [_BRIGHT if peak.inside else "rgba(255,255,255,0)" for peak in peaks],
            "line": {"color": _DARK, "width": 1.5},
        },
        name="best lr at each clip",
        customdata=[[peak.clip, peak.learning_rate] for peak in peaks],
        hovertemplate="clip %{customdata[0]:.4g}: best lr %{customdata[1]:.4g}<extra></extra>",
    )


def _plain(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _edges(places: Values) -> Values:
    """Return the borders of cells around places: half way, and as far out as in at the ends."""
    if len(places) == 1:
        return np.array([places[0] - 0.5, places[0] + 0.5])
    half = (places[1:] + places[:-1]) / 2
    return np.concatenate([[2 * places[0] - half[0]], half, [2 * places[-1] - half[-1]]])
