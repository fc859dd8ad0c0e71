"""Methods that contain others: with the right settings they are these, bit for bit."""

import numpy as np
import pytest

import privada as pv
from tests.methods.problem import CLIP, RECORDS, SIGMA, flat, normals, path_of, rows, trainer
from tests.oracles import adadps

STEPS = 9
SGD = pv.methods.DPSGD(lr=0.3, clip=CLIP)


def trained(method, steps=STEPS, **settings):
    """Return the parameters after every step of a seeded run, and the trainer."""
    run, path = trainer(method, steps, seed=7, **settings), []
    for _ in range(steps):
        run.step()
        path.append(flat(run.model))
    return np.stack(path), run


@pytest.mark.parametrize(
    "preconditioner",
    [pv.preconditioning.isotropic(), pv.preconditioning.diagonal(1.0)],
    ids=["none", "ones"],
)
def test_adadps_with_a_scale_of_one_is_dp_sgd(preconditioner):
    path, run = trained(pv.methods.AdaDPS(lr=0.3, preconditioner=preconditioner, clip=CLIP))
    expected, other = trained(SGD)
    # in a geometry of ones the engine takes norms in another way, and may round otherwise
    exact = preconditioner.scale is None
    np.testing.assert_allclose(path, expected, rtol=0 if exact else 1e-9)
    assert run.ledger.totals() == other.ledger.totals()


def test_adp_sgd_with_constant_noise_is_dp_sgd():
    method = pv.methods.ADPSGD(lr=0.3, divisor=lambda t: 1.0, alpha=lambda t: 1.0, clip=CLIP)
    path, run = trained(method)
    expected, other = trained(SGD)
    np.testing.assert_array_equal(path, expected)
    assert run.ledger.totals() == other.ledger.totals()
    assert run.epsilon() == other.epsilon()


def test_adp_sgd_with_constant_noise_and_any_step_is_dp_sgd_with_that_step():
    method = pv.methods.ADPSGD(lr=0.3, divisor=lambda t: t**0.5, alpha=lambda t: 1.0, clip=CLIP)
    path, _ = trained(method)
    expected, _ = trained(pv.methods.DPSGD(lr=lambda step: 0.3 / (step + 1) ** 0.5, clip=CLIP))
    np.testing.assert_array_equal(path, expected)


def test_pagan_in_an_isotropic_geometry_is_dp_adagrad_with_averaging():
    path, run = trained(pv.methods.PAGAN(lr=0.3, clip=CLIP))
    expected, other = trained(pv.methods.DPAdaGrad(lr=0.3, clip=CLIP))
    np.testing.assert_array_equal(path[:-1], expected[:-1])
    np.testing.assert_allclose(path[-1], expected.mean(axis=0), rtol=1e-12)
    assert run.ledger.totals() == other.ledger.totals()
    last, _ = trained(pv.methods.PAGAN(lr=0.3, clip=CLIP, averaging=False))
    np.testing.assert_array_equal(last, expected)


def test_adadp_at_a_fixed_rate_is_dp_sgd_on_every_second_gradient(monkeypatch):
    """The full-step form with bounds of 1: the second release measures and moves nothing."""
    method = pv.methods.ADADP(lr=0.3, tolerance=0.1, follow="full", least=1.0, most=1.0, clip=CLIP)
    noise = normals(2 * STEPS)
    start, path, run = path_of(monkeypatch, method, STEPS, noise=noise)
    _, expected, other = path_of(monkeypatch, SGD, STEPS, noise=noise[::2])
    np.testing.assert_array_equal(np.stack(path), np.stack(expected))
    gradient = adadps.dp_gradient(rows, noise[::2], CLIP, SIGMA, RECORDS)
    np.testing.assert_allclose(path, adadps.sgd(start, gradient, STEPS, 0.3), rtol=1e-9)
    assert {h.lr for h in run.history} == {0.3}
    (event,) = run.ledger.totals()
    assert run.ledger.totals()[event] == 2 * other.ledger.totals()[event]


def test_momentum_without_decay_is_dp_sgd():
    path, _ = trained(pv.methods.DPMomentum(lr=0.3, decay=0.0, clip=CLIP))
    expected, _ = trained(SGD)
    np.testing.assert_allclose(path, expected, rtol=1e-12)


def test_public_weight_one_is_dp_sgd():
    public = np.eye(4), np.zeros(4, int)
    path, _ = trained(pv.methods.PDADPMD(lr=0.3, public=public, weight=1.0, clip=CLIP))
    expected, _ = trained(SGD)
    np.testing.assert_allclose(path, expected, rtol=1e-9)
