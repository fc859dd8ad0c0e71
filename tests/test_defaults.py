"""Settings that need no tuning: they follow from public figures alone."""

import math

import pytest

import privada as pv
from privada import defaults
from privada.core.errors import ArgumentError


@pytest.mark.parametrize("records", [1, 2, 3, 10, 442, 60_000, 10**7])
def test_a_batch_is_near_five_roots_and_hides_who_is_in_it(records):
    size = defaults.batch_size(records)
    assert 1 <= size <= max(1, records / 3)
    if records > 1000:
        assert 1 / math.sqrt(2) <= size / (5 * math.sqrt(records)) <= math.sqrt(2)


@pytest.mark.parametrize("records", [0, -1, 1.5, "many"])
def test_records_are_counted(records):
    with pytest.raises(ArgumentError, match="records"):
        defaults.batch_size(records)


@pytest.mark.parametrize("steps", [1, 900, 10**6])
def test_noise_alone_moves_a_weight_as_far_in_any_number_of_steps(steps):
    assert defaults.learning_rate(steps) * math.sqrt(steps) == pytest.approx(0.3)


def test_what_is_said_is_kept_and_the_rest_follows():
    usual = defaults.settings(60_000)
    assert (usual.batch_size, usual.epochs) == (1024, 30)
    assert usual.steps_on(60_000) == math.ceil(30 * 60_000 / 1024)
    assert usual.method.clip == 0.5
    said = defaults.settings(60_000, batch=100, epochs=2, clip=3.0, lr=0.7)
    assert (said.batch_size, said.epochs, said.method.clip, said.method.lr) == (100, 2, 3.0, 0.7)


def test_the_rate_of_a_number_begins_at_a_sixth():
    usual, number = (defaults.settings(60_000, numbers=each).method.lr for each in (False, True))
    assert 6 * number(0) == pytest.approx(usual(0), rel=1e-3)
    assert defaults.settings(60_000, numbers=True, lr=0.7).method.lr == 0.7


def test_a_linear_model_of_classes_looks_at_its_features_for_3_percent_of_the_budget():
    budget = pv.Budget(1.0, 1e-5)
    given = {"linear": True, "budget": budget}
    looking = defaults.settings(60_000, **given)
    assert looking.method.clip == 0.12
    assert looking.method.preconditioner.preliminary(None) == (defaults.look(budget),)
    assert looking.method.lr(0) == pytest.approx(
        1.5 / math.sqrt(looking.steps_on(60_000)), rel=1e-3
    )
    # a Gaussian release costs as much as the inverse square of its multiplier, to first order
    alone = pv.accounting.noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=1.0, steps=1)
    assert (alone / defaults.look(budget)) ** 2 == pytest.approx(0.03, rel=1e-3)


@pytest.mark.parametrize(
    "other", [{"lr": 0.1}, {"clip": 1.0}, {"numbers": True}, {"linear": False}, {"budget": None}]
)
def test_others_do_not_look(other):
    given = {"linear": True, "budget": pv.Budget(1.0, 1e-5)} | other
    assert defaults.settings(60_000, **given).method.preconditioner is None
    assert defaults.settings(999, linear=True, budget=pv.Budget(1.0, 1e-5)) == defaults.settings(
        999
    )


@pytest.mark.parametrize(
    ("records", "columns", "bins"),
    [(500, 1, 16), (499, 1, 8), (20, 1, 8), (19, 1, 0), (10_000, 20, 16), (100, 20, 0), (0, 0, 0)],
)
def test_bins_are_fewer_where_records_are_few_for_each_column(records, columns, bins):
    assert defaults.bins(records, columns) == bins


@pytest.mark.parametrize("name", ["batch", "epochs", "clip", "lr"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, "x"])
def test_rubbish_is_refused_by_name(name, value):
    with pytest.raises(ArgumentError, match="batch_size" if name == "batch" else name):
        defaults.settings(1000, **{name: value})


@pytest.mark.parametrize("name", pv.methods.names())
def test_every_method_is_made_by_its_name(name):
    public = ([[0.0, 1.0], [1.0, 0.0]], [0, 1])
    more = {"adaptive_lr": 0.1} if name == "dp2-rmsprop" else {}
    made = defaults.named(name, public, lr=0.1, clip=None, **more)
    assert made.name == name


def test_settings_of_another_method_are_refused():
    with pytest.raises(ArgumentError, match="got speed"):
        defaults.named("dp-sgd", speed=1)
    with pytest.raises(ArgumentError, match="public"):
        defaults.named("adadps", lr=0.1)
