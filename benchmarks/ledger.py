"""What durable charges cost a step of about five milliseconds."""

import itertools
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn

import privada as pv
from benchmarks.measure import interleaved, row


def trainer_on(ledger: pv.Ledger, steps: int) -> pv.Trainer:
    data = (torch.randn(2000, 400), torch.randint(10, (2000,)))
    return pv.Trainer(
        nn.Linear(400, 10),
        nn.CrossEntropyLoss(),
        data,
        method=pv.methods.DPSGD(lr=0.1),
        batch_size=64,
        steps=steps,
        noise_multiplier=1.0,
        ledger=ledger,
    )


def pause() -> None:
    end = time.perf_counter() + 5e-3
    while time.perf_counter() < end:
        pass


def pay(run, number: int) -> None:
    """Pay for a step as training does: in blocks that follow from how long steps take."""
    ahead = partial(run.charges.ahead, number)
    run.gradients.account.pay(run.mechanism.event(1.0), ahead=ahead)


def run() -> list[dict[str, object]]:
    rounds, budget = 1500, pv.Budget(1000.0, 1e-5)
    with tempfile.TemporaryDirectory() as folder:
        gates = {
            "no ledger": None,
            "in memory": trainer_on(pv.Ledger(None, budget), rounds + 1)._run,
            "in a file": trainer_on(pv.Ledger(Path(folder) / "a.ledger", budget), rounds + 1)._run,
        }

        def step(run):
            number = itertools.count()

            def once():
                pause()
                if run is not None:
                    pay(run, next(number))

            return once

        totals = {}
        # means, not medians: a block's commit falls on one step in many
        for name, gate in gates.items():
            once = step(gate)
            once()
            started = time.perf_counter()
            for _ in range(rounds):
                once()
            totals[name] = (time.perf_counter() - started) / rounds
        commit = _commit(Path(folder))
    return [
        row("a step of 5 ms with its charge (mean)", totals, "no ledger"),
        row("one durable charge", commit, "in memory"),
    ]


def _commit(folder: Path) -> dict[str, float]:
    event = pv.accounting.events.poisson(0.01, 1.0)
    ledgers = {
        "in memory": pv.Ledger(None, pv.Budget(1000.0, 1e-5)),
        "in a file": pv.Ledger(folder / "b.ledger", pv.Budget(1000.0, 1e-5)),
    }
    return interleaved(
        {
            name: lambda ledger=ledger: ledger.charge({event: 1}, run="x", plan={event: 10_000})
            for name, ledger in ledgers.items()
        },
        rounds=300,
    )
