"""Interleaved timing: every contender in turn, round after round, and the median of each."""

import statistics
import time
from collections.abc import Callable


def interleaved(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each contender, measured in turns within one run."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(rounds):
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def row(what: str, measured: dict[str, float], against: str) -> dict[str, object]:
    """Return one line of results: milliseconds, and each contender's ratio to one of them."""
    return {
        "what": what,
        "milliseconds": {name: round(1e3 * value, 4) for name, value in measured.items()},
        "against": against,
        "ratio": {
            name: round(value / measured[against], 3)
            for name, value in measured.items()
            if name != against
        },
    }
