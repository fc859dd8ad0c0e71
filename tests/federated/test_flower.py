"""The strategy on Flower: the same rounds, and nodes that misbehave."""

import copy
import logging
import math

import numpy as np
import pytest
import torch

import privada as pv

pytest.importorskip("flwr", reason="Flower is not installed: federated training is not tested")

from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from privada.core.errors import ArgumentError
from privada.core.tensors import Parameters
from tests.federated.grids import InProcessGrid, in_a_run

__all__ = ["in_a_run"]
pytestmark = pytest.mark.usefixtures("in_a_run")
NODES, CLIP = 8, 0.3


def model():
    made = torch.nn.Linear(3, 1)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([[1.0, 2.0, -1.0]]))
        made.bias.fill_(0.5)
    return made


def app(mods=()):
    made = ClientApp(mods=list(mods))

    @made.train()
    def train(message, context):
        share = 1 - 0.01 * (1 + context.node_config["partition-id"])
        arrays = message.content["arrays"].to_torch_state_dict()
        return Message(
            RecordDict(
                {
                    "arrays": ArrayRecord({name: share * value for name, value in arrays.items()}),
                    "metrics": MetricRecord({"num-examples": 10**9, "loss": 0.123}),
                }
            ),
            reply_to=message,
        )

    return made


def strategy(**settings):
    chosen = {
        "clients": NODES,
        "method": pv.methods.DPSGD(lr=1.0, clip=CLIP),
        "batch_size": NODES,
        "rounds": 2,
        "sampling": "everyone",
        "noise_multiplier": 1e-6,
        "delta": 1e-3,
        **settings,
    }
    if "budget" in chosen:
        del chosen["noise_multiplier"], chosen["delta"]
    return pv.federated.PrivateStrategy(model(), **chosen)


def flat(given):
    return Parameters(given.trainer.model).read().numpy()


def one_round(nodes=range(NODES)):
    start = np.array([1.0, 2.0, -1.0, 0.5])
    moves = (-0.01 * (1 + node) * start for node in nodes)
    return start + sum(m * min(1, CLIP / np.linalg.norm(m)) for m in moves) / NODES


@pytest.mark.parametrize("mods", [(), (pv.federated.update_only,)], ids=["plain", "with the mod"])
def test_a_round_is_the_clipped_mean_whatever_clients_say_of_themselves(mods):
    made = strategy(rounds=1)
    result = made.start(InProcessGrid(app(mods), NODES))
    np.testing.assert_allclose(flat(made), one_round(), atol=1e-5)
    kept = result.arrays.to_torch_state_dict()
    assert torch.equal(kept["weight"], made.trainer.model.weight)
    assert result.train_metrics_clientapp == {}


@pytest.mark.parametrize("nodes", [3, NODES + 5, 3 * NODES])
def test_there_may_be_fewer_clients_than_expected_or_more(nodes):
    made = strategy(rounds=1)
    made.start(InProcessGrid(app(), nodes))
    np.testing.assert_allclose(flat(made), one_round(range(nodes)), atol=1e-5)


def test_no_client_keeps_another_one_out():
    """Also of more clients than expected, each has a coin of its own, true to the rate."""
    rounds, rate, nodes = 600, 0.25, 3 * NODES + 1
    grid = InProcessGrid(app(), nodes)
    strategy(
        sampling="poisson", batch_size=rate * NODES, rounds=rounds, noise_multiplier=50.0
    ).start(grid)
    drawn = np.zeros((rounds, nodes))
    for number, asked in enumerate(grid.asked):
        drawn[number, np.array(asked) - 100] = 1
    # to one false alarm in a million, over all nodes and pairs of them
    assert abs(drawn.mean(axis=0) - rate).max() < 5.6 * math.sqrt(rate * (1 - rate) / rounds)
    together = np.corrcoef(drawn.T)[np.triu_indices(nodes, 1)]
    assert abs(together).max() < 6.2 / math.sqrt(rounds)


def test_second_moments_are_of_all_who_are_there():
    moments = pv.preconditioning.private_second_moments(3.0, rounds=1)
    grid = InProcessGrid(app(), NODES + 5)
    strategy(rounds=1, method=pv.methods.PASAN(lr=0.1, preconditioner=moments)).start(grid)
    assert grid.asked[0] == [100 + k for k in range(NODES + 5)]


def test_features_of_records_that_clients_keep_are_refused_before_anything_is_charged():
    scales = pv.preconditioning.private_feature_moments(3.0)
    grid = InProcessGrid(app(), NODES)
    made = strategy(rounds=1, method=pv.methods.DPAdamWOSM(preconditioner=scales))
    with pytest.raises(pv.ArgumentError, match=r"federated training.*by_feature"):
        made.start(grid)
    assert grid.asked == []
    assert made.trainer.ledger.totals() == {}


def test_the_number_of_a_round_tells_nothing_of_who_was_drawn():
    """It counts rounds, also those for which nobody was asked."""
    grid, told = InProcessGrid(app(), 1), []
    own = grid.send_and_receive

    def asked(messages, **given):
        messages = list(messages)
        told.append((made.trainer.steps_done + 1, messages[0].content["config"]["server-round"]))
        return own(messages, **given)

    grid.send_and_receive = asked
    made = strategy(clients=4, batch_size=2, sampling="poisson", rounds=40, noise_multiplier=50.0)
    made.start(grid)
    assert 0 < len(told) < 40
    assert all(true == said for true, said in told)


def test_a_round_without_nodes_sends_nothing():
    grid = InProcessGrid(app(), 0)
    made = strategy(noise_multiplier=1.0)
    made.start(grid)
    assert grid.asked == []
    assert sum(made.trainer.ledger.totals().values()) == 2


def test_poisson_rounds_ask_those_who_were_drawn():
    grid = InProcessGrid(app(), 200)
    made = strategy(
        clients=200, batch_size=20, sampling="poisson", rounds=30, budget=pv.Budget(4.0, 1e-4)
    )
    made.start(grid)
    sizes = [len(each) for each in grid.asked]
    assert len(set(sizes)) > 3
    assert abs(sum(sizes) - 600) < 5 * math.sqrt(600 * 0.9)
    assert made.epsilon() <= 4.0
    assert made.statement().unit == "client"


def forged(reply, arrays, group=None):
    """Return a reply with other arrays, or for another round."""
    reply = Message(RecordDict({"arrays": arrays}), metadata=copy.copy(reply.metadata))
    if group is not None:
        reply.metadata.__dict__["_group_id"] = group
    return reply


def arrays_of(reply):
    return reply.content["arrays"].to_torch_state_dict()


def lie_nan(reply):
    return [forged(reply, ArrayRecord({n: v * math.nan for n, v in arrays_of(reply).items()}))]


def lie_about_the_shape(reply):
    one = Array(np.zeros((), np.float32))
    shapes = {name: value.shape for name, value in arrays_of(reply).items()}
    said = {n: Array("float32", tuple(s), one.stype, one.data) for n, s in shapes.items()}
    return [forged(reply, ArrayRecord(said))]


def lie_about_the_type(reply):
    own = {name: Array(value.double().numpy()) for name, value in arrays_of(reply).items()}
    said = {n: Array("float32", a.shape, a.stype, a.data) for n, a in own.items()}
    return [forged(reply, ArrayRecord(said))]


def lie_shape(reply):
    return [forged(reply, ArrayRecord({n: torch.zeros(7) for n in arrays_of(reply)}))]


def lie_type(reply):
    return [forged(reply, ArrayRecord({n: v.double() for n, v in arrays_of(reply).items()}))]


def lie_names(reply):
    return [forged(reply, ArrayRecord({f"x{n}": v for n, v in arrays_of(reply).items()}))]


def lie_bytes(reply):
    broken = {
        n: Array(dtype="float32", shape=tuple(v.shape), stype="numpy.ndarray", data=b"rubbish")
        for n, v in arrays_of(reply).items()
    }
    return [forged(reply, ArrayRecord(broken))]


def lie_old_round(reply):
    return [forged(reply, reply.content["arrays"], group="another round")]


def lie_error(reply):
    return [Message(error=Error(1, "private words"), metadata=reply.metadata)]


def lie_empty(reply):
    return [Message(RecordDict(), metadata=reply.metadata)]


def lie_two_records(reply):
    arrays = reply.content["arrays"]
    return [Message(RecordDict({"arrays": arrays, "more": arrays}), metadata=reply.metadata)]


def lie_silent(reply):
    return []


def lie_stranger(reply):
    reply = forged(reply, reply.content["arrays"])
    reply.metadata.__dict__["_src_node_id"] = 999_999
    return [reply]


LEFT_OUT = [
    lie_nan, lie_shape, lie_type, lie_names, lie_bytes, lie_old_round, lie_error, lie_empty,
    lie_two_records, lie_silent, lie_stranger, lie_about_the_shape, lie_about_the_type,
]  # fmt: skip


@pytest.mark.parametrize("lie", LEFT_OUT, ids=lambda f: f.__name__)
def test_a_broken_reply_counts_as_zero_and_the_round_goes_on(lie, caplog):
    def tamper(replies):
        return [each for k, r in enumerate(replies) for each in (lie(r) if k == 2 else [r])]

    made = strategy(rounds=1)
    made.start(InProcessGrid(app(), NODES, tamper))
    np.testing.assert_allclose(flat(made), one_round(set(range(NODES)) - {2}), atol=1e-5)
    assert "private words" not in caplog.text


def test_a_node_that_answers_twice_counts_once():
    made = strategy(rounds=1)
    made.start(InProcessGrid(app(), NODES, lambda replies: [*replies, *replies[:3], replies[0]]))
    np.testing.assert_allclose(flat(made), one_round(), atol=1e-5)


def test_the_first_reply_of_a_node_is_the_one_that_counts():
    def tamper(replies):
        broken = forged(replies[2], ArrayRecord({"weight": torch.zeros(7)}))
        return [*replies[:2], broken, *replies[2:]]

    made = strategy(rounds=1)
    made.start(InProcessGrid(app(), NODES, tamper))
    np.testing.assert_allclose(flat(made), one_round(set(range(NODES)) - {2}), atol=1e-5)


def test_a_node_that_gives_another_nodes_number_does_not_answer_for_it():
    def as_number_3(replies):
        wrong = {name: value * 9 for name, value in arrays_of(replies[1]).items()}
        reply = forged(replies[1], ArrayRecord(wrong))
        reply.metadata.__dict__["_src_node_id"] = replies[3].metadata.src_node_id
        return [reply, *replies]

    made = strategy(rounds=1)
    made.start(InProcessGrid(app(), NODES, as_number_3))
    np.testing.assert_allclose(flat(made), one_round(), atol=1e-5)


def test_no_two_messages_share_a_secret():
    sent = []
    made = strategy(rounds=2)
    made.start(InProcessGrid(app(), NODES, lambda replies: sent.extend(replies) or replies))
    assert len({each.metadata.group_id for each in sent}) == len(sent) == 2 * NODES


def test_a_huge_reply_moves_the_model_by_its_share_of_the_clip_norm():
    def tamper(replies):
        huge = {name: value + 1e30 for name, value in arrays_of(replies[2]).items()}
        return [
            forged(replies[2], ArrayRecord(huge)) if k == 2 else r for k, r in enumerate(replies)
        ]

    made = strategy(rounds=1)
    made.start(InProcessGrid(app(), NODES, tamper))
    without = one_round(set(range(NODES)) - {2})
    assert np.linalg.norm(flat(made) - without) <= CLIP / NODES * (1 + 1e-4)


def test_an_old_rounds_reply_is_left_out_in_the_next_one():
    kept = []

    def tamper(replies):
        kept.append(replies)
        return kept[0]

    made = strategy(rounds=2)
    made.start(InProcessGrid(app(), NODES, tamper))
    np.testing.assert_allclose(flat(made), one_round(), atol=1e-5)


def test_the_mod_sends_arrays_alone_and_hides_failures():
    seen = []
    strategy(rounds=1).start(
        InProcessGrid(app([pv.federated.update_only]), 2, lambda r: seen.extend(r) or r)
    )
    assert [list(each.content) for each in seen] == [["arrays"], ["arrays"]]
    failing = ClientApp(mods=[pv.federated.update_only])

    @failing.train()
    def train(message, context):
        raise ValueError("a patient's name")

    strategy(rounds=1).start(InProcessGrid(failing, 2, lambda r: seen.extend(r) or r))
    assert [list(each.content) for each in seen[2:]] == [[], []]


def test_the_server_evaluates_models_and_clients_are_not_asked():
    grid, rounds = InProcessGrid(app(), NODES), []

    def evaluate(number, arrays):
        rounds.append(number)
        return MetricRecord({"norm": float(arrays.to_torch_state_dict()["weight"].norm())})

    result = strategy().start(grid, evaluate_fn=evaluate)
    assert rounds == list(result.evaluate_metrics_serverapp) == [0, 1, 2]
    assert len(grid.asked) == 2
    with pytest.raises(ArgumentError, match="evaluate_fn"):
        strategy().start(grid, evaluate_config={})


def test_the_server_validates_on_public_records_and_stops_by_them(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, logger="flwr")
    inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    public = pv.Validation((inputs, inputs.sum(dim=1, keepdim=True)), every=1)
    settings = {
        "rounds": 9, "loss": torch.nn.MSELoss(), "checkpoint": tmp_path / "run.pt",
        "ledger": tmp_path / "clients.ledger",
        "stopping": pv.EarlyStopping(public, patience=2, least=100.0),
    }  # fmt: skip
    made = strategy(**settings)
    result = made.start(
        InProcessGrid(app(), NODES),
        evaluate_fn=lambda step, arrays: MetricRecord({"own": float(step)}),
    )
    found = result.evaluate_metrics_serverapp
    with torch.no_grad():
        left = made.trainer.model(inputs) - inputs.sum(dim=1, keepdim=True)
    assert list(found) == [0, 1, 2, 3]
    assert found[3]["loss"] == pytest.approx(float(left.square().mean()), rel=1e-5)
    assert found[3]["own"] == 3
    assert sum("(baseline" in line for line in caplog.messages) == 3
    assert "ended early" in caplog.text
    assert made.trainer.finished
    made.trainer.ledger.close()
    again, grid = strategy(**settings), InProcessGrid(app(), NODES)
    assert list(again.start(grid).evaluate_metrics_serverapp) == [1, 2, 3]
    assert grid.asked == []


def test_it_starts_from_the_arrays_that_it_is_given():
    made = strategy(rounds=1)
    zero = ArrayRecord({n: 0 * v for n, v in model().state_dict().items()})
    made.start(InProcessGrid(app(), NODES), zero, num_rounds=1)
    assert abs(flat(made)).max() < 1e-5


def test_a_server_that_crashes_in_the_first_round_goes_on(tmp_path):
    settings = {"checkpoint": tmp_path / "run.pt", "ledger": tmp_path / "l", "rounds": 3}

    def crash(replies):
        raise ConnectionError("the SuperLink is gone")

    first = strategy(**settings, budget=pv.Budget(2.0, 1e-3))
    with pytest.raises(ConnectionError):
        first.start(InProcessGrid(app(), NODES, crash))
    first.trainer.ledger.close()
    second = strategy(**settings, budget=pv.Budget(2.0, 1e-3))
    second.start(InProcessGrid(app(), NODES))
    assert second.trainer.steps_done == 2
    assert sum(second.trainer.ledger.totals().values()) == 3
    assert second.epsilon() <= 2.0


def test_a_server_that_crashes_goes_on_from_its_checkpoint(tmp_path):
    settings = {
        "checkpoint": tmp_path / "run.pt",
        "ledger": tmp_path / "clients.ledger",
        "rounds": 4,
        "sampling": "poisson",
        "clients": 100,
        "batch_size": 20,
        "budget": pv.Budget(2.0, 1e-3),
    }
    first, rounds = strategy(**settings), []

    def crash(replies):
        rounds.append(len(replies))
        if len(rounds) == 3:
            raise ConnectionError("the SuperLink is gone")
        return replies

    with pytest.raises(ConnectionError):
        first.start(InProcessGrid(app(), 100, crash))
    assert sum(first.trainer.ledger.totals().values()) == 3
    first.trainer.ledger.close()
    second = strategy(**settings)
    assert second.trainer.steps_done == 2
    second.start(InProcessGrid(app(), 100))
    # the round that was lost stays charged, and the run ends one round earlier
    assert second.trainer.steps_done == 3
    assert sum(second.trainer.ledger.totals().values()) == 4
    assert second.epsilon() <= 2.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": FedAvg()}, "weighs clients"),
        ({"weighted_by_key": "num-examples"}, "count alike"),
        ({"sampling": "fixed-size", "batch_size": 4}, "no fixed number"),
        ({"clients": 0}, "clients"),
        ({"resume": "x.pt"}, "checkpoint"),
    ],
)
def test_wrong_settings_are_refused_in_words(change, words):
    with pytest.raises(ArgumentError, match=words):
        strategy(**change)


def test_nothing_is_charged_where_clients_cannot_be_reached():
    made = strategy()
    with pytest.raises(ArgumentError, match="start"):
        made.trainer.step()

    class Gone(InProcessGrid):
        def get_node_ids(self):
            raise ConnectionError("the SuperLink is gone")

    with pytest.raises(ConnectionError):
        made.start(Gone(app(), NODES))
    assert made.trainer.ledger.charges() == ()


def test_other_numbers_of_rounds_and_parts_of_it_are_refused():
    made, grid = strategy(), InProcessGrid(app(), NODES)
    with pytest.raises(ArgumentError, match="rounds="):
        made.start(grid, num_rounds=3)
    with pytest.raises(ArgumentError, match="start"):
        made.configure_train(1, ArrayRecord(), {}, grid)
    with pytest.raises(ArgumentError, match="start"):
        made.aggregate_train(1, [])
    assert grid.asked == []


def in_turns(parts=2, **settings):
    return strategy(
        sampling=pv.participation.CyclicPoisson(parts),
        noise=pv.noise.Banded(parts),
        batch_size=NODES / parts,
        rounds=8,
        **settings,
    )


def rounds_of(made, grid):
    """Run it, and return the rounds in which each node was asked."""
    found, ask = {}, grid.send_and_receive

    def asked(messages, **given):
        messages = list(messages)
        for each in messages:
            found.setdefault(each.metadata.dst_node_id, []).append(made.trainer.steps_done)
        return ask(messages, **given)

    grid.send_and_receive = asked
    made.start(grid)
    return found


def test_nodes_that_take_turns_come_in_every_so_many_rounds():
    made = in_turns()
    found = rounds_of(made, InProcessGrid(app(), NODES))
    assert len(found) == NODES
    assert all(set(np.diff(each)) == {2} for each in found.values())
    assert sum(made.trainer.ledger.totals().values()) == 4
    assert "A client has one place" in str(made.statement())


def test_nodes_that_come_and_go_keep_their_turns():
    class Changing(InProcessGrid):
        def get_node_ids(self):
            everybody = list(super().get_node_ids())
            return everybody[len(self.asked) % 4 :]  # the first ones leave, and come back

    found = rounds_of(in_turns(parts=4), Changing(app(), NODES))
    assert {gap % 4 for each in found.values() for gap in np.diff(each)} == {0}


def test_nodes_that_come_later_take_turns_as_well():
    class Growing(InProcessGrid):
        def get_node_ids(self):
            return list(super().get_node_ids())[-NODES - 4 * len(self.asked) :]

    found = rounds_of(in_turns(), Growing(app(), NODES + 20))
    assert len(found) == NODES + 20
    assert all(set(np.diff(each)) <= {2} for each in found.values())


def test_a_server_that_crashes_in_a_turn_begins_a_new_one_and_keeps_its_budget(tmp_path):
    settings = {
        "checkpoint": tmp_path / "run.pt", "ledger": tmp_path / "l", "budget": pv.Budget(8.0, 1e-3),
    }  # fmt: skip
    rounds = []

    def crash(replies):
        rounds.append(len(replies))
        if len(rounds) == 4:  # the second of a turn of two
            raise ConnectionError("the SuperLink is gone")
        return replies

    first = in_turns(**settings)
    with pytest.raises(ConnectionError):
        first.start(InProcessGrid(app(), NODES, crash))
    assert sum(first.trainer.ledger.totals().values()) == 2
    first.trainer.ledger.close()
    second = in_turns(**settings)
    assert second.trainer.steps_done == 3
    second.start(InProcessGrid(app(), NODES))
    # two of four turns are left, of two rounds each
    assert second.trainer.steps_done == 7
    assert sum(second.trainer.ledger.totals().values()) == 4
    assert second.epsilon() <= 8.0
