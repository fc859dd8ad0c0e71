"""What a ledger in PostgreSQL costs, against one in a file: a charge, a step, and opening it.

`python -m benchmarks team_ledger` starts a server of its own, as the tests do.
"""

import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from tests.postgres_server import make_server, remove_servers

import privada as pv
from benchmarks.ledger import pause, pay, trainer_on
from benchmarks.measure import interleaved, row

ROUNDS, CHARGES, BUDGET = 1500, 300, pv.Budget(1000.0, 1e-5)
EVENT = pv.accounting.events.poisson(0.01, 1.0)
HISTORY = 20_000


def run() -> list[dict[str, object]]:
    server = make_server()
    with tempfile.TemporaryDirectory() as folder:
        socket = f"postgresql://admin@/postgres?host={quote(str(server.folder), safe='')}"
        makers = {
            "in a file": lambda name: Path(folder) / f"{name}.ledger",
            "PostgreSQL, by a socket": lambda name: f"{socket}&port={server.port}&ledger={name}",
            "PostgreSQL, over TCP": lambda name: server.url(f"{name}-tcp"),
        }
        rows = [_charges(makers), _steps(makers), _openings(makers)]
    remove_servers()
    return rows


def _charges(makers):
    ledgers = {name: pv.Ledger(make("charges"), BUDGET) for name, make in makers.items()}
    measured = interleaved(
        {
            name: lambda ledger=ledger: ledger.charge({EVENT: 1}, run="x", plan={EVENT: 10_000})
            for name, ledger in ledgers.items()
        },
        rounds=CHARGES,
    )
    return row("one durable charge", measured, "in a file")


def _steps(makers):
    """Measure what steps of 5 ms spend on charges; blocks grow until it is about a hundredth."""
    totals = {"the step itself": 5e-3}
    for name, make in makers.items():
        run, spent = trainer_on(pv.Ledger(make("steps"), BUDGET), ROUNDS)._run, 0.0
        for number in range(ROUNDS):
            pause()
            started = time.perf_counter()
            pay(run, number)
            spent += time.perf_counter() - started
        totals[name] = spent / ROUNDS
    return row("charging, per step of 5 ms (mean)", totals, "the step itself")


def _openings(makers):
    """Open, and check, a ledger with a long history of charges for one run."""
    for make in makers.values():
        with pv.Ledger(make("history"), BUDGET) as ledger:
            for _ in range(HISTORY // 500):
                with ledger._storage.writing("charge") as transaction:
                    for _ in range(500):
                        transaction.add("x", "training", {EVENT: 1})
    measured = interleaved(
        {
            name: lambda make=make: pv.Ledger(make("history")).close()
            for name, make in makers.items()
        },
        rounds=7,
    )
    return row(f"opening a ledger of {HISTORY:,} charges to one run", measured, "in a file")


def write(results: Path, table, machine: dict[str, object]) -> None:
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    page = (
        "# A ledger in PostgreSQL against one in a file\n\n"
        "Written by `python -m benchmarks team_ledger`. The server runs on the same machine and "
        "disk, with its usual durability. Contenders alternate within one run; figures are "
        f"medians unless marked as means. Machine: {facts}.\n\n{table(run())}\n"
    )
    (results / "team_ledger.md").write_text(page)
    print(page)
