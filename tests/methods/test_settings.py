"""Settings of methods: wrong ones are named before anything is charged; odd ones work."""

import itertools

import numpy as np
import pytest
import torch
from scipy import sparse

import privada as pv
from tests.methods.problem import CLIP, FEATURES, PUBLIC, SIZE, X, Y, flat, trainer

MOMENTS = pv.preconditioning.known_moments(1.0)
WRONG = {
    "adadps without scales": (
        lambda: pv.methods.AdaDPS(lr=0.1, preconditioner=[1, 2]),
        "preconditioner",
    ),
    "adadps form": (lambda: pv.preconditioning.public_gradients(PUBLIC, "sgd"), "form"),
    "adadps decay": (lambda: pv.preconditioning.public_gradients(PUBLIC, decay=1.0), "decay"),
    "adadps eps": (lambda: pv.preconditioning.public_gradients(PUBLIC, eps=0.0), "eps"),
    "adadps mix": (lambda: pv.preconditioning.public_gradients(PUBLIC, "adam", mix=0.0), "mix"),
    "adadps every": (lambda: pv.preconditioning.public_gradients(PUBLIC, every=0), "every"),
    "public batch": (lambda: pv.Public(PUBLIC, batch_size=0), "batch_size"),
    "theorem 2": (lambda: pv.preconditioning.theorem_2(gamma=2.0), "gamma"),
    "dp-r-pub decay": (lambda: pv.methods.DPRPub(lr=0.1, public=PUBLIC, decay=2), "decay"),
    "dp-adam-pub mix": (lambda: pv.methods.DPAdamPub(lr=0.1, public=PUBLIC, mix=1.5), "mix"),
    "pda-dpmd weight": (lambda: pv.methods.PDADPMD(lr=0.1, public=PUBLIC, weight=-1), "weight"),
    "pdp-sgd k": (lambda: pv.methods.PDPSGD(lr=0.1, public=PUBLIC, dimensions=0), "dimensions"),
    "pasan exponent": (
        lambda: pv.methods.PASAN(lr=1, preconditioner=MOMENTS, exponent=0),
        "exponent",
    ),
    "pagan lr": (lambda: pv.methods.PAGAN(lr=0.0), "lr"),
    "adadp tolerance": (lambda: pv.methods.ADADP(tolerance=-1.0), "tolerance"),
    "adadp follow": (lambda: pv.methods.ADADP(follow="quarters"), "follow"),
    "adadp bounds": (lambda: pv.methods.ADADP(least=1.2, most=1.1), "least <= most"),
    "adadp freeze": (lambda: pv.methods.ADADP(freeze=-3), "freeze"),
    "step doubling": (lambda: pv.updates.step_doubling(0.1), "tolerance or steps"),
    "adp-sgd alpha": (lambda: pv.methods.ADPSGD(alpha=lambda t: 0.0), "alpha"),
    "adp-sgd divisor": (lambda: pv.methods.ADPSGD(divisor=lambda t: -t), "divisor"),
    "adp-sgd growth": (lambda: pv.methods.ADPSGD(adaptive=True, growth=0.0), "growth"),
    "moments ratio": (
        lambda: pv.preconditioning.private_second_moments(1.0, ratio=1.0),
        "ratio > 1",
    ),
    "moments noise": (lambda: pv.preconditioning.private_second_moments(0.0), "noise_multiplier"),
    "dp-adam-bc floor": (lambda: pv.methods.DPAdamBC(floor=0.0), "floor"),
    "scale eps": (lambda: pv.methods.ScaleThenPrivatise(eps_scale=-1.0), "eps"),
    "dp2 turns": (lambda: pv.methods.DP2RMSProp(lr=1, adaptive_lr=1, plain=0), "plain"),
    "clipping": (lambda: pv.methods.DPSGD(lr=0.1, clipping="flat"), "clipping"),
    "features": (lambda: pv.preconditioning.by_feature([1.0, 0.0]), "scales"),
    "frequency": (lambda: pv.preconditioning.token_frequency([0, 0]), "counts"),
    "negative counts": (lambda: pv.preconditioning.token_frequency([1, -1]), "counts"),
    "tf-idf": (lambda: pv.preconditioning.tf_idf(np.ones((3, 2))), "counts"),
    "no rows": (lambda: pv.preconditioning.feature_moments(np.zeros((0, 3))), "features"),
    "warm start": (lambda: pv.warm_start(torch.nn.Linear(1, 1), None, PUBLIC, steps=-1), "steps"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_an_error_that_names_it(case):
    make, words = WRONG[case]
    with pytest.raises(pv.ArgumentError, match=words):
        make()


UNFIT = {
    "features": pv.preconditioning.by_feature([1.0, 2.0]),
    "diagonal": pv.preconditioning.diagonal(torch.ones(SIZE + 1)),
    "moments": pv.preconditioning.known_moments(torch.ones(SIZE + 1)).ellipsoid(0.5),
    "public": pv.preconditioning.public_gradients((np.zeros((5, FEATURES + 1)), np.zeros(5, int))),
}


@pytest.mark.parametrize("name", UNFIT)
def test_side_information_for_another_model_is_refused_at_once(name):
    method = pv.methods.AdaDPS(lr=0.1, preconditioner=UNFIT[name])
    with pytest.raises((pv.ArgumentError, pv.DataError), match="Expected"):
        trainer(method)


@pytest.mark.parametrize("name", ["dp-r-pub", "dp-adam-pub", "pda-dpmd", "pdp-sgd"])
def test_public_data_of_other_shapes_is_refused_at_once(name):
    public = np.zeros((5, FEATURES + 1)), np.zeros(5, int)
    method = pv.methods.get(name)(lr=0.1, public=public)
    with pytest.raises(pv.DataError, match="Expected public examples"):
        trainer(method)


def test_public_batches_are_drawn_afresh_and_repeat_with_their_number():
    run = trainer(pv.methods.DPSGD(lr=0.1))
    parameters = run._run.parameters
    public = pv.Public((X, Y), batch_size=6)
    first, again = (parameters.public_gradient(public, 3) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, parameters.public_gradient(public, 4))
    assert not torch.equal(first, parameters.public_gradient(pv.Public((X, Y), 6, seed=1), 3))
    every = parameters.public_gradient(pv.Public((X, Y)), 0)
    mean = parameters.public_gradients(pv.Public((X, Y)), 0).mean(dim=0)
    torch.testing.assert_close(every, mean)
    squares = parameters.public_gradients(pv.Public((X, Y)), 0).square().mean(dim=0)
    torch.testing.assert_close(parameters.public_squares(pv.Public((X, Y)), 0), squares)
    sparse_ones = parameters.public_gradient(pv.Public((sparse.csr_matrix(X), Y)), 0)
    torch.testing.assert_close(sparse_ones, every)


def test_public_gradients_leave_the_global_generator_and_the_model_alone():
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Dropout(0.5), torch.nn.Linear(5, 3))
    preconditioner = pv.preconditioning.public_gradients(PUBLIC, eps=0.1)
    run = pv.Trainer(
        model.double(), torch.nn.CrossEntropyLoss(), (X, Y), batch_size=6, steps=3,
        method=pv.methods.AdaDPS(lr=0.1, preconditioner=preconditioner), noise_multiplier=1.0,
        delta=1e-3,
    )  # fmt: skip
    state = torch.get_rng_state()
    run.step()
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


def test_a_method_serves_several_trainers_at_once():
    """Two runs that share a method, taken in turns, are as if each were alone."""
    method = pv.methods.AdaDPS(
        lr=0.1,
        preconditioner=pv.preconditioning.public_gradients(PUBLIC, eps=0.1, every=2),
        clip=CLIP,
    )
    alone = [flat(trainer(method, 6, seed=seed).fit().model) for seed in (1, 2)]
    runs = [trainer(method, 6, seed=seed) for seed in (1, 2)]
    for _ in range(6):
        for run in runs:
            run.step()
    for run, expected in zip(runs, alone, strict=True):
        np.testing.assert_array_equal(flat(run.model), expected)


def test_a_run_that_is_finished_early_answers_with_the_mean_so_far():
    method = pv.methods.PAGAN(lr=0.3, clip=CLIP)
    run, points = trainer(method, 9, seed=1), []
    for _ in range(4):
        run.step()
        points.append(flat(run.model))
    run.finish()
    np.testing.assert_allclose(flat(run.model), np.mean(points, axis=0), rtol=1e-12)
    run.finish()
    np.testing.assert_allclose(flat(run.model), np.mean(points, axis=0), rtol=1e-12)
    with pytest.raises(pv.ArgumentError, match="finish"):
        run.step()
    run.fit()
    assert run.steps_done == 4
    assert sum(run.ledger.totals().values()) == 4


def test_a_finished_run_that_is_resumed_stays_finished(tmp_path):
    settings = {"seed": 1, "ledger": tmp_path / "ledger"}
    method = pv.methods.PAGAN(lr=0.3, clip=CLIP)
    run = trainer(method, 5, **settings).fit(checkpoint=tmp_path / "run.pt")
    again = trainer(method, 5, resume=tmp_path / "run.pt", **settings).fit()
    np.testing.assert_array_equal(flat(again.model), flat(run.model))
    assert sum(again.ledger.totals().values()) == 5


def test_an_error_of_step_doubling_that_is_no_number_lowers_the_rate():
    controller = pv.updates.step_doubling(0.1, 1.0)
    assert controller._factor(float("nan"), 1.0) == 0.9
    assert controller._factor(float("inf"), 1.0) == 0.9
    assert controller._factor(0.0, 1.0) == 1.1
    assert controller._factor(1e-300, 1.0) == 1.1


def test_an_epoch_is_a_pass_over_the_records():
    """24 records in batches of 5 make an epoch of 5 steps."""
    preconditioner = pv.preconditioning.public_gradients(PUBLIC, eps=0.1, every="epoch")
    method = pv.methods.AdaDPS(lr=0.1, preconditioner=preconditioner)
    run = pv.Trainer(
        torch.nn.Linear(FEATURES, 3), torch.nn.CrossEntropyLoss(), (X, Y), method=method,
        batch_size=5, steps=12, noise_multiplier=1.0, delta=1e-3,
    )  # fmt: skip
    scales = []
    for _ in range(12):
        run.step()
        scales.append(run._state.preconditioner["scale"].sum().item())
    assert [a != b for a, b in itertools.pairwise(scales)] == [
        False, False, False, False, True, False, False, False, False, True, False,
    ]  # fmt: skip
    frozen = pv.methods.ADADP(lr=0.1, freeze=2)
    run = pv.Trainer(
        torch.nn.Linear(FEATURES, 3), torch.nn.CrossEntropyLoss(), (X, Y), method=frozen,
        batch_size=5, steps=9, noise_multiplier=1.0, delta=1e-3,
    ).fit()  # fmt: skip
    rates = [each.lr for each in run.history]
    assert rates[2:7] == [rates[2]] * 5
    assert rates[7] == pytest.approx(rates[2] * 1.1 / 1.2)
    with pytest.raises(pv.ArgumentError, match="epoch"):
        preconditioner.init(pv.core.tensors.Parameters(torch.nn.Linear(4, 3), _NoSide()))


class _NoSide:
    def check(self, public, *, declared=True):
        pass


def test_adas_takes_moments_that_are_known_and_no_others():
    model, loss = torch.nn.Linear(FEATURES, 3).double(), torch.nn.CrossEntropyLoss()
    known = pv.preconditioning.known_moments(2.0).ellipsoid(0.5)
    pv.adas(model, loss, PUBLIC, preconditioner=known, steps=2, lr=0.1)
    private = pv.preconditioning.private_second_moments(1.0).ellipsoid(0.5)
    with pytest.raises(pv.ArgumentError, match="asks for releases"):
        pv.adas(model, loss, PUBLIC, preconditioner=private, steps=2, lr=0.1)


def test_descriptions_hold_no_data():
    method = pv.methods.DPRPub(lr=0.1, public=(X, Y))
    assert method.describe() == "dp-r-pub (clip=1.0, lr=0.1, public=data, decay=0.9, eps=1e-08)"
    method = pv.methods.PAGAN(lr=0.1, preconditioner=pv.preconditioning.diagonal(torch.ones(3)))
    assert "tensor" not in method.describe()
