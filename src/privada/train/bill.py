"""The bill of a run: its statement, and the assumptions that it rests on."""

from privada import data as private_data
from privada.accounting import Statement, events
from privada.accounting.statement import IN_MEMORY
from privada.train.run import Run


def statement(run: Run, method: str, steps_done: int, finished: bool = False) -> Statement:
    """Return the statement of a run as it stands.

    Args:
        run: the run.
        method: the method and its settings, in words.
        steps_done: how many steps were taken.
        finished: whether no further step will be.
    """
    ledger, charges = run.ledger, run.charges
    done = run.mechanism.releases.before(steps_done)
    totals = ledger.totals()
    where = IN_MEMORY if not ledger.durable else ledger.name
    return Statement(
        private=run.noise.secure and run.parts.preconditioner.private,
        dataset=ledger.dataset,
        unit=run.settings.unit,
        relation=events.common_relation(totals or [run.mechanism.event(1.0)]),
        epsilon=charges.epsilon(),
        delta=charges.delta,
        run=charges.run,
        run_epsilon=charges.run_epsilon(done, run.gradients.paid_until(done)),
        accountant=ledger.accountant,
        budget=ledger.budget,
        ledger=where,
        method=method,
        sampling=_sampling(run),
        noise=run.noise.describe(),
        progress=_progress(run, steps_done, finished),
        charges=ledger.charges(),
        assumptions=tuple(assumptions(run)),
        seeded=not run.noise.secure,
        kind=ledger.kind,
        counting=ledger.describe(),
    )


def _progress(run: Run, steps_done: int, finished: bool) -> str:
    """Return how far a run has come, and what it means that it ended early."""
    taken = f"{steps_done:,} of {run.steps:,} steps"
    if not finished or steps_done == run.steps:
        return taken
    if run.ledger.adaptive:
        return f"{taken}, then ended; what was not used is back on the ledger"
    return f"{taken}, then ended: epsilon is that of all that was planned, whatever the reason"


def _sampling(run: Run) -> str:
    """Return in words who takes part in a step."""
    drawn = run.mechanism.sampler.describe()
    if not run.units.grouped:
        return drawn
    return f"{drawn}; a record is here a {run.settings.unit} with all their rows"


def assumptions(run: Run) -> list[str]:
    """Return what the promise of a run rests on, in words."""
    settings, unit = run.settings, run.settings.unit
    of_units = whose(unit, run.units.rows_per_unit if run.units.grouped else None)
    listed = [
        *(run.elsewhere or [of_units]),
        _population(run),
        "The model's first parameters, the method, its settings and the number of steps were "
        "chosen without looking at these records, or by looks that this ledger lists.",
    ]
    if not run.elsewhere:
        listed += _of_records(run)
    if not run.ledger.durable:
        listed.append(in_memory("the trainer"))
    if run.ledger.interrupted(run.charges.run):
        listed.append(
            "The run was interrupted and planned anew for what it had lost; neither depended on "
            "the records."
        )
    parts = run.parts
    listed += side_information(parts.preconditioner.source, parts.rule.source)
    if settings.objective.terms:
        listed.append(
            "What the objective adds to the loss depends on the parameters alone, and on no "
            f"record: {settings.objective.describe()}."
        )
    if settings.validation is not None:
        listed.append(
            "The records that the model is evaluated on while it trains were declared public: they "
            f"tell nothing of a protected {unit}."
        )
    if not run.noise.secure:
        listed.append(
            "seeded: not a private release. Sampling and noise follow from a seed that is "
            "known to whoever set it."
        )
    return listed


def _of_records(run: Run) -> list[str]:
    """Return what is assumed of records that this process reads."""
    listed = [STRUCTURE]
    if run.team.size > 1:
        listed.append(
            f"{run.team.size} processes computed the sums, from the same records in one order. "
            "What they send each other, draws and sums without noise, is seen by nobody else: the "
            "machines and the network between them are trusted."
        )
    if isinstance(run.records, private_data.DatasetRecords):
        listed.append(one_by_one(run.settings.unit))
    padding = run.tried.engine.padding
    if padding is not None and not padding.invariant:
        listed.append(
            "On this machine the last bits of a record's gradient may depend on the other "
            "records of its batch, which is not in epsilon; engine='loop' removes it."
        )
    return listed


def _population(run: Run) -> str:
    settings = run.settings
    counted = f"{settings.unit}s" if run.units.grouped else "records"
    if settings.population is None:
        return public_number(counted, run.population)
    return (
        f"The sampling rate is set from a public population of {settings.population:,}, "
        f"not from the number of {counted}."
    )


# ---------------------------------------------------------------------- shared with searches

STRUCTURE = "The records' names, shapes and types, and the range of labels and tokens, are public."


def whose(unit: str, rows_per_unit: int | None, bounded: str = "their gradients") -> str:
    """Say which rows belong to one unit; `rows_per_unit` is None where each row is one."""
    if rows_per_unit is None:
        return f"Each {unit} is one row of the data and shares no row with another."
    return (
        f"Each {unit}: all their rows, which are those with one identifier in groups; no "
        f"{unit} has two. A look takes at most {rows_per_unit} of them, chosen afresh, and "
        f"bounds the average of {bounded}."
    )


def public_number(counted: str, number: int) -> str:
    """Say that the number of units is public."""
    return f"The number of {counted}, {number:,}, is public: it sets the sampling rate."


def one_by_one(unit: str) -> str:
    """Say that a data set gives each unit by itself."""
    return (
        f"What the data set gives for a {unit} depends on that {unit} alone, and on nothing that "
        "another one has left behind, as in a cache."
    )


def in_memory(owner: str) -> str:
    """Say that a ledger counts what its process does alone."""
    return (
        "The ledger is in memory: runs on the same data elsewhere are not counted here. Give "
        f"{owner} a ledger file to add them up."
    )


def side_information(*sources: str) -> list[str]:
    """Say where the values come from that methods were given, each once."""
    found = dict.fromkeys(filter(None, sources))
    return [f"Side information: {'; '.join(found)}."] if found else []
