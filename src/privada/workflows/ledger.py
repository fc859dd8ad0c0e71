"""What a ledger holds, as plain values."""

import json
import os
from pathlib import Path
from typing import Any

from privada.accounting import Budget, Ledger, events
from privada.accounting.ledger import ADAPTIVE
from privada.core.errors import ArgumentError, LedgerError
from privada.core.validation import probability
from privada.report.ledgers import EPSILON_IN_WORDS


def new_ledger(file: str | os.PathLike[str], epsilon: float, delta: float | None) -> None:
    """Create an adaptive ledger, for several runs on one data set.

    This is what `privada ledger --new` does.

    Args:
        file: the ledger's file, which must not exist.
        epsilon, delta: what all runs together may cost.

    Guarantee: each run may be chosen in the light of those before it; all of them together cost at
    most the budget.

    Example:
        >>> import privada as pv
        >>> pv.workflows.new_ledger("visits.ledger", 3.0, 1e-5)
        >>> pv.Ledger("visits.ledger").kind
        'adaptive'
    """
    path = Path(file)
    if delta is None:
        raise ArgumentError(
            "Expected --delta with --new, got none. Give the budget's delta, well below 1 / n."
        )
    if path.exists():
        raise LedgerError(
            f"Expected a file that does not exist with --new, got {str(path)!r}. Leave --new out "
            "to look at it, or give another name."
        )
    Ledger(path, Budget(epsilon, delta), kind=ADAPTIVE).close()


def ledger_contents(file: str | os.PathLike[str], delta: float | None = None) -> dict[str, Any]:
    """Return what a ledger holds: what was spent on a data set, for what, and what is left.

    This is what `privada ledger` does.

    Args:
        file: the ledger's file.
        delta: the delta to report at, by default the budget's.

    Returns:
        Plain values: the budget, what is spent and left and how it is counted, each run's epsilon
        alone, and each charge.

    Guarantee: opening checks that the ledger is whole. No charge is changed.

    Edge cases: a file that does not exist is not made. A ledger without a budget needs a delta.
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
    path = Path(file)
    if not path.exists():  # opening would make a new one
        raise LedgerError(f"Cannot open the ledger {str(path)!r}: there is no such file.")
    with Ledger(path) as opened:
        charges, budget = opened.charges(), opened.budget
        if delta is None and budget is None:
            raise ArgumentError(
                "Expected --delta, got none. This ledger has no budget to take it from."
            )
        at = budget.delta if delta is None and budget else probability("delta", delta)
        spent, unit = opened.epsilon(at), opened.unit
        dataset, kind, counting = opened.dataset, opened.kind, opened.describe()
        runs = {run: opened.run_epsilon(run, at) for run in opened.runs()}
    comparable = budget is not None and at == budget.delta
    return {
        "dataset": dataset,
        "unit": unit,
        "budget": None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta},
        "delta": at,
        "spent": spent,
        "left": max(0.0, budget.epsilon - spent) if comparable and budget else None,
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
