"""What a search cost by each way of choosing, and its candidates."""

from collections.abc import Sequence

from privada.report import plots
from privada.report.components import Cell, Charts, epsilon_figure, figure, section, table
from privada.report.entries import Entry
from privada.report.markup import Content, Markup, element
from privada.report.numbers import plain


def tuning(entries: Sequence[Entry], charts: Charts) -> Markup | None:
    """Return the price of each search in each way, and its candidates where they are released."""
    parts: list[Content] = []
    for place, entry in enumerate(entries):
        if not entry.prices and not entry.tried:
            continue
        of = f" of {entry.name}" if len(entries) > 1 else ""
        if entry.prices:
            found = sorted(entry.prices.items(), key=lambda each: each[1])
            parts.append(
                charts.figure(
                    f"plot-prices-{place}",
                    f"The price{of} by each way of choosing",
                    plots.prices(entry.prices, entry.chosen),
                    "What the same number of runs with this noise costs, without the scores. "
                    "The chosen way is in colour.",
                )
            )
            parts.append(
                table(
                    ["way", "epsilon"],
                    [
                        [element("mark", how) if how == entry.chosen else how, epsilon_figure(cost)]
                        for how, cost in found
                    ],
                    numbers=(1,),
                    narrow=True,
                )
            )
        if entry.tried:
            names = list(dict.fromkeys(name for each in entry.tried for name in each["settings"]))
            parts.append(element("h3", f"The candidates{of}"))
            parts.append(
                table(
                    ["candidate", *names, "score"],
                    [
                        [
                            n,
                            *(_setting(each["settings"].get(name)) for name in names),
                            each["score"],
                        ]
                        for n, each in enumerate(entry.tried, 1)
                    ],
                    numbers=range(1, len(names) + 2),
                    sortable=True,
                    caption="All were released and paid for. Scores have noise. "
                    "Click a heading to sort.",
                )
            )
    return section("tuning", "Tuning", *parts) if parts else None


def _setting(value: object) -> Cell:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return figure(value, plain(value))
    return plain(value)
