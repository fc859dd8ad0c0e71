"""The strategy in Flower's simulation engine, on Ray."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: the simulation is not tested")

APP = """
import torch
import privada as pv
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

client, server = ClientApp(mods=[pv.federated.update_only]), ServerApp()


@client.train()
def train(message, context):
    model = torch.nn.Linear(3, 1)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs = torch.randn(20, 3)
    local = pv.federated.LocalSGD(lr=0.1)
    local.train_(model, torch.nn.MSELoss(), (inputs, inputs[:, :1]))
    kept = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 9})}
    return Message(RecordDict(kept), reply_to=message)


@server.main()
def main(grid, context):
    strategy = pv.federated.PrivateStrategy(
        torch.nn.Linear(3, 1), clients=60, method=pv.methods.DPSGD(lr=1.0, clip=0.5),
        batch_size=20, rounds=8, budget=pv.Budget(20.0, 1e-3), ledger="clients.ledger", seed=1,
    )
    strategy.start(grid)
    print("weights", *strategy.trainer.model.weight.flatten().tolist())


run_simulation(server, client, num_supernodes=60)
"""


@pytest.mark.slow
def test_the_simulation_trains_and_charges(tmp_path):
    import privada as pv

    (tmp_path / "app.py").write_text(APP)
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=tmp_path,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("weights")]
    first, *others = map(float, line.split()[1:])
    assert first > 0.5
    assert max(map(abs, others)) < 0.4
    with pv.Ledger(tmp_path / "clients.ledger") as ledger:
        assert sum(ledger.totals().values()) == 8
        assert ledger.epsilon() <= 20.0
