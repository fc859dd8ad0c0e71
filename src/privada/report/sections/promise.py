"""The privacy guarantee at the top of the page, and the warning where there is none."""

from collections.abc import Sequence

from privada.accounting import Statement
from privada.accounting.statement import ACCOUNTANTS_IN_WORDS, RELATIONS_IN_WORDS
from privada.report.components import capitalised, delta_figure, epsilon_figure, facts
from privada.report.ledgers import LedgerSummary, combined
from privada.report.markup import Content, Markup, element
from privada.report.numbers import superscript


def banner(ledgers: Sequence[LedgerSummary]) -> Markup | None:
    """Return a warning if something on the page is not private."""
    entries = [each for summary in ledgers for each in summary.entries]
    wrong = [each.name for each in entries if not each.stated.private]
    if not wrong:
        return None
    which = "Everything on this page" if len(wrong) == len(entries) else ", ".join(wrong)
    seeded = all(e.stated.seeded for e in entries if not e.stated.private)
    why = (
        "The noise is determined by a seed, and whoever knows it can remove the noise."
        if seeded
        else "The statement says why."
    )
    return element(
        "div",
        element(
            "p",
            element("strong", "Not a private release"),
            f"{which}: for experiments alone. {why} Do not publish it as a private result.",
        ),
        class_="banner",
        role="alert",
    )


def promise(ledgers: Sequence[LedgerSummary]) -> Markup:
    """Return the promise for everything on the page, in words and in two figures."""
    whole = combined(ledgers)
    summary = ledgers[0] if whole is None else whole
    said = summary.statement
    relation = RELATIONS_IN_WORDS[said.relation].format(unit=said.unit)
    listed: list[tuple[str, Content]] = [
        ("Data set", said.dataset),
        ("Protects", f"each {said.unit}: {relation}"),
        ("Computed by", ACCOUNTANTS_IN_WORDS[said.accountant]),
    ]
    if len(summary.entries) == 1 and len(ledgers) == 1:
        listed += _how(summary.entries[0].stated)
    if summary.meaning:
        listed.append(("Epsilon is", summary.meaning))
    if len(ledgers) == 1:
        kind = f", {said.kind}" if said.counting else ""
        listed.append(("Ledger", f"{said.ledger}{kind}"))
    heading = element("h2", "The promise" if summary.private else "No promise", id="promise-title")
    return element(
        "section",
        heading,
        _lead(summary),
        _note_on_ledgers(len(ledgers), whole),
        facts(listed),
        id="promise",
        class_="promise" if summary.private else "promise none",
        aria_labelledby="promise-title",
    )


def _lead(summary: LedgerSummary) -> Markup:
    """Return epsilon and delta in large type, and what they mean."""
    said = summary.statement
    epsilon, delta = epsilon_figure(said.epsilon, "epsilon"), delta_figure(said.delta, "delta")
    would = "" if summary.private else ", if it were private"
    return element(
        "div",
        element(
            "dl",
            element("div", element("dt", f"epsilon{would}"), element("dd", epsilon)),
            element("div", element("dt", f"delta{would}"), element("dd", delta)),
            class_="big",
        ),
        element("p", superscript(capitalised(summary.promise)), class_="words"),
        class_="lead",
    )


def _note_on_ledgers(ledgers: int, whole: LedgerSummary | None) -> Content:
    """Return what the figures at the top stand for, if the page is about several ledgers."""
    if whole is None:
        words = (
            f"This page is about {ledgers} ledgers that do not protect the same thing, and "
            "the promise above is that of the first. Where they are about the same data, their "
            "costs add up, and the protection is weaker than any one figure says."
        )
    elif ledgers > 1:
        words = (
            f"This page is about {ledgers} ledgers. The figures above are what all of them "
            f"cost together for a {whole.statement.unit} that is in the data of each; what each "
            "ledger says is below."
        )
    else:
        return None
    return element("p", words, class_="caution")


def _how(said: Statement) -> list[tuple[str, Content]]:
    return [
        ("Method", said.method),
        ("Progress", said.progress),
        ("Sampling", said.sampling),
        ("Noise", said.noise),
    ]
