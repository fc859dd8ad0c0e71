"""The four things of a private loop in a LightningModule, with automatic optimisation."""

import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privada as pv

lightning = pytest.importorskip("lightning")
ROWS = 120


@pytest.fixture(autouse=True)
def quiet():
    logger = logging.getLogger("lightning.pytorch")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


def records():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 4, generator=generator)
    return x, (x.sum(dim=1) > 0).long()


def loop_of(kind=torch.optim.Adam, **given):
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    settings = {"epochs": 3, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 7} | given
    return pv.PrivateLoop(
        net, kind(net.parameters(), lr=0.1), nn.CrossEntropyLoss(), records(),
        clip=1.0, batch_size=20, **settings,
    )  # fmt: skip


class Classifier(lightning.LightningModule):
    def __init__(self, model, optimizer, criterion):
        super().__init__()
        self.model, self.optimizer, self.criterion = model, optimizer, criterion

    def training_step(self, batch, index):
        x, y = batch
        return self.criterion(self.model(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("right", (self.model(x).argmax(dim=1) == y).float().mean())

    def configure_optimizers(self):
        return self.optimizer


def fit(loop, kind=Classifier, epochs=3, folder=None, module=None, **given):
    model, optimizer, criterion, loader = loop
    module = kind(model, optimizer, criterion) if module is None else module
    options = {
        "max_epochs": epochs, "accelerator": "cpu", "devices": 1, "logger": False,
        "enable_checkpointing": folder is not None, "default_root_dir": folder,
        "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    trainer = lightning.Trainer(**options | given)
    public = DataLoader(TensorDataset(*records()), batch_size=60)
    trainer.fit(module, loader, public)
    return module, trainer


def by_hand(loop):
    model, optimizer, criterion, loader = loop
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    return loop


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_automatic_optimisation_is_the_ordinary_loop(kind):
    loop, same = loop_of(kind), by_hand(loop_of(kind))
    _, trainer = fit(loop)
    assert torch.equal(loop.model.weight, same.model.weight)
    assert loop.steps_done == loop.steps == 18
    assert loop.epsilon() == same.epsilon()
    assert 0.0 <= trainer.callback_metrics["right"] <= 1.0


class Dictionary(Classifier):
    def training_step(self, batch, index):
        return {"loss": super().training_step(batch, index)}


class Manual(Classifier):
    def __init__(self, *parts):
        super().__init__(*parts)
        self.automatic_optimization = False

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, index))
        optimizer.step()


class Scheduled(Classifier):
    def configure_optimizers(self):
        return [self.optimizer], [torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)]


class SaysEpsilon(Classifier):
    private = None

    def on_train_epoch_end(self):
        self.log("epsilon", type(self).private.epsilon())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [Dictionary, Manual, Scheduled, SaysEpsilon])
def test_other_ways_to_write_a_module(kind):
    loop = loop_of()
    SaysEpsilon.private = loop
    _, trainer = fit(loop, kind)
    assert loop.steps_done == 18
    if kind is Scheduled:
        assert loop._optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 8)
    if kind is SaysEpsilon:
        assert trainer.callback_metrics["epsilon"] == pytest.approx(loop.epsilon())


class Logs(Classifier):
    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.log("train_loss", loss)
        return loss


REFUSED = {
    "logging the loss": (Logs, {}, pv.PrivateValueError, "public data"),
    "a progress bar of the loss": (
        type("Bar", (Classifier,), {"training_step": lambda self, batch, index: float(
            Classifier.training_step(self, batch, index))}),
        {}, pv.PrivateValueError, "read as a number",
    ),
    "accumulation": (
        Classifier, {"accumulate_grad_batches": 2}, pv.PrivateValueError, "without accumulation",
    ),
    "clipping again": (
        Classifier, {"gradient_clip_val": 1.0}, pv.PrivateValueError, "Set clip= instead",
    ),
    "mixed precision": (
        Classifier, {"precision": "bf16-mixed"}, pv.ArgumentError, "precision='32-true'",
    ),
    "half precision": (
        Classifier, {"precision": "bf16-true"}, pv.ArgumentError, "before the loop is made",
    ),
    "double precision": (
        Classifier, {"precision": "64-true"}, pv.ArgumentError, "before the loop is made",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", REFUSED)
def test_what_would_not_be_private_is_refused_before_a_charge(case):
    kind, options, error, words = REFUSED[case]
    loop = loop_of()
    with pytest.raises(error, match=words):
        fit(loop, kind, **options)
    assert loop.ledger.charges() == ()
    assert loop.steps_done == 0


@pytest.mark.filterwarnings("ignore")
def test_a_fit_after_one_that_was_refused_goes_on():
    loop = loop_of()
    with pytest.raises(pv.PrivateValueError):
        fit(loop, gradient_clip_val=1.0)
    fit(loop)
    assert loop.steps_done == 18


@pytest.mark.filterwarnings("ignore")
def test_a_second_fit_takes_the_steps_that_are_left_and_no_more():
    loop = loop_of()
    module, _ = fit(loop, epochs=1)
    assert loop.steps_done == 6
    fit(loop, epochs=9, module=module)
    fit(loop, module=module)
    assert loop.steps_done == 18
    assert sum(each.count for each in loop.ledger.charges()) == 18


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_has_model_and_optimiser_and_nothing_of_the_run(tmp_path):
    loop = loop_of()
    _, trainer = fit(loop, folder=tmp_path)
    saved = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)
    assert list(saved["state_dict"]) == ["model.weight", "model.bias"]
    weights = {name.removeprefix("model."): v for name, v in saved["state_dict"].items()}
    plain = nn.Linear(4, 2)
    plain.load_state_dict(weights)
    assert torch.equal(plain.weight, loop.model.weight)
    tensors = [v.shape for s in saved["optimizer_states"][0]["state"].values() for v in s.values()]
    assert set(tensors) == {torch.Size([]), torch.Size([2]), torch.Size([2, 4])}
    again = loop_of()
    other = Classifier(*list(again)[:3])
    other.load_state_dict(saved["state_dict"])
    assert torch.equal(again.model.weight, loop.model.weight)


def test_several_processes_are_refused_with_the_remedy(monkeypatch):
    loop = loop_of()
    model, optimizer, criterion, loader = loop
    x, y = next(iter(loader))
    criterion(model(x), y).backward()
    monkeypatch.setattr("privada.core.ranks.launched", lambda: (0, 2))
    with pytest.raises(pv.ArgumentError, match="devices=1 in Lightning"):
        optimizer.step()
    assert loop.ledger.charges() == ()
