"""The components that sections are made from: headings, tables, figures and places for charts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from privada.accounting.statement import IN_MEMORY
from privada.core import formatting
from privada.report import plots
from privada.report.entries import Entry
from privada.report.ledgers import LedgerSummary
from privada.report.markup import Content, Markup, element, join
from privada.report.numbers import superscript


@dataclass
class Charts:
    """Collects the charts of a page, by the identifier of their HTML element."""

    placed: dict[str, plots.Plot] = field(default_factory=dict)

    def figure(self, identifier: str, title: str, plot: plots.Plot, says: str) -> Markup:
        """Add a chart and return its HTML element, with a text alternative for screen readers."""
        self.placed[identifier] = plot
        return element(
            "figure",
            element("h3", title),
            element("figcaption", says),
            element(
                "div",
                id=identifier,
                class_="chart",
                role="img",
                aria_label=f"Chart: {title}. {says}",
                style=f"min-height:{plot['height']}px",
            ),
        )


def section(identifier: str, title: str, *inside: Content) -> Markup:
    """Return a part of the page under its heading."""
    heading = element("h2", title, id=f"{identifier}-title")
    return element(
        "section", heading, *inside, id=identifier, aria_labelledby=f"{identifier}-title"
    )


def figure(value: float, shown: Content, name: str | None = None) -> Markup:
    """Return a figure, with its exact value for machines."""
    return element("span", shown, data_figure=name, data_value=repr(float(value)))


Cell = Markup | str | float | int | None


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    numbers: Sequence[int] = (),
    wide: Sequence[int] = (),
    caption: str | None = None,
    sortable: bool = False,
    narrow: bool = False,
    foot: Sequence[Cell] | None = None,
) -> Markup:
    """Return a table whose first column names its rows; `numbers` are columns of figures."""

    def cell(place: int, value: Cell, name: str = "td") -> Markup:
        shown: Content = value if isinstance(value, str) else None
        exact = None
        if isinstance(value, (int, float)):
            shown, exact = formatting.number(value), repr(value)
        return element(
            name,
            shown,
            class_="number" if place in numbers else "wide" if place in wide else None,
            data_value=exact,
            scope="row" if name == "th" else None,
        )

    def row(cells: Sequence[Cell]) -> Markup:
        return element(
            "tr", *(cell(n, value, "th" if n == 0 else "td") for n, value in enumerate(cells))
        )

    made = element(
        "table",
        None if caption is None else element("caption", caption),
        element(
            "thead",
            element(
                "tr",
                *(
                    element("th", head, scope="col", class_="number" if n in numbers else None)
                    for n, head in enumerate(heads)
                ),
            ),
        ),
        element("tbody", *(row(cells) for cells in rows)),
        None if foot is None else element("tfoot", row(foot)),
        class_="sortable" if sortable else None,
    )
    label = caption or " and ".join(heads)
    kind = "scroll narrow" if narrow else "scroll"
    return element("div", made, class_=kind, tabindex="0", role="region", aria_label=label)


def facts(items: Iterable[tuple[str, Content]]) -> Markup:
    """Return names and values side by side."""
    listed = (join(element("dt", name), element("dd", value)) for name, value in items)
    return element("dl", *listed, class_="facts")


def epsilon_figure(value: float, name: str | None = None) -> Markup:
    """Return an epsilon, rounded up, with its exact value for machines."""
    return figure(value, superscript(formatting.epsilon(value)), name)


def delta_figure(value: float, name: str | None = None) -> Markup:
    """Return a delta, rounded up, with its exact value for machines."""
    return figure(value, superscript(formatting.delta(value)), name)


def method_name(method: str) -> str:
    """Return a method without its settings."""
    return method.partition(" (")[0].partition(":")[0]


def ledger_name(summary: LedgerSummary) -> str:
    """Return what a heading calls a ledger."""
    said = summary.statement.ledger
    return "in memory" if said == IN_MEMORY else said


def run_label(entry: Entry, colours: dict[int, str]) -> Markup:
    """Return the name of a run beside its colour in the charts."""
    return element("span", entry.name, class_="key", style=f"--of:var({colours[id(entry)]})")


def capitalised(words: str) -> str:
    """Return words with a capital letter at their start and the rest as it is."""
    return words[:1].upper() + words[1:]
