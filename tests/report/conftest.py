"""Runs that are made once, and a browser."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch

import privada as pv
from privada.report import Entry

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)


def trained(ledger=None, steps=12, method=None, **options):
    return made(ledger, steps, method, **options).fit()


def made(ledger=None, steps=12, method=None, **options):
    inputs = torch.linspace(0, 1, 300).reshape(100, 3)
    options = {"noise_multiplier": 3.0, "delta": 1e-4} | options
    return pv.Trainer(
        torch.nn.Linear(3, 2),
        torch.nn.CrossEntropyLoss(),
        (inputs, torch.arange(100) % 2),
        method=method or pv.methods.DPSGD(lr=0.5),
        batch_size=10,
        steps=steps,
        ledger=ledger,
        **options,
    )


def searched(ledger, how="compose-pld"):
    def recipe(lr):
        return pv.selection.Candidate(
            torch.nn.Linear(3, 2),
            torch.nn.CrossEntropyLoss(),
            pv.methods.DPAdam(lr=lr),
            batch_size=20,
            steps=3,
        )

    data = (torch.rand(200, 3), torch.arange(200) % 2)
    return pv.selection.select(
        recipe, data, space={"lr": [0.1, 0.01]}, budget=pv.Budget(1.0, 1e-4), how=how, ledger=ledger
    )


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Two runs and a search on one ledger, with folders of results."""
    folder = tmp_path_factory.mktemp("report")
    ledger = pv.Ledger(folder / "patients.ledger", pv.Budget(3.0, 1e-4))
    first = Entry.of_trainer(
        trained(ledger),
        name="plain",
        metrics={"accuracy on public records": 0.75, "loss on public records": 1.5},
        configuration={"lr": 0.5, "clip": 1.0},
    )
    second = Entry.of_trainer(
        trained(ledger, method=pv.methods.ADPSGD(lr=0.5)),
        name="falling",
        metrics={"accuracy on public records": 0.8125, "loss on public records": 1.25},
        configuration={"lr": 0.5, "clip": 2.0},
    )
    search = Entry.of_selection(searched(ledger))
    for entry in (first, second):
        results(folder / entry.name, entry)
    return SimpleNamespace(
        folder=folder, ledger=ledger, first=first, second=second, search=search
    )  # fmt: skip


def results(folder, entry):
    """Write a folder as `privada train` does."""
    folder.mkdir()
    parts = {
        "statement": dict(entry.statement),
        "history": list(entry.history),
        "metrics": dict(entry.metrics),
        "config": dict(entry.configuration),
    }
    for name, value in parts.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


@pytest.fixture(scope="session")
def browser():
    sync = pytest.importorskip(
        "playwright.sync_api",
        reason="NOT TESTED: the report in a real browser, for want of playwright",
    )
    if CHROMIUM is None:
        pytest.skip("NOT TESTED: the report in a real browser, for want of chromium")
    with sync.sync_playwright() as playwright:

        def launch():
            return playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox"], timeout=60_000
            )

        try:
            made = launch()
        except sync.Error:  # a browser hangs or dies at its start now and then
            made = launch()
        yield made
        made.close()
