import copy
import logging
import math

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
from privada.train.tokens import PrivateToken
from tests.taps import interrupt, tap_releases
from tests.train.test_trainer import LOSS, problem, trainer, zeroed


def make(model=None, optimizer=None, **changes):
    model = model or zeroed()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.5)
    settings = {
        "clip": 1.0,
        "batch_size": 20,
        "epochs": 1,
        "noise_multiplier": 1.0,
        "delta": 1e-3,
    } | changes
    return pv.PrivateLoop(model, optimizer, LOSS, problem(), **settings)


def run(loop, epochs=1):
    model, optimizer, criterion, loader = loop
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
    return loop


def test_an_ordinary_loop_is_dp_sgd():
    model = zeroed()
    run(make(model, seed=4))
    same = trainer(seed=4).fit().model
    assert torch.allclose(model.weight, same.weight, atol=1e-6)
    assert torch.allclose(model.bias, same.bias, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.AdamW])
def test_any_torch_optimiser_and_scheduler_works_on_the_release(kind):
    model = zeroed()
    optimizer = kind(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    loop = run(make(model, optimizer))
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert not torch.equal(model.weight, torch.zeros(3, 5))
    assert loop.epsilon() == pytest.approx(
        pv.accounting.epsilon(sampling_rate=0.1, noise_multiplier=1.0, steps=10, delta=1e-3)
    )
    assert kind.__name__ in str(loop.statement())


def test_epochs_are_counted_over_several_passes():
    loop = run(make(epochs=3), epochs=3)
    assert loop.steps_done == loop.steps == 30
    assert list(loop.loader) == []
    loop.criterion(loop.model(PrivateToken("input", loop)), PrivateToken("x", loop)).backward()
    with pytest.raises(pv.ArgumentError, match="planned 30 steps"):
        loop._optimizer.step()


def test_the_last_pass_is_shorter_when_epochs_do_not_fill_it():
    loop = run(make(batch_size=30, epochs=5), epochs=5)
    assert loop.steps_done == loop.steps == math.ceil(5 * 200 / 30)


def test_a_step_charges_and_an_unused_batch_does_not():
    loop = make()
    for _ in loop.loader:
        pass
    assert loop.ledger.charges() == ()
    run(loop)
    assert sum(c.count for c in loop.statement().charges) == 10


LOOKS = {
    "item": lambda t: t.item(),
    "float": float,
    "print": lambda t: f"{t:.3f}",
    "shape": lambda t: t.shape,
    "len": len,
    "sum": lambda t: t + 1,
    "compare": lambda t: t > 0,
    "numpy": np.asarray,
    "argmax": lambda t: t.argmax(1),
    "index": lambda t: t[0],
    "iterate": list,
    "truth": bool,
    "detach": lambda t: t.detach().item(),
    "f-string": lambda t: f"{t:>10}",
    "percent": lambda t: "%.3f" % t,  # noqa: UP031
    "round": round,
    "equal": lambda t: t == t,
    "not equal": lambda t: t != 0,
    "power": lambda t: t**2,
    "half": lambda t: 0.5 * t,
    "mean of several": lambda t: t / 4,
    "added to": lambda t: sum([t, t]),
    "negated": lambda t: -t,
    "numpy mean": np.mean,
    "torch argmax": lambda t: torch.argmax(t, dim=1),
    "torch stack": lambda t: torch.stack([t, t]),
    "torch tensor": torch.tensor,
    "torch equal": lambda t: torch.equal(t, t),
    "softmax": lambda t: nn.functional.softmax(t, dim=-1),
    "another layer": nn.Linear(3, 3),
    "torchlike accuracy": lambda t: (torch.max(t, 1)[1] == t).sum(),
    "plateau": lambda t: torch.optim.lr_scheduler.ReduceLROnPlateau(
        torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    ).step(t),
    "scaler": lambda t: torch.amp.GradScaler("cpu").scale(t),
    "autograd backward": torch.autograd.backward,
    "autograd grad": lambda t: torch.autograd.grad(t, [nn.Parameter(torch.ones(1))]),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("what", ["input", "target", "output", "loss"])
def test_no_private_value_can_be_looked_at(look, what):
    model, _, criterion, loader = make()
    x, y = next(iter(loader))
    tokens = {"input": x, "target": y, "output": model(x), "loss": criterion(model(x), y)}
    with pytest.raises(pv.PrivateValueError, match="public data"):
        look(tokens[what])
    assert repr(tokens[what]) == f"<private {what}>"


def test_tokens_can_be_printed_and_logged_without_a_value(capsys, caplog):
    loop = make()
    x, y = next(iter(loop.loader))
    loss = loop.criterion(loop.model(x), y)
    print(loss, f"{loss}", str(loss))
    assert capsys.readouterr().out == "<private loss> <private loss> <private loss>\n"
    logging.getLogger("mine").warning("loss %s", loss)
    assert caplog.messages == ["loss <private loss>"]
    assert loss in [loss]
    assert len({loss, x, y}) == 3


def one_step(loop, criterion):
    model, optimizer, _, loader = loop
    x, y = next(iter(loader))
    optimizer.zero_grad()
    criterion(model(x), y).backward(retain_graph=False)
    optimizer.step()


class TwoParts(nn.Module):
    """A loss that does something to what torch's gives."""

    def forward(self, output, target):
        return 2 * nn.functional.cross_entropy(output, target)


WEIGHTED = torch.tensor([1.0, 2.0, 3.0])
ALIKE = {
    "a new module": (nn.CrossEntropyLoss(), lambda: nn.CrossEntropyLoss()),
    "a function": (nn.CrossEntropyLoss(), lambda: nn.functional.cross_entropy),
    "a module for a function": (nn.functional.cross_entropy, nn.CrossEntropyLoss),
    "settings": (
        nn.CrossEntropyLoss(weight=WEIGHTED, label_smoothing=0.1),
        lambda: nn.CrossEntropyLoss(weight=WEIGHTED.clone(), label_smoothing=0.1),
    ),
    "by name": (
        nn.CrossEntropyLoss(),
        lambda: lambda o, t: nn.functional.cross_entropy(target=t, input=o),
    ),
    "a subclass of its own": (
        type("Mine", (nn.CrossEntropyLoss,), {})(),
        lambda: nn.functional.cross_entropy,
    ),
}


@pytest.mark.parametrize(("given", "used"), ALIKE.values(), ids=ALIKE)
def test_the_loss_may_be_made_or_called_inside_the_loop(given, used):
    weights = []
    for inside in (False, True):
        model = zeroed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        loop = pv.PrivateLoop(
            model, optimizer, given, problem(), clip=1.0, batch_size=20, epochs=1,
            noise_multiplier=1.0, delta=1e-3, seed=3,
        )  # fmt: skip
        one_step(loop, used() if inside else loop.criterion)
        weights.append(model.weight.detach().clone())
    assert torch.equal(*weights)
    assert weights[0].abs().sum() > 0


OTHER = {
    "another setting": (
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        "label_smoothing=0.1 in place of 0.0",
    ),
    "another weight": (
        nn.CrossEntropyLoss(weight=WEIGHTED),
        nn.CrossEntropyLoss(weight=2 * WEIGHTED),
        r"weight=a tensor of shape \(3,\)",
    ),
    "another reduction": (
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="none"),
        "reduction='none' in place of 'mean'",
    ),
    "another loss": (nn.CrossEntropyLoss(), nn.MultiMarginLoss(), "got torch's multi_margin_loss"),
    "turned round": (
        nn.CrossEntropyLoss(),
        lambda o, t: nn.functional.cross_entropy(t, o),
        "input='target' in place of 'output'",
    ),
    "a part of it": (TwoParts(), nn.CrossEntropyLoss(), "got torch's cross_entropy"),
}


@pytest.mark.parametrize(("given", "used", "says"), OTHER.values(), ids=OTHER)
def test_another_loss_inside_the_loop_is_refused_by_what_differs(given, used, says):
    model = zeroed()
    loop = pv.PrivateLoop(
        model, torch.optim.SGD(model.parameters(), lr=0.5), given, problem(), clip=1.0,
        batch_size=20, epochs=1, noise_multiplier=1.0, delta=1e-3,
    )  # fmt: skip
    with pytest.raises(pv.ArgumentError, match=says) as caught:
        one_step(loop, used)
    assert "criterion that the loop gives" in str(caught.value)
    assert loop.ledger.charges() == ()


def test_a_loss_of_ones_own_called_on_tokens_names_the_criterion():
    def own(output, target):
        return ((output - target) ** 2).mean()

    with pytest.raises(pv.PrivateValueError, match="criterion that the loop gives"):
        one_step(make(), own)


def test_the_model_itself_called_on_tokens_names_the_model_of_the_loop():
    net = zeroed()
    loop = make(net)
    x, _ = next(iter(loop.loader))
    with pytest.raises(pv.PrivateValueError, match="model that the loop gives"):
        net(x)


def test_a_criterion_is_moved_and_read_as_the_loss_was():
    criterion = make().criterion
    assert criterion.to("cpu") is criterion
    assert criterion.reduction == "mean"
    with pytest.raises(AttributeError):
        criterion.no_such_thing  # noqa: B018


BETWEEN = {
    "clip_grad_norm_": lambda m, o: nn.utils.clip_grad_norm_(m.parameters(), 1.0),
    "clip_grad_norm_ one by one": lambda m, o: nn.utils.clip_grad_norm_(
        m.parameters(), 1.0, foreach=False
    ),
    "clip_grad_value_": lambda m, o: nn.utils.clip_grad_value_(m.parameters(), 1.0),
    "norm": lambda m, o: [p.grad.norm() for p in m.parameters()],
    "scaled": lambda m, o: [p.grad.mul_(0.5) for p in m.parameters()],
    "item": lambda m, o: next(m.parameters()).grad.sum().item(),
    "numpy": lambda m, o: next(m.parameters()).grad.numpy(),
    "scaler": lambda m, o: unscale(o),
}


def unscale(optimizer):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)


@pytest.mark.parametrize("look", BETWEEN.values(), ids=BETWEEN)
def test_gradients_cannot_be_used_before_they_are_released(look):
    net = zeroed()
    loop = make(net)
    x, y = next(iter(loop.loader))
    loop.criterion(loop.model(x), y).backward()
    optimizer = loop._optimizer
    with pytest.raises(pv.PrivateValueError, match="clip= instead of clip_grad_norm_"):
        look(net, optimizer)
    assert "private" in repr(net.weight.grad)
    copy.deepcopy(net)
    optimizer.step()  # nothing was lost
    assert nn.utils.clip_grad_norm_(net.parameters(), 1.0) > 0  # the released one may be looked at
    assert loop.steps_done == 1


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_can_be_cleared_at_any_time(to_none):
    loop = make()
    x, y = next(iter(loop.loader))
    loop.criterion(loop.model(x), y).backward()
    loop._optimizer.zero_grad(set_to_none=to_none)
    loop._optimizer.step()
    loop._optimizer.zero_grad(set_to_none=to_none)
    run(loop)
    assert loop.steps_done == 10


def test_a_pending_gradient_is_gone_after_detaching():
    net = zeroed()
    loop = make(net)
    x, y = next(iter(loop.loader))
    loop.criterion(loop.model(x), y).backward()
    loop.detach()
    assert net.weight.grad is None
    loop._optimizer.step()
    assert torch.equal(net.weight, torch.zeros(3, 5))


@pytest.mark.parametrize("options", [{"gradient": 2.0}, {"create_graph": True}, {"inputs": []}])
def test_a_backward_pass_of_another_kind_is_refused(options):
    loop = make()
    x, y = next(iter(loop.loader))
    with pytest.raises(pv.ArgumentError, match="when the optimiser steps"):
        loop.criterion(loop.model(x), y).backward(**options)


def test_a_scheduler_beside_a_controller_is_refused():
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loop = pv.PrivateLoop(
        net, optimizer, torch.nn.CrossEntropyLoss(),
        (np.ones((20, 3), "float32"), np.zeros(20, int)), clip=1.0, batch_size=5, epochs=1,
        noise_multiplier=1.0, delta=1e-3, controller=pv.updates.step_doubling(0.1, 1.0),
    )  # fmt: skip
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    one_step(loop, loop.criterion)
    scheduler.step()
    with pytest.raises(pv.ArgumentError, match="Leave out the scheduler"):
        one_step(loop, loop.criterion)


def test_tokens_move_between_devices_as_tensors_do():
    x, _ = next(iter(make().loader))
    assert x.to("cpu") is x.cpu() is x


def test_model_and_criterion_work_as_before_on_tensors():
    plain = zeroed()
    model, _, criterion, _ = make(plain)
    x, y = (torch.tensor(v) for v in problem())
    assert torch.equal(model(x), plain(x))
    assert torch.equal(criterion(model(x), y), LOSS(plain(x), y))
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert model.in_features == 5
    model.load_state_dict(copy.deepcopy(plain.state_dict()))


def test_a_step_without_backward_and_two_backwards_are_refused():
    model, optimizer, criterion, loader = make()
    with pytest.raises(pv.ArgumentError, match=r"loss.backward\(\) before"):
        optimizer.step()
    x, y = next(iter(loader))
    loss = criterion(model(x), y)
    loss.backward()
    with pytest.raises(pv.ArgumentError, match="raise batch_size"):
        loss.backward()


def test_private_and_ordinary_tensors_do_not_mix():
    model, _, criterion, loader = make()
    x, _ = next(iter(loader))
    with pytest.raises(pv.PrivateValueError, match="ordinary"):
        criterion(model(x), torch.tensor([0]))


def test_a_closure_runs_once_and_its_step_is_that_of_an_ordinary_loop():
    ordinary, model, calls = zeroed(), zeroed(), []
    run(make(ordinary, seed=4))
    private, optimizer, criterion, loader = loop = make(model, seed=4)
    for x, y in loader:

        def closure(x=x, y=y):
            calls.append(1)
            optimizer.zero_grad()
            loss = criterion(private(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        assert repr(loss) == "<private loss>"
    assert len(calls) == loop.steps_done == 10
    assert torch.equal(model.weight, ordinary.weight)


def test_a_closure_without_a_backward_pass_or_with_two_is_refused():
    _, optimizer, criterion, loader = loop = make()
    x, y = next(iter(loader))
    with pytest.raises(pv.ArgumentError, match=r"loss.backward\(\) before"):
        optimizer.step(lambda: 0.0)
    criterion(loop.model(x), y).backward()
    with pytest.raises(pv.ArgumentError, match="raise batch_size"):
        optimizer.step(closure=criterion(loop.model(x), y).backward)
    assert loop.steps_done == 0
    assert all(p.grad is None for p in loop.model.parameters())  # and it can go on
    optimizer.step(criterion(loop.model(x), y).backward)
    assert loop.steps_done == 1


def test_a_closure_is_not_run_beyond_the_plan():
    loop = run(make())
    with pytest.raises(pv.ArgumentError, match="planned 10 steps"):
        loop._optimizer.step(lambda: pytest.fail("it ran"))


def test_a_loss_is_divided_by_one_alone():
    loop = make()
    x, y = next(iter(loop.loader))
    loss = loop.criterion(loop.model(x), y)
    assert loss / 1 is loss
    for divisor in (2, 1.0, True, torch.ones(())):
        with pytest.raises(pv.PrivateValueError, match="without accumulation"):
            loss / divisor
    assert isinstance(loss, torch.Tensor)
    with torch._C.DisableTorchFunctionSubclass(), pytest.raises(pv.PrivateValueError):
        torch.Tensor.item(loss)


def test_a_step_outside_of_the_autocast_of_its_model_is_refused():
    model, optimizer, criterion, loader = loop = make()
    x, y = next(iter(loader))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = criterion(model(x), y)
    loss.backward()
    with pytest.raises(pv.ArgumentError, match="32-true"):
        optimizer.step()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        optimizer.step()
    assert loop.steps_done == 1


def test_a_model_that_was_converted_after_the_loop_was_made_is_refused():
    net = zeroed()
    model, optimizer, criterion, loader = loop = make(net)
    x, y = next(iter(loader))
    net.double()
    criterion(model(x), y).backward()
    with pytest.raises(pv.ArgumentError, match=r"float32 on cpu, got torch\.float64"):
        optimizer.step()
    assert loop.ledger.charges() == ()


def test_a_module_that_holds_the_private_model_is_saved_and_loaded_under_its_own_names():
    net = nn.Sequential(nn.Linear(5, 3))
    holder = nn.ModuleDict({"net": make(net).model})
    assert list(holder.state_dict()) == ["net.0.weight", "net.0.bias"]
    saved = {name: torch.full_like(value, 2.0) for name, value in holder.state_dict().items()}
    holder.load_state_dict(saved)
    assert bool((net[0].weight == 2.0).all())
    with pytest.raises(RuntimeError, match="Unexpected"):
        holder.load_state_dict(saved | {"net.1.bias": torch.ones(3)})


def test_an_optimiser_of_other_parameters_is_refused():
    model = zeroed()
    for parameters in ([model.weight], [*model.parameters(), nn.Parameter(torch.ones(1))]):
        with pytest.raises(pv.ArgumentError, match="exactly the model's trainable"):
            make(model, torch.optim.SGD(parameters, lr=1.0))
    with pytest.raises(pv.ArgumentError, match="LBFGS"):
        make(model, torch.optim.LBFGS(model.parameters()))


def test_detaching_gives_the_optimiser_back():
    loop = make()
    loop.detach()
    _, optimizer, _, _ = loop
    optimizer.step()


def test_a_budget_calibrates_the_noise():
    loop = make(noise_multiplier=None, delta=None, budget=pv.Budget(2.0, 1e-3))
    assert run(loop).epsilon() <= 2.0


def test_a_geometry_reaches_the_statement():
    loop = make(
        preconditioner=pv.preconditioning.diagonal(2.0, source="scales from a public corpus")
    )
    assert "scales from a public corpus" in str(run(loop).statement())


# ---------------------------------------------------------------------- what methods are made of


def test_a_loop_under_step_doubling_is_adadp():
    """The controller takes the steps; the optimiser shows the rate; two releases are charged."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    models = []
    for way in ("loop", "trainer"):
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2).double()
        settings = {"batch_size": 10, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 5}
        if way == "trainer":
            method = pv.methods.ADADP(lr=0.2, tolerance=0.05, clip=0.5)
            run = pv.Trainer(net, torch.nn.CrossEntropyLoss(), data, method=method, **settings)
            run.fit()
            rates = [each.lr for each in run.history]
        else:
            loop = pv.PrivateLoop(
                net, torch.optim.SGD(net.parameters(), lr=9.9), torch.nn.CrossEntropyLoss(), data,
                clip=0.5, controller=pv.updates.step_doubling(0.2, 0.05), **settings,
            )  # fmt: skip
            model, optimizer, criterion, loader = loop
            seen = []
            while loop.steps_done < loop.steps:
                for x, y in loader:
                    optimizer.zero_grad()
                    criterion(model(x), y).backward()
                    optimizer.step()
                    seen.append(optimizer.param_groups[0]["lr"])
            assert sum(loop.ledger.totals().values()) == 12
        models.append(net.weight.detach().clone())
    assert torch.equal(*models)
    assert seen == rates
    assert len(set(rates)) > 1


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.Adam(p),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    ],
)
def test_a_controller_beside_an_optimiser_with_its_own_mind_is_refused(optimizer):
    net = torch.nn.Linear(3, 2)
    with pytest.raises(pv.ArgumentError, match="Leave controller out"):
        pv.PrivateLoop(
            net, optimizer(net.parameters()), torch.nn.CrossEntropyLoss(),
            (np.zeros((9, 3)), np.zeros(9, int)), clip=1.0, batch_size=3, steps=2,
            noise_multiplier=1.0, delta=1e-3, controller=pv.updates.step_doubling(0.1, 1.0),
        )  # fmt: skip


def test_a_loop_in_a_shape_that_follows_public_gradients():
    net = torch.nn.Linear(3, 2)
    public = np.eye(3, dtype="float32"), np.array([0, 1, 0])
    loop = pv.PrivateLoop(
        net, torch.optim.SGD(net.parameters(), lr=0.1), torch.nn.CrossEntropyLoss(),
        (np.ones((20, 3), "float32"), np.zeros(20, int)), clip=1.0, batch_size=5, epochs=1,
        noise_multiplier=1.0, delta=1e-3,
        preconditioner=pv.preconditioning.public_gradients(public, eps=0.1),
        clipping=pv.clipping.automatic(),
    )  # fmt: skip
    run(loop)
    assert loop.steps_done == 4
    assert any("declared public" in each for each in loop.statement().assumptions)


def test_a_step_that_is_interrupted_is_taken_anew_and_the_loop_goes_on_to_its_end(monkeypatch):
    net = torch.nn.Linear(3, 2)
    loop = pv.PrivateLoop(
        net, torch.optim.SGD(net.parameters(), lr=0.1), torch.nn.CrossEntropyLoss(),
        (np.ones((20, 3), "float32"), np.zeros(20, int)), clip=1.0, batch_size=5, epochs=1,
        noise_multiplier=1.0, delta=1e-3, controller=pv.updates.step_doubling(0.1, 1.0),
    )  # fmt: skip
    tap_releases(monkeypatch, before=interrupt(2))
    before = net.weight.detach().clone()
    model, optimizer, criterion, loader = loop
    x, y = next(iter(loader))
    criterion(model(x), y).backward()
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert torch.equal(net.weight, before)
    optimizer.step()  # the backward pass still stands
    run(loop)
    assert loop.steps_done == 4
    assert sum(loop.ledger.totals().values()) == 2 * 4 + 1


def test_a_release_that_is_interrupted_is_paid_for_again_and_the_loop_goes_on(monkeypatch):
    net = torch.nn.Linear(3, 2)
    loop = pv.PrivateLoop(
        net, torch.optim.SGD(net.parameters(), lr=0.1), torch.nn.CrossEntropyLoss(),
        (np.ones((20, 3), "float32"), np.zeros(20, int)), clip=1.0, batch_size=5, epochs=1,
        noise_multiplier=1.0, delta=1e-3,
    )  # fmt: skip
    model, optimizer, criterion, loader = loop
    x, y = next(iter(loader))
    criterion(model(x), y).backward()
    with monkeypatch.context() as patch:
        patch.setattr(loop._run.gradients, "clipped_sum", interrupt(1))
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
    optimizer.step()
    run(loop)
    assert loop.steps_done == 4
    assert sum(loop.ledger.totals().values()) == 4 + 1
