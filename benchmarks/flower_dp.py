"""Flower's own differential privacy beside `pv.federated`, case by case, on the same messages.

    python -m benchmarks.flower_dp

Each case is run on both, in one process: nodes that answer with what the case says. The strategies
are Flower's DifferentialPrivacyServerSideFixedClipping and ...AdaptiveClipping around FedAvg, with
its RDP accountant where the case is about the price. Noise is as small as each of them allows where
the case is not about noise, so that the figures are the same on every run.
"""

import json
import logging
import math
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Result,
    Strategy,
)
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
from flwr.supercore.task_identity import TaskIdentity
from tests.federated.grids import InProcessGrid
from torch import nn

import privada as pv

RESULTS = Path(__file__).parent / "results"
NODES, CLIP, ROUNDS, DELTA = 10, 1.0, 40, 1e-5
Row = dict[str, str]
# what a client sends, given its number and the model
Client = Callable[[int, torch.Tensor], torch.Tensor]


def model() -> nn.Linear:
    """Return four weights of zero."""
    made = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(made.weight)
    return made


def grid(client: Client, examples: Callable[[int], int] = lambda place: 1) -> InProcessGrid:
    """Return nodes that all run a client."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: object) -> Message:
        place = context.node_config["partition-id"]
        made = client(place, message.content["arrays"].to_torch_state_dict()["weight"])
        content = {
            "arrays": ArrayRecord({"weight": made}),
            "metrics": MetricRecord({"num-examples": examples(place)}),
        }
        return Message(RecordDict(content), reply_to=message)

    return InProcessGrid(app, NODES)


def average() -> FedAvg:
    """Return FedAvg over all nodes, without evaluation."""
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES)


def accountant(**settings: object) -> RdpAccountant:
    """Return Flower's accountant as its strategies want it."""
    return RdpAccountant(
        PrivacyConfig(
            population_size=1000,
            target_delta=DELTA,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            **settings,
        )
    )


def theirs(nodes: InProcessGrid, strategy: Strategy | None = None, rounds: int = 1) -> str:
    """Return the model of Flower's strategy, or what became of the run."""
    chosen = strategy or DifferentialPrivacyServerSideFixedClipping(average(), 0.0, CLIP, NODES)
    try:
        result: Result = chosen.start(nodes, ArrayRecord(model().state_dict()), num_rounds=rounds)
    except Exception as error:
        return f"the run ends: {type(error).__name__}"
    if not result.arrays:
        return "the round is skipped"
    return weights(result.arrays.to_torch_state_dict()["weight"])


def ours(nodes: InProcessGrid, **settings: object) -> pv.federated.PrivateStrategy:
    """Return our strategy after its rounds, with hardly any noise."""
    chosen = {
        "method": pv.methods.DPSGD(lr=1.0, clip=CLIP),
        "rounds": 1,
        "noise_multiplier": 1e-9,
        "delta": DELTA,
        **settings,
    }
    strategy = pv.federated.PrivateStrategy(
        model(), clients=NODES, batch_size=NODES, sampling="everyone", **chosen
    )
    strategy.start(nodes)
    return strategy


def weights(value: torch.Tensor) -> str:
    """Return the first weight, which tells how the round went."""
    first = float(value.flatten()[0])
    return f"weight {first:.3f}" if math.isfinite(first) else f"weight {first}"


def both(client: Client, examples: Callable[[int], int] = lambda place: 1) -> tuple[str, str]:
    """Return the model after one round, of Flower's strategy and of ours."""
    made = ours(grid(client, examples))
    return theirs(grid(client, examples)), weights(made.trainer.model.weight)


def along(length: float) -> torch.Tensor:
    """Return an update of a length, along the first weight."""
    return torch.tensor([[length, 0.0, 0.0, 0.0]])


def price() -> tuple[str, str]:
    """50 of 1,000 clients in 100 rounds, noise multiplier 1."""
    kept = accountant()
    kept.compose(GaussianPrivacyEvent(1.0, sample_size=50, population_size=1000), 100)
    nodes = pv.federated.InProcess(lambda place, start: start, 1000)
    trainer = pv.federated.FederatedTrainer(
        model(), nodes, method=pv.methods.DPSGD(lr=1.0, clip=CLIP), batch_size=50, rounds=100,
        noise_multiplier=1.0, delta=DELTA,
    ).fit()  # fmt: skip
    return f"epsilon {kept.get_epsilon(DELTA):.1f}", f"epsilon {trainer.epsilon():.2f}"


def nan_client() -> tuple[str, str]:
    """One of 10 clients sends NaN; the others move the weight by 0.5."""
    return both(lambda place, start: start + along(math.nan if place == 3 else 0.5))


def zero_client() -> tuple[str, str]:
    """One of 10 clients sends the model back as it came; the others move it by 0.5."""
    return both(lambda place, start: start + along(0.0 if place == 3 else 0.5))


def heavy_client() -> tuple[str, str]:
    """One of 10 clients says that it has 10^9 examples and moves it by -1, the others by 0.5."""
    return both(
        lambda place, start: start + along(-1.0 if place == 3 else 0.5),
        lambda place: 10**9 if place == 3 else 1,
    )


def failing_client() -> tuple[str, str]:
    """One of 10 clients fails, with accounting; the others move the weight by 0.5."""

    def client(place: int, start: torch.Tensor) -> torch.Tensor:
        return start + along(0.5)

    def silent(replies: list[Message]) -> list[Message]:
        return replies[1:]

    left, right = grid(client), grid(client)
    left.tamper = right.tamper = silent
    strategy = DifferentialPrivacyServerSideFixedClipping(
        average(), 1e-9, CLIP, NODES, accountant=accountant()
    )
    return theirs(left, strategy), weights(ours(right).trainer.model.weight)


def adaptive_clip() -> tuple[str, str]:
    """The clip norm after 40 rounds of updates with norms from 0.5 to 1.5, starting at 0.1."""

    def client(place: int, start: torch.Tensor) -> torch.Tensor:
        return start + along(0.5 + place / (NODES - 1))

    flower = DifferentialPrivacyServerSideAdaptiveClipping(
        average(), 0.0, NODES, initial_clipping_norm=0.1, clipped_count_stddev=0.0
    )
    theirs(grid(client), flower, ROUNDS)
    clipping = pv.clipping.adaptive(quantile=0.5, rate=0.2)
    method = pv.methods.DPSGD(lr=1.0, clip=0.1, clipping=clipping)
    made = ours(grid(client), method=method, rounds=ROUNDS, noise_multiplier=1e-6)
    return f"{flower.clipping_norm:.1e}", f"{made.trainer.clip_norm:.2f}"


def restarted() -> tuple[str, str]:
    """What the account holds after 3 rounds, a crash of the server and a new start."""

    def client(place: int, start: torch.Tensor) -> torch.Tensor:
        return start + along(0.5)

    kept = accountant()
    theirs(
        grid(client),
        DifferentialPrivacyServerSideFixedClipping(average(), 5.0, CLIP, NODES, accountant=kept),
        3,
    )
    again = accountant()  # what a new process has: the account was in memory
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clients.ledger"
        ours(grid(client), rounds=3, noise_multiplier=5.0, ledger=path)
        with pv.Ledger(path) as ledger:
            charged = sum(ledger.totals().values())
    assert kept.num_releases == charged == 3
    return f"{again.num_releases} releases", f"{charged} releases"


CASES = (price, nan_client, zero_client, heavy_client, failing_client, adaptive_clip, restarted)


def rows() -> list[Row]:
    """Run every case on both."""
    TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = 1  # as within a run
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    found = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for case in CASES:
            flower, privada = case()
            found.append({"case": str(case.__doc__), "Flower": flower, "Privada": privada})
    return found


def page(found: list[Row]) -> str:
    """Return the table."""
    lines = ["| case | Flower | Privada |", "|---|---|---|"]
    lines += [f"| {row['case']} | {row['Flower']} | {row['Privada']} |" for row in found]
    return WORDS + "\n".join(lines) + "\n"


WORDS = f"""# Flower's own differential privacy, and pv.federated

`python -m benchmarks.flower_dp` makes this page: flwr 1.41, its strategies with clipping at the
server around FedAvg, and `PrivateStrategy` with DP-FedAvg, on the same messages. Clip norm
{CLIP:g}, delta {DELTA:g}; next to no noise, except for the price and the restart. Without a client
that misbehaves, one round of 10 clients moves the weight by 0.5. A client may move it by 0.1 at
most, so that between 0.35 and 0.5 is right where one of them fails or lies.

"""


if __name__ == "__main__":
    table = rows()
    RESULTS.joinpath("flower_dp.json").write_text(json.dumps(table, indent=2) + "\n")
    RESULTS.joinpath("flower_dp.md").write_text(page(table))
    print(page(table))
