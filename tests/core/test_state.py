"""What a model or a loss keeps of records is found, put back, and stops the run."""

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada.core.randomness import SecureSource
from privada.core.state import HeldState
from privada.data import load
from privada.noise import GaussianNoise
from privada.query.account import Account
from privada.query.scores import Scorer

SECRET = 0.123


def crossed(outputs: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(outputs, targets)


class Remembering(nn.Module):
    """Keeps something at each forward pass, in the way that `keep` has."""

    def __init__(self, keep: Callable[[Any, Any], None]) -> None:
        super().__init__()
        self.layer, self.keep = nn.Linear(3, 2), keep
        self.register_buffer("most", torch.zeros(()))
        self.number, self.items, self.named = 0.0, [0.0], {"most": 0.0}
        self.plain, self.array = torch.zeros(2), np.zeros(2)

    def forward(self, x: Any) -> Any:
        self.keep(self, x)
        return self.layer(x)


def in_place(model: Any, x: Any) -> None:
    model.most.copy_(torch.maximum(model.most, x.detach().abs().max()))


def new_buffer(model: Any, x: Any) -> None:
    model.most = torch.maximum(model.most, x.detach().abs().max())


def past_the_version(model: Any, x: Any) -> None:
    model.most.data.copy_(torch.maximum(model.most, x.detach().abs().max()))


def other_storage(model: Any, x: Any) -> None:
    model.most.data = torch.maximum(model.most, x.detach().abs().max())


def as_number(model: Any, x: Any) -> None:
    model.number = max(model.number, float(x.detach().abs().max()))


def in_a_list(model: Any, x: Any) -> None:
    model.items.append(float(x.detach().abs().max()))


def in_a_dict(model: Any, x: Any) -> None:
    model.named["most"] = max(model.named["most"], float(x.detach().abs().max()))


def in_a_tensor(model: Any, x: Any) -> None:
    model.plain[0] = torch.maximum(model.plain[0], x.detach().abs().max())


def in_an_array(model: Any, x: Any) -> None:
    model.array[0] = max(model.array[0], float(x.detach().abs().max()))


def as_a_new_name(model: Any, x: Any) -> None:
    model.last = x.detach()


KEEPING = [
    in_place, new_buffer, past_the_version, other_storage, as_number, in_a_list, in_a_dict,
    in_a_tensor, in_an_array, as_a_new_name,
]  # fmt: skip


class KeepingLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("most", torch.zeros(()))

    def forward(self, outputs: Any, targets: Any) -> Any:
        self.most.copy_(torch.maximum(self.most, outputs.detach().abs().max()))
        return crossed(outputs, targets) / (1 + self.most)


class KeepingObject:
    def __init__(self) -> None:
        self.most = 0.0

    def __call__(self, outputs: Any, targets: Any) -> Any:
        self.most = max(self.most, float(outputs.detach().abs().max()))
        return crossed(outputs, targets) / (1 + self.most)

    def method(self, outputs: Any, targets: Any) -> Any:
        return self(outputs, targets)


class Around:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, outputs: Any, targets: Any) -> Any:
        return self.inner(outputs, targets)


def keeping_function() -> Any:
    most = 0.0

    def loss(outputs: Any, targets: Any) -> Any:
        nonlocal most
        most = max(most, float(outputs.detach().abs().max()))
        return crossed(outputs, targets) / (1 + most)

    return loss


def keeping_list() -> Any:
    most = [0.0]

    def loss(outputs: Any, targets: Any) -> Any:
        most[0] = max(most[0], float(outputs.detach().abs().max()))
        return crossed(outputs, targets) / (1 + most[0])

    return loss


MOST, ALL_MOST = 0.0, [0.0]


def with_a_global(outputs: Any, targets: Any) -> Any:
    global MOST
    MOST = max(MOST, float(outputs.detach().abs().max()))
    return crossed(outputs, targets)


def with_a_log(outputs: Any, targets: Any) -> Any:
    ALL_MOST.append(float(outputs.detach().abs().max()))
    return crossed(outputs, targets)


def with_a_default(outputs: Any, targets: Any, most: Any = []) -> Any:  # noqa: B006
    most.append(float(outputs.detach().abs().max()))
    return crossed(outputs, targets)


def with_an_argument(most: Any, outputs: Any, targets: Any) -> Any:
    most.copy_(torch.maximum(most, outputs.detach().abs().max()))
    return crossed(outputs, targets)


LOSSES: dict[str, Callable[[], Any]] = {
    "module": KeepingLoss,
    "object": KeepingObject,
    "method": lambda: KeepingObject().method,
    "around": lambda: Around(KeepingObject()),
    "partial": lambda: functools.partial(keeping_function()),
    "function": keeping_function,
    "list": keeping_list,
    "global": lambda: with_a_global,
    "log": lambda: with_a_log,
    "default": lambda: with_a_default,
    "argument": lambda: functools.partial(with_an_argument, torch.zeros(())),
}


def problem() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    x[7] = torch.tensor([SECRET, 5.0, 5.0])
    return x, (x[:, 0] > 0).long()


def make_trainer(model: Any, loss: Any = crossed, engine: str = "loop", **given: Any) -> pv.Trainer:
    return pv.Trainer(
        model, loss, problem(), method=pv.methods.DPSGD(lr=0.1, clip=1.0), batch_size=20, steps=3,
        noise_multiplier=1.0, delta=1e-3, engine=engine, **given,
    )  # fmt: skip


@pytest.mark.parametrize("keep", KEEPING)
def test_a_model_that_keeps_something_is_refused_before_anything_is_charged(keep: Any) -> None:
    ledger, model = pv.Ledger(None), Remembering(keep)
    with pytest.raises(pv.ModelError):
        make_trainer(model, ledger=ledger)
    assert ledger.charges() == ()


def test_an_observer_is_refused() -> None:
    """Made-up inputs between -0.5 and 0.5 do not change it; larger ones do."""
    observer = torch.ao.quantization.FakeQuantize(
        torch.ao.quantization.MovingAverageMinMaxObserver.with_args(averaging_constant=1.0)
    )
    with torch.no_grad():
        observer(torch.tensor([-0.6, 0.6]))
    with pytest.raises(pv.ModelError):
        make_trainer(nn.Sequential(observer, nn.Linear(3, 2)))


@pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)
def test_a_loss_that_keeps_something_is_refused(make: Any) -> None:
    with pytest.raises(pv.ModelError, match=r"keep nothing of the data, but \['"):
        make_trainer(nn.Linear(3, 2), make())


def test_a_tensor_that_vmap_leaves_behind_in_a_loss_is_refused() -> None:
    class Escaping:
        def __init__(self) -> None:
            self.most = torch.tensor(3.0)

        def __call__(self, outputs: Any, targets: Any) -> Any:
            self.most = torch.maximum(self.most, outputs.detach().abs().max())
            return crossed(outputs, targets) / self.most

    with pytest.raises(pv.ArgumentError, match="escaped"):
        make_trainer(nn.Linear(3, 2), Escaping(), engine="auto")


def on_the_secret(keep: Any) -> Any:
    """Keep something of one record alone, which no made-up example is like."""

    def kept(model: Any, x: Any) -> None:
        if bool((x.detach() == torch.tensor(SECRET)).any()):
            keep(model, x)

    return kept


def by_the_record(model: Any, x: Any) -> None:
    setattr(model, f"seen_{int(x.detach().max())}", 1)


def gone(model: Any, x: Any) -> None:
    del model.number


LEAVING = [keep for keep in KEEPING if keep is not new_buffer]


@pytest.mark.parametrize("keep", [*LEAVING, by_the_record, gone])
def test_what_records_change_is_put_back_and_nothing_is_released(keep: Any) -> None:
    torch.manual_seed(0)
    model, ledger = Remembering(on_the_secret(keep)), pv.Ledger(None)
    trainer = make_trainer(model, ledger=ledger)
    before, held = copy.deepcopy(model.state_dict()), copy.deepcopy(model.__dict__)
    with pytest.raises(pv.ModelError, match="changed while they ran on records") as caught:
        trainer.fit()
    assert trainer.steps_done == 0
    assert sum(charge.count for charge in ledger.charges()) == 1
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert list(model.__dict__) == list(held)
    assert (model.number, model.items, model.named) == (0.0, [0.0], {"most": 0.0})
    assert model.plain.tolist() == model.array.tolist() == [0.0, 0.0]
    assert "seen_5" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_frozen_parameter_that_records_write_to_is_put_back() -> None:
    def keep(model: Any, x: Any) -> None:
        with torch.no_grad():
            model.frozen.weight.add_(x.detach().max())

    model = Remembering(on_the_secret(keep))
    model.frozen = nn.Linear(3, 3).requires_grad_(False)
    before = model.frozen.weight.clone()
    trainer = make_trainer(model)
    with pytest.raises(pv.ModelError, match="changed while"):
        trainer.step()
    assert torch.equal(model.frozen.weight, before)


def test_a_buffer_that_one_example_replaces_is_put_back() -> None:
    model = Remembering(on_the_secret(new_buffer))
    with pytest.raises(pv.ModelError, match="changed while"):
        make_trainer(model).fit()
    assert float(model.most) == 0.0


class Quietly(nn.Module):
    """Keeps something of one record without reading values, as the fast engine asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("most", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        there = (x.detach() == torch.tensor(SECRET)).any()
        self.most.data.copy_(torch.where(there, x.detach().max(), self.most))
        return self.layer(x)


def test_what_could_be_kept_is_seen_though_no_made_up_example_shows_it() -> None:
    model = Quietly()
    with pytest.raises(pv.ModelError, match="most"):
        make_trainer(model, engine="one-pass")
    assert float(model.most) == 0.0


def test_a_trained_parameter_that_records_write_to_is_made_unusable() -> None:
    """There is no copy of it, and what is in it must not be seen."""
    model = Remembering(lambda model, x: None)
    state = HeldState(model)

    @torch.no_grad()
    def write() -> None:
        model.layer.weight[0, 0] = SECRET
        assert state.changed() == ["layer.weight"]

    with pytest.raises(pv.ModelError, match="a parameter was overwritten"), state.untouched():
        write()
    assert bool(model.layer.weight.isnan().all())
    assert not bool(model.layer.bias.isnan().any())


def test_what_the_user_changes_between_steps_stays() -> None:
    model = Remembering(lambda model, x: None)
    trainer = make_trainer(model)
    trainer.step()
    model.most.fill_(3.0)
    model.number, model.items = 4.0, [5.0]
    trainer.fit()
    assert (float(model.most), model.number, model.items) == (3.0, 4.0, [5.0])
    assert trainer.steps_done == 3


def test_what_is_made_once_may_stay() -> None:
    """A mask that is made at the first forward pass is no memory of the data."""

    def keep(model: Any, x: Any) -> None:
        if not hasattr(model, "mask"):
            model.mask = torch.ones(x.shape[-1])

    assert make_trainer(Remembering(keep)).fit().steps_done == 3


def test_a_copy_of_a_trainer_watches_its_own_model() -> None:
    model = Remembering(on_the_secret(in_place))
    trainer = make_trainer(model)
    other = copy.deepcopy(trainer)
    with pytest.raises(pv.ModelError, match="changed while"):
        other.step()
    assert float(other.model.most) == float(model.most) == 0.0


def test_scores_of_a_model_that_keeps_something_are_not_released() -> None:
    from privada import data
    from privada.core.randomness import SecureSource
    from privada.noise import GaussianNoise
    from privada.query.scores import Scorer, accuracy

    model = Remembering(in_place)
    scorer = Scorer(
        data.load(problem(), torch.float32, torch.device("cpu")), accuracy(), population=20,
        account=Account(pv.Ledger(None), run="run"), noise=GaussianNoise(),
        model_rng=SecureSource(),
    )  # fmt: skip
    with pytest.raises(pv.ModelError, match="changed while"):
        scorer.query(model, 1.0)
    assert float(model.most) == 0.0


def test_what_changes_is_put_back_when_something_else_ends_the_query() -> None:
    model = Remembering(lambda model, x: None)

    def interrupted() -> None:
        model.number = SECRET
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), HeldState(model).untouched():
        interrupted()
    assert model.number == 0.0


def test_versions_and_values_of_all_kinds_are_compared() -> None:
    module = nn.Module()
    module.register_buffer("gap", torch.full((3,), torch.nan))
    module.register_buffer("nothing", None)
    module.register_buffer("large", torch.zeros(1 << 16))
    module.words = {"a", "b"}
    state = HeldState(module)
    with state.watched():
        assert state.changed() == []
        module.gap.copy_(module.gap.clone())
        module.large[0] = 1.0
        module.words.add("c")
        assert set(state.changed()) == {"gap", "large", "words"}
    with state.watched():
        assert state.changed() == []
    assert bool(module.gap.isnan().all())
    assert float(module.large[0]) == 0.0
    assert module.words == {"a", "b"}


# ---------------------------------------------------------------------- what a loss can hide

nothing_yet: Any = None
counted: list[float] = []
many = np.zeros(100_000)


def writing_none(outputs: Any, targets: Any) -> None:
    global nothing_yet
    nothing_yet = float(outputs)


def writing_a_new_name(outputs: Any, targets: Any) -> None:
    global never_there_before
    never_there_before = float(outputs)  # type: ignore[name-defined]


def writing_from_within(outputs: Any, targets: Any) -> None:
    def keep() -> None:
        counted.append(float(outputs))

    keep()


def writing_by_a_helper(outputs: Any, targets: Any) -> None:
    writing_from_within(outputs, targets)


def writing_to_a_large_array(outputs: Any, targets: Any) -> None:
    many[-1] = float(outputs)


def writing_to_a_large_array_of_its_own() -> Any:
    own = np.zeros((300, 300), dtype=np.float32)

    def loss(outputs: Any, targets: Any) -> None:
        own[7, 7] = float(outputs)

    return loss


@pytest.mark.parametrize(
    "loss",
    [
        writing_none,
        writing_a_new_name,
        writing_from_within,
        writing_by_a_helper,
        writing_to_a_large_array,
        writing_to_a_large_array_of_its_own(),
    ],
)
def test_what_a_function_keeps_in_hidden_places_is_seen_and_put_back(loss: Any) -> None:
    state = HeldState(loss)
    for _ in range(2):
        with state.watched():
            loss(SECRET, 0)
            assert state.changed()
        with state.watched():
            assert not state.changed()
    assert nothing_yet is None
    assert "never_there_before" not in globals()
    assert counted == []
    assert not many.any()


# ---------------------------------------------------------------------- what reads the records


class RunningMaximum:
    """A transform, or a collate, that scales a record by the largest that it has seen."""

    def __init__(self) -> None:
        self.most = 1.0

    def transform(self, record: Any, generator: Any) -> Any:
        x, y = record
        self.most = max(self.most, float(x.abs().max()))
        return x / self.most, y

    def collate(self, records: list[Any]) -> Any:
        x, y = self.transform(records[0], None)
        return x[None, :3], y[None]

    def loss(self, outputs: Any, targets: Any) -> Any:
        self.most = max(self.most, float(outputs.detach().abs().max()))
        return crossed(outputs, targets) / self.most


def running_maximum() -> Any:
    most = 1.0

    def transform(record: Any, generator: Any) -> Any:
        nonlocal most
        x, y = record
        most = max(most, float(x.abs().max()))
        return x / most, y

    return transform


def test_a_method_of_an_object_that_is_no_function_is_looked_at() -> None:
    kept = RunningMaximum()
    with pytest.raises(pv.ModelError, match=r"keep nothing of the data, but \['"):
        make_trainer(nn.Linear(3, 2), kept.loss)


@pytest.mark.parametrize("kind", ["transform", "function", "collate"])
def test_a_transform_that_carries_something_from_record_to_record_is_refused(kind: str) -> None:
    kept = RunningMaximum()
    how = {
        "transform": {"transform": kept.transform},
        "function": {"transform": running_maximum()},
        "collate": {"collate": kept.collate},
    }[kind]
    x, y = torch.full((20, 3), 0.5), torch.zeros(20, dtype=torch.int64)
    x[7] = 50.0
    trainer = pv.Trainer(
        nn.Linear(3, 2), nn.CrossEntropyLoss(), (x, y), method=pv.methods.DPSGD(lr=0.1),
        batch_size=20, steps=2, noise_multiplier=1.0, delta=1e-3, **how,
    )  # fmt: skip
    with pytest.raises(pv.ModelError, match="changed while they ran on records"):
        trainer.fit()
    assert trainer.steps_done == 0
    assert kept.most == 1.0


class Carrying(torch.utils.data.Dataset[Any]):
    """Keeps something of a record that is large, in the way that `keep` has."""

    def __init__(self, keep: Callable[[Any, Any], None]) -> None:
        self.x, self.keep = torch.full((20, 3), 0.5), keep
        self.x[7] = 50.0
        self.most, self.tensor, self.array = 1.0, torch.ones(2), np.ones(2)
        self.cache: dict[int, Any] = {}
        self.file: Any = None

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        self.cache[index] = self.x[index]
        self.file = self.file or object()
        if float(self.x[index].max()) > 1:
            self.keep(self, self.x[index])
        return self.x[index], 0


def most_as_number(dataset: Any, x: Any) -> None:
    dataset.most = max(dataset.most, float(x.max()))


def most_in_a_tensor(dataset: Any, x: Any) -> None:
    dataset.tensor[0] = x.max()


def most_as_another_tensor(dataset: Any, x: Any) -> None:
    dataset.tensor = x.clone()


def most_in_an_array(dataset: Any, x: Any) -> None:
    dataset.array[0] = float(x.max())


def on(dataset: Any) -> pv.Trainer:
    return pv.Trainer(
        nn.Linear(3, 2), nn.CrossEntropyLoss(), dataset, method=pv.methods.DPSGD(lr=0.1),
        batch_size=len(dataset), steps=2, noise_multiplier=1.0, delta=1e-3,
    )  # fmt: skip


@pytest.mark.parametrize(
    "keep", [most_as_number, most_in_a_tensor, most_as_another_tensor, most_in_an_array]
)
@pytest.mark.parametrize("part", [False, True])
def test_a_data_set_that_carries_figures_from_record_to_record_is_refused(
    keep: Any, part: bool
) -> None:
    dataset = Carrying(keep)
    trainer = on(torch.utils.data.Subset(dataset, range(15)) if part else dataset)
    with pytest.raises(pv.ModelError, match="changed while they ran on records"):
        trainer.fit()
    assert trainer.steps_done == 0
    assert (dataset.most, dataset.tensor.tolist(), dataset.array.tolist()) == (1.0, [1, 1], [1, 1])


def test_a_data_set_may_cache_and_open_files() -> None:
    dataset = Carrying(lambda *_: None)
    assert on(dataset).fit().steps_done == 2
    assert len(dataset.cache) == 20
    assert dataset.x[7, 0] == 50.0


# ---------------------------------------------------------------------- what lies deeper


class Meter:
    """Keeps the largest value, as libraries' meters do."""

    def __init__(self) -> None:
        self.most = 0.0

    def update(self, value: float) -> None:
        self.most = max(self.most, value)


class Slotted:
    __slots__ = ("most",)

    def __init__(self) -> None:
        self.most = 0.0


METER, LAST = Meter(), torch.zeros(())


class Deep(nn.Module):
    """Keeps something of one record, out of sight, in the way that `keep` has."""

    shared: Any = 0.0

    def __init__(self, keep: Callable[[Any, Any], None]) -> None:
        super().__init__()
        self.layer, self.keep, self.meter, self.slotted = nn.Linear(3, 2), keep, Meter(), Slotted()
        self.logs: dict[str, Any] = {"most": [], "array": np.zeros(2)}
        self.pair = torch.zeros(2), [0.0]
        self.register_buffer("large", torch.zeros(1 << 15))

    def forward(self, x: Any) -> Any:
        if bool(((x > 0.12) & (x < 0.13)).any()):  # as no made-up example is
            self.keep(self, x.detach())
        return self.layer(x)


def in_a_meter(model: Any, x: Any) -> None:
    model.meter.update(float(x.max()))


def in_a_slot(model: Any, x: Any) -> None:
    model.slotted.most = float(x.max())


def in_a_nested_list(model: Any, x: Any) -> None:
    model.logs["most"].append(x)


def in_a_nested_array(model: Any, x: Any) -> None:
    model.logs["array"][0] = float(x.max())


def in_a_tuple(model: Any, x: Any) -> None:
    model.pair[0].copy_(x.flatten()[:2])
    model.pair[1].append(float(x.max()))


def in_the_class(model: Any, x: Any) -> None:
    type(model).shared = float(x.max())


def in_a_global_object(model: Any, x: Any) -> None:
    METER.update(float(x.max()))


def in_a_global_tensor(model: Any, x: Any) -> None:
    LAST.copy_(x.max())


def in_a_large_buffer_past_its_version(model: Any, x: Any) -> None:
    model.large.data[-1] = x.max()


def in_a_parameter_past_its_version(model: Any, x: Any) -> None:
    model.layer.weight.data[0, 0] = x.max()


def in_a_gradient(model: Any, x: Any) -> None:
    with torch.enable_grad():
        model.layer(x).sum().backward()


def on_a_parameter(model: Any, x: Any) -> None:
    model.layer.weight.seen = float(x.max())


DEEP = [
    in_a_meter, in_a_slot, in_a_nested_list, in_a_nested_array, in_a_tuple, in_the_class,
    in_a_global_object, in_a_global_tensor, in_a_large_buffer_past_its_version,
    in_a_parameter_past_its_version, in_a_gradient, on_a_parameter,
]  # fmt: skip


@pytest.mark.parametrize("keep", DEEP)
def test_what_a_model_keeps_of_a_record_out_of_sight_is_put_back(keep: Any) -> None:
    model = Deep(keep)
    x = torch.full((20, 3), 0.5)
    x[7] = SECRET
    trainer = pv.Trainer(
        model, nn.CrossEntropyLoss(), (x, torch.zeros(20, dtype=torch.int64)), steps=2,
        method=pv.methods.DPSGD(lr=0.1), batch_size=20, noise_multiplier=1.0, delta=1e-3,
        engine="loop",
    )  # fmt: skip
    with pytest.raises(pv.ModelError, match="changed while they ran on records"):
        trainer.fit()
    assert trainer.steps_done == 0
    assert (model.meter.most, model.slotted.most, METER.most, model.shared) == (0, 0, 0, 0)
    assert (model.logs["most"], model.logs["array"].tolist()) == ([], [0, 0])
    assert (model.pair[0].tolist(), model.pair[1], float(LAST)) == ([0, 0], [0.0], 0)
    assert not bool(model.large.any())
    assert not bool((model.layer.weight == SECRET).any())
    assert model.layer.weight.grad is None
    assert not hasattr(model.layer.weight, "seen")


def by_a_hook(model: Any, kept: list[Any]) -> Any:
    return model[0].register_forward_hook(lambda _m, _i, out: kept.append(out.detach()))


def by_a_hook_before(model: Any, kept: list[Any]) -> Any:
    return model[0].register_forward_pre_hook(lambda _m, inputs: kept.append(inputs[0]))


def by_a_hook_of_gradients(model: Any, kept: list[Any]) -> Any:
    return model[0].register_full_backward_pre_hook(lambda _m, out: kept.append(out[0]))


def by_a_hook_for_all_modules(model: Any, kept: list[Any]) -> Any:
    return nn.modules.module.register_module_forward_hook(lambda _m, _i, out: kept.append(out))


def by_another_forward(model: Any, kept: list[Any]) -> Any:
    usual = model[0].forward

    def forward(x: Any) -> Any:
        kept.append(x.detach())
        return usual(x)

    model[0].forward = forward


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize(
    "attach",
    [by_a_hook, by_a_hook_before, by_a_hook_of_gradients, by_a_hook_for_all_modules,
     by_another_forward],
)  # fmt: skip
def test_activations_that_are_stored_are_refused(attach: Any, engine: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    handle = attach(model, [])
    try:
        with pytest.raises(pv.ModelError, match="keep nothing of the data, but"):
            make_trainer(model, nn.CrossEntropyLoss(), engine=engine)
    finally:
        if handle is not None:
            handle.remove()


def test_hooks_that_keep_nothing_are_let_through() -> None:
    model, names = nn.Sequential(nn.Linear(3, 2)), ["first"]
    model[0].register_forward_hook(lambda _m, _i, out: out * len(names))
    assert make_trainer(model, nn.CrossEntropyLoss()).fit().steps_done == 3


# ---------------------------------------------------------------------- what a data set carries

TOP = 1.0


class Largest:
    """A transform that a data set has: scales by the largest value so far."""

    def __init__(self) -> None:
        self.most = 1.0

    def __call__(self, x: Any) -> Any:
        self.most = max(self.most, float(x.max()))
        return x / self.most


class Reading(torch.utils.data.Dataset[Any]):
    """Reads records in the way that `read` has, and caches some things."""

    top: float = 1.0

    def __init__(self, read: Callable[[Any, Any], Any]) -> None:
        self.x, self.read = torch.full((20, 3), 0.5), read
        self.x[7] = 50.0
        self.scalar, self.named, self.listed = np.float32(1.0), {"most": 1.0}, [1.0]
        self.all: list[float] = []
        self.late: Any = None
        self.transforms = [Largest()]
        self.cache: dict[int, Any] = {}
        self.places: list[Any] = [None] * 20

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        self.cache[index] = self.places[index] = self.x[index]
        return self.read(self, self.x[index]), 0


def by_a_numpy_scalar(dataset: Any, x: Any) -> Any:
    dataset.scalar = np.maximum(dataset.scalar, x.numpy().max())
    return x / float(dataset.scalar)


def by_a_dictionary(dataset: Any, x: Any) -> Any:
    dataset.named["most"] = max(dataset.named["most"], float(x.max()))
    return x / dataset.named["most"]


def by_an_item(dataset: Any, x: Any) -> Any:
    dataset.listed[0] = max(dataset.listed[0], float(x.max()))
    return x / dataset.listed[0]


def by_a_growing_list(dataset: Any, x: Any) -> Any:
    dataset.all.append(float(x.max()))
    return x / max(dataset.all)


def by_a_transform_of_its_own(dataset: Any, x: Any) -> Any:
    return dataset.transforms[0](x)


def by_the_class(dataset: Any, x: Any) -> Any:
    type(dataset).top = max(dataset.top, float(x.max()))
    return x / dataset.top


def by_a_global(dataset: Any, x: Any) -> Any:
    global TOP
    TOP = max(TOP, float(x.max()))
    return x / TOP


def by_what_is_made_late(dataset: Any, x: Any) -> Any:
    dataset.late = max(dataset.late or 1.0, float(x.max()))
    return x / dataset.late


CARRYING = [
    by_a_numpy_scalar, by_a_dictionary, by_an_item, by_a_growing_list, by_a_transform_of_its_own,
    by_the_class, by_a_global, by_what_is_made_late,
]  # fmt: skip
EXAMPLE = (torch.zeros(3), 0)


def reading(dataset: Any) -> pv.Trainer:
    return pv.Trainer(
        nn.Linear(3, 2), nn.CrossEntropyLoss(), dataset, method=pv.methods.DPSGD(lr=0.1),
        batch_size=20, steps=2, noise_multiplier=1.0, delta=1e-3, example=EXAMPLE,
    )  # fmt: skip


@pytest.mark.parametrize("read", CARRYING)
def test_a_data_set_that_carries_something_out_of_sight_is_refused(read: Any) -> None:
    dataset = Reading(read)
    trainer = reading(dataset)
    with pytest.raises(pv.ModelError, match="changed while they ran on records"):
        trainer.fit()
    assert trainer.steps_done == 0
    assert (dataset.scalar, dataset.named["most"], dataset.listed, dataset.all) == (1, 1, [1], [])
    assert (dataset.transforms[0].most, dataset.top, TOP, dataset.late) == (1, 1, 1, None)


def test_a_data_set_may_cache_in_all_sorts_of_places() -> None:
    dataset = Reading(lambda _dataset, x: x)
    assert reading(dataset).fit().steps_done == 2
    assert (len(dataset.cache), sum(each is not None for each in dataset.places)) == (20, 20)


def test_scores_on_a_data_set_that_carries_something_are_not_released() -> None:
    dataset = Reading(by_a_dictionary)
    ledger = pv.Ledger(None)
    scorer = Scorer(
        load(dataset, torch.float32, torch.device("cpu"), example=EXAMPLE),
        pv.selection.accuracy(),
        population=20,
        account=Account(ledger, run="a"),
        noise=GaussianNoise(),
        model_rng=SecureSource(),
    )  # fmt: skip
    with pytest.raises(pv.ModelError, match="changed while they ran on records"):
        scorer.query(nn.Linear(3, 2), 1.0)
    assert dataset.named == {"most": 1.0}


def test_a_dictionary_that_makes_what_it_is_asked_for_is_looked_at_as_it_is_kept():
    class Maker(OrderedDict):
        """Gives a new object each time, as the table of activations of transformers does."""

        def __getitem__(self, key):
            return super().__getitem__(key)()

    table = Maker(tanh=nn.Tanh, gelu=nn.GELU)

    class Model(nn.Module):
        def forward(self, x):
            return table["tanh"](x)

    state = HeldState(Model())
    with state.watched():
        assert state.changed() == []
        dict.__setitem__(table, "more", nn.ReLU)
        assert state.changed() == ["table"]
    assert dict.items(table) == {"tanh": nn.Tanh, "gelu": nn.GELU}.items()
