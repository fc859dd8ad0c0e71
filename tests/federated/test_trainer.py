"""Federated runs against transcriptions in NumPy, and clients that misbehave."""

import copy
import math
from collections import Counter

import numpy as np
import pytest
import torch

import privada as pv
from privada.accounting import epsilon_of, events
from privada.core.errors import ArgumentError, BudgetExceeded, LedgerError
from privada.core.randomness import SeededSource
from privada.core.tensors import Parameters
from privada.federated.clients import FederatedExecutor
from privada.noise.gaussian import fill_normals_
from privada.preconditioning import FlatScaling
from privada.query.executor import Draw

CLIENTS, CLIP, SCALE = 12, 0.3, np.array([0.5, 2.0, 1.0, 4.0])


def records(client):
    """Return a client's own records; clients have different numbers of them."""
    rng = np.random.default_rng(client)
    inputs = rng.normal(size=(1 + 3 * client, 3))
    return inputs, inputs @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=len(inputs))


def model():
    made = torch.nn.Linear(3, 1).double()
    with torch.no_grad():
        made.weight.copy_(torch.tensor([[0.1, 0.2, -0.1]]))
        made.bias.zero_()
    return made


def squared(output, target):
    return (output.squeeze(1) - target).square().mean()


def side_information():
    weight, bias = torch.tensor(SCALE[:3])[None], torch.tensor(SCALE[3:])
    return pv.preconditioning.diagonal({"weight": weight, "bias": bias}, source="known")


def clients(local, size=CLIENTS):
    shape = model()

    def train(client, start):
        own = copy.deepcopy(shape)
        parameters = Parameters(own)
        parameters.write_(start)
        inputs, targets = map(torch.from_numpy, records(client))
        local.train_(own, squared, (inputs, targets))
        return parameters.read()

    return pv.federated.InProcess(train, size)


def local_numpy(client, start, lr, epochs, scale):
    """Return the parameters after full-batch local steps divided by A: Algorithm 3, line 5."""
    inputs, targets = records(client)
    design = np.column_stack([inputs, np.ones(len(inputs))])
    found = start.copy()
    for _ in range(epochs):
        gradient = 2 * design.T @ (design @ found - targets) / len(targets)
        found = found - lr * gradient / scale
    return found


def clipped(update, clip=CLIP):
    return update * min(1, clip / np.linalg.norm(update))


def federated(given, *, method, sampling="everyone", batch_size=CLIENTS, **settings):
    settings.setdefault("noise_multiplier", 1e-6)
    settings.setdefault("delta", 1e-3)
    settings.setdefault("rounds", 3)
    if "budget" in settings:
        del settings["noise_multiplier"], settings["delta"]
    return pv.federated.FederatedTrainer(
        settings.pop("model", None) or model(),
        given,
        method=method,
        sampling=sampling,
        batch_size=batch_size,
        **settings,
    )


def parameters_of(trainer):
    return Parameters(trainer.model).read().numpy()


class Rounds:
    """The noisy mean of the clients' clipped moves, line 9 of Algorithm 3, in NumPy.

    Normals are those of a seed; the release lies on the lattice of docs/noise.md.
    """

    def __init__(self, noise_multiplier, seed, epochs=1, scale=1.0):
        self.epochs, self.scale = epochs, scale
        self.std, self.rng = noise_multiplier * CLIP, SeededSource(seed, "noise")

    def __call__(self, start):
        moves = [
            clipped(local_numpy(k, start, 0.05, self.epochs, self.scale) - start)
            for k in range(CLIENTS)
        ]
        spacing = 2.0 ** (math.floor(math.log2(self.std)) - 5)
        normals = torch.empty(4)
        fill_normals_(normals, self.std / spacing, self.rng)
        # updates point the other way
        return -np.rint(-sum(moves) / spacing + normals.numpy()) * spacing / CLIENTS


SEEDED = {"noise_multiplier": 0.7, "seed": 11}
START = np.array([0.1, 0.2, -0.1, 0.0], np.float32).astype(float)


@pytest.mark.parametrize("scale", [np.ones(4), SCALE])
def test_algorithm_3_is_what_the_paper_prints(scale):
    """DP-FedAvg where A is 1."""
    a = None if (scale == 1).all() else side_information()
    local = pv.federated.LocalSGD(lr=0.05, epochs=4, batch_size=1000, preconditioner=a)
    trainer = federated(clients(local), method=pv.methods.DPSGD(lr=1.0, clip=CLIP), **SEEDED).fit()
    point, rounds = START, Rounds(0.7, 11, epochs=4, scale=scale)
    for _ in range(3):
        point = point + rounds(point)
    np.testing.assert_allclose(parameters_of(trainer), point, rtol=0, atol=1e-12)


def test_the_noise_of_a_round_is_drawn_once_and_is_that_of_one_clip_norm():
    class Nobody:
        size = CLIENTS

        def updates(self, places, parameters):
            return iter(())

    trainer = federated(
        Nobody(), method=pv.methods.DPSGD(lr=1.0, clip=CLIP), noise_multiplier=2.0, rounds=2000,
        seed=3,
    )  # fmt: skip
    points = [parameters_of(trainer)]
    for _ in range(2000):
        points.append(parameters_of(trainer.step()))
    steps = np.diff(points, axis=0).ravel()
    assert steps.std() == pytest.approx(2.0 * CLIP / CLIENTS, rel=0.05)


def test_fed_adam_is_adam_on_the_mean_of_updates():
    """Reddi et al. (2021), Algorithm 2, with the bias corrections of Adam."""
    local = pv.federated.LocalSGD(lr=0.05, batch_size=1000)
    lr, b1, b2, eps = 0.1, 0.9, 0.999, 1e-8
    method = pv.methods.DPAdam(lr=lr, clip=CLIP)
    trainer = federated(clients(local), method=method, **SEEDED).fit()
    point, m, v, rounds = START, np.zeros(4), np.zeros(4), Rounds(0.7, 11)
    for step in range(1, 4):
        g = -rounds(point)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        point = point - lr * (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + eps)
    np.testing.assert_allclose(parameters_of(trainer), point, rtol=0, atol=1e-12)


def test_adadp_doubles_the_step_of_a_round():
    """Koskela and Honkela (2020), Algorithm 2, going on from the two half steps."""
    local = pv.federated.LocalSGD(lr=0.05, batch_size=1000)
    method = pv.methods.ADADP(lr=0.8, tolerance=0.05, clip=CLIP)
    trainer = federated(clients(local), method=method, **SEEDED).fit()
    point, lr, rates, rounds = START, 0.8, [], Rounds(0.7, 11)
    for _ in range(3):
        rates.append(lr)
        first = rounds(point)
        full, half = point + lr * first, point + lr / 2 * first
        point = half + lr / 2 * rounds(half)
        error = np.linalg.norm((full - point) / np.maximum(1, np.abs(full)))
        lr = lr * min(max(math.sqrt(0.05 / error), 0.9), 1.1)
    np.testing.assert_allclose(parameters_of(trainer), point, rtol=0, atol=1e-12)
    np.testing.assert_allclose([each.lr for each in trainer.history], rates)
    assert len(set(rates)) == 3


def test_adadps_at_the_server_clips_in_its_own_geometry():
    local = pv.federated.LocalSGD(lr=0.05, batch_size=1000)
    method = pv.methods.AdaDPS(lr=1.0, clip=CLIP, preconditioner=side_information())
    trainer = federated(clients(local), method=method, rounds=1).fit()
    start = np.array([0.1, 0.2, -0.1, 0.0])
    moves = [
        clipped((local_numpy(k, start, 0.05, 1, np.ones(4)) - start) / SCALE)
        for k in range(CLIENTS)
    ]
    np.testing.assert_allclose(parameters_of(trainer), start + sum(moves) / CLIENTS, atol=1e-5)


def test_adadp_asks_clients_twice_a_step_and_pays_for_both():
    asked = []

    def train(client, start):
        asked.append(client)
        return 0.9 * start

    method = pv.methods.ADADP(lr=0.5, clip=CLIP)
    given = pv.federated.InProcess(train, CLIENTS)
    trainer = federated(given, method=method, noise_multiplier=1.0).fit()
    assert len(asked) == 2 * 3 * CLIENTS
    assert sum(trainer.ledger.totals().values()) == 6


@pytest.mark.parametrize(
    "method",
    [
        pv.methods.DPSGD(lr=1.0),
        pv.methods.DPMomentum(lr=1.0),
        pv.methods.DPAdaGrad(lr=0.1),
        pv.methods.DPRMSProp(lr=0.1),
        pv.methods.DPAdamWOSM(lr=0.1),
        pv.methods.DPSGD(lr=1.0, clipping=pv.clipping.adaptive()),
        pv.methods.DPSGD(lr=1.0, clipping=pv.clipping.per_layer()),
        pv.methods.ADPSGD(lr=1.0),
    ],
    ids=lambda m: m.describe(),
)
def test_the_methods_of_records_work_on_clients(method):
    given = pv.federated.InProcess(lambda client, start: 0.5 * start, 400)
    budget = pv.Budget(epsilon=3.0, delta=1e-4)
    trainer = federated(given, method=method, sampling="poisson", batch_size=40, budget=budget)
    assert trainer.fit().epsilon() <= 3.0
    assert np.isfinite(parameters_of(trainer)).all()


def test_the_price_is_that_of_poisson_sampling_of_clients():
    given = pv.federated.InProcess(lambda client, start: start, 1000)
    trainer = federated(
        given, method=pv.methods.DPSGD(lr=1.0), sampling="poisson", batch_size=50, rounds=100,
        noise_multiplier=1.0, delta=1e-5,
    ).fit()  # fmt: skip
    tally = Counter({events.poisson(0.05, 1.0): 100})
    assert trainer.ledger.totals() == tally
    assert trainer.epsilon() == pytest.approx(epsilon_of(tally, 1e-5))
    statement = trainer.statement()
    assert statement.unit == "client"
    assert "operator of the server" in " ".join(statement.assumptions)


def test_each_client_is_drawn_by_its_own_coin():
    drawn = []
    given = pv.federated.InProcess(lambda client, start: drawn.append(client) or start, 50)
    federated(
        given, method=pv.methods.DPSGD(lr=1.0), sampling="poisson", batch_size=5, rounds=400, seed=1
    ).fit()
    counts = np.bincount(drawn, minlength=50)
    deviation = (counts - 40) / math.sqrt(400 * 0.1 * 0.9)
    assert abs(deviation).max() < 5
    assert len(drawn) != 2000  # as many in every round would not be Poisson


LIES = {
    "not a number": lambda s: torch.full_like(s, math.nan),
    "infinite": lambda s: torch.full_like(s, math.inf),
    "huge": lambda s: torch.full_like(s, 1e300),
    "tiny": lambda s: s - 1e-320,
    "too long": lambda s: torch.zeros(9, dtype=s.dtype),
    "a scalar": lambda s: torch.tensor(3.0),
    "another type": lambda s: torch.zeros(4, dtype=torch.int64),
    "complex": lambda s: torch.zeros(4, dtype=torch.complex64),
    "nothing": lambda s: None,
    "an exception": lambda s: 1 / 0,
}


OTHER_FORMS = ("too long", "a scalar", "another type", "complex", "nothing", "an exception")


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_client_moves_the_sum_by_the_clip_norm_at_most(lie):
    honest = clients(pv.federated.LocalSGD(lr=0.05, batch_size=1000))
    start = model()

    def train(client, parameters):
        return LIES[lie](parameters) if client == 5 else honest._train(client, parameters)

    def total(places):
        parameters = Parameters(start)
        given = pv.federated.InProcess(train, CLIENTS)
        executor = FederatedExecutor(given, parameters, pv.methods.DPSGD(lr=1.0).clipping)
        found = executor.clipped_sum(Draw(np.array(places)), FlatScaling(None, None), CLIP)
        assert found.sensitivity == CLIP
        return found.value

    with_it, without = total(range(CLIENTS)), total([k for k in range(CLIENTS) if k != 5])
    assert torch.isfinite(with_it).all()
    assert (with_it - without).norm() <= CLIP * (1 + 1e-9)
    if lie in OTHER_FORMS:
        torch.testing.assert_close(with_it, without)


def test_rounds_that_nobody_answers_are_noise_and_are_paid_for():
    def absent(client, start):
        raise ConnectionError

    trainer = federated(
        pv.federated.InProcess(absent, 100), method=pv.methods.DPSGD(lr=1.0), noise_multiplier=1.0,
        sampling="poisson", batch_size=0.01, rounds=5,
    ).fit()  # fmt: skip
    assert sum(trainer.ledger.totals().values()) == 5


def test_a_round_is_charged_before_its_clients_are_asked():
    seen = []

    def train(client, start):
        seen.append(sum(trainer.ledger.totals().values()))
        return start

    given = pv.federated.InProcess(train, 1)
    trainer = federated(given, method=pv.methods.DPSGD(lr=1.0), batch_size=1, noise_multiplier=1.0)
    trainer.fit()
    assert len(seen) == 3
    assert all(paid >= number for number, paid in enumerate(seen, start=1))


def test_a_run_goes_on_after_a_crash_of_the_server(tmp_path):
    given = pv.federated.InProcess(lambda client, start: 0.9 * start, 200)
    settings = {
        "method": pv.methods.DPAdam(lr=0.1),
        "sampling": "poisson",
        "batch_size": 20,
        "rounds": 6,
        "budget": pv.Budget(2.0, 1e-4),
        "ledger": tmp_path / "clients.ledger",
    }
    first = federated(given, **settings)
    for _ in range(3):
        first.step()
    first.save(tmp_path / "run.pt")
    first.step()  # and gone before it is saved
    first.ledger.close()
    second = federated(given, **settings, resume=tmp_path / "run.pt")
    assert second.steps_done == 3
    while second.steps_done < second.expected_steps:
        second.step()
    # the round that was lost stays charged, and the run ends one round earlier
    assert second.steps_done == 5
    assert sum(second.ledger.totals().values()) == 6
    assert second.epsilon() <= 2.0


def test_a_ledger_of_records_or_of_another_population_is_refused(tmp_path):
    given = pv.federated.InProcess(lambda client, start: start, 100)
    ledger = pv.Ledger(tmp_path / "a.ledger", pv.Budget(3.0, 1e-4), dataset="hospitals")
    ledger.charge({events.gaussian(20.0): 1}, run="rows")
    with pytest.raises(LedgerError, match="unit"):
        federated(given, method=pv.methods.DPSGD(lr=1.0), batch_size=100, ledger=ledger)
    with pytest.raises(LedgerError, match="hospitals"):
        pv.Ledger(tmp_path / "a.ledger", dataset="devices")


def test_what_does_not_fit_the_ledger_is_refused_before_anybody_is_asked():
    asked = []
    given = pv.federated.InProcess(lambda client, start: asked.append(client) or start, 100)
    ledger = pv.Ledger(None, pv.Budget(0.1, 1e-4))
    with pytest.raises(BudgetExceeded):
        federated(
            given, method=pv.methods.DPSGD(lr=1.0), batch_size=100, noise_multiplier=1.0,
            ledger=ledger,
        )  # fmt: skip
    assert asked == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sampling": "fixed-size", "batch_size": 4}, "no fixed number"),
        ({"sampling": pv.participation.FixedSize(), "batch_size": 4}, "no fixed number"),
        ({"rounds": 0}, "rounds"),
        ({"batch_size": 101, "sampling": "poisson"}, "batch_size"),
        ({"batch_size": math.nan, "sampling": "poisson"}, "batch_size"),
    ],
)
def test_wrong_settings_are_refused_in_words(change, words):
    given = pv.federated.InProcess(lambda client, start: start, 100)
    with pytest.raises(ArgumentError, match=words):
        federated(given, **{"method": pv.methods.DPSGD(lr=1.0), "batch_size": 100, **change})


@pytest.mark.parametrize("wrong", [None, 100, [1, 2], pv.federated.InProcess])
def test_what_are_no_clients_is_refused(wrong):
    with pytest.raises(ArgumentError, match="InProcess"):
        federated(wrong, method=pv.methods.DPSGD(lr=1.0))


def test_a_method_that_needs_public_gradients_needs_a_loss():
    public = pv.Public((torch.zeros(8, 3).double(), torch.zeros(8).double()))
    method = pv.methods.AdaDPS(lr=1.0, preconditioner=pv.preconditioning.public_gradients(public))
    given = pv.federated.InProcess(lambda client, start: start, CLIENTS)
    with pytest.raises(ArgumentError, match="loss"):
        federated(given, method=method).fit()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": 0.0}, "lr"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"preconditioner": 3.0}, "preconditioner"),
        ({"preconditioner": pv.preconditioning.diagonal(1.0, shift=1.0)}, "without a shift"),
    ],
)
def test_wrong_local_settings_are_refused_in_words(change, words):
    with pytest.raises(ArgumentError, match=words):
        pv.federated.LocalSGD(**{"lr": 0.1, **change})


@pytest.mark.parametrize(
    ("preconditioner", "scales"),
    [
        (pv.preconditioning.token_frequency([0.5, 0.1, 0.01], source="made up"), [0.5, 0.1, 0.01]),
        (pv.preconditioning.by_feature([2.0, 1.0, 4.0], source="made up"), [2.0, 1.0, 4.0]),
    ],
)
def test_scales_for_features_divide_local_gradients(preconditioner, scales):
    """Scales as they are made for features, on a model of their width, in one local step."""
    records = torch.ones(4, 3).double(), torch.zeros(4).double()
    divided, plain = model(), model()
    plain.load_state_dict(divided.state_dict())
    start = Parameters(plain).read()
    pv.federated.LocalSGD(lr=0.1, preconditioner=preconditioner).train_(divided, squared, records)
    pv.federated.LocalSGD(lr=0.1).train_(plain, squared, records)
    moved, expected = (Parameters(each).read() - start for each in (divided, plain))
    scale = preconditioner.on(Parameters(plain)).on(Parameters(plain)).scale
    torch.testing.assert_close(moved, expected / scale)
    assert expected.abs().min() > 0
    assert scale[:3] / scale[0] == pytest.approx(torch.tensor(scales).double() / scales[0])


def test_a_client_without_records_leaves_the_model_as_it_is():
    own = model()
    before = Parameters(own).read()
    empty = torch.zeros(0, 3).double(), torch.zeros(0).double()
    pv.federated.LocalSGD(lr=0.1).train_(own, squared, empty)
    assert torch.equal(Parameters(own).read(), before)
