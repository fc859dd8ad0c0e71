"""What a ledger holds, as plain values."""

import json
import os
from pathlib import Path
from typing import Any

from privada.accounting import Budget, Ledger, PostgresStorage, events
from privada.accounting.ledger import ADAPTIVE, exists, in_words, is_url, move, storage_at
from privada.core.errors import ArgumentError, LedgerError
from privada.core.validation import probability
from privada.report.ledgers import EPSILON_IN_WORDS


def new_ledger(file: str | os.PathLike[str], epsilon: float, delta: float | None) -> None:
    """Create an adaptive ledger, for several runs on one data set.

    This is what `privada ledger --new` does.

    Args:
        file: the ledger's file or URL, where there must be none.
        epsilon, delta: what all runs together may cost.

    Guarantee: each run may be chosen in the light of those before it; all of them together cost at
    most the budget.

    Example:
        >>> import privada as pv
        >>> pv.workflows.new_ledger("visits.ledger", 3.0, 1e-5)
        >>> pv.Ledger("visits.ledger").kind
        'adaptive'
    """
    if delta is None:
        raise ArgumentError(
            "Expected --delta with --new, got none. Give the budget's delta, well below 1 / n."
        )
    if exists(file):
        raise LedgerError(
            f"Expected a file that does not exist with --new, got {in_words(file)!r}. Leave --new "
            "out to look at it, or give another name."
        )
    Ledger(file, Budget(epsilon, delta), kind=ADAPTIVE).close()


def ledger_contents(file: str | os.PathLike[str], delta: float | None = None) -> dict[str, Any]:
    """Return what a ledger holds: what was spent on a data set, for what, and what is left.

    This is what `privada ledger` does.

    Args:
        file: the ledger's file or URL.
        delta: the delta to report at, by default the budget's.

    Returns:
        Plain values: the budget, what is spent and left and how it is counted, each run's epsilon
        alone, and each charge.

    Guarantee: opening checks that the ledger is whole. No charge is changed.

    Edge cases: one that does not exist is not made. One that was moved says where it is now:
    "closed" is None for one that can be charged. A ledger without a budget needs a delta.
    What is left is None at another delta than the budget's.

    Example:
        >>> import privada as pv
        >>> from privada.accounting import events
        >>> with pv.Ledger("patients.ledger", pv.Budget(3.0, 1e-5), dataset="patients") as ledger:
        ...     _ = ledger.charge({events.gaussian(5.0): 1}, run="bounds", purpose="statistics")
        >>> found = pv.workflows.ledger_contents("patients.ledger")
        >>> found["dataset"], [each["purpose"] for each in found["charges"]]
        ('patients', ['statistics'])
    """
    if not exists(file):  # opening would make a new one
        what = "ledger in that database" if is_url(file) else "file"
        raise LedgerError(
            f"Cannot open the ledger {in_words(file)!r}: there is no such {what}. Check its name; "
            "--new EPSILON --delta DELTA makes a ledger."
        )
    if not is_url(file) and Path(file).is_dir():
        inside = Path(file) / "ledger"
        remedy = f"Give {str(inside)!r}." if inside.is_file() else "Give the ledger in it, if any."
        raise LedgerError(f"Expected a ledger file, got the folder {str(file)!r}. {remedy}")
    with Ledger(file) as opened:
        charges, budget = opened.charges(), opened.budget
        if delta is None and budget is None:
            raise ArgumentError(
                "Expected --delta, got none. This ledger has no budget to take it from."
            )
        at = budget.delta if delta is None and budget else probability("delta", delta)
        spent, unit = opened.epsilon(at), opened.unit
        dataset, kind, counting = opened.dataset, opened.kind, opened.describe()
        closed = opened.closed
        runs = {run: opened.run_epsilon(run, at) for run in opened.runs()}
    comparable = budget is not None and at == budget.delta
    return {
        "dataset": dataset,
        "unit": unit,
        "budget": None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta},
        "delta": at,
        "spent": spent,
        "left": max(0.0, budget.epsilon - spent) if comparable and budget else None,
        "closed": closed,
        "kind": kind,
        "counting": counting,
        "meaning": EPSILON_IN_WORDS[kind],
        "runs": runs,
        "charges": [
            {
                "run": each.run,
                "purpose": each.purpose,
                "what": events.describe(each.event),
                "event": json.loads(events.encode(each.event)),
                "count": each.count,
                "first": each.first,
                "last": each.last,
            }
            for each in charges
        ],
    }


def copy_ledger(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> dict[str, Any]:
    """Copy a ledger to another place, where it is charged from then on, and close the old one.

    This is what `privada ledger copy` does: from a file to PostgreSQL, back, or to another file.

    Args:
        source: the file or URL of a ledger.
        target: the file or URL of the new place, where there must be no ledger.

    Returns:
        Plain values: the data set, both places in words, and how many releases were copied.

    Guarantee: the budget can be spent in one of the places alone, at every moment, and no charge is
    lost, whoever charges meanwhile and whenever this is killed. The old place can still be read.
    The ledger stays the same one: checkpoints and searches go on with the new place.

    Edge cases: interrupted, the same call again finishes it; until then, at most one of the places
    can be charged. A ledger that was moved elsewhere, or is damaged, is refused.

    Example:
        >>> import privada as pv
        >>> from privada.accounting import events
        >>> with pv.Ledger("old.ledger", pv.Budget(3.0, 1e-5)) as ledger:
        ...     _ = ledger.charge({events.gaussian(5.0): 2}, run="bounds")
        >>> pv.workflows.copy_ledger("old.ledger", "new.ledger")["releases"]
        2
        >>> "it was moved to" in pv.Ledger("old.ledger").closed
        True
    """
    if not exists(source):
        raise LedgerError(f"Expected a ledger to copy, got none at {in_words(source)!r}.")
    with Ledger(source):
        pass  # what a ledger checks beyond its storage
    old, new = storage_at(source), storage_at(target)
    try:
        held = move(old, new)
    finally:
        old.close()
        new.close()
    with Ledger(target) as opened:
        return {
            "dataset": opened.dataset,
            "from": old.name,
            "to": new.name,
            "releases": sum(each.count for each in held.charges),
        }


def accept_ledger(url: str) -> bool:
    """Let a ledger in PostgreSQL be charged whose database was restored, copied or taken over.

    This is what `privada ledger accept` does. It is for the ledger's owner, who has seen to it that
    no other copy is charged, and charges again what is missing.

    Args:
        url: the ledger's URL.

    Returns:
        Whether it could not be charged before.

    Example: see docs/team_ledger.md.
    """
    if not is_url(url):
        raise ArgumentError(
            f"Expected the URL of a ledger in PostgreSQL, got {in_words(url)!r}. A file that was "
            "restored from a copy needs no such step."
        )
    storage = PostgresStorage(url)
    storage.open(None)
    try:
        return storage.accept()
    finally:
        storage.close()
