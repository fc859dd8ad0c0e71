"""Workflows: what the command line does, as functions that a notebook can call.

Each reads files, does the work and returns a value. They load what they need when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privada.workflows.demonstration import DemoResult, DemoRun, demo
    from privada.workflows.export import export_model
    from privada.workflows.federated import new_federated_app
    from privada.workflows.ledger import (
        accept_ledger,
        copy_ledger,
        ledger_contents,
        new_ledger,
    )
    from privada.workflows.options import TrainOptions, TuneOptions, parse_space, read_options
    from privada.workflows.papers import Paper, find_papers
    from privada.workflows.plan import plan_budget
    from privada.workflows.predict import score, write_predictions
    from privada.workflows.private_model import PrivateModel, load
    from privada.workflows.report import write_report
    from privada.workflows.schema import draft_schema
    from privada.workflows.train import TrainedTable, train_table
    from privada.workflows.tune import TunedTable, default_space, tune_table

__all__ = [
    "DemoResult",
    "DemoRun",
    "Paper",
    "PrivateModel",
    "TrainOptions",
    "TrainedTable",
    "TuneOptions",
    "TunedTable",
    "accept_ledger",
    "copy_ledger",
    "default_space",
    "demo",
    "draft_schema",
    "export_model",
    "find_papers",
    "ledger_contents",
    "load",
    "new_federated_app",
    "new_ledger",
    "parse_space",
    "plan_budget",
    "read_options",
    "score",
    "train_table",
    "tune_table",
    "write_predictions",
    "write_report",
]

_HOMES = {
    "DemoResult": "demonstration",
    "DemoRun": "demonstration",
    "Paper": "papers",
    "PrivateModel": "private_model",
    "TrainOptions": "options",
    "TrainedTable": "train",
    "TuneOptions": "options",
    "TunedTable": "tune",
    "accept_ledger": "ledger",
    "copy_ledger": "ledger",
    "default_space": "tune",
    "demo": "demonstration",
    "draft_schema": "schema",
    "export_model": "export",
    "find_papers": "papers",
    "ledger_contents": "ledger",
    "load": "private_model",
    "new_federated_app": "federated",
    "new_ledger": "ledger",
    "parse_space": "options",
    "plan_budget": "plan",
    "read_options": "options",
    "score": "predict",
    "train_table": "train",
    "tune_table": "tune",
    "write_predictions": "predict",
    "write_report": "report",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"privada.workflows.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'privada.workflows' has no attribute {name!r}")
