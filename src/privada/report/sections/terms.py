"""The settings, the assumptions and limits of the guarantee, and the statements in full."""

from collections.abc import Sequence

from privada.report.components import Cell, facts, section, table
from privada.report.entries import Entry
from privada.report.ledgers import LedgerSummary
from privada.report.markup import Markup, element
from privada.report.numbers import setting, spaced


def configuration(entries: Sequence[Entry]) -> Markup | None:
    """Return the settings, side by side where there are several runs."""
    having = [entry for entry in entries if entry.configuration]
    if not having:
        return None
    if len(having) == 1:
        listed = {
            spaced(name): setting(name, value) for name, value in having[0].configuration.items()
        }
        return section("configuration", "Configuration", facts(listed.items()))
    names = list(dict.fromkeys(name for entry in having for name in entry.configuration))
    rows: list[list[Cell]] = []
    for name in names:
        cells = [
            setting(name, each.configuration[name]) if name in each.configuration else ""
            for each in having
        ]
        differ = len({cell for cell in cells if cell}) > 1
        rows.append(
            [spaced(name), *(element("mark", cell) if differ and cell else cell for cell in cells)]
        )
    return section(
        "configuration",
        "Configuration",
        element("p", "Settings in which the runs differ are marked.", class_="note"),
        table(["setting", *(entry.name for entry in having)], rows),
    )


def limits(ledgers: Sequence[LedgerSummary]) -> Markup:
    """Return what the promise rests on, and what it does not cover."""

    def items(attribute: str) -> Markup:
        said: dict[str, list[str]] = {}
        sources = [(each.name, each.stated) for a in ledgers for each in a.entries]
        sources += [("", summary.statement) for summary in ledgers if not summary.entries]
        for name, statement in sources:
            for words in getattr(statement, attribute):
                said.setdefault(words, []).append(name)
        for summary in ledgers:  # what a ledger adds to its runs' own words
            for words in getattr(summary.statement, attribute):
                said.setdefault(words, [""] * len(sources))
        listed = []
        for words, names in said.items():
            some = len(names) < len(sources)
            listed.append(
                element(
                    "li",
                    words,
                    element("span", f" ({', '.join(names)})", class_="note") if some else None,
                )
            )
        return element("ul", *listed)

    return section(
        "limits",
        "What this means",
        element(
            "div",
            element("div", element("h3", "It rests on"), items("assumptions")),
            element("div", element("h3", "It does not cover"), items("not_covered")),
            class_="columns",
        ),
    )


def statements(ledgers: Sequence[LedgerSummary]) -> Markup:
    """Return each statement in full, as the run printed it."""
    entries = [each for summary in ledgers for each in summary.entries]
    shown = [(each.name, each.stated) for each in entries]
    shown = shown or [(ledgers[0].statement.dataset, ledgers[0].statement)]
    parts = [
        element(
            "details",
            element("summary", f"Statement of {name}"),
            element("pre", str(said)),
            class_="printed",
        )
        for name, said in shown
    ]
    title = "The statement in full" if len(shown) == 1 else "The statements in full"
    return section("statement", title, *parts)
