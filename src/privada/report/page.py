"""The page as a whole: put together, packed and written."""

import base64
import contextlib
import gzip
import hashlib
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from privada.accounting import Ledger
from privada.accounting.ledger import dataset_of
from privada.core.errors import ArgumentError
from privada.core.version import __version__
from privada.report import sections
from privada.report.components import Charts
from privada.report.entries import Entry
from privada.report.ledgers import summaries_of
from privada.report.markup import Markup, data, element, join
from privada.report.plots import colour
from privada.report.script import SCRIPT
from privada.report.style import sheet

_ENDINGS = (".html", ".htm")
# The sections in their order: results first, then how they came about.
_TITLES = {
    "budget": "Spent and left",
    "metrics": "Metrics",
    "comparison": "Comparison",
    "training": "Training",
    "tuning": "Tuning",
    "membership": "What privacy bought",
    "charges": "Charges",
    "configuration": "Configuration",
    "limits": "What this means",
    "statement": "Statement",
}


def write(
    entries: Sequence[Entry],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    ledger: Ledger | None = None,
) -> Path:
    """Write a report of some runs to one self-contained HTML file.

    Args:
        entries: the runs; may be empty if there is a ledger with a budget.
        path: where to; ends in .html. A file that is there is replaced.
        title: the heading. By default it names the data set.
        ledger: a ledger to show as it is now, later runs included; without it, the page shows what
            the newest statement says about each ledger.

    Returns:
        The path of the file.

    Guarantee: the file is written whole or not at all. The page holds what the entries and the
    ledger hold, and nothing else; opened in a browser, it cannot reach a network. Names and
    settings are shown as text, whatever is in them.

    Edge cases: histories of more than some hundred steps are thinned for the charts: ends and
    extremes stay. Entries on different ledgers are told apart. A ledger that holds none of the
    entries' charges is refused.

    Example:
        >>> import privada as pv, torch
        >>> from privada.report import Entry, write
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(50, 2), torch.zeros(50, 1)),
        ...     method=pv.methods.DPSGD(lr=0.1), batch_size=10, steps=3,
        ...     noise_multiplier=1.0, delta=1e-3,
        ... ).fit()
        >>> write([Entry.of_trainer(trainer)], "report.html").name
        'report.html'
    """
    target = Path(path)
    if target.suffix.lower() not in _ENDINGS:
        raise ArgumentError(f"Expected a report to end in .html, got {str(target)!r}.")
    wrong = next((each for each in entries if not isinstance(each, Entry)), None)
    if wrong is not None:
        raise ArgumentError(
            f"Expected entries of a report, got {type(wrong).__name__}. Make one by "
            "Entry.of_trainer(trainer)."
        )
    if not entries and ledger is None:
        raise ArgumentError("Expected at least one entry, or a ledger, got neither.")
    save_whole(target, page(entries, title=title, ledger=ledger))
    return target


def page(
    entries: Sequence[Entry], *, title: str | None = None, ledger: Ledger | None = None
) -> str:
    """Return the page as text."""
    ledgers = summaries_of(entries, ledger)
    colours = {id(entry): colour(place) for place, entry in enumerate(entries)}
    charts = Charts()
    made = {
        "budget": sections.budget(ledgers, colours),
        "charges": sections.charges(ledgers),
        "training": sections.training(entries, ledgers, charts),
        "metrics": sections.metrics(entries, charts),
        "comparison": sections.comparison(entries, colours, charts),
        "tuning": sections.tuning(entries, charts),
        "membership": sections.membership(entries, charts),
        "configuration": sections.configuration(entries),
        "limits": sections.limits(ledgers),
        "statement": sections.statements(ledgers),
    }
    shown = [name for name in _TITLES if made[name] is not None]
    dataset = ledgers[0].statement.dataset
    named = "" if dataset == dataset_of(None) else f": {dataset}"
    heading = title or f"Privacy report{named}"
    count = len(entries)
    runs = "the ledger as it is now" if not count else f"{count} run{'s' if count > 1 else ''}"
    now = datetime.now(UTC)
    main = element(
        "main",
        element(
            "div",
            element("h1", heading),
            element("p", f"{runs}, {now.day} {now:%B %Y}", class_="under"),
            class_="title",
        ),
        sections.banner(ledgers),
        sections.promise(ledgers),
        _contents(shown),
        *(made[name] for name in shown),
        id="main",
    )
    body = element(
        "body",
        element("a", "Skip to the report", href="#main", class_="skip"),
        element(
            "header",
            element("p", "Privada ", element("span", "privacy report"), class_="brand"),
            element("button", "Dark", id="theme", type="button", hidden=True),
        ),
        main,
        element(
            "footer",
            f"Made by Privada {__version__} on ",
            element("time", f"{now:%Y-%m-%d at %H:%M} UTC", datetime=now.isoformat("T", "seconds")),
            ". This file is self-contained and makes no network request. Charts are drawn by "
            "plotly.js, which is under the MIT licence.",
        ),
        data(charts.placed, "plots"),
        _packed() if charts.placed else None,
        Markup(f"<script>{SCRIPT}</script>"),
    )
    return f'<!doctype html>\n<html lang="en">\n{_head(heading)}\n{body}\n</html>\n'


def _contents(shown: Sequence[str]) -> Markup:
    links = (element("li", element("a", _TITLES[name], href=f"#{name}")) for name in shown)
    return element("nav", element("ul", *links), aria_label="Contents")


def _head(title: str) -> Markup:
    """Return the head. Its policy lets two scripts run, named by their digests, and no request."""
    scripts = " ".join(f"'sha256-{_digest(each)}'" for each in (SCRIPT, _plotly()))
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        join(Markup(f"<style>\n{sheet()}</style>")),
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    # as a browser hands it to a script element
    return str(get_plotlyjs()).replace("\r\n", "\n")


@cache
def _packed() -> Markup:
    """Return plotly's script, packed to two fifths of its size; the page's script unpacks it."""
    packed = gzip.compress(_plotly().encode(), 9, mtime=0)
    return Markup(
        f'<script type="text/plain" id="plotly">{base64.b64encode(packed).decode()}</script>'
    )


def save_whole(target: Path, content: str) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    draft = target.with_name(f".{target.name}.{os.urandom(4).hex()}.new")
    try:
        with draft.open("xb") as file:
            # names of files may hold bytes that are no text
            file.write(content.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as error:
        raise ArgumentError(
            f"Cannot write {str(target)!r}: {error.strerror}. Check that the folder exists and "
            "may be written."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
