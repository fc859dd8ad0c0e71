"""Federated rounds: the private strategy against Flower's own FedAvg, and clients in this process.

All clients do the same work: one epoch over 60 made-up images, in batches of 20, of a network with
50,890 parameters. On Flower, both strategies take turns in one simulation; ours asks as many
clients on average as FedAvg does exactly.
"""

import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

import privada as pv
from benchmarks.measure import row
from privada.core.tensors import Parameters

CLIENTS, SAMPLED, ROUNDS, TURNS = 1000, 50, 100, 7
COUNTS = {10: 10, 50: 5, 200: 2}  # clients asked, and rounds in a turn
PRIVATE, PLAIN, IN_PROCESS = "PrivateStrategy", "Flower's FedAvg", "FederatedTrainer, in process"
Records = tuple[Tensor, Tensor]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


@cache
def records(client: int) -> Records:
    generator = torch.Generator().manual_seed(client)
    return torch.randn(60, 784, generator=generator), torch.randint(10, (60,), generator=generator)


def train(own: nn.Module, client: int) -> None:
    pv.federated.LocalSGD(lr=0.1, batch_size=20).train_(own, nn.CrossEntropyLoss(), records(client))


def settings(rounds: int, sampled: int) -> dict[str, object]:
    return {
        "method": pv.methods.DPSGD(lr=1.0, clip=0.5), "batch_size": sampled, "rounds": rounds,
        "noise_multiplier": 1.0, "delta": 1e-4,
    }  # fmt: skip


def client_app():
    """Return the app that both strategies ask, unchanged."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def answer(message, context):
        own = model()
        own.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(own, int(context.node_config["partition-id"]))
        found = {
            "arrays": ArrayRecord(own.state_dict()),
            "metrics": MetricRecord({"num-examples": 60}),
        }
        return Message(RecordDict(found), reply_to=message)

    return app


def seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


class Watched:
    """A grid that adds up how long the server waits for clients."""

    def __init__(self, grid) -> None:
        self._grid, self.waited = grid, 0.0

    def __getattr__(self, name: str):
        return getattr(self._grid, name)

    def send_and_receive(self, *words, **named):
        started = time.perf_counter()
        try:
            return self._grid.send_and_receive(*words, **named)
        finally:
            self.waited += time.perf_counter() - started


def private(grid, rounds: int, sampled: int) -> None:
    strategy = pv.federated.PrivateStrategy(model(), clients=CLIENTS, **settings(rounds, sampled))
    strategy.start(grid)


def plain(grid, rounds: int, sampled: int) -> None:
    from flwr.app import ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    strategy = FedAvg(
        fraction_train=sampled / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS
    )
    strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=rounds)


def whole(grid) -> None:
    """Take 100 rounds as a user would: within a budget, charged to a ledger in a file."""
    with tempfile.TemporaryDirectory() as folder:
        strategy = pv.federated.PrivateStrategy(
            model(), clients=CLIENTS, method=pv.methods.DPSGD(lr=1.0, clip=0.5),
            batch_size=SAMPLED, rounds=ROUNDS, budget=pv.Budget(4.0, 1e-4),
            ledger=Path(folder) / "clients.ledger",
        )  # fmt: skip
        strategy.start(grid)
        assert strategy.epsilon() <= 4.0


def in_process(rounds: int, sampled: int) -> float:
    own = model()
    parameters = Parameters(own)

    def local(client: int, start: Tensor) -> Tensor:
        parameters.write_(start)
        train(own, client)
        return parameters.read()

    clients = pv.federated.InProcess(local, CLIENTS)
    trainer = pv.federated.FederatedTrainer(model(), clients, **settings(rounds, sampled))
    return seconds(trainer.fit) / rounds


def turns(grid, sampled: int, rounds: int, times: int) -> tuple[dict[str, float], ...]:
    """Return the median seconds of a round, and of those in which the server does not wait."""
    strategies = {PLAIN: plain, PRIVATE: private}
    all_, server = ({name: [] for name in strategies} for _ in range(2))
    for turn in range(times + 1):
        for name, strategy in strategies.items():
            watched = Watched(grid)
            took = seconds(lambda s=strategy, w=watched: s(w, rounds, sampled))
            if turn:  # the first warms up
                all_[name].append(took / rounds)
                server[name].append((took - watched.waited) / rounds)
    return tuple({n: statistics.median(v) for n, v in each.items()} for each in (all_, server))


def simulate(found: list[dict[str, object]]) -> None:
    """Measure both strategies in one simulation of 1,000 clients."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    server = ServerApp()

    @server.main()
    def main(grid, context) -> None:
        while len(list(grid.get_node_ids())) < CLIENTS:
            time.sleep(0.1)
        for sampled, rounds in COUNTS.items():
            rounds_, server_ = turns(grid, sampled, rounds, TURNS)
            words = f"{sampled} of {CLIENTS:,} clients"
            found.append(row(f"a round with {words}", rounds_, PLAIN))
            found.append(row(f"of it, the server without waiting, {words}", server_, PLAIN))
        words = f"{ROUNDS} rounds with {SAMPLED} of {CLIENTS:,} clients (once)"
        found.append(row(words, {PRIVATE: seconds(lambda: whole(grid))}, PRIVATE))

    run_simulation(server, client_app(), num_supernodes=CLIENTS)


def here() -> Iterator[dict[str, object]]:
    """Measure clients in this process."""
    names = {f"{sampled} clients": sampled for sampled in COUNTS}
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(TURNS + 1):
        for name, sampled in names.items():
            took = in_process(COUNTS[sampled], sampled)
            if turn:
                times[name].append(took)
    measured = {name: statistics.median(values) for name, values in times.items()}
    yield row(f"a round of {IN_PROCESS}", measured, f"{SAMPLED} clients")


def write(
    folder: Path, table: Callable[[list[dict[str, object]]], str], machine: dict[str, object]
) -> None:
    """Measure, and write federated.md and federated.json."""
    try:
        import flwr
    except ImportError:
        print("Flower is not installed: no figures on federated rounds")
        return
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    load = round(os.getloadavg()[0], 1)
    rows = list(here())
    simulate(rows)
    facts = {**machine, "flwr": flwr.__version__, "load average before": load}
    text = json.dumps({"machine": facts, "rows": rows}, indent=2)
    (folder / "federated.json").write_text(text + "\n")
    page = (
        "# Federated rounds: cost against clients, and against Flower's FedAvg\n\n"
        "Written by `python -m benchmarks federated`. All clients do the same work: one epoch over "
        "60 images in batches of 20, of a network with 50,890 parameters. Flower's simulation "
        "engine has 1,000 clients; the two strategies take turns in it. Figures are medians over "
        f"{TURNS} turns. FedAvg asks an exact number of clients, which costs more privacy than "
        "the random number that ours asks; what the strategies promise is not compared here. "
        "Work of clients is a large part of a round, so that ratios near 1 say that the server "
        "adds little; the second row of each pair is the server alone. Where the machine had other "
        "work, as its load average says, times are longer and ratios of whole rounds uncertain. "
        "Machine: "
        f"{', '.join(f'{name} {value}' for name, value in facts.items())}.\n\n{table(rows)}\n"
    )
    (folder / "federated.md").write_text(page)
    print(page)
