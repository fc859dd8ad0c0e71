"""Everything that was charged to each ledger."""

from collections.abc import Sequence

from privada.accounting import events
from privada.accounting.ledger import Charge
from privada.report.components import Cell, figure, ledger_name, section, table
from privada.report.ledgers import LedgerSummary
from privada.report.markup import Content, Markup, element, join
from privada.report.numbers import moment

# Of a group of charges that differ in their settings alone, so many are listed one by one.
_LISTED_SETTINGS = 4


def charges(ledgers: Sequence[LedgerSummary]) -> Markup:
    """Return everything that was charged, oldest first."""
    parts: list[Content] = []
    for summary in ledgers:
        listed, names = summary.statement.charges, {}
        for entry in summary.entries:
            names[entry.stated.run] = entry.name
        total = sum(events.release_count({each.event: each.count}) for each in listed)
        if len(ledgers) > 1:
            parts.append(
                element("h3", f"{summary.statement.dataset}, ledger {ledger_name(summary)}")
            )
        if not listed:
            parts.append(element("p", "Nothing was charged."))
            continue
        parts.append(
            table(
                ["purpose", "run", "what", "releases", "first", "last"],
                _rows(listed, names),
                numbers=(3,),
                wide=(2,),
                foot=["all", "", "", figure(total, f"{total:,}", "releases"), "", ""],
            )
        )
    note = element(
        "p", "Each was written to the ledger before the records were read. Times are UTC.",
        class_="note",
    )  # fmt: skip
    return section("charges", "Charges", note, *parts)


def _rows(listed: Sequence[Charge], names: dict[str, str]) -> list[list[Cell]]:
    groups: dict[tuple[str, str], list[Charge]] = {}
    for charge in listed:
        groups.setdefault((charge.run, charge.purpose), []).append(charge)
    rows: list[list[Cell]] = []
    for (run, purpose), members in groups.items():
        known = names.get(run)
        shown = run if known is None or known == run else join(known, element("br"), _soft(run))
        for part in [[m] for m in members] if len(members) <= _LISTED_SETTINGS else [members]:
            count = sum(events.release_count({each.event: each.count}) for each in part)
            what = events.describe(part[0].event)
            if len(part) > 1:
                what = f"{len(part):,} kinds, of which the first: {what}"
            rows.append(
                [
                    purpose,
                    shown,
                    what,
                    figure(count, f"{count:,}"),
                    moment(min(each.first for each in part)),
                    moment(max(each.last for each in part)),
                ]
            )
    return rows


def _soft(words: str) -> Markup:
    return element("span", words, class_="note whole")
