"""Each method against a NumPy transcription of its paper, step by step, with the same noise."""

from functools import partial

import numpy as np
import pytest
import torch

import privada as pv
from privada.core.tensors import Parameters
from tests.methods.problem import (
    CLASSES,
    CLIP,
    FEATURES,
    PUBLIC,
    RECORDS,
    SIGMA,
    SIZE,
    X,
    normals,
    path_of,
    public_mean,
    rows,
    rows_of,
)
from tests.oracles import adadp, adadps, adp_sgd, beyond, pasan_pagan

STEPS = 12
NOISE = normals(2 * STEPS)
DP = partial(adadps.dp_gradient, clip=CLIP, noise_multiplier=SIGMA, batch_size=RECORDS)
SCALES = np.linspace(0.2, 2.0, SIZE)
MOMENTS = np.arange(1, SIZE + 1) ** -1.5


def agree(path, expected):
    np.testing.assert_allclose(np.stack(path), np.stack(expected[: len(path)]), rtol=1e-8)


# ---------------------------------------------------------------------- Li et al. (2022)


FORMS = {
    "rmsprop": (
        {"form": "rmsprop", "decay": 0.8, "eps": 1e-2},
        partial(adadps.rmsprop, decay=0.8, eps=1e-2),
    ),
    "adagrad": ({"form": "adagrad", "eps": 1e-2}, partial(adadps.adagrad, eps=1e-2)),
    "adam": (
        {"form": "adam", "decay": 0.95, "eps": 1e-2, "mix": 0.7, "first_decay": 0.6},
        partial(adadps.adam, mix=0.7, decay1=0.6, decay2=0.95, eps=1e-2),
    ),
    "theorem 2": (
        {"form": "rmsprop", **pv.preconditioning.theorem_2(gamma=0.5, eps=0.1)},
        partial(adadps.rmsprop, decay=adadps.theorem2_decay(0.5), eps=adadps.theorem2_eps(0.1)),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_adadps_with_public_gradients(form, monkeypatch):
    settings, statistics = FORMS[form]
    preconditioner = pv.preconditioning.public_gradients(PUBLIC, **settings)
    lr = pv.updates.inverse_sqrt(0.3)
    start, path, run = path_of(
        monkeypatch, pv.methods.AdaDPS(lr=lr, preconditioner=preconditioner, clip=CLIP), STEPS
    )
    expected, _ = adadps.adadps(
        start, rows, public_mean, NOISE[:STEPS], statistics, adadps.theorem2_lr(0.3), CLIP, SIGMA,
        RECORDS,
    )  # fmt: skip
    agree(path, expected)
    assert any("declared public" in each for each in run.statement().assumptions)


@pytest.mark.parametrize("every", [3, 5, "epoch"])
def test_public_gradients_may_serve_several_steps(every, monkeypatch):
    preconditioner = pv.preconditioning.public_gradients(PUBLIC, decay=0.8, eps=1e-2, every=every)
    method = pv.methods.AdaDPS(lr=0.2, preconditioner=preconditioner, clip=CLIP)
    start, path, _ = path_of(monkeypatch, method, STEPS)
    every = 1 if every == "epoch" else every  # all records are in each step: an epoch is one
    theta, publics = start, []
    for t in range(STEPS):
        if t % every == 0:
            publics.append(public_mean(theta, t))
        scale = adadps.rmsprop(publics, 0.8, 1e-2)[-1][2]
        whitened = [g / scale for g in rows(theta, t)]
        theta = theta - 0.2 * adadps.released(whitened, NOISE[t], CLIP, SIGMA, RECORDS)
        np.testing.assert_allclose(path[t], theta, rtol=1e-8)


def test_adadps_with_fixed_scales(monkeypatch):
    preconditioner = pv.preconditioning.diagonal(torch.from_numpy(SCALES))
    start, path, _ = path_of(
        monkeypatch, pv.methods.AdaDPS(lr=0.2, preconditioner=preconditioner, clip=CLIP), STEPS
    )
    agree(
        path,
        adadps.adadps_fixed(start, rows, NOISE[:STEPS], SCALES, 0.2, CLIP, SIGMA, RECORDS),
    )


def test_adadps_with_moments_divides_by_them_and_does_not_restore(monkeypatch):
    preconditioner = pv.preconditioning.known_moments(torch.from_numpy(SCALES))
    start, path, _ = path_of(
        monkeypatch, pv.methods.AdaDPS(lr=0.2, preconditioner=preconditioner, clip=CLIP), STEPS
    )
    agree(
        path,
        adadps.adadps_fixed(start, rows, NOISE[:STEPS], SCALES, 0.2, CLIP, SIGMA, RECORDS),
    )


def test_adas_is_the_same_without_privacy():
    torch.manual_seed(0)
    model = torch.nn.Linear(FEATURES, CLASSES).double()
    start = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
    preconditioner = pv.preconditioning.diagonal(torch.from_numpy(SCALES))
    pv.adas(
        model, torch.nn.CrossEntropyLoss(), PUBLIC, preconditioner=preconditioner, steps=7,
        lr=pv.updates.inverse_sqrt(0.3),
    )  # fmt: skip
    expected = adadps.adas(start, public_mean, 7, SCALES, adadps.theorem2_lr(0.3))
    found = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
    np.testing.assert_allclose(found, expected[-1], rtol=1e-10)


def test_dp_r_pub(monkeypatch):
    method = pv.methods.DPRPub(lr=0.02, public=PUBLIC, decay=0.8, eps=1e-3, clip=CLIP)
    start, path, _ = path_of(monkeypatch, method, STEPS)
    agree(path, adadps.dp_r_pub(start, DP(rows, NOISE), public_mean, STEPS, 0.02, 0.8, 1e-3))


def test_dp_adam_pub(monkeypatch):
    method = pv.methods.DPAdamPub(
        lr=0.02, public=PUBLIC, mix=0.6, beta1=0.8, beta2=0.95, eps=1e-3, clip=CLIP
    )
    start, path, _ = path_of(monkeypatch, method, STEPS)
    expected = adadps.dp_adam_pub(
        start, DP(rows, NOISE), public_mean, STEPS, 0.02, 0.6, 0.8, 0.95, 1e-3
    )
    agree(path, expected)


@pytest.mark.parametrize("weight", [None, 0.3])
def test_pda_dpmd(weight, monkeypatch):
    method = pv.methods.PDADPMD(lr=0.3, public=PUBLIC, weight=weight, clip=CLIP)
    start, path, _ = path_of(monkeypatch, method, STEPS)
    private = adadps.cosine_weight(STEPS) if weight is None else weight
    agree(path, adadps.pda_dpmd(start, DP(rows, NOISE), public_mean, STEPS, 0.3, private))


def test_the_warm_start_is_ordinary_training_on_public_data():
    torch.manual_seed(0)
    model, other = torch.nn.Linear(FEATURES, CLASSES).double(), None
    other = torch.nn.Linear(FEATURES, CLASSES).double()
    other.load_state_dict(model.state_dict())
    loss = torch.nn.CrossEntropyLoss()
    pv.warm_start(model, loss, PUBLIC, steps=6, lr=0.01)
    optimizer = torch.optim.RMSprop(other.parameters(), lr=0.01)
    x, y = torch.from_numpy(PUBLIC[0]), torch.from_numpy(PUBLIC[1])
    for _ in range(6):
        optimizer.zero_grad()
        loss(other(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(model.weight, other.weight)
    assert model.weight.grad is None


def test_the_ideal_oracle_does_not_call_itself_private(monkeypatch):
    preconditioner = pv.preconditioning.ideal((X, np.zeros(RECORDS, int)), "adagrad", eps=0.1)
    _, _, run = path_of(
        monkeypatch, pv.methods.AdaDPS(lr=0.2, preconditioner=preconditioner, clip=CLIP), 2
    )
    statement = run.statement()
    assert not statement.private
    words = " ".join(str(statement).split())
    assert "not a private release. What gradients were clipped in was computed" in words
    assert "seeded" not in words
    assert "differentially private. In words" not in words


# ---------------------------------------------------------------------- fixed side information

COUNTS = np.array([[2, 1, 0, 1], [1, 0, 0, 3], [4, 0, 1, 1], [1, 0, 0, 0]])


def scale_on(shape, model):
    parameters = Parameters(model)
    return shape.at(shape.init(parameters), parameters)[0].on(parameters).scale.numpy()


def test_feature_moments_are_root_mean_squares():
    expected = adadps.root_mean_square(X, eps=0.01)
    for features in (X, __import__("scipy.sparse").sparse.csr_matrix(X)):
        found = scale_on(
            pv.preconditioning.feature_moments(features, eps=0.01), torch.nn.Linear(4, 2)
        )
        np.testing.assert_allclose(found[:4], expected, rtol=1e-6)
        np.testing.assert_allclose(found[4:8], expected, rtol=1e-6)
        np.testing.assert_allclose(found[8:], 1.0)


def test_token_frequencies_are_the_papers_but_for_a_factor():
    expected = adadps.token_frequency(COUNTS)
    found = scale_on(
        pv.preconditioning.token_frequency(COUNTS, floor=1e-9), torch.nn.Embedding(4, 3)
    )
    np.testing.assert_allclose(found.reshape(4, 3)[:, 1], expected / expected.max(), rtol=1e-6)


def test_tf_idf_is_the_papers_but_for_a_factor():
    weights = adadps.tf_idf(COUNTS)
    found = pv.preconditioning.tf_idf(COUNTS, eps=0.0).scales.numpy()
    some = weights > 0
    np.testing.assert_allclose(found[some] * weights[some], weights[some].min(), rtol=1e-5)
    assert (found[~some] == 1).all()


def test_scales_by_feature_go_to_the_layer_that_meets_the_features():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    shape = pv.preconditioning.by_feature([1.0, 2.0, 3.0, 4.0], others=0.5)
    found = scale_on(shape, model)
    np.testing.assert_allclose(found[:16], 0.5)
    np.testing.assert_allclose(found[16:24], [1, 2, 3, 4, 1, 2, 3, 4])
    square = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    named = scale_on(pv.preconditioning.by_feature([1.0, 2.0, 3.0, 4.0], layer="2"), square)
    np.testing.assert_allclose(named[20:36].reshape(4, 4)[2], [1, 2, 3, 4])
    with pytest.raises(pv.ArgumentError, match="layer="):
        scale_on(pv.preconditioning.by_feature([1.0, 2.0]), model)


# ---------------------------------------------------------------------- Koskela and Honkela (2020)


@pytest.mark.parametrize(
    ("follow", "power", "accept"),
    [("halves", None, False), ("full", None, False), ("halves", 1.0, True), ("full", None, True)],
)
def test_adadp(follow, power, accept, monkeypatch):
    tau = 0.02
    method = pv.methods.ADADP(
        lr=0.4, tolerance=tau, follow=follow, power=power, accept=accept, clip=CLIP
    )
    start, path, run = path_of(monkeypatch, method, STEPS)
    used = power or (0.5 if follow == "halves" else 1.0)
    expected, rates, errors = adadp.adadp(
        start, DP(rows, NOISE), STEPS, 0.4, tau, follow, used, accept
    )
    agree(path, expected)
    np.testing.assert_allclose([each.lr for each in run.history[1:]], rates[:-1], rtol=1e-10)
    assert len({round(rate / last, 3) for rate, last in zip(rates[1:], rates, strict=False)}) > 1
    assert min(errors) < tau < max(errors)  # both ways occur


def test_the_tolerance_of_adadp_is_the_papers():
    controller = pv.methods.ADADP().parts(50).controller
    parameters = Parameters(torch.nn.Linear(7, 8))
    assert controller.tolerance_of(parameters) == pytest.approx(adadp.tolerance(64, 50))


def test_adadp_freezes_and_decays(monkeypatch):
    method = pv.methods.ADADP(lr=0.4, tolerance=0.02, freeze=5, epoch=3, clip=CLIP)
    start, path, run = path_of(monkeypatch, method, STEPS)
    first, rates, _ = adadp.adadp(start, DP(rows, NOISE), 5, 0.4, 0.02)
    later = DP(rows, NOISE[10:])
    second, frozen = adadp.freeze_then_decay(first[-1], later, 3, 3, rates[-1])
    agree(path, [*first, *second])
    np.testing.assert_allclose([each.lr for each in run.history[5:]], frozen[:7], rtol=1e-10)
    assert sum(run.ledger.totals().values()) == 5 * 2 + 7


# ---------------------------------------------------------------------- Wu et al. (2021)


def noisy(alphas):
    return adp_sgd.noisy_gradient(rows, NOISE, alphas, CLIP, SIGMA, RECORDS)


def test_adp_sgd(monkeypatch):
    start, path, run = path_of(monkeypatch, pv.methods.ADPSGD(lr=2.0, clip=CLIP), STEPS)
    b = adp_sgd.decaying(STEPS)
    alphas = adp_sgd.optimal_alphas(b)
    agree(path, adp_sgd.adp_sgd(start, noisy(alphas), b, 2.0))
    np.testing.assert_allclose([h.noise_multiplier for h in run.history], SIGMA * alphas)


def test_adp_sgd_with_any_schedule(monkeypatch):
    method = pv.methods.ADPSGD(lr=1.0, divisor=lambda t: 1 + t, alpha=lambda t: t**0.3, clip=CLIP)
    start, path, _ = path_of(monkeypatch, method, STEPS)
    t = np.arange(1, STEPS + 1)
    agree(path, adp_sgd.adp_sgd(start, noisy(t**0.3), 1 + t, 1.0))


def test_adp_sgd_with_the_adaptive_step(monkeypatch):
    method = pv.methods.ADPSGD(lr=2.0, adaptive=True, first=0.5, least=1e-3, growth=0.2, clip=CLIP)
    start, path, _ = path_of(monkeypatch, method, STEPS)
    alphas = adp_sgd.fixed_alphas(STEPS, 0.5, 0.2)
    expected, _ = adp_sgd.adaptive(start, noisy(alphas), STEPS, 2.0, 0.5, 1e-3)
    agree(path, expected)


# ---------------------------------------------------------------------- Asi et al. (2021)

SETS = {
    "none": (None, pasan_pagan.everywhere),
    "box": (pv.updates.box(-0.2, 0.3), pasan_pagan.box(-0.2, 0.3)),
    "ball": (pv.updates.ball(0.8), pasan_pagan.ball(0.8)),
    "simplex": (pv.updates.simplex(1.5), pasan_pagan.simplex(1.5)),
}
PROJECTIONS = {
    "radial": (pv.clipping.threshold(), pasan_pagan.radial),
    "euclidean": (pv.clipping.ellipsoid(), pasan_pagan.euclidean),
}


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("feasible", SETS)
@pytest.mark.parametrize("name", ["pasan", "pagan"])
def test_pasan_and_pagan(name, feasible, projection, monkeypatch):
    onto, project = SETS[feasible]
    clipping, onto_ellipsoid = PROJECTIONS[projection]
    preconditioner = pv.preconditioning.known_moments(torch.from_numpy(MOMENTS))
    method = pv.methods.get(name)(
        lr=0.3,
        preconditioner=preconditioner,
        onto=onto,
        clip=CLIP,
        clipping=clipping,
        **({"eps": 1e-30} if name == "pagan" else {}),
    )
    start, path, run = path_of(monkeypatch, method, STEPS)
    axes = pasan_pagan.half_axes(np.maximum(MOMENTS, 1e-3), method.exponent, CLIP)
    gradient = pasan_pagan.ellipsoid_gradient(rows, NOISE, axes, onto_ellipsoid, SIGMA, RECORDS)
    expected, averages, _ = getattr(pasan_pagan, name)(start, gradient, STEPS, 0.3, project)
    np.testing.assert_allclose(np.stack(path), np.stack(expected[:-1]), rtol=1e-6, atol=1e-8)
    answer = torch.cat([p.detach().reshape(-1) for p in run.model.parameters()]).numpy()
    np.testing.assert_allclose(answer, averages[-1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["pasan", "pagan"])
def test_scales_given_as_they_are_are_the_half_axes(name, monkeypatch):
    preconditioner = pv.preconditioning.diagonal(torch.from_numpy(MOMENTS**0.4))
    options = {"eps": 1e-30} if name == "pagan" else {}
    method = pv.methods.get(name)(lr=0.3, preconditioner=preconditioner, clip=CLIP, **options)
    start, path, _ = path_of(monkeypatch, method, STEPS)
    axes = CLIP * MOMENTS**0.4
    gradient = pasan_pagan.ellipsoid_gradient(rows, NOISE, axes, pasan_pagan.radial, SIGMA, RECORDS)
    expected, _, _ = getattr(pasan_pagan, name)(start, gradient, STEPS, 0.3)
    np.testing.assert_allclose(np.stack(path), np.stack(expected[:-1]), rtol=1e-7)


def test_pdp_sgd(monkeypatch):
    method = pv.methods.PDPSGD(lr=0.3, public=PUBLIC, dimensions=4, clip=CLIP)
    start, path, _ = path_of(monkeypatch, method, STEPS)
    expected = pasan_pagan.pdp_sgd(start, DP(rows, NOISE), rows_of(PUBLIC), STEPS, 0.3, 4)
    agree(path, expected)


def test_private_second_moments_are_algorithm_3(monkeypatch):
    rounds = pasan_pagan.moment_iterations(SIZE)
    moments = pv.preconditioning.private_second_moments(noise_multiplier=8.0, ratio=1.4)
    method = pv.methods.PAGAN(lr=0.3, preconditioner=moments, clip=CLIP, averaging=False)
    noise = normals(rounds + 1, seed=5)
    start, _, run = path_of(monkeypatch, method, 1, noise=noise)
    # the paper's noise is rho^2 T sqrt(d log(T / delta)) / (n epsilon)
    delta = 1e-3
    epsilon = rounds * np.sqrt(np.log(rounds / delta)) / 8.0
    sigma, _ = pasan_pagan.second_moments(rows(start, 0), noise[:rounds], 1.4, epsilon, delta)
    found = run._state.preconditioner["scale"].numpy()
    np.testing.assert_allclose(found, np.maximum(sigma, 1e-3 * sigma.max()) ** (2 / 3), rtol=1e-8)
    assert len(set(sigma)) > 1


# ---------------------------------------------------------------------- beyond the five


def test_dp_adam_bc(monkeypatch):
    method = pv.methods.DPAdamBC(lr=0.01, beta1=0.8, beta2=0.95, floor=1e-4, clip=CLIP)
    start, path, _ = path_of(monkeypatch, method, STEPS)
    expected, corrected = beyond.dp_adambc(
        start, DP(rows, NOISE), STEPS, 0.01, SIGMA * CLIP / RECORDS, 0.8, 0.95, 1e-4
    )
    agree(path, expected)
    assert (np.stack(corrected) == 1e-4).any()
    assert (np.stack(corrected) > 1e-4).any()


@pytest.mark.parametrize("corrected", [False, True])
def test_scale_then_privatise(corrected, monkeypatch):
    method = pv.methods.ScaleThenPrivatise(
        lr=0.05, beta1=0.8, beta2=0.9, eps=1e-3, eps_scale=0.05, corrected=corrected, clip=CLIP
    )
    start, path, _ = path_of(monkeypatch, method, STEPS)
    expected, _, _ = beyond.scale_then_privatise(
        start, rows, NOISE[:STEPS], 0.05, CLIP, SIGMA, RECORDS, 0.8, 0.9, 1e-3, 0.05, corrected
    )
    agree(path, expected)


def test_dp2_rmsprop(monkeypatch):
    method = pv.methods.DP2RMSProp(
        lr=0.3, adaptive_lr=0.05, plain=3, adaptive=2, decay=0.7, eps=0.02, clip=CLIP,
        adaptive_clip=1.5,
    )  # fmt: skip
    start, path, _ = path_of(monkeypatch, method, STEPS)
    expected, _ = beyond.dp2_rmsprop(
        start, rows, NOISE[:STEPS], 0.3, 0.05, CLIP, 1.5, SIGMA, RECORDS, 3, 2, 0.7, 0.02
    )
    agree(path, expected)


def test_automatic_clipping(monkeypatch):
    method = pv.methods.DPSGD(lr=0.3, clip=CLIP, clipping=pv.clipping.automatic(gamma=0.02))
    start, path, _ = path_of(monkeypatch, method, STEPS)
    gradient = beyond.auto_s_gradient(rows, NOISE, SIGMA, RECORDS, 0.02, CLIP)
    agree(path, adadps.sgd(start, gradient, STEPS, 0.3))
