"""How the runs went: epsilon, public figures, learning rate and noise against the steps."""

from collections.abc import Sequence

from privada.accounting.ledger import ADAPTIVE, PLANNED
from privada.report import plots
from privada.report.components import (
    Cell,
    Charts,
    capitalised,
    epsilon_figure,
    section,
    table,
)
from privada.report.entries import Entry
from privada.report.ledgers import LedgerSummary
from privada.report.markup import Content, Markup, element

_ROWS_OF_HISTORY = 9
_MOST_SCORES = 6
# field of the history, title, name of the axis, caption
_SMALL_CHARTS = (
    ("lr", "Learning rate", "learning rate", "The learning rate of each step."),
    (
        "noise_multiplier",
        "Noise",
        "noise multiplier",
        "The noise of each step, as a multiple of the clip norm.",
    ),
)
# What the line of epsilon shows, by the kind of the ledger.
_CAPTION = "What everything on the ledger, up to each step, costs."
_CAPTIONS = {
    ADAPTIVE: "What everything on the ledger had cost after each step, valid at any time.",
    PLANNED: "What everything up to each step costs by itself. The promise is of everything "
    "declared, which counts from the first step on.",
}


def training(
    entries: Sequence[Entry], ledgers: Sequence[LedgerSummary], charts: Charts
) -> Markup | None:
    """Return epsilon, public figures, learning rate and noise against the steps."""
    if not any(entry.history or entry.evaluations for entry in entries):
        return None
    small = [*_score_charts(entries, charts), *_small_charts(entries, charts)]
    return section(
        "training",
        "Training",
        _epsilon_chart(entries, ledgers, charts),
        element("div", *small, class_="pair") if small else None,
        element(
            "details",
            element("summary", "Some of these numbers"),
            table(
                ["run", "step", "epsilon", "learning rate", "noise multiplier"],
                [row for entry in entries for row in _rows(entry)],
                numbers=(1, 2, 3, 4),
            ),
            class_="numbers",
        ),
    )


def _epsilon_chart(
    entries: Sequence[Entry], ledgers: Sequence[LedgerSummary], charts: Charts
) -> Content:
    limits = {summary.budget for summary in ledgers}
    limit = next(iter(limits)) if len(limits) == 1 else None
    kinds = {entry.stated.kind if entry.stated.counting else "" for entry in entries}
    plot = plots.lines(entries, "epsilon", "epsilon", None if limit is None else limit.epsilon)
    if plot is None:
        return None
    return charts.figure(
        "plot-epsilon",
        "Epsilon against steps",
        plot,
        _CAPTIONS.get(kinds.pop() if len(kinds) == 1 else "", _CAPTION),
    )


def _score_charts(entries: Sequence[Entry], charts: Charts) -> list[Markup]:
    """Return charts of public figures while training."""
    names = (n for entry in entries for each in entry.evaluations for n in each if n != "step")
    shown = []
    for place, name in enumerate(list(dict.fromkeys(names))[:_MOST_SCORES]):
        plot = plots.scores(entries, name)
        if plot is not None:
            says = "Public, or released with noise and charged."
            if any(name in entry.baselines for entry in entries):
                says = "The model while it trained. Dotted: the baseline."
            shown.append(charts.figure(f"plot-score-{place}", capitalised(name), plot, says))
    return shown


def _small_charts(entries: Sequence[Entry], charts: Charts) -> list[Markup]:
    """Return charts of what changed while training; the configuration has what did not."""
    shown = []
    for name, title, axis, caption in _SMALL_CHARTS:
        changing = any(len({step[name] for step in entry.history}) > 1 for entry in entries)
        plot = plots.lines(entries, name, axis) if changing else None
        if plot is not None:
            plot["height"], plot["layout"]["showlegend"] = 280, False
            shown.append(charts.figure(f"plot-{name.replace('_', '-')}", title, plot, caption))
    return shown


def _rows(entry: Entry) -> list[list[Cell]]:
    """Return some steps of a history, spread evenly from the first to the last."""
    last = len(entry.history) - 1
    if last < 0:
        return []
    few = min(last, _ROWS_OF_HISTORY - 1)
    steps = [
        entry.history[place]
        for place in sorted({round(last * n / max(1, few)) for n in range(few + 1)})
    ]
    return [
        [
            entry.name,
            step["step"],
            epsilon_figure(step["epsilon"]),
            step["lr"],
            step["noise_multiplier"],
        ]
        for step in steps
    ]
