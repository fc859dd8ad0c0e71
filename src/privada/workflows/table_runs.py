"""One run on a private table: all of it declared, queries asked, and charges told where it fails.

Training and tuning differ in what they do with the records; this is what they have in common.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from privada import tables
from privada.accounting import Ledger
from privada.accounting.events import Tally
from privada.accounting.ledger import PLANNED, exists
from privada.core.errors import ArgumentError, PrivadaError
from privada.tables.files import write_durably
from privada.workflows.declarations import declare_run, tally_of_run
from privada.workflows.findings import Findings, findings
from privada.workflows.folders import RunFolder
from privada.workflows.options import TableOptions
from privada.workflows.pending_queries import (
    PendingQueries,
    TrainingData,
    ask_and_encode,
    dry_run_data,
    pending_queries,
    unpaid_queries,
)
from privada.workflows.row_storage import RowStorage
from privada.workflows.table_rows import TableRows, read_rows
from privada.workflows.table_source import source_name

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Work(Generic[Outcome]):
    """What is done with a table's records once they are known.

    Args:
        planned: says what it is going to be charged, on a ledger that may be charged for a trial,
            and raises what it would raise. It depends on no answer and looks at no record.
        done: does it, charges it to the ledger under the run's name and fills the folder.
    """

    planned: Callable[[TrainingData, Ledger, str], Tally]
    done: Callable[[TrainingData, Ledger, str, RunFolder], Outcome]


def run_on_table(
    source: Any,
    options: TableOptions,
    place: Path,
    work: Work[Outcome],
    *,
    resume: bool,
    confirm: Callable[[Findings], bool] | None = None,
) -> Outcome:
    """Return the outcome of a run on a table, in a folder that is made or gone on with.

    Guarantee: on a ledger that is made for the run, queries and work are declared together before
    the first query. What is wrong with either is raised before that, and then nothing is left.
    """
    folder = (RunFolder.reopen if resume else RunFolder.create)(place, options)
    run, made = "", False
    try:
        run = folder.run_name(source)
        folder.check_ledger()
        rows = read_rows(source, options, _storage(place, options), folder.schema)
        answers = tables.AnswerCache(folder.answers, when_lost=options.when_lost)
        budget = options.budget(rows.units)
        pending = pending_queries(rows, options, budget, answers).as_declared(folder.queries)
        if not resume:
            folder.keep_looks(not pending.undecided)
        ahead = None
        if not rows.complete or (folder.declares and not folder.checkpoint.exists()):
            ahead = _dry_run(rows, pending, folder, run, work)
        if confirm is not None and not resume and not confirm(findings(rows, options, pending)):
            raise ArgumentError(
                "Expected a yes to go on, got another answer. Nothing was charged. --yes goes on "
                "without asking."
            )
        made = not exists(folder.ledger_place)
        with folder.open_ledger(budget, source_name(source).split(".")[0]) as ledger:
            answers.check_paid(ledger=ledger, run=run)  # a schema that is kept came of them
            if ahead is not None:
                _declare(ahead, pending, ledger, run, folder)
            data = ask_and_encode(rows, options, pending, ledger=ledger, run=run)
            del rows  # which may take as much memory as what is trained on
            data = replace(_kept(data, folder), looks=folder.looks)
            return work.done(data, ledger, run, folder)
    except BaseException as error:
        charged = folder.charged_in_words(run) if folder.may_be_charged else ""
        if charged and isinstance(error, PrivadaError):
            error.args = (f"{error} {charged}",)
        if not resume and not charged:
            if made:
                folder.remove_new_ledger()
            folder.remove_if_unpaid()
        raise


def _storage(place: Path, options: TableOptions) -> RowStorage:
    """Return where rows are kept: where the user said, or beside the output folder."""
    folder = place.parent if options.scratch is None else Path(options.scratch)
    return RowStorage(folder, options.stream)


def _dry_run(
    rows: TableRows, pending: PendingQueries, folder: RunFolder, run: str, work: Work[Outcome]
) -> Tally:
    """Return what the run is still going to be charged, known before any of it.

    What queries and work would raise is raised here, on a copy of the ledger. The plan depends
    on the number of units, the options and the charges so far, and on no answer: `dry_run_data` has
    none.
    """
    options = folder.options
    with folder.copied_ledger() as held, Ledger(None, kind=PLANNED) as planned:
        before = planned if held is None else held
        unpaid = unpaid_queries(rows, options, pending, before, run)
        trial, charged = before, unpaid
        if held is not None and held.declared(run) is not None:
            # declared or not, it can be charged here; `declare_run` says what is allowed
            trial, charged = planned, tally_of_run(held, run) + unpaid
        if charged:
            trial.charge(charged, run=run, purpose="statistics", unit=options.charged_unit)
        data = replace(dry_run_data(rows, options, pending), looks=folder.looks)
        return unpaid + work.planned(data, trial, run)


def _declare(
    ahead: Tally, pending: PendingQueries, ledger: Ledger, run: str, folder: RunFolder
) -> None:
    """Declare what is still to be charged, and keep how queries are asked: they stay as they are.

    A question that was paid for and whose answer was lost is paid for again, if that is asked for.
    """
    if ledger.declared(run) is not None and folder.queries is None:
        folder.keep_queries(pending.queries)
    lost = pending.answers.lost(ledger=ledger, run=run) > 0
    declare_run(ledger, run, ahead, interrupted=lost)


def _kept(data: TrainingData, folder: RunFolder) -> TrainingData:
    """Keep the schema in the folder with what it rests on; a resumed run has what was kept."""
    if folder.schema.exists():
        kept = folder.facts(assumptions=list)["assumptions"]
        return replace(data, assumptions=tuple(kept))
    folder.keep_facts({**folder.facts(), "assumptions": list(data.assumptions)})
    write_durably(folder.schema, data.schema.to_toml(folder=folder.path, versioned=True))
    return data
