"""One page for people, from the folders that training and tuning write."""

import os
from collections.abc import Sequence
from pathlib import Path

from privada.accounting import Ledger
from privada.accounting.ledger import exists, in_words
from privada.core.errors import ArgumentError
from privada.report import Entry, write, write_model_card
from privada.workflows.charges import has_ledger


def write_report(
    folders: Sequence[str | os.PathLike[str]] = (),
    output: str | os.PathLike[str] = "report.html",
    *,
    ledger: str | os.PathLike[str] | None = None,
    title: str | None = None,
) -> Path:
    """Write one HTML page about output folders of runs, and return its path.

    The model cards in the folders are written anew. This is what `privada report` does.

    Args:
        folders: output folders of `train_table` and `tune_table`.
        output: the page, an .html file.
        ledger: the path or URL of a ledger, to show what is spent and left by now.
        title: the page's heading.

    Returns:
        The path of the page.

    Guarantee: no private value is read; the page shows statements, public metrics and settings.

    Edge cases: a folder that may not be written keeps its card. Neither folders nor a ledger, and a
    ledger that does not exist, are refused.

    Example:
        >>> import privada as pv
        >>> with pv.Ledger("patients.ledger", pv.Budget(3.0, 1e-5), dataset="patients"):
        ...     pass
        >>> pv.workflows.write_report(output="page.html", ledger="patients.ledger").name
        'page.html'
    """
    places = [Path(folder) for folder in folders]
    if not places and ledger is None:
        raise ArgumentError(
            "Expected output folders of runs or a --ledger, got neither. Give the --output of a "
            "run."
        )
    names = [place.resolve().name for place in places]
    alike = {name for name in names if names.count(name) > 1}
    entries = [
        Entry.of_folder(place, name=str(place) if name in alike else None)
        for place, name in zip(places, names, strict=True)
    ]
    for place in places:
        has_model = all((place / name).exists() for name in ("model.json", "schema.toml"))
        if has_model and os.access(place, os.W_OK):
            write_model_card(place)
    if ledger is None:
        return write(entries, Path(output), title=title)
    if not has_ledger(ledger):  # a ledger that is not there would be made
        raise ArgumentError(
            f"Expected a ledger at {in_words(ledger)!r}, got "
            f"{'something else' if exists(ledger) else 'none'}. Check the path or the URL."
        )
    with Ledger(ledger) as opened:
        return write(entries, Path(output), title=title, ledger=opened)
