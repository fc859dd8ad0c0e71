"""What was spent of each budget and what is left."""

from collections.abc import Sequence

from privada.accounting.ledger import PLANNED
from privada.core import formatting
from privada.report.components import (
    capitalised,
    delta_figure,
    epsilon_figure,
    figure,
    ledger_name,
    method_name,
    run_label,
    section,
    table,
)
from privada.report.ledgers import LedgerSummary
from privada.report.markup import Content, Markup, element, join

_ADD_UP = (
    "Epsilons do not add up. The noise of several runs is composed as a whole, at one delta, and "
    "all of them together usually cost less than the sum of what each costs alone."
)


def budget(ledgers: Sequence[LedgerSummary], colours: dict[int, str]) -> Markup:
    """Return what was spent and what is left, as a bar for each ledger, and each run's share."""
    parts: list[Content] = []
    for summary in ledgers:
        title = None
        if len(ledgers) > 1:
            title = element("h3", f"{summary.statement.dataset}, ledger {ledger_name(summary)}")
        shares = None
        if summary.entries:
            shares = table(
                ["run", "its own epsilon", "at delta", "method", "progress"],
                [
                    [
                        run_label(entry, colours),
                        epsilon_figure(entry.stated.run_epsilon, "own"),
                        delta_figure(entry.stated.delta),
                        method_name(entry.stated.method),
                        element("span", entry.stated.progress, class_="whole"),
                    ]
                    for entry in summary.entries
                ],
                numbers=(1, 2),
                caption="What each run on this page costs alone, as it was planned",
            )
        runs = {charge.run for charge in summary.statement.charges}
        note = element("p", _ADD_UP, class_="note after") if len(runs) > 1 else None
        parts.append(
            element(
                "div",
                title,
                _bar(summary),
                _kind(summary),
                shares,
                note,
                class_="account",
                data_ledger=summary.statement.ledger,
            )
        )
    return section("budget", "Spent and left", *parts)


def _kind(summary: LedgerSummary) -> Content:
    """Return of which kind a ledger is, and what its epsilon is of."""
    said = summary.statement
    if not summary.meaning:
        return None
    rest = ""
    if said.kind == PLANNED and said.charges:
        rest = " Nothing but what was declared can be charged to it."
    return element(
        "p", f"{capitalised(said.counting)}. Epsilon is {summary.meaning}.{rest}", class_="note"
    )


def _bar(summary: LedgerSummary) -> Markup:
    limit, spent = summary.budget, summary.spent()
    if limit is None:
        return element(
            "p",
            "No budget was set for this ledger, so how much is left is undefined. Spent: epsilon ",
            epsilon_figure(spent, "spent"),
            ".",
        )
    share = 100 * min(1.0, spent / limit.epsilon)
    words = f"{share:.0f} % of the budget is spent"
    return join(
        element(
            "p",
            "The budget is epsilon ",
            epsilon_figure(limit.epsilon),
            " at delta ",
            delta_figure(limit.delta),
            ", for everything that is ever charged to this ledger.",
        ),
        element(
            "div",
            element("span", style=f"width:{share:.2f}%"),
            class_="bar",
            role="img",
            aria_label=words,
        ),
        element(
            "p",
            element("span", element("b", epsilon_figure(spent, "spent")), " spent"),
            element(
                "span",
                element(
                    "b",
                    figure(
                        max(0.0, limit.epsilon - spent),
                        formatting.left(limit.epsilon, spent),
                        "left",
                    ),
                ),
                " left",
            ),
            class_="ends",
        ),
    )
