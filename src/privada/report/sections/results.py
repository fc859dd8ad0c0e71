"""What the runs reached: public metrics, and several runs side by side."""

import math
from collections.abc import Sequence

from privada.core import formatting
from privada.report import plots
from privada.report.components import (
    Cell,
    Charts,
    capitalised,
    delta_figure,
    epsilon_figure,
    method_name,
    run_label,
    section,
    table,
)
from privada.report.entries import Entry
from privada.report.markup import Content, Markup, element

_BASELINE = (
    "A baseline is what a model reaches that gives every record the same output: the most frequent "
    "class, or the mean or the median of the targets of the public records."
)


def metrics(entries: Sequence[Entry], charts: Charts) -> Markup | None:
    """Return the public figures, as bars and as a table."""
    names = list(dict.fromkeys(name for entry in entries for name in entry.metrics))
    if not names:
        return None
    having = [entry for entry in entries if entry.metrics]
    shares = [name for name in names if 0 <= having[0].metrics.get(name, math.nan) <= 1]
    parts: list[Content] = [
        element(
            "p",
            "Figures that are public or were released: nothing here was computed from private "
            "records without noise and a charge.",
            class_="note",
        )
    ]
    if any(entry.baselines for entry in having):
        parts.append(element("p", _BASELINE, class_="note"))
    drawn = []
    if len(having) == 1 and shares:
        title = capitalised(shares[0]) if len(shares) == 1 else "Between 0 and 1"
        drawn = [(title, plots.bars(having[0], shares, entries.index(having[0])))]
    for name in names if len(having) > 1 else ():
        # where it is one run's alone, or alike in all, the table says as much
        if len({entry.metrics[name] for entry in having if name in entry.metrics}) > 1:
            drawn.append((capitalised(name), plots.by_entry(entries, name)))
    for place, (title, plot) in enumerate(drawn):
        parts.append(
            charts.figure(f"plot-metrics-{place}", title, plot, "The table below has the figures.")
        )
    parts.append(
        table(
            ["", *(entry.name for entry in having)],
            _rows(names, having),
            numbers=range(1, len(having) + 1),
        )
    )
    return section("metrics", "Public metrics", *parts)


def _rows(names: Sequence[str], having: Sequence[Entry]) -> list[list[Cell]]:
    """Return a row for each figure, and one for its baseline below it."""
    rows: list[list[Cell]] = []
    for name in names:
        rows.append([name, *(entry.metrics.get(name) for entry in having)])
        if any(name in entry.baselines for entry in having):
            rows.append(["baseline", *(entry.baselines.get(name) for entry in having)])
    return rows


def comparison(entries: Sequence[Entry], colours: dict[int, str], charts: Charts) -> Markup | None:
    """Return several runs side by side: what each cost and what it reached.

    Where all cost the same there is no chart of it.
    """
    if len(entries) < 2:
        return None
    names = list(dict.fromkeys(name for entry in entries for name in entry.metrics))
    shared = [n for n in names if sum(n in entry.metrics for entry in entries) > 1]
    shared = sorted(shared, key=lambda name: "accuracy" not in name)[:1]
    chart = None
    if len({formatting.epsilon(entry.stated.run_epsilon) for entry in entries}) > 1:
        chart = _against_cost(entries, shared, charts)
    rows: list[list[Cell]] = [
        [
            run_label(entry, colours),
            method_name(entry.stated.method),
            epsilon_figure(entry.stated.run_epsilon),
            delta_figure(entry.stated.delta),
            *(entry.metrics.get(name) for name in shared),
        ]
        for entry in entries
    ]
    listed = table(
        ["run", "method", "its own epsilon", "at delta", *shared],
        rows,
        numbers=range(2, 4 + len(shared)),
        sortable=True,
    )
    return section("comparison", "Comparison", chart, listed)


def _against_cost(entries: Sequence[Entry], metric: Sequence[str], charts: Charts) -> Markup:
    """Return a chart of what each run cost, and of what it reached if there is a metric."""
    if not metric:
        return charts.figure(
            "plot-comparison", "Cost", plots.costs(entries), "What each run costs alone."
        )
    return charts.figure(
        "plot-comparison",
        f"{capitalised(metric[0])} against cost",
        plots.against_epsilon(entries, metric[0]),
        "What each run costs alone and what it reached. Up is higher, left is cheaper.",
    )
