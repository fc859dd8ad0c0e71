"""Public terms: added after the release, at no cost, wherever the release goes."""

import pytest
import torch
from torch import nn

import privada as pv
from privada.core.errors import ArgumentError, ModelError
from privada.core.tensors import Parameters
from privada.objective import ModelTerm, Objective, PublicTerm, WeightDecay, objective

RANDOM = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 4, generator=RANDOM), torch.zeros(60, 1)
PUBLIC = torch.randn(10, 4, generator=RANDOM), torch.zeros(10, 1)


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))


def half_square(model):
    return sum(p.square().sum() for p in model.parameters()) / 2


def trained(method=None, steps=4, **settings):
    trainer = pv.Trainer(
        network(),
        nn.MSELoss(),
        (X, Y),
        method=method or pv.methods.DPSGD(lr=0.1),
        batch_size=20,
        steps=steps,
        noise_multiplier=1.0,
        delta=1e-3,
        seed=5,
        **settings,
    ).fit()
    return trainer, Parameters(trainer.model).read()


def test_weight_decay_is_what_it_is_in_torch():
    """Oracle: torch's own SGD on the released gradients, by the private loop."""
    _, ours = trained(weight_decay=0.3)
    model = network()
    loop = pv.PrivateLoop(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.3),
        nn.MSELoss(),
        (X, Y),
        batch_size=20,
        steps=4,
        clip=1.0,
        noise_multiplier=1.0,
        delta=1e-3,
        seed=5,
    )
    private, optimizer, criterion, loader = loop
    while loop.steps_done < loop.steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(private(inputs), targets).backward()
            optimizer.step()
    torch.testing.assert_close(ours, Parameters(model).read())


@pytest.mark.parametrize(
    "method",
    [
        pv.methods.DPSGD(lr=0.1),
        pv.methods.DPMomentum(lr=0.1),
        pv.methods.DPAdam(lr=0.1),
        pv.methods.AdaDPS(lr=0.1, preconditioner=pv.preconditioning.diagonal(3.0)),
        pv.methods.ADADP(lr=0.1),
        pv.methods.PDADPMD(lr=0.1, public=PUBLIC),
        pv.methods.PDPSGD(lr=0.1, public=PUBLIC, dimensions=2),
        pv.methods.DP2RMSProp(lr=0.1, adaptive_lr=0.1, plain=2, adaptive=2),
    ],
    ids=lambda method: method.name,
)
def test_a_function_of_the_model_is_as_good_as_weight_decay(method):
    plain, before = trained(method)
    one, decayed = trained(method, weight_decay=0.3)
    other, termed = trained(method, public_term=lambda model: 0.3 * half_square(model))
    torch.testing.assert_close(decayed, termed)
    assert not torch.allclose(before, decayed)
    assert plain.ledger.totals() == one.ledger.totals() == other.ledger.totals()


def test_a_term_is_neither_clipped_nor_scaled_by_the_batch():
    _, without = trained(steps=1)
    _, along = trained(steps=1, public_term=lambda model: 1e6 * model[0].weight[0, 0])
    moved = along - without
    assert moved[0] == pytest.approx(-0.1 * 1e6, rel=1e-5)
    assert not moved[1:].any()


def test_a_scale_that_is_not_undone_scales_the_term_too():
    scaled = pv.methods.AdaDPS(lr=0.1, preconditioner=pv.preconditioning.diagonal(4.0))
    undone = pv.methods.AdaDPS(
        lr=0.1, preconditioner=pv.preconditioning.diagonal(4.0, restore=True)
    )
    for method, factor in ((scaled, 0.25), (undone, 1.0)):
        _, without = trained(method, steps=1)
        _, along = trained(method, steps=1, public_term=lambda model: 100 * model[0].weight[0, 0])
        assert (along - without)[0] == pytest.approx(-0.1 * 100 * factor, rel=1e-4)


def test_a_subspace_of_public_gradients_does_not_hold_the_term_back():
    method = pv.methods.PDPSGD(lr=0.1, public=PUBLIC, dimensions=1)
    _, without = trained(method, steps=1)
    _, along = trained(method, steps=1, public_term=lambda model: 100 * model[2].bias.sum())
    assert (along - without)[-1] == pytest.approx(-10, rel=1e-4)


def test_several_terms_add_up():
    model = network()
    parameters = Parameters(model)
    both = objective(0.5, [half_square, ModelTerm(lambda m: m[0].weight.sum(), "a sum")])
    found = both.gradient(model, parameters)
    expected = 1.5 * parameters.read()
    expected[:12] += 1
    torch.testing.assert_close(found, expected)
    assert both.describe() == "weight decay of 0.5 and a public term and a sum"


def test_no_term_is_no_gradient():
    assert objective() == Objective()
    assert objective(0).gradient(network(), Parameters(network())) is None


def test_the_statement_says_what_is_added():
    trainer, _ = trained(weight_decay=0.25)
    said = " ".join(trainer.statement().assumptions)
    assert "on no record: weight decay of 0.25" in said
    plain, _ = trained()
    assert "adds to the loss" not in " ".join(plain.statement().assumptions)


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf"), "much", None])
def test_a_wrong_weight_decay_is_refused(wrong):
    with pytest.raises(ArgumentError, match="weight_decay"):
        trained(weight_decay=wrong)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (3.0, ArgumentError, "function of the model"),
        (nn.Linear, ArgumentError, "function of the model"),
        (lambda model: 3.0, ModelError, "one number"),
        (lambda model: 1 / 0, ModelError, "failed with: division by zero"),
        (lambda model: model[0].weight, ModelError, "one number"),
        (lambda model: torch.zeros(()), ModelError, "depend on the model's trainable"),
        (lambda model: model[0].weight.detach().sum(), ModelError, "depend on the model's"),
        (lambda model: (model[0].weight * torch.inf).sum(), ModelError, "finite gradient"),
    ],
)
def test_a_term_that_is_none_is_refused_before_anything_is_charged(wrong, error, words):
    ledger = pv.Ledger(None)
    with pytest.raises(error, match=words):
        trained(public_term=wrong, ledger=ledger)
    assert not ledger.totals()


def test_a_term_of_ones_own_is_taken_as_it_is():
    class Pull:
        def gradient(self, model, parameters):
            return parameters.zeros() + 1

        def describe(self):
            return "a pull"

    assert isinstance(Pull(), PublicTerm)
    assert isinstance(WeightDecay(0.1), PublicTerm)
    _, without = trained(steps=1)
    trainer, along = trained(steps=1, public_term=Pull())
    torch.testing.assert_close(along, without - 0.1)
    assert "a pull" in str(trainer.statement())


def test_a_checkpoint_of_another_objective_is_refused(tmp_path):
    settings = {
        "method": pv.methods.DPSGD(lr=0.1),
        "batch_size": 20,
        "steps": 4,
        "noise_multiplier": 1.0,
        "delta": 1e-3,
    }
    ledger = tmp_path / "a.ledger"
    trainer = pv.Trainer(
        network(), nn.MSELoss(), (X, Y), weight_decay=0.1, ledger=ledger, **settings
    )
    trainer.step().save(tmp_path / "run.pt")
    with pytest.raises(pv.CheckpointError, match="objective"):
        pv.Trainer(
            network(), nn.MSELoss(), (X, Y), ledger=ledger, resume=tmp_path / "run.pt", **settings
        )
