"""What a budget affords, against the accountants called directly and against simulated training."""

import json
import math

import numpy as np
import pytest
import torch

import privada as pv
from privada.accounting import epsilon_of, events
from privada.selection.planning import PlannedRun, default_batch_sizes, default_delta, plan
from privada.selection.recommendation import CHEAP, ENOUGH_STEPS, NEAR, choose_run
from privada.selection.stopping import draw_runs

BUDGET = pv.Budget(1.0, 1e-6)
SMALL = {
    "records": 60_000, "budget": BUDGET, "batch_sizes": [256, 1024, 4096], "epochs": [3, 30],
    "candidates": [1, 4, 40],
}  # fmt: skip


@pytest.fixture(scope="module")
def afforded():
    return plan(**SMALL, parameters=10_000)


def advised(**changes):
    return plan(**({**SMALL, "candidates": [1]} | changes)).recommendation.setting


# ---------------------------------------------------------------------- against direct calls


def test_the_noise_of_each_setting_is_that_of_the_accountant(afforded):
    assert [(each.batch_size, each.epochs) for each in afforded.settings] == [
        (size, epochs) for size in (256, 1024, 4096) for epochs in (3, 30)
    ]
    for each in afforded.settings:
        assert each.steps == math.ceil(each.epochs * 60_000 / each.batch_size)
        run = {
            "sampling_rate": each.batch_size / 60_000, "steps": each.steps, "delta": 1e-6,
        }  # fmt: skip
        assert each.noise_multiplier == pv.accounting.noise_multiplier(epsilon=1.0, **run)
        spent = pv.accounting.epsilon(noise_multiplier=each.noise_multiplier, **run)
        assert 0.999 < spent <= 1.0


def test_the_price_of_each_search_is_that_of_selection(afforded):
    chosen = afforded.recommendation.setting
    run = {
        "sampling_rate": chosen.batch_size / 60_000, "steps": chosen.steps, "delta": 1e-6,
    }  # fmt: skip
    for count in (1, 4, 40):
        prices = pv.selection.price(
            noise_multiplier=chosen.noise_multiplier, candidates=count, **run
        )
        expected = {each.how: each.epsilon for each in prices}
        found = [each for each in afforded.searches if each.candidates == count]
        assert {each.how: each.epsilon for each in found} == expected
        for each in found:
            needed = pv.selection.noise_multiplier(
                epsilon=1.0, candidates=count, how=each.how, **run
            )
            assert each.noise_multiplier == needed
            assert each.times == needed / chosen.noise_multiplier


def test_one_composed_run_is_the_single_run(afforded):
    (one,) = [s for s in afforded.searches if (s.how, s.candidates) == ("compose-pld", 1)]
    assert one.times == pytest.approx(1.0, rel=1e-3)
    assert one.epsilon == pytest.approx(1.0, rel=1e-3)
    assert one.epsilon <= 1.0


def test_with_all_records_in_every_step_the_run_noise_does_not_depend_on_the_steps():
    found = plan(**{**SMALL, "batch_sizes": [60_000], "epochs": [1, 10, 100], "candidates": [1]})
    for each in found.settings:
        assert each.steps == each.epochs
        assert each.run_noise == pytest.approx(found.whole_noise, rel=2e-3)


def test_fixed_size_samples_are_planned_too():
    found = plan(**{**SMALL, "batch_sizes": [1024], "epochs": [3], "candidates": [4]},
                 sampling="fixed-size")  # fmt: skip
    (each,) = found.settings
    expected = pv.accounting.noise_multiplier(
        epsilon=1.0, delta=1e-6, sampling_rate=1024 / 60_000, steps=176, sampling="fixed-size"
    )
    # what a trainer is charged for: 1,024 of 60,000, where a rate alone is rounded up
    assert each.noise_multiplier == pytest.approx(expected, rel=1e-6)
    charged = {events.fixed_size(60_000, 1024, each.noise_multiplier): 176}
    assert 0.999 < epsilon_of(charged, 1e-6) <= 1.0


# ---------------------------------------------------------------------- against training


def moved(size, target, *, records, batch_size, steps, noise_multiplier, lr, clip):
    """Return how far DP-SGD moves a linear model of records that are all alike."""
    model = torch.nn.Linear(size, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    inputs = torch.full((records, size), 0.0 if target == 0 else 1.0)
    pv.Trainer(
        model,
        torch.nn.MSELoss(),
        (inputs, torch.full((records, 1), float(target))),
        method=pv.methods.DPSGD(lr=lr, clip=clip),
        batch_size=batch_size,
        steps=steps,
        noise_multiplier=noise_multiplier,
        delta=1e-5,
        seed=3,
    ).fit()
    return float(model.weight.detach().norm())


def test_the_run_noise_is_what_training_gathers_over_the_most_that_gradients_can_do():
    size, lr, clip = 4000, 0.7, 0.3
    setting = PlannedRun(
        batch_size=16, epochs=10.0, steps=40, noise_multiplier=1.7, parameters=size
    )
    run = {"records": 64, "steps": setting.steps, "lr": lr, "clip": clip}
    noise = moved(size, 0, batch_size=16, noise_multiplier=setting.noise_multiplier, **run)
    signal = moved(size, 1e6, batch_size=64, noise_multiplier=1e-3, **run)
    assert signal == pytest.approx(lr * clip * setting.steps, rel=1e-2)
    # the norm of d Gaussians varies by 1 / sqrt(2 d) of itself: six of its deviations
    assert noise / signal == pytest.approx(setting.run_noise_norm, rel=0.01 + 6 / math.sqrt(8000))


def test_the_noise_of_a_step_and_of_a_run_in_a_simulation():
    setting = PlannedRun(batch_size=50, epochs=1.0, steps=100, noise_multiplier=2.0, parameters=9)
    rng = np.random.default_rng(5)
    steps = 2.0 * rng.standard_normal((20_000, 100)) / 50  # clip norm 1
    assert steps.std() == pytest.approx(setting.step_noise, rel=0.01)
    assert steps.mean(axis=1).std() == pytest.approx(setting.run_noise, rel=0.04)
    assert setting.step_noise_norm == pytest.approx(3 * setting.step_noise)
    assert setting.run_noise_norm == pytest.approx(3 * setting.run_noise)


@pytest.mark.parametrize(("how", "shape"), [("repeat-logarithmic", 0.0), ("repeat-geometric", 1.0),
                                            ("repeat-poisson", math.inf)])  # fmt: skip
def test_the_chance_of_one_run_or_none_is_that_of_the_numbers_drawn(afforded, how, shape):
    from privada.core.randomness import SeededSource

    few = sum(draw_runs(4, shape, SeededSource(i, "runs")) <= 1 for i in range(4000)) / 4000
    (found,) = [s for s in afforded.searches if (s.how, s.candidates) == (how, 4)]
    assert few == pytest.approx(found.one_at_most, abs=6 * 0.5 / math.sqrt(4000))


# ---------------------------------------------------------------------- the recommendation


def test_the_rule_is_as_documented():
    def setting(batch_size, epochs, steps, run_noise):
        sigma = run_noise * batch_size * math.sqrt(steps)
        return PlannedRun(batch_size, epochs, steps, sigma)

    least = setting(4096, 100.0, 1500, 1.0)
    near = setting(1024, 30.0, 1700, NEAR - 0.01)
    assert choose_run((least, near)) == near
    assert choose_run((least, setting(1024, 30.0, 1700, NEAR + 0.01))) == least
    assert choose_run((least, near, setting(2048, 30.0, 800, 1.02))).batch_size == 2048
    assert choose_run((least, near, setting(512, 10.0, ENOUGH_STEPS - 1, 1.0))) == near
    few = (setting(512, 10.0, 80, 1.0), setting(1024, 30.0, 120, 1.0))
    assert choose_run(few) == few[1]


def test_the_recommended_setting_is_near_the_least_and_in_the_table(afforded):
    chosen = afforded.recommendation.setting
    assert chosen in afforded.settings
    assert chosen.run_noise <= NEAR * min(each.run_noise for each in afforded.settings)
    assert (chosen.batch_size, chosen.epochs) == (1024, 30)


def test_more_records_or_epsilon_ask_for_larger_batches_and_leave_less_noise():
    sizes = [256, 1024, 4096, 16_384]
    small = advised(records=20_000, batch_sizes=sizes)
    large = advised(records=500_000, batch_sizes=sizes)
    assert small.batch_size < large.batch_size
    assert small.run_noise > large.run_noise
    strict = advised(budget=pv.Budget(0.2, 1e-6), batch_sizes=sizes)
    loose = advised(budget=pv.Budget(5.0, 1e-6), batch_sizes=sizes)
    assert strict.batch_size * strict.epochs < loose.batch_size * loose.epochs
    assert strict.run_noise > loose.run_noise


def test_the_size_of_the_model_scales_the_noise_and_not_the_choice(afforded):
    other = plan(**{**SMALL, "candidates": [4]}, parameters=1_000_000).recommendation.setting
    mine = afforded.recommendation.setting
    assert (other.batch_size, other.epochs) == (mine.batch_size, mine.epochs)
    assert other.run_noise_norm == pytest.approx(10 * mine.run_noise_norm)


def test_the_search_that_is_advised_needs_the_least_noise(afforded):
    search = afforded.recommendation.search
    # Poisson stopping has no run at all too often here
    rivals = [s for s in afforded.searches if s.candidates == 4 and s.how != "repeat-poisson"]
    assert search.candidates == 4
    assert search.noise_multiplier == min(each.noise_multiplier for each in rivals)


def test_the_words_carry_the_figures_of_the_table(afforded):
    words = str(afforded)
    chosen, search = afforded.recommendation.setting, afforded.recommendation.search
    assert f"noise multiplier of {chosen.noise_multiplier:.4g}" in words
    assert f"{search.times:.3g} times the noise of one run" in words
    assert "4 clip norms" in words
    assert "not a promise of accuracy" in words
    assert not afforded.recommendation.warnings
    forty = min(each.noise_multiplier for each in afforded.searches if each.candidates == 40)
    assert forty <= CHEAP * search.noise_multiplier
    assert f"{1 - search.noise_multiplier / forty:.0%} less noise" in words


def test_without_searches_there_is_no_word_of_them():
    found = plan(**{**SMALL, "batch_sizes": [1024], "epochs": [30], "candidates": [1]})
    assert found.recommendation.search is None
    assert "clip norms" not in str(found)


def test_warnings_are_for_delta_for_few_steps_and_for_noise_beyond_the_signal():
    found = plan(
        records=1000, budget=pv.Budget(0.1, 1e-3), parameters=10**6, batch_sizes=[500],
        epochs=[10], candidates=[1],
    )  # fmt: skip
    words = " ".join(found.recommendation.warnings)
    assert "delta=0.001 is not below 1 / n" in words
    assert "20 steps may be too few" in words
    assert "Train fewer parameters" in words
    assert "Warning: " in str(found)


def test_a_way_that_cannot_reach_the_budget_has_no_noise():
    found = plan(
        records=60_000, budget=pv.Budget(0.01, 1e-6), batch_sizes=[1024], epochs=[10],
        candidates=[4],
    )  # fmt: skip
    by_way = {each.how: each for each in found.searches}
    assert by_way["liu-talwar"].noise_multiplier is None
    assert by_way["liu-talwar"].times is None
    assert found.recommendation.search.noise_multiplier is not None
    assert "no noise is enough" in found.figure()[1].to_json()


# ---------------------------------------------------------------------- defaults, forms, mistakes


@pytest.mark.parametrize(
    ("records", "delta"),
    [(1, 0.1), (8, 0.1), (9, 0.01), (100, 1e-3), (1000, 1e-4), (60_000, 1e-6), (10**10, 1e-11),
     (10**10 + 1, 1e-12)],
)  # fmt: skip
def test_the_default_delta(records, delta):
    found = default_delta(records)
    assert found == delta
    assert found < 1 / records
    assert records < 2 or found <= records**-1.1 * (1 + 1e-12) < 10 * found


@pytest.mark.parametrize("records", [1, 2, 3, 10, 47, 200, 1000, 60_000, 10**7])
def test_default_batch_sizes_are_within_the_records(records):
    sizes = default_batch_sizes(records)
    assert 1 <= len(sizes) <= 5
    assert list(sizes) == sorted(set(sizes))
    assert sizes[0] >= 1
    assert sizes[-1] <= max(1, records / 3)


def test_the_smallest_plan():
    found = plan(records=1, budget=pv.Budget(1.0, 0.1), candidates=[1])
    assert {each.batch_size for each in found.settings} == {1}


def test_repeated_entries_count_once_and_are_sorted():
    found = plan(**{**SMALL, "batch_sizes": [1024, 256, 256], "epochs": (3,), "candidates": {4}})
    assert [each.batch_size for each in found.settings] == [256, 1024]


def test_the_dictionary_is_plain_and_complete(afforded):
    fields = json.loads(json.dumps(afforded.to_dict(), allow_nan=False))
    assert len(fields["settings"]) == 6
    assert len(fields["searches"]) == 18
    first = afforded.settings[0]
    assert fields["settings"][0]["run_noise_norm"] == first.run_noise_norm
    assert fields["recommendation"]["setting"] == afforded.recommendation.setting.to_dict()
    assert fields["epsilon"] == 1.0


def test_the_charts_show_the_table(afforded):
    noise, price = afforded.figure()
    lines = {trace.name: trace for trace in noise.data}
    three = [each.run_noise_norm for each in afforded.settings if each.epochs == 3]
    assert list(lines["3 epochs"].y) == pytest.approx(three)
    assert lines["recommended"].x[0] == afforded.recommendation.setting.batch_size
    assert noise.layout.xaxis.type == noise.layout.yaxis.type == "log"
    assert {trace.name for trace in price.data} == {*pv.selection.WAYS, "budget"}
    assert set(price.data[-1].y) == {1.0}
    picture = afforded.picture()
    assert len(picture.data) == len(noise.data) + len(price.data)
    assert {trace.xaxis for trace in picture.data} == {"x", "x2"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"records": 0}, "records >= 1, got records=0"),
        ({"records": 1.5}, "records"),
        ({"budget": (1.0, 1e-6)}, "Budget"),
        ({"parameters": 0}, "parameters"),
        ({"batch_sizes": [60_001]}, "batch_size <= records"),
        ({"batch_sizes": [0]}, "batch_size"),
        ({"batch_sizes": []}, "batch_sizes"),
        ({"epochs": [0]}, "epochs"),
        ({"epochs": [float("nan")]}, "epochs"),
        ({"candidates": []}, "candidates"),
        ({"candidates": [0]}, "candidates"),
        ({"sampling": "shuffled"}, "sampling"),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(wrong, words):
    with pytest.raises(pv.ArgumentError, match=words):
        plan(**(SMALL | wrong))


def test_the_noise_for_an_adaptive_ledger_is_what_such_a_ledger_allows():
    budget = pv.Budget(1.0, 1e-6)
    found = plan(records=60_000, budget=budget, batch_sizes=[1024], epochs=[10], candidates=[4])
    run = found.recommendation.setting
    assert 1.02 < found.adaptive_noise / run.noise_multiplier < 1.2
    assert f"{found.adaptive_noise:.4g}" in str(found)
    for noise, allowed in ((found.adaptive_noise, True), (found.adaptive_noise * 0.99, False)):
        tally = {events.poisson(1024 / 60_000, noise): run.steps}
        assert (pv.Ledger(None, budget).cost("run", tally) <= budget.epsilon) == allowed
