"""What a run is going to be charged, declared before its first look."""

from collections import Counter
from collections.abc import Mapping

from dp_accounting import DpEvent

from privada.accounting import Ledger
from privada.accounting.events import Tally
from privada.core.errors import ArgumentError, BudgetExceeded


def tally_of_run(ledger: Ledger, run: str, purpose: str | None = None) -> Tally:
    """Return what a run was charged, for one purpose or for all."""
    own: Tally = Counter()
    for charge in ledger.charges():
        if charge.run == run and purpose in (None, charge.purpose):
            own[charge.event] += charge.count
    return own


def declare_run(
    ledger: Ledger, run: str, ahead: Mapping[DpEvent, int], *, interrupted: bool = False
) -> None:
    """Declare on a planned ledger what a run is still going to be charged.

    Args:
        ledger: what is charged. An adaptive one asks for no declaration.
        run: the name of the run.
        ahead: what is still to be charged, by a plan that no answer has an influence on.
        interrupted: whether something that was paid for was lost and is paid for again: then more
            is declared, if the budget has room for it.

    Raises:
        ArgumentError: the run was declared with another plan; nothing was charged for it.
        BudgetExceeded: the budget does not allow it; what was declared stays declared.
        LedgerError: the ledger is one of other runs.
    """
    declared = ledger.declared(run)
    if declared is None:
        return
    if not declared:
        ledger.declare({run: ahead})
    elif tally_of_run(ledger, run) + Counter(ahead) <= declared:
        return
    elif interrupted:
        _declare_more(ledger, run, ahead)
    else:
        raise ArgumentError(
            f"Expected run {run!r} to go on as it was declared to ledger {ledger.name!r} before "
            "its first look, got options or a table with which it would be charged otherwise. "
            "Give the table, the columns to be estimated, --epsilon, --delta, --model, --method, "
            "--lr, --clip, --epochs and --batch-size as it was begun; other options may change."
        )


def _declare_more(ledger: Ledger, run: str, ahead: Mapping[DpEvent, int]) -> None:
    try:
        ledger.replan(run, ahead)
    except BudgetExceeded as error:
        raise BudgetExceeded(
            f"Expected room on ledger {ledger.name!r} to pay again for what run {run!r} has lost, "
            "got none beside what was declared before its first look. Take public defaults with "
            "--when-lost defaults, or name the classes with --class. Nothing more was charged."
        ) from error
