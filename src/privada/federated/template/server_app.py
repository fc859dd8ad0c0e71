"""The server: draws clients, pays, bounds and adds up their updates, adds noise, takes a step."""

from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import privada as pv

from .task import LOSS, load_public_records, make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write the model and the statement of its privacy."""
    config = context.run_config
    folder = Path(str(config["output"]))
    folder.mkdir(parents=True, exist_ok=True)
    model = make_model()
    strategy = pv.federated.PrivateStrategy(
        model,
        clients=int(config["clients"]),
        method=pv.methods.DPMomentum(lr=float(config["lr"]), clip=float(config["clip"])),
        batch_size=float(config["clients-per-round"]),
        rounds=int(config["rounds"]),
        budget=pv.Budget(float(config["epsilon"]), float(config["delta"])),
        ledger=str(config["ledger"]),
        checkpoint=folder / "checkpoint.pt",
        loss=LOSS,
        validation=pv.Validation(load_public_records(), every=int(config["evaluate-every"])),
    )
    strategy.start(grid, timeout=float(config["timeout"]))
    torch.save(model.state_dict(), folder / "model.pt")
    (folder / "statement.txt").write_text(f"{strategy.statement()}\n")
    reached = strategy.trainer.evaluate()
    for name, value in reached.values.items():
        baseline = f", baseline {reached.baselines[name]:.3f}" if name in reached.baselines else ""
        print(f"{name.capitalize()} on public records: {value:.3f}{baseline}")
    print(strategy.statement())
