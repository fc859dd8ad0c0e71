"""Interleaved timing: every contender in turn, round after round, and the median of each."""

import statistics
import time
from collections.abc import Callable


def interleaved(
    contenders: dict[str, Callable[[], object]], rounds: int, settle: float = 0.0
) -> dict[str, float]:
    """Return the median seconds of each contender, measured in turns within one run.

    Before each measurement the contender runs untimed for `settle` seconds or once, whichever is
    longer, if that is not 0: what its neighbour left in caches and thread pools is then gone.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(rounds):
        for name, run in contenders.items():
            begun = time.perf_counter()
            while time.perf_counter() - begun < settle:
                run()
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
