"""Charts as plain values: what is drawn. The page's script adds colours and draws them."""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from privada.core import formatting
from privada.report.entries import Entry

# Names of colours in the page's style; the script puts in those of the theme.
SERIES_COLOURS = 7
_DASHES = ("solid", "dash", "dot", "dashdot")
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star")
_MOST_POINTS = 400
_FEW_POINTS = 30
_LONGEST_LABEL = 30

Plot = dict[str, Any]

_BAR = {
    "type": "bar",
    "orientation": "h",
    "texttemplate": "%{text}",
    "textposition": "outside",
    "cliponaxis": False,
}
_BARS = {
    "yaxis": {"type": "category", "showgrid": False},
    "bargap": 0.35,
    "hovermode": "closest",
    "margin": {"r": 64},
}


def thinned(values: Sequence[float], most: int = _MOST_POINTS) -> list[int]:
    """Return the places of the values that a line needs to keep its shape, if there are many.

    Half are spread evenly from the first to the last, so that lines of one length have them in
    common; the others are the least and the greatest of each stretch. What is not finite is left
    out.

    Example:
        >>> from privada.report.plots import thinned
        >>> thinned([3.0, 3.0, float("inf")])
        [0, 1]
        >>> spike = [0.0] * 100_000
        >>> spike[777] = 1.0
        >>> 777 in thinned(spike), len(thinned(spike)) <= 400
        (True, True)
    """
    finite = [place for place, value in enumerate(values) if math.isfinite(value)]
    if len(finite) <= most:
        return finite
    last, stretches = len(finite) - 1, most // 4
    kept = {finite[last * part // (most // 2 - 1)] for part in range(most // 2)}
    for start, end in pairwise(len(finite) * part // stretches for part in range(stretches + 1)):
        kept.add(min(finite[start:end], key=values.__getitem__))
        kept.add(max(finite[start:end], key=values.__getitem__))
    return sorted(kept)


def label(name: str) -> str:
    """Return a name for a chart: not too long, and text where plotly would read markup.

    Example:
        >>> from privada.report.plots import label
        >>> label("<b>")
        '&lt;b&gt;'
    """
    short = name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"
    return html.escape(short, quote=False)


def colour(place: int) -> str:
    """Return the name of the colour of the entry at a place."""
    return f"--series-{place % SERIES_COLOURS}"


def lines(
    entries: Sequence[Entry], field: str, title: str, budget: float | None = None
) -> Plot | None:
    """Return one line for each entry: a field of its history against the step."""
    possible = (_line(entry, field, place) for place, entry in enumerate(entries))
    drawn = [line for line in possible if line is not None]
    if not drawn:
        return None
    low, high = (
        pick(value for each in drawn for value in each["y"] if math.isfinite(value))
        for pick in (min, max)
    )
    axis: dict[str, Any] = {"title": {"text": title}, "rangemode": "tozero"}
    if low == high:  # plotly would spread a constant over a range around it
        axis["range"] = [min(0.0, 1.4 * high), max(0.0, 1.4 * high)] if high else [-1.0, 1.0]
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "step"}, "hoverformat": ",d", "tickformat": ",d"},
        "yaxis": axis,
        "hovermode": "x unified",
        "hoverdistance": -1,
        "showlegend": len(drawn) > 1,
    }
    if budget is not None:
        layout |= _level(budget, f"budget {formatting.epsilon(budget)}")
        axis["range"] = [0, 1.12 * max(budget, high)]
        axis.pop("rangemode")
    return {"traces": drawn, "layout": layout, "height": 320 if len(drawn) == 1 else 360}


def _line(entry: Entry, field: str, place: int) -> dict[str, Any] | None:
    """Return the line of one entry, None if there is nothing to draw."""
    shown = formatting.epsilon if field == "epsilon" else formatting.number
    values = [float(step[field]) for step in entry.history]
    kept = thinned(values)
    if not kept:
        return None
    steps = [entry.history[index]["step"] for index in kept]
    return _trace(entry, place, steps, [values[index] for index in kept], shown)


def _trace(
    entry: Entry,
    place: int,
    steps: Sequence[float],
    values: Sequence[float],
    shown: Callable[[float], str],
) -> dict[str, Any]:
    """Return the line of an entry, in its colour."""
    return {
        "type": "scatter",
        "mode": "lines" if len(values) > 1 else "markers",
        "name": label(entry.name),
        "x": list(steps),
        "y": list(values),
        "text": [shown(value) for value in values],
        "line": {"color": colour(place), "width": 2, "dash": _DASHES[place % len(_DASHES)]},
        "marker": {"color": colour(place), "size": 8},
        "hovertemplate": "%{text}",
    }


def scores(entries: Sequence[Entry], metric: str) -> Plot | None:
    """Return one line for each entry: a public figure against the step, and its baseline."""
    drawn = []
    for place, entry in enumerate(entries):
        points = [each for each in entry.evaluations if math.isfinite(each.get(metric, math.nan))]
        steps, values = [each["step"] for each in points], [each[metric] for each in points]
        if values:
            kept = thinned(values)
            drawn.append(
                _trace(
                    entry,
                    place,
                    [steps[at] for at in kept],
                    [values[at] for at in kept],
                    formatting.number,
                )
            )
            drawn[-1]["mode"] = "lines+markers" if len(kept) < _FEW_POINTS else drawn[-1]["mode"]
            drawn[-1]["marker"]["size"] = 6
    if not drawn:
        return None
    layout: dict[str, Any] = {
        "xaxis": {
            "title": {"text": "step"},
            "hoverformat": ",d",
            "tickformat": ",d",
            "rangemode": "tozero",
        },
        "yaxis": {},
        "hovermode": "x unified",
        "hoverdistance": -1,
        "showlegend": len(drawn) > 1,
    }
    levels = {each.baselines[metric] for each in entries if metric in each.baselines}
    values = [value for each in drawn for value in each["y"]]
    if len(levels) == 1 and math.isfinite(level := levels.pop()):
        layout |= _level(level, f"baseline {formatting.number(level)}")
        values.append(level)
    low, high = min(values), max(values)
    room = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
    share = low >= 0 and high <= 1
    layout["yaxis"]["range"] = [
        max(0.0, low - room) if low >= 0 else low - room,
        min(1.0, high + room) if share else high + room,
    ]
    return {"traces": drawn, "layout": layout, "height": 300}


def _level(at: float, words: str) -> dict[str, Any]:
    """Return a dotted line at a level, with its label, as parts of a layout."""
    line = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": at,
        "y1": at,
        "line": {"color": "--soft", "width": 1, "dash": "dot"},
    }
    note = {
        "xref": "paper",
        "x": 1,
        "y": at,
        "xanchor": "right",
        "yanchor": "bottom",
        "text": words,
        "showarrow": False,
        "font": {"color": "--soft", "size": 12},
    }
    return {"shapes": [line], "annotations": [note]}


def bars(entry: Entry, metrics: Sequence[str], place: int) -> Plot:
    """Return bars of one entry's metrics that are between 0 and 1, with their baselines."""
    drawn: list[tuple[str, float, str]] = []
    for name in (name for name in metrics if _finite(entry, name)):
        drawn.append((wrapped(name), float(entry.metrics[name]), colour(place)))
        beside = entry.baselines.get(name, math.nan)
        if math.isfinite(beside):
            # lines of an axis are known by their names: zero-width spaces tell them apart
            drawn.append((f"baseline{chr(0x200B) * len(drawn)}", float(beside), "--quiet"))
    drawn.reverse()
    names, values, colours = ([each[n] for each in drawn] for n in range(3))
    return _single(names, values, colours, {"range": [0, 1]})  # type: ignore[arg-type]


def by_entry(entries: Sequence[Entry], metric: str) -> Plot:
    """Return bars of one metric, one for each entry that has it."""
    shown = [(place, each) for place, each in enumerate(entries) if _finite(each, metric)]
    shown.reverse()
    values = [float(each.metrics[metric]) for _, each in shown]
    share = all(0 <= value <= 1 for value in values)
    return _single(
        [wrapped(each.name) for _, each in shown],
        values,
        [colour(place) for place, _ in shown],
        {"range": [0, 1]} if share else {"rangemode": "tozero"},
    )


def _finite(entry: Entry, metric: str) -> bool:
    return math.isfinite(entry.metrics.get(metric, math.nan))


def wrapped(name: str, width: int = 18) -> str:
    """Return a label in lines of about so many characters, for an axis."""
    rows = [""]
    for word in name.split():
        if rows[-1] and len(rows[-1]) + len(word) >= width:
            rows.append("")
        rows[-1] = f"{rows[-1]} {word}".strip()
    return "<br>".join(label(row) for row in rows[:4])


def against_epsilon(entries: Sequence[Entry], metric: str) -> Plot:
    """Return a point for each entry that has the metric: what it cost, and what it reached."""
    drawn = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": label(entry.name),
            "x": [entry.stated.run_epsilon],
            "y": [float(entry.metrics[metric])],
            "cliponaxis": False,
            "marker": {"color": colour(n), "size": 13, "symbol": _SYMBOLS[n % len(_SYMBOLS)]},
            "text": [
                f"epsilon {formatting.epsilon(entry.stated.run_epsilon)}<br>"
                f"{formatting.number(entry.metrics[metric])}"
            ],
            "hovertemplate": "%{text}",
        }
        for n, entry in enumerate(entries)
        if _finite(entry, metric) and math.isfinite(entry.stated.run_epsilon)
    ]
    return {
        "traces": drawn,
        "layout": {
            "xaxis": {"title": {"text": "the run's own epsilon"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": label(metric)}},
            "showlegend": True,
            "hovermode": "closest",
        },
        "height": 360,
    }


def costs(entries: Sequence[Entry]) -> Plot:
    """Return the own epsilon of each entry as bars."""
    shown = [(place, e) for place, e in enumerate(entries) if math.isfinite(e.stated.run_epsilon)]
    shown.reverse()
    return _single(
        [wrapped(entry.name) for _, entry in shown],
        [entry.stated.run_epsilon for _, entry in shown],
        [colour(place) for place, _ in shown],
        {"title": {"text": "the run's own epsilon"}, "rangemode": "tozero"},
        formatting.epsilon,
    )


def prices(found: Mapping[str, float], chosen: str | None) -> Plot:
    """Return the price of a search in each way, on a logarithmic axis, the cheapest on top."""
    finite = [(how, cost) for how, cost in found.items() if math.isfinite(cost) and cost > 0]
    shown = sorted(finite, key=lambda each: -each[1])
    plot = _single(
        [label(how) for how, _ in shown],
        [float(cost) for _, cost in shown],
        ["--accent" if how == chosen else "--quiet" for how, _ in shown],
        {"title": {"text": "epsilon, logarithmic"}, "type": "log"},
        formatting.epsilon,
    )
    if shown:  # a bar on a logarithmic axis needs somewhere to begin
        low, high = math.log10(shown[-1][1]), math.log10(shown[0][1])
        plot["layout"]["xaxis"]["range"] = [math.floor(low - 0.3), high + 0.1 * (high - low) + 0.1]
        plot["layout"]["xaxis"]["dtick"] = "D2"
    return plot


def found_members(attacks: Sequence[Mapping[str, Any]]) -> Plot:
    """Return the members that each attack finds against the others that it takes for members."""
    traces: list[dict[str, Any]] = []
    for place, attack in enumerate(attacks):
        curves = [(attack["true_positives"], "solid", label(attack["name"]))]
        if attack.get("limits"):
            curves.append((attack["limits"], "dot", label(f"{attack['name']}: the most possible")))
        traces.extend(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": list(attack["false_positives"]),
                "y": list(values),
                "line": {"color": colour(place), "width": 2, "dash": dash},
                "hovertemplate": "%{y:.3f}",
            }
            for values, dash, name in curves
        )
    traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "guessing",
            "x": [0.0, 1.0],
            "y": [0.0, 1.0],
            "line": {"color": "--soft", "width": 1, "dash": "dash"},
            "hovertemplate": "%{y:.3f}",
        }
    )
    return {
        "traces": traces,
        "layout": {
            "xaxis": {
                "title": {"text": "share of others taken for members"},
                "range": [0, 1],
                "hoverformat": ".3f",
            },
            "yaxis": {"title": {"text": "share of members found"}, "range": [0, 1.02]},
            "hovermode": "x unified",
            "showlegend": True,
        },
        "height": 420,
    }


def _single(
    names: Sequence[str],
    values: Sequence[float],
    colours: Sequence[str],
    axis: dict[str, Any],
    shown: Callable[[float], str] = formatting.number,
) -> Plot:
    bar = {
        **_BAR,
        "y": list(names),
        "x": list(values),
        "text": [shown(value) for value in values],
        "marker": {"color": list(colours)},
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }
    return {
        "traces": [bar],
        "layout": {**_BARS, "xaxis": axis, "showlegend": False},
        "height": (90 if "title" in axis else 70) + 36 * len(names),
    }
