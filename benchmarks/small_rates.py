"""What it costs to know the cost at small rates: `python -m benchmarks.small_rates`.

Processor seconds, the median of three in one process with nothing kept between them, at rates of
1e-3 to 1e-6 and six epochs. `python -m benchmarks.small_rates 1e-5` measures one rate, and
`python -m benchmarks.small_rates 1e-5 epsilon` what begins with a word.
"""

import gc
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

import privada as pv
from privada.accounting import epsilon_of, events, loss_grids, pld, rdp
from privada.accounting.accountants import costs

RATES = (1e-3, 1e-4, 1e-5, 1e-6)
EPOCHS, DELTA, ROUNDS = 6, 1e-7, 3


def _forget() -> None:
    for module in (costs, loss_grids, pld, rdp):
        for kept in vars(module).values():
            if not isinstance(kept, type) and hasattr(kept, "cache_clear"):
                kept.cache_clear()
    gc.collect()


def questions(rate: float) -> dict[str, Callable[[], object]]:
    """Return what is asked at a rate, by name."""
    steps = round(EPOCHS / rate)
    run = {"sampling_rate": rate, "steps": steps, "delta": DELTA}
    target = {"epsilon": 1.0, **run}
    population = 10**8
    sixty, thousands = np.geomspace(0.7, 2.1, 60), np.geomspace(0.1, 10.0, 6000)
    pairs = zip(np.geomspace(rate / 10, rate * 10, 400), np.tile(sixty, 7), strict=False)
    rates = {events.poisson(float(q), float(s)): max(1, steps // 400) for q, s in pairs}
    event = events.poisson(rate, 0.8)

    def history() -> None:  # as a run asks for it: sixteen points for each doubling
        for n in sorted({max(1, round(steps * 2 ** (-k / 16))) for k in range(48)}):
            epsilon_of({event: n}, DELTA)

    def selection_price() -> None:
        pv.selection.price(noise_multiplier=1.0, candidates=10, **run)

    def trainer() -> None:
        records = torch.zeros(round(1 / rate), 1)
        pv.Trainer(
            nn.Linear(1, 1),
            nn.MSELoss(),
            (records, records),
            method=pv.methods.DPSGD(lr=0.1),
            batch_size=1,
            steps=steps,
            budget=pv.Budget(1.0, DELTA),
        )

    return {
        "epsilon, one multiplier": lambda: pv.accounting.epsilon(noise_multiplier=0.8, **run),
        "epsilon, fixed-size": lambda: pv.accounting.epsilon(
            noise_multiplier=1.6, sampling="fixed-size", **run
        ),
        "epsilon, 60 multipliers": lambda: epsilon_of(
            {events.poisson(rate, float(s)): steps // 60 for s in sixty}, DELTA
        ),
        "epsilon, 1,000 multipliers": lambda: epsilon_of(
            {events.poisson(rate, 1 + k / 500): steps // 1000 for k in range(1000)}, DELTA
        ),
        "epsilon, 40 rates": lambda: epsilon_of(
            {events.poisson(rate * (1 + k / 20), 1.0): steps // 40 for k in range(40)}, DELTA
        ),
        "epsilon, 400 rates over two decades": lambda: epsilon_of(rates, DELTA),
        "noise_multiplier": lambda: pv.accounting.noise_multiplier(**target),
        "noise_multiplier, fixed-size": lambda: pv.accounting.noise_multiplier(
            sampling="fixed-size", **target
        ),
        "noise_multiplier, schedule of 60": lambda: pv.accounting.noise_multiplier(
            epsilon=1.0, delta=DELTA, sampling_rate=rate, steps=60, schedule=sixty.tolist()
        ),
        "noise_multiplier, schedule of 6,000": lambda: pv.accounting.noise_multiplier(
            epsilon=1.0, delta=DELTA, sampling_rate=rate, steps=6000, schedule=thousands.tolist()
        ),
        "steps": lambda: pv.accounting.steps(
            epsilon=1.0, delta=DELTA, sampling_rate=rate, noise_multiplier=0.8
        ),
        "batch_size": lambda: pv.accounting.batch_size(
            epsilon=1.0, delta=DELTA, population=population, noise_multiplier=0.8, steps=steps
        ),
        "history, 48 points": history,
        "selection.price": selection_price,
        "selection.noise_multiplier": lambda: pv.selection.noise_multiplier(
            candidates=10, **target
        ),
        "selection.plan": lambda: pv.selection.plan(
            records=round(256 / rate),
            budget=pv.Budget(1.0, DELTA),
            batch_sizes=[256, 1024, 4096],
            epochs=[1, 3, 10],
        ),
        "selection.plan, defaults": lambda: pv.selection.plan(
            records=round(256 / rate), budget=pv.Budget(1.0, DELTA / 1000)
        ),
        "Trainer, to be made": trainer,
    }


def seconds(ask: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the median of the processor seconds of a question that nothing is known of."""
    taken = []
    for _ in range(rounds):
        _forget()
        started = time.process_time()
        ask()
        taken.append(time.process_time() - started)
    return statistics.median(taken)


def main() -> None:
    """Print a table of the questions at each rate."""
    rates = [float(sys.argv[1])] if len(sys.argv) > 1 else RATES
    word = sys.argv[2] if len(sys.argv) > 2 else ""
    print("| seconds | " + " | ".join(f"{rate:g}" for rate in rates) + " |")
    print("|---|" + "---:|" * len(rates))
    asked = [questions(rate) for rate in rates]
    for name in asked[0]:
        if name.startswith(word):
            figures = " | ".join(f"{seconds(each[name]):.2f}" for each in asked)
            print(f"| {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
