"""Noise on the device: what leaves it, what it costs, and with which servers it works."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import privada as pv

pytest.importorskip("flwr", reason="Flower is not installed: noise on the device is not tested")

from flwr.app import ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from privada.accounting import epsilon_of, events
from privada.core.errors import ArgumentError
from privada.noise.gaussian import lattice_spacing
from tests.federated.grids import InProcessGrid, in_a_run

__all__ = ["in_a_run"]
pytestmark = pytest.mark.usefixtures("in_a_run")
CLIP, NODES, DIMENSION = 0.5, 6, 4


class KeptContexts(InProcessGrid):
    """Nodes that keep their state from one message to the next."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.contexts = {}

    def context(self, node):
        return self.contexts.setdefault(node, super().context(node))


def moved(partition):
    """Return by how much a client moves each parameter: some more than the clip norm."""
    return np.linspace(-1, 1, DIMENSION, dtype=np.float32) * (0.1 + 0.2 * partition)


def client(*mods, train=None):
    app = ClientApp(mods=list(mods))

    @app.train()
    def answer(message, context):
        start = message.content["arrays"].to_torch_state_dict()["w"]
        made = (train or (lambda p, w: w + torch.from_numpy(moved(p))))(
            context.node_config["partition-id"], start
        )
        metrics = MetricRecord({"num-examples": 1000, "loss": 0.123})
        return Message(
            RecordDict({"arrays": ArrayRecord({"w": made}), "metrics": metrics}), reply_to=message
        )

    return app


def noise(folder, **settings):
    chosen = {"clip": CLIP, "releases": 3, "noise_multiplier": 1e-6, "delta": 1e-5, **settings}
    return pv.federated.DeviceNoise(
        ledger=lambda context: folder / f"{context.node_config['partition-id']}.ledger", **chosen
    )


def ask(app, node=100, kind=MessageType.TRAIN, width=DIMENSION):
    content = RecordDict({"arrays": ArrayRecord({"w": torch.full((width,), 2.0)})})
    message = Message(content, node, kind)
    context = Context(1, node, {"partition-id": node - 100}, RecordDict(), {})
    return app(message, context).content


def sent(content):
    return content["arrays"].to_torch_state_dict()["w"].numpy() - 2.0


def clipped(update):
    return update * min(1.0, CLIP / np.linalg.norm(update))


def test_rounds_are_those_of_algorithm_3(tmp_path):
    """Lines 7 to 9: w + (1/b) sum_i (clip(update_i, C) + noise), with hardly any noise."""
    grid = InProcessGrid(client(noise(tmp_path)), NODES)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES)
    start = np.full(DIMENSION, 2.0, np.float32)
    result = strategy.start(grid, ArrayRecord({"w": torch.from_numpy(start)}), num_rounds=2)
    expected = start + 2 * np.mean([clipped(moved(p)) for p in range(NODES)], axis=0)
    found = result.arrays.to_torch_state_dict()["w"].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_noise_is_that_of_algorithm_3(tmp_path):
    """Each coordinate has the standard deviation sigma C, to one false alarm in a million."""
    width = 20_000
    app = client(noise(tmp_path, noise_multiplier=0.8), train=lambda p, w: w)
    values = sent(ask(app, width=width)) / (0.8 * CLIP)
    spacing = lattice_spacing(0.8 * CLIP) / (0.8 * CLIP)  # of releases, smoothed out here
    values = values + np.random.default_rng(0).uniform(-spacing / 2, spacing / 2, width)
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], width)
    assert low < np.sum(values**2) < high * (1 + 1e-3)  # rounding and smoothing add little
    assert stats.kstest(values, "norm").pvalue > 1e-6


def test_two_releases_have_noise_of_their_own(tmp_path):
    app = client(noise(tmp_path, noise_multiplier=1.0), train=lambda p, w: w)
    assert not np.array_equal(sent(ask(app)), sent(ask(app)))


def test_the_price_is_that_of_replacing_records():
    """Two clipped updates are up to 2 C apart: the Gaussian mechanism in closed form."""
    made = pv.federated.DeviceNoise(
        clip=CLIP, releases=1, ledger="never", noise_multiplier=3.0, delta=1e-5
    )
    apart = 2 / 3.0

    def delta_at(epsilon):  # Balle and Wang (2018), Theorem 8
        shift = epsilon / apart
        first = stats.norm.cdf(apart / 2 - shift)
        return first - math.exp(epsilon) * stats.norm.cdf(-apart / 2 - shift)

    assert delta_at(made.epsilon) <= 1e-5
    assert delta_at(made.epsilon * 0.99) > 1e-5
    several = pv.federated.DeviceNoise(
        clip=CLIP, releases=4, ledger="never", noise_multiplier=6.0, delta=1e-5
    )
    assert several.epsilon == pytest.approx(made.epsilon, rel=1e-2)  # sqrt(4) / 6 = 1 / 3


def test_noise_is_calibrated_to_a_budget():
    budget = pv.Budget(4.0, 1e-5)
    made = pv.federated.DeviceNoise(clip=CLIP, releases=5, ledger="never", budget=budget)
    assert 3.99 < made.epsilon <= 4.0
    assert made.epsilon == epsilon_of({events.gaussian(made.noise_multiplier / 2): 5}, 1e-5)


def test_the_device_counts_and_then_sends_nothing(tmp_path):
    settings = {"releases": 2, "noise_multiplier": None, "budget": pv.Budget(2.0, 1e-5)}
    settings["delta"] = None
    app = client(noise(tmp_path, **settings))
    assert [bool(ask(app)) for _ in range(3)] == [True, True, False]
    again = client(noise(tmp_path, **settings))  # after a restart of the node
    assert not ask(again)
    assert ask(again, node=101)
    with pv.Ledger(tmp_path / "0.ledger") as ledger:
        assert sum(ledger.totals().values()) == 2
        assert ledger.epsilon() <= 2.0
        assert ledger.unit == "client (all their rows)"


def test_it_is_charged_before_the_clients_code_runs(tmp_path):
    def train(partition, start):
        with pv.Ledger(tmp_path / "0.ledger") as ledger:
            assert sum(ledger.totals().values()) == 1
        return start + 0.25

    np.testing.assert_allclose(sent(ask(client(noise(tmp_path), train=train))), 0.25, atol=1e-5)


def raises(partition, start):
    raise ValueError("a patient's name")


def leaves(partition, start):
    raise SystemExit(3)


FAILING = {
    "raises": raises,
    "ends the process": leaves,
    "nan": lambda p, w: w * math.nan,
    "infinite": lambda p, w: w + math.inf,
    "another shape": lambda p, w: torch.zeros(7),
    "one number": lambda p, w: torch.tensor(1.0),
}


@pytest.mark.parametrize("train", FAILING.values(), ids=FAILING)
def test_a_client_that_fails_sends_noise_alone(train, tmp_path):
    content = ask(client(noise(tmp_path), train=train))
    assert content.keys() == ask(client(noise(tmp_path)), node=101).keys()
    assert abs(sent(content)).max() < 1e-4


def test_nothing_else_leaves_the_device(tmp_path):
    app = client(noise(tmp_path))

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"m": MetricRecord({"loss": 0.123})}), reply_to=message)

    content = ask(app)
    assert {name: dict(record) for name, record in content.metric_records.items()} == {
        "metrics": {"num-examples": 1}
    }
    assert not ask(app, kind=MessageType.EVALUATE)


def test_integers_of_a_model_are_sent_back_as_they_came(tmp_path):
    app = ClientApp(mods=[noise(tmp_path)])

    @app.train()
    def train(message, context):
        seen = message.content["arrays"].to_torch_state_dict()
        made = {"w": seen["w"] + 0.1, "count": seen["count"] + 99}
        return Message(RecordDict({"arrays": ArrayRecord(made)}), reply_to=message)

    start = {"w": torch.full((2,), 2.0), "count": torch.tensor(5)}
    message = Message(RecordDict({"arrays": ArrayRecord(start)}), 100, MessageType.TRAIN)
    context = Context(1, 100, {"partition-id": 0}, RecordDict(), {})
    made = app(message, context).content["arrays"].to_torch_state_dict()
    assert made["count"] == 5
    np.testing.assert_allclose(made["w"].numpy(), 2.1, atol=1e-5)


def test_a_ledger_that_cannot_be_written_sends_nothing(tmp_path, caplog):
    made = pv.federated.DeviceNoise(
        clip=1.0, releases=1, ledger=tmp_path / "no" / "folder", noise_multiplier=1.0, delta=1e-5
    )
    assert not ask(client(made, train=raises))


def test_bad_settings_are_refused():
    for settings, named in [
        ({"noise_multiplier": 1.0}, "delta"),
        ({}, "either budget or noise_multiplier"),
        ({"budget": pv.Budget(1, 1e-5), "noise_multiplier": 1.0}, "either budget or noise"),
        ({"budget": pv.Budget(1, 1e-5), "releases": 0}, "releases"),
        ({"budget": pv.Budget(1, 1e-5), "clip": 0.0}, "clip"),
    ]:
        with pytest.raises(ArgumentError, match=named):
            pv.federated.DeviceNoise(**{"clip": 1.0, "releases": 1, "ledger": "x", **settings})


def test_secure_aggregation_adds_up_noisy_updates(tmp_path):
    """Flower's SecAgg+ with the mod within its own: the server gets the sum alone."""
    from flwr.client.mod import secaggplus_mod
    from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server import LegacyContext, ServerConfig
    from flwr.server.strategy import FedAvg as OldFedAvg
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

    made = noise(tmp_path)
    app = ClientApp(mods=[secaggplus_mod, made])
    seen = []

    @app.train()
    def train(message, context):
        (start,) = (each.numpy() for each in message.content["fitins.parameters"].values())
        seen.append(context.node_config["partition-id"])
        end = start + moved(context.node_config["partition-id"])
        return Message(RecordDict({"fitres.parameters": ArrayRecord([end])}), reply_to=message)

    start = np.full(DIMENSION, 2.0, np.float32)
    strategy = OldFedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=NODES,
        min_available_clients=NODES,
        initial_parameters=ndarrays_to_parameters([start]),
    )
    context = LegacyContext(
        context=Context(1, 0, {}, RecordDict(), {}),
        config=ServerConfig(num_rounds=1),
        strategy=strategy,
    )
    aggregated = []
    own = strategy.aggregate_fit

    def aggregate(number, results, failures):
        parameters, metrics = own(number, results, failures)
        aggregated.append(parameters_to_ndarrays(parameters)[0])
        return parameters, metrics

    strategy.aggregate_fit = aggregate
    workflow = DefaultWorkflow(
        fit_workflow=SecAggPlusWorkflow(
            num_shares=NODES, reconstruction_threshold=NODES - 1, max_weight=1.0
        )
    )
    workflow(KeptContexts(app, NODES), context)
    assert sorted(seen) == list(range(NODES))
    expected = start + np.mean([clipped(moved(p)) for p in range(NODES)], axis=0)
    np.testing.assert_allclose(aggregated[0], expected, atol=2e-5)  # 16 / 2^22 for each client
