"""The parts of the page, from the promise at the top to the statement in full."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from privada.accounting import Statement, events
from privada.accounting.ledger import Charge
from privada.accounting.statement import ACCOUNTANTS_IN_WORDS, RELATIONS_IN_WORDS
from privada.core import formatting
from privada.report import plots
from privada.report.accounts import Account, together
from privada.report.entries import Entry
from privada.report.markup import Inside, Safe, element, join
from privada.report.numbers import moment, plain, raised, setting

# Of a group of charges that differ in their settings alone, so many are listed one by one.
_LISTED_SETTINGS = 4
_ROWS_OF_HISTORY = 9
_ADD_UP = (
    "Epsilons do not add up. The noise of several runs is composed as a whole, at one delta, and "
    "all of them together usually cost less than the sum of what each costs alone."
)


@dataclass
class Drawn:
    """The charts of a page, by the identifier of their place."""

    placed: dict[str, plots.Plot] = field(default_factory=dict)

    def figure(self, identifier: str, title: str, plot: plots.Plot, says: str) -> Safe:
        """Return a place for a chart, with words for those who do not see it."""
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


def section(identifier: str, title: str, *inside: Inside) -> Safe:
    """Return a part of the page under its heading."""
    heading = element("h2", title, id=f"{identifier}-title")
    return element(
        "section", heading, *inside, id=identifier, aria_labelledby=f"{identifier}-title"
    )


def figure(value: float, shown: Inside, name: str | None = None) -> Safe:
    """Return a figure, with its exact value for machines."""
    return element("span", shown, data_figure=name, data_value=repr(float(value)))


Cell = Safe | str | float | int | None


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
) -> Safe:
    """Return a table whose first column names its rows; `numbers` are columns of figures."""

    def cell(place: int, value: Cell, name: str = "td") -> Safe:
        shown: Inside = value if isinstance(value, str) else None
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

    def row(cells: Sequence[Cell]) -> Safe:
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


def facts(items: Iterable[tuple[str, Inside]]) -> Safe:
    """Return names and values side by side."""
    listed = (join(element("dt", name), element("dd", value)) for name, value in items)
    return element("dl", *listed, class_="facts")


# ---------------------------------------------------------------------- the promise


def banner(accounts: Sequence[Account]) -> Safe | None:
    """Return a warning if something on the page is not private."""
    entries = [each for account in accounts for each in account.entries]
    wrong = [each.name for each in entries if not each.stated.private]
    if not wrong:
        return None
    which = "All that this page is about" if len(wrong) == len(entries) else ", ".join(wrong)
    seeded = all(e.stated.noise.startswith("seeded") for e in entries if not e.stated.private)
    why = (
        "The noise follows from a seed, and whoever knows it can remove the noise."
        if seeded
        else "The statement says why."
    )
    return element(
        "div",
        element(
            "p",
            element("strong", "Not a private release"),
            f"{which}: for experiments alone. {why} Do not give it out on the strength of this "
            "page.",
        ),
        class_="banner",
        role="alert",
    )


def promise(accounts: Sequence[Account]) -> Safe:
    """Return the promise for everything on the page, in words and in two figures."""
    whole = together(accounts)
    account = accounts[0] if whole is None else whole
    said = account.statement
    epsilon, delta = _epsilon(said.epsilon, "epsilon"), _delta(said.delta, "delta")
    would = "" if account.private else ", if it were private"
    lead = element(
        "div",
        element(
            "dl",
            element("div", element("dt", f"epsilon{would}"), element("dd", epsilon)),
            element("div", element("dt", f"delta{would}"), element("dd", delta)),
            class_="big",
        ),
        element("p", raised(_capital(account.promise)), class_="words"),
        class_="lead",
    )
    relation = RELATIONS_IN_WORDS[said.relation].format(unit=said.unit)
    listed: list[tuple[str, Inside]] = [
        ("Data set", said.dataset),
        ("Protects", f"each {said.unit}: {relation}"),
        ("Computed by", ACCOUNTANTS_IN_WORDS[said.accountant]),
    ]
    if len(account.entries) == 1 and len(accounts) == 1:
        listed += _how(account.entries[0].stated)
    if len(accounts) == 1:
        listed.append(("Ledger", said.ledger))
    several = None
    if whole is None:
        several = element(
            "p",
            f"This page is about {len(accounts)} ledgers that do not protect the same thing, and "
            "the promise above is that of the first. Where they are about the same data, what "
            "they spent comes together, and protects less than any one figure says.",
            class_="caution",
        )
    elif len(accounts) > 1:
        several = element(
            "p",
            f"This page is about {len(accounts)} ledgers. The figures above are what all of them "
            f"cost together for a {said.unit} that is in the data of each; what each ledger says "
            "is below.",
            class_="caution",
        )
    heading = element("h2", "The promise" if account.private else "No promise", id="promise-title")
    return element(
        "section",
        heading,
        lead,
        several,
        facts(listed),
        id="promise",
        class_="promise" if account.private else "promise none",
        aria_labelledby="promise-title",
    )


def _how(said: Statement) -> list[tuple[str, Inside]]:
    return [
        ("Method", said.method),
        ("Progress", said.progress),
        ("Sampling", said.sampling),
        ("Noise", said.noise),
    ]


def _epsilon(value: float, name: str | None = None) -> Safe:
    return figure(value, raised(formatting.epsilon(value)), name)


def _delta(value: float, name: str | None = None) -> Safe:
    return figure(value, raised(formatting.delta(value)), name)


# ---------------------------------------------------------------------- the bill


def budget(accounts: Sequence[Account], colours: dict[int, str]) -> Safe:
    """Return what was spent and what is left, as a bar for each ledger, and each run's share."""
    parts: list[Inside] = []
    for account in accounts:
        title = None
        if len(accounts) > 1:
            title = element("h3", f"{account.statement.dataset}, ledger {_ledger(account)}")
        shares = None
        if account.entries:
            shares = table(
                ["run", "its own epsilon", "at delta", "method", "progress"],
                [
                    [
                        _key(entry, colours),
                        _epsilon(entry.stated.run_epsilon, "own"),
                        _delta(entry.stated.delta),
                        _brief(entry.stated.method),
                        element("span", entry.stated.progress, class_="whole"),
                    ]
                    for entry in account.entries
                ],
                numbers=(1, 2),
                caption="What each run on this page costs alone",
            )
        runs = {charge.run for charge in account.statement.charges}
        note = element("p", _ADD_UP, class_="note after") if len(runs) > 1 else None
        parts.append(
            element(
                "div",
                title,
                _bar(account),
                shares,
                note,
                class_="account",
                data_ledger=account.statement.ledger,
            )
        )
    return section("budget", "Spent and left", *parts)


def _bar(account: Account) -> Safe:
    limit, spent = account.budget, account.spent()
    if limit is None:
        return element(
            "p",
            "No budget was set for this ledger, so nothing says how much is left. Spent so far: "
            "epsilon ",
            _epsilon(spent, "spent"),
            ".",
        )
    share = 100 * min(1.0, spent / limit.epsilon)
    words = f"{share:.0f} % of the budget is spent"
    return join(
        element(
            "p",
            "The budget is epsilon ",
            _epsilon(limit.epsilon),
            " at delta ",
            _delta(limit.delta),
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
            element("span", element("b", _epsilon(spent, "spent")), " spent"),
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


def _brief(method: str) -> str:
    """Return a method without its settings."""
    return method.partition(" (")[0].partition(":")[0]


def _ledger(account: Account) -> str:
    said = account.statement.ledger
    return "in memory" if said.startswith("in memory") else said


def _key(entry: Entry, colours: dict[int, str]) -> Safe:
    return element("span", entry.name, class_="key", style=f"--of:var({colours[id(entry)]})")


def charges(accounts: Sequence[Account]) -> Safe:
    """Return everything that was charged, oldest first."""
    parts: list[Inside] = []
    for account in accounts:
        listed, names = account.statement.charges, {}
        for entry in account.entries:
            names[entry.stated.run] = entry.name
        total = sum(events.release_count({each.event: each.count}) for each in listed)
        if len(accounts) > 1:
            parts.append(element("h3", f"{account.statement.dataset}, ledger {_ledger(account)}"))
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


def _soft(words: str) -> Safe:
    return element("span", words, class_="note whole")


# ---------------------------------------------------------------------- how it went


def training(entries: Sequence[Entry], accounts: Sequence[Account], drawn: Drawn) -> Safe | None:
    """Return epsilon, learning rate and noise against the steps."""
    if not any(entry.history for entry in entries):
        return None
    limits = {account.budget for account in accounts}
    limit = next(iter(limits)) if len(limits) == 1 else None
    parts: list[Inside] = []
    plot = plots.lines(entries, "epsilon", "epsilon", None if limit is None else limit.epsilon)
    if plot is not None:
        parts.append(
            drawn.figure(
                "plot-epsilon",
                "Epsilon against steps",
                plot,
                "What everything on the ledger had cost after each step.",
            )
        )
    pair = []
    for name, title, axis, says in (
        ("lr", "Learning rate", "learning rate", "The learning rate of each step."),
        (
            "noise_multiplier",
            "Noise",
            "noise multiplier",
            "The noise of each step, as a multiple of the clip norm.",
        ),
    ):
        plot = plots.lines(entries, name, axis)
        if plot is not None:
            plot["height"], plot["layout"]["showlegend"] = 280, False
            pair.append(drawn.figure(f"plot-{name.replace('_', '-')}", title, plot, says))
    parts.append(element("div", *pair, class_="pair"))
    rows: list[list[Cell]] = []
    for entry in entries:
        last = len(entry.history) - 1
        few = min(last, _ROWS_OF_HISTORY - 1)
        for place in sorted(
            {round(last * n / max(1, few)) for n in range(few + 1)} if last >= 0 else ()
        ):
            step = entry.history[place]
            rows.append(
                [
                    entry.name,
                    step["step"],
                    _epsilon(step["epsilon"]),
                    step["lr"],
                    step["noise_multiplier"],
                ]
            )
    parts.append(
        element(
            "details",
            element("summary", "Some of these numbers"),
            table(
                ["run", "step", "epsilon", "learning rate", "noise multiplier"],
                rows,
                numbers=(1, 2, 3, 4),
            ),
            class_="numbers",
        )
    )
    return section("training", "Training", *parts)


def metrics(entries: Sequence[Entry], drawn: Drawn) -> Safe | None:
    """Return the public figures, as bars and as a table."""
    names = list(dict.fromkeys(name for entry in entries for name in entry.metrics))
    if not names:
        return None
    having = [entry for entry in entries if entry.metrics]
    shares = [name for name in names if 0 <= having[0].metrics.get(name, math.nan) <= 1]
    parts: list[Inside] = [
        element(
            "p",
            "Figures that are public or were released: nothing here was computed from private "
            "records without noise and a charge.",
            class_="note",
        )
    ]
    charts = []
    if len(having) == 1 and shares:
        title = _capital(shares[0]) if len(shares) == 1 else "Between 0 and 1"
        charts = [(title, plots.bars(having[0], shares, entries.index(having[0])))]
    for name in names if len(having) > 1 else ():
        # where it is one run's alone, or alike in all, the table says as much
        if len({entry.metrics[name] for entry in having if name in entry.metrics}) > 1:
            charts.append((_capital(name), plots.by_entry(entries, name)))
    for place, (title, plot) in enumerate(charts):
        parts.append(
            drawn.figure(f"plot-metrics-{place}", title, plot, "The table below has the figures.")
        )
    parts.append(
        table(
            ["", *(entry.name for entry in having)],
            [[name, *(entry.metrics.get(name) for entry in having)] for name in names],
            numbers=range(1, len(having) + 1),
        )
    )
    return section("metrics", "Public metrics", *parts)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def comparison(entries: Sequence[Entry], colours: dict[int, str], drawn: Drawn) -> Safe | None:
    """Return several runs side by side: what each cost and what it reached."""
    if len(entries) < 2:
        return None
    names = list(dict.fromkeys(name for entry in entries for name in entry.metrics))
    shared = [n for n in names if sum(n in entry.metrics for entry in entries) > 1]
    shared = sorted(shared, key=lambda name: "accuracy" not in name)[:1]
    if shared:
        chart = drawn.figure(
            "plot-comparison",
            f"{_capital(shared[0])} against cost",
            plots.against_epsilon(entries, shared[0]),
            "Each run by what it costs alone and what it reached. Up is more, left is cheaper.",
        )
    else:
        chart = drawn.figure(
            "plot-comparison", "Cost", plots.costs(entries), "What each run costs alone."
        )
    rows: list[list[Cell]] = [
        [
            _key(entry, colours),
            _brief(entry.stated.method),
            _epsilon(entry.stated.run_epsilon),
            _delta(entry.stated.delta),
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


def tuning(entries: Sequence[Entry], drawn: Drawn) -> Safe | None:
    """Return the price of each search in each way, and its candidates where they are released."""
    parts: list[Inside] = []
    for place, entry in enumerate(entries):
        if not entry.prices and not entry.tried:
            continue
        of = f" of {entry.name}" if len(entries) > 1 else ""
        if entry.prices:
            found = sorted(entry.prices.items(), key=lambda each: each[1])
            parts.append(
                drawn.figure(
                    f"plot-prices-{place}",
                    f"The price{of}, by way of choosing",
                    plots.prices(entry.prices, entry.chosen),
                    "What as many runs with this noise cost, their scores left out. "
                    "The way that was taken is in colour.",
                )
            )
            parts.append(
                table(
                    ["way", "epsilon"],
                    [
                        [element("mark", how) if how == entry.chosen else how, _epsilon(cost)]
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
                    "Press a heading to sort.",
                )
            )
    return section("tuning", "Tuning", *parts) if parts else None


def _setting(value: object) -> Cell:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return figure(value, plain(value))
    return plain(value)


# ---------------------------------------------------------------------- what it rests on


def configuration(entries: Sequence[Entry]) -> Safe | None:
    """Return the settings, side by side where there are several runs."""
    having = [entry for entry in entries if entry.configuration]
    if not having:
        return None
    if len(having) == 1:
        listed = {name: setting(name, value) for name, value in having[0].configuration.items()}
        return section("configuration", "Configuration", facts(listed.items()))
    names = list(dict.fromkeys(name for entry in having for name in entry.configuration))
    rows: list[list[Cell]] = []
    for name in names:
        cells = [
            setting(name, each.configuration[name]) if name in each.configuration else ""
            for each in having
        ]
        differ = len({cell for cell in cells if cell}) > 1
        rows.append([name, *(element("mark", cell) if differ and cell else cell for cell in cells)])
    return section(
        "configuration",
        "Configuration",
        element("p", "Settings in which the runs differ are marked.", class_="note"),
        table(["setting", *(entry.name for entry in having)], rows),
    )


def limits(accounts: Sequence[Account]) -> Safe:
    """Return what the promise rests on, and what it does not cover."""

    def items(attribute: str) -> Safe:
        said: dict[str, list[str]] = {}
        sources = [(each.name, each.stated) for a in accounts for each in a.entries]
        sources += [("", account.statement) for account in accounts if not account.entries]
        for name, statement in sources:
            for words in getattr(statement, attribute):
                said.setdefault(words, []).append(name)
        for account in accounts:  # what a ledger adds to its runs' own words
            for words in getattr(account.statement, attribute):
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


def statements(accounts: Sequence[Account]) -> Safe:
    """Return each statement in full, as the run printed it."""
    entries = [each for account in accounts for each in account.entries]
    shown = [(each.name, each.stated) for each in entries]
    shown = shown or [(accounts[0].statement.dataset, accounts[0].statement)]
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
