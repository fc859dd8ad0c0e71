"""What an adaptive ledger costs: time for each charge, and epsilon beside what a plan needs."""

import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import privada as pv
from benchmarks.measure import row
from privada.accounting import epsilon_of, events
from privada.accounting.filters import RenyiFilter

STEP = 5e-3  # seconds of a step that charges are compared with
BLOCK = 64
# The runs of docs/filters.md: rate, multiplier, steps, delta.
RUNS = (
    (256 / 60_000, 1.1, 14_063, 1e-5),
    (0.01, 4.0, 10_000, 1e-5),
    (0.05, 2.0, 500, 1e-5),
    (1.0, 20.0, 100, 1e-5),
    (0.02, 1.5, 2000, 1e-6),
    (0.01, 1.0, 1000, 1e-5),
    (0.004, 0.6, 1000, 1e-5),
    (0.001, 0.8, 10_000, 1e-6),
)


def _mean(act: Callable[[], object], rounds: int) -> float:
    act()
    started = time.perf_counter()
    for _ in range(rounds):
        act()
    return (time.perf_counter() - started) / rounds


def _multipliers() -> Iterator[float]:
    return (1 + place % 2000 / 1000 for place in count())


def _one_charge(kind: str, plan: int) -> float:
    """Return the seconds of a charge in memory, of one kind of event."""
    event = events.poisson(0.01, 1.0)
    ledger = pv.Ledger(None, pv.Budget(1000.0, 1e-5), kind=kind)
    return _mean(lambda: ledger.charge({event: 1}, run="x", plan={event: plan}), 1000)


def _different_charges() -> float:
    """Return the seconds of a charge in memory where each has another multiplier."""
    ledger, noise = pv.Ledger(None, pv.Budget(1000.0, 1e-5)), _multipliers()
    return _mean(lambda: ledger.charge(events.poisson(0.01, next(noise)), run="x"), 2000)


def _blocks(ledger: pv.Ledger, different: bool = False) -> float:
    """Return the seconds a step that charges of 64 steps each take."""
    noise, event = _multipliers(), events.poisson(0.01, 1.0)

    def charge() -> None:
        if different:
            block = {events.poisson(0.01, next(noise)): 1 for _ in range(BLOCK)}
        else:
            block = {event: BLOCK}
        ledger.charge(block, run="x", plan={event: 200 * BLOCK})

    return _mean(charge, 100) / BLOCK


def _steps(folder: Path) -> dict[str, float]:
    """Return the seconds of a step with its share of a charge, by how it is charged."""

    def made(name: str, kind: str = "adaptive") -> pv.Ledger:
        return pv.Ledger(folder / name, pv.Budget(1000.0, 1e-5), kind=kind)

    undurable = made("not waiting")
    undurable._storage.connection().execute("PRAGMA synchronous = OFF")
    return {
        "no ledger": STEP,
        "planned": STEP + _blocks(made("planned", "planned")),
        "adaptive": STEP + _blocks(made("adaptive")),
        "adaptive, 64 multipliers": STEP + _blocks(made("different"), different=True),
        "adaptive, not waiting for the disk": STEP + _blocks(undurable),
    }


def _many() -> dict[str, float]:
    """Return the seconds it takes to price 100,000 steps of as many multipliers."""
    tally = {events.poisson(0.01, 0.6 + place * 5e-5): 1 for place in range(100_000)}
    filter = RenyiFilter.for_budget(pv.Budget(8.0, 1e-5))
    first, again = (_seconds(lambda: filter.epsilon(tally, 1e-5)) for _ in range(2))
    return {"first asked": first, "asked again": again}


def _seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def run() -> list[dict[str, object]]:
    """Return the times."""
    with tempfile.TemporaryDirectory() as folder:
        steps = _steps(Path(folder))
    charges = {
        "planned": _one_charge("planned", 2000),
        "adaptive": _one_charge("adaptive", 2000),
        "adaptive, each with another multiplier": _different_charges(),
    }
    return [
        row("one charge in memory (mean)", charges, "planned"),
        row("a step of 5 ms with its share of a block of 64 in a file (mean)", steps, "no ledger"),
        row("the filter's epsilon of 100,000 different multipliers", _many(), "first asked"),
    ]


def prices() -> str:
    """Return the table of epsilon by the filter over epsilon by loss distributions."""
    lines = [
        "| rate | multiplier | steps | delta | by loss distributions | filter, for the budget | "
        "filter, by the plan |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for rate, multiplier, steps, delta in RUNS:
        tally = {events.poisson(rate, multiplier): steps}
        planned = epsilon_of(tally, delta)
        blind = _used_up(tally, delta, planned, None)
        fitted = _used_up(tally, delta, planned, tally)
        lines.append(
            f"| {rate:.4g} | {multiplier:g} | {steps:,} | {delta:g} | {planned:.2f} | "
            f"{blind / planned:.2f} | {fitted / planned:.2f} |"
        )
    return "\n".join(lines)


def _used_up(tally: dict, delta: float, planned: float, typical: dict | None) -> float:
    """Return the epsilon of the smallest budget that allows a run, with its orders."""
    low, high = planned, 8 * planned
    while high - low > 1e-3 * planned:
        middle = (low + high) / 2
        filter = RenyiFilter.for_budget(pv.Budget(middle, delta), typical)
        fits = filter.epsilon(tally, delta) <= middle
        low, high = (low, middle) if fits else (middle, high)
    return high


def write(folder: Path, table: Callable[[list], str], machine: dict[str, object]) -> None:
    """Measure, and write filters.md."""
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    page = (
        "# Filters: cost of adaptive ledgers\n\n"
        "Written by `python -m benchmarks filters`. Machine: "
        f"{facts}.\n\n{table(run())}\n\n"
        "Epsilon of the smallest budget that allows a run, over its epsilon by loss distributions. "
        "The orders of the filter are fixed by the budget alone, or by the budget and the plan of "
        f"the first charge.\n\n{prices()}\n"
    )
    (folder / "filters.md").write_text(page)
    print(page)
