"""The server: draws clients, pays, bounds and adds up their updates, adds noise, takes a step."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import privada as pv

from .task import make_model, test_accuracy

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
    )
    strategy.start(grid, timeout=float(config["timeout"]), evaluate_fn=_evaluate)
    torch.save(model.state_dict(), folder / "model.pt")
    (folder / "statement.txt").write_text(f"{strategy.statement()}\n")
    print(f"Accuracy on public records: {test_accuracy(model):.3f}")
    print(strategy.statement())


def _evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": test_accuracy(model)})
