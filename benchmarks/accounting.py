"""What it costs to know the cost."""

import time
from unittest import mock

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from benchmarks.measure import row
from privada.accounting import epsilon_of, events, mixtures, pld
from privada.accounting.accountants import costs


def _seconds(run) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _library() -> None:
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(PoissonSampledDpEvent(256 / 60_000, GaussianDpEvent(1.1)), 14_063)
    accountant.get_epsilon(1e-5)


def _different(steps: int) -> dict[str, float]:
    """Return the seconds that a schedule takes, its multipliers composed as they are and mixed."""
    schedule = {events.poisson(0.02, 0.4 * (20 + t) ** 0.25): 1 for t in range(steps)}
    with mock.patch.object(mixtures, "_MOST_EXACT", steps):
        as_they_are = _seconds(lambda: epsilon_of(schedule, 1e-5))
    costs._epsilon.cache_clear()
    return {"one by one": as_they_are, "mixed": _seconds(lambda: epsilon_of(schedule, 1e-5))}


def run() -> list[dict[str, object]]:
    event = events.poisson(256 / 60_000, 1.1)
    first = _seconds(lambda: epsilon_of({event: 14_063}, 1e-5))
    counts = range(13_000, 13_100)
    each = _seconds(lambda: [epsilon_of({event: n}, 1e-5) for n in counts]) / len(counts)
    schedule = {events.poisson(0.01, t**0.25): 1 for t in range(1, 40_001)}
    many = {
        name: _seconds(lambda name=name: epsilon_of(schedule, 1e-5, name))
        for name in ("rdp", "pld")
    }
    pld._settled.clear()
    return [
        row(
            "epsilon of 14,063 steps, first asked",
            {"dp_accounting, interval 1e-4": _seconds(_library), "privada, refined": first},
            "dp_accounting, interval 1e-4",
        ),
        row("epsilon at one more step", {"first": first, "each further": each}, "first"),
        row("epsilon of 300 different multipliers, first asked", _different(300), "one by one"),
        row("epsilon of 40,000 different multipliers", many, "rdp"),
    ]
