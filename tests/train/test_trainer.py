import copy
import math
import warnings
from collections import Counter
from itertools import pairwise
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import privada as pv
from privada.accounting import epsilon_of, events, mixtures, pld
from privada.core.errors import ArgumentError, BudgetExceeded
from privada.core.randomness import SeededSource
from privada.noise.gaussian import add_noise_
from privada.participation import FixedSizeSampler, PoissonSampler

LOSS = nn.CrossEntropyLoss()


def problem(n=200, d=5, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)).astype(np.float32)
    y = (x @ rng.normal(size=(d, classes))).argmax(axis=1)
    return x, y


def zeroed(d=5, classes=3, dtype=torch.float32):
    model = nn.Linear(d, classes).to(dtype)
    for p in model.parameters():
        nn.init.zeros_(p)
    return model


def trainer(model=None, data=None, **changes):
    settings = {
        "method": pv.methods.DPSGD(lr=0.5, clip=1.0),
        "batch_size": 20,
        "steps": 10,
        "noise_multiplier": 1.0,
        "delta": 1e-3,
    } | changes
    settings = {key: value for key, value in settings.items() if value is not None}
    data = problem() if data is None else data
    return pv.Trainer(model or zeroed(), LOSS, data, **settings)


def numpy_dp_sgd(x, y, sampler, steps, sigma, clip, lr, batch_size, seed):
    """DP-SGD for softmax regression, written from Abadi et al., Algorithm 1, in NumPy.

    Only the sampled indices and the noise come from the library, for they must be the same.
    """
    classes = int(y.max()) + 1
    weight, bias = np.zeros((classes, x.shape[1])), np.zeros(classes)
    sampling, noise = SeededSource(seed, "sampling"), SeededSource(seed, "noise")
    for _ in range(steps):
        total = np.zeros(weight.size + bias.size)
        for i in sampler.draw(0, sampling):
            logits = weight @ x[i] + bias
            probabilities = np.exp(logits - logits.max())
            probabilities /= probabilities.sum()
            error = probabilities - np.eye(classes)[y[i]]
            gradient = np.concatenate([np.outer(error, x[i]).ravel(), error])
            total += gradient / max(1.0, np.linalg.norm(gradient) / clip)
        noisy = torch.from_numpy(total)
        add_noise_(noisy, sigma * clip, noise)
        step = lr * noisy.numpy() / batch_size
        weight -= step[: weight.size].reshape(weight.shape)
        bias -= step[weight.size :]
    return weight, bias


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
def test_dp_sgd_equals_the_papers_algorithm_with_the_same_noise(sampling):
    x, y = problem()
    fitted = trainer(
        zeroed(dtype=torch.float64),
        (x.astype(np.float64), y),
        sampling=sampling,
        seed=5,
        method=pv.methods.DPSGD(lr=0.3, clip=0.7),
    ).fit()
    sampler = PoissonSampler(200, 0.1) if sampling == "poisson" else FixedSizeSampler(200, 20)
    weight, bias = numpy_dp_sgd(x.astype(float), y, sampler, 10, 1.0, 0.7, 0.3, 20, seed=5)
    assert np.allclose(fitted.model.weight.detach().numpy(), weight, atol=1e-9)
    assert np.allclose(fitted.model.bias.detach().numpy(), bias, atol=1e-9)


def test_a_learning_rate_may_be_a_function_of_the_step():
    fitted = trainer(method=pv.methods.DPSGD(lr=lambda t: 1 / (1 + t), clip=1.0)).fit()
    assert [record.lr for record in fitted.history] == [1 / (1 + t) for t in range(10)]


def test_a_budget_is_met_and_nearly_used():
    fitted = trainer(noise_multiplier=None, delta=None, budget=pv.Budget(1.5, 1e-3)).fit()
    assert 0.998 * 1.5 < fitted.epsilon() <= 1.5
    assert fitted.epsilon() == pytest.approx(
        pv.accounting.epsilon(
            sampling_rate=0.1, noise_multiplier=fitted.noise_multiplier, steps=10, delta=1e-3
        )
    )


def test_fixed_size_sampling_is_calibrated_for_replacing_a_record():
    budget = pv.Budget(3.0, 1e-3)
    runs = {
        sampling: trainer(noise_multiplier=None, delta=None, budget=budget, sampling=sampling)
        for sampling in ("poisson", "fixed-size")
    }
    assert runs["fixed-size"].noise_multiplier > 1.9 * runs["poisson"].noise_multiplier
    fitted = runs["fixed-size"].fit()
    assert fitted.epsilon() <= 3.0
    assert "replacing one record" in str(fitted.statement())


@pytest.mark.parametrize(("epochs", "steps"), [(1, 10), (0.5, 5), (2.01, 21)])
def test_epochs_are_rounded_up_to_steps(epochs, steps):
    assert trainer(steps=None, epochs=epochs).steps == steps


def test_history_holds_one_record_a_step_and_epsilon_never_falls():
    fitted = trainer(steps=150).fit()
    history = fitted.history
    assert [record.step for record in history] == list(range(1, 151))
    epsilons = [record.epsilon for record in history]
    assert all(a <= b for a, b in pairwise(epsilons[:-1]))
    assert epsilons[-1] == fitted.epsilon()
    for record in (history[0], history[40], history[99]):
        exact = pv.accounting.epsilon(
            sampling_rate=0.1, noise_multiplier=1.0, steps=record.step, delta=1e-3
        )
        assert exact <= record.epsilon * (1 + 1e-9)
        assert record.epsilon <= 1.1 * exact
    assert {record.noise_multiplier for record in history} == {1.0}


def test_the_history_of_many_multipliers_bounds_each_prefix_closely_and_never_falls():
    method = pv.methods.ADPSGD(lr=0.1)
    fitted = trainer(
        method=method, steps=60, noise_multiplier=None, delta=None, budget=pv.Budget(2.0, 1e-3)
    ).fit()
    epsilons = [record.epsilon for record in fitted.history]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == fitted.epsilon()
    multipliers = [record.noise_multiplier for record in fitted.history]
    for steps in (5, 16, 17, 30, 32, 60):
        counts = {(0.1, sigma): 1 for sigma in multipliers[:steps]}
        with mock.patch.object(mixtures, "_MOST_EXACT", 60):
            exact, _ = pld.epsilon(counts, 1e-3)
        assert exact * (1 - 1e-4) <= epsilons[steps - 1] <= exact * 1.003


def test_steps_may_be_taken_one_by_one_and_not_beyond_the_plan():
    run = trainer(steps=3)
    for done in (1, 2, 3):
        run.step()
        assert run.steps_done == done
    with pytest.raises(pv.ArgumentError, match="planned 3 steps"):
        run.step()


def test_earlier_runs_on_a_ledger_add_up(tmp_path):
    path = tmp_path / "patients.ledger"
    budget = pv.Budget(3.0, 1e-3)
    with pv.Ledger(path, budget, dataset="patients") as ledger:
        first = trainer(ledger=ledger).fit()
    second = trainer(ledger=path, steps=5).fit()
    both = pv.accounting.epsilon(sampling_rate=0.1, noise_multiplier=1.0, steps=15, delta=1e-3)
    # the second run may have been chosen in the light of the first: a filter counts it
    assert both < second.epsilon() <= budget.epsilon
    assert second.epsilon() == second.ledger.price(second.ledger.totals())
    statement = second.statement()
    assert statement.epsilon == second.epsilon()
    assert (statement.kind, statement.accountant) == ("adaptive", "filter")
    assert statement.run_epsilon == pytest.approx(
        pv.accounting.epsilon(sampling_rate=0.1, noise_multiplier=1.0, steps=5, delta=1e-3)
    )
    assert statement.dataset == "patients"
    assert first.statement().run in str(statement)


def test_a_run_that_the_ledger_cannot_pay_for_is_refused_before_the_first_step(tmp_path):
    ledger = pv.Ledger(tmp_path / "x.ledger", pv.Budget(1.0, 1e-3))
    model = zeroed()
    with pytest.raises(pv.BudgetExceeded, match="Nothing was charged"):
        trainer(model, ledger=ledger, steps=10_000)
    assert ledger.charges() == ()
    assert torch.equal(model.weight, torch.zeros(3, 5))


def test_a_run_that_was_charged_before_is_not_told_that_nothing_was():
    ledger = pv.Ledger(None, pv.Budget(1.0, 1e-3), dataset="patients")
    bounds = {pv.accounting.events.gaussian(20.0): 1}
    ledger.charge(bounds, run="mine", purpose="statistics")
    with pytest.raises(pv.BudgetExceeded, match="Nothing more was charged"):
        trainer(ledger=ledger, run="mine", steps=10_000)
    with pytest.raises(pv.BudgetExceeded, match="Nothing was charged"):
        trainer(ledger=ledger, run="other", steps=10_000)


def test_the_budget_of_a_new_ledger_file_is_the_runs(tmp_path):
    path = tmp_path / "x.ledger"
    trainer(noise_multiplier=None, delta=None, budget=pv.Budget(1.0, 1e-3), ledger=path).fit()
    assert pv.Ledger(path).budget == pv.Budget(1.0, 1e-3)
    with pytest.raises(pv.LedgerError, match="declared before the first look"):
        trainer(noise_multiplier=None, delta=None, budget=pv.Budget(1.0, 1e-3), ledger=path)


class Pairs(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], int(self.y[i])


def test_every_form_of_data_gives_the_same_model():
    x, y = problem()
    forms = [
        (x, y),
        (x.tolist(), y.tolist()),
        (torch.tensor(x), torch.tensor(y)),
        (x.astype(np.float64), y.astype(np.int32)),
        (scipy.sparse.csr_matrix(x), y),
        (scipy.sparse.coo_array(x), y),
        TensorDataset(torch.tensor(x), torch.tensor(y)),
        Pairs(x, y),
    ]
    models = [trainer(data=form, seed=1).fit().model.weight.detach() for form in forms]
    for other in models[1:]:
        assert torch.allclose(models[0], other, atol=1e-6)


def test_a_seed_reproduces_a_run_and_nothing_else_does():
    weights = [trainer(seed=seed).fit().model.weight.detach() for seed in (1, 1, 2, None, None)]
    assert torch.equal(weights[0], weights[1])
    assert len({tuple(w.flatten().tolist()) for w in weights}) == 4


def test_a_seeded_run_says_that_it_is_not_private():
    statement = trainer(seed=1).fit().statement()
    assert not statement.private
    assert str(statement).count("seeded: not a private release") >= 2
    assert "is (" not in str(statement)
    assert trainer().fit().statement().private


def test_population_sets_the_rate_instead_of_the_number_of_records():
    run = trainer(population=400)
    assert run._run.mechanism.sampler.sampling_rate == 20 / 400
    assert "public population of 400" in str(run.fit().statement())


def test_a_delta_of_one_over_n_is_warned_about():
    with pytest.warns(UserWarning, match="1 / n"):
        trainer(delta=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(delta=1e-3)


def test_one_record_empty_batches_and_full_batches_work():
    one = ([[1.0, 2.0, 3.0, 4.0, 5.0]], [1])
    assert trainer(data=one, batch_size=1, delta=0.1).fit().steps_done == 10
    assert trainer(data=one, batch_size=0.001, delta=0.1).fit().steps_done == 10
    full = trainer(batch_size=200).fit()
    assert full.epsilon() == pytest.approx(
        pv.accounting.epsilon(sampling_rate=1.0, noise_multiplier=1.0, steps=10, delta=1e-3)
    )


def test_the_mode_and_the_generator_of_the_model_are_restored():
    model = zeroed().eval()
    state = torch.get_rng_state()
    trainer(model).fit()
    assert not model.training
    assert torch.equal(state, torch.get_rng_state())


def test_frozen_parameters_stay_and_do_not_count():
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    run = trainer(model).fit()
    assert torch.equal(model[0].weight, before)
    assert run._run.parameters.size == 15


def test_a_diverged_model_trains_on_noise_alone_without_an_exception():
    model = zeroed()
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    run = trainer(model).fit()
    assert run.steps_done == 10
    assert torch.isfinite(model.bias).all()


class Rejecting(nn.Module):
    """A model that fails on records beyond a limit."""

    def __init__(self, always=False):
        super().__init__()
        self.layer, self.always = zeroed(), always

    def forward(self, x):
        if self.always or bool((x > 50).any()):
            raise RuntimeError("secret value seen")
        return self.layer(x)


def test_a_record_on_which_the_model_fails_counts_as_zero():
    x, y = problem(n=30)
    spoilt = np.concatenate([x, np.full((1, 5), 99.0, np.float32)])
    labels = np.append(y, 0)
    weights = []
    for data in ((spoilt, labels), (np.where(spoilt > 50, np.nan, spoilt), labels)):
        model = Rejecting()
        records = Pairs(*data)  # a dataset, which is not searched for NaN when it is loaded
        trainer(model, records, seed=3, batch_size=31, delta=1e-3, engine="loop").fit()
        weights.append(model.layer.weight.detach())
    assert torch.allclose(*weights, atol=1e-6)


def test_a_record_that_cannot_be_read_counts_as_zero():
    class Torn(Pairs):
        def __getitem__(self, i):
            if i == 7:
                raise OSError("record 7 is torn")
            return super().__getitem__(i)

    assert trainer(data=Torn(*problem()), batch_size=200).fit().steps_done == 10


def test_a_model_that_fails_on_everything_is_an_error_before_anything_is_charged():
    ledger = pv.Ledger(None, pv.Budget(10.0, 1e-3))
    with pytest.raises(pv.ArgumentError, match="dummy example"):
        trainer(Rejecting(always=True), ledger=ledger)
    assert ledger.charges() == ()


def test_a_model_that_breaks_during_training_raises():
    model = Rejecting()
    run = trainer(model, engine="loop")
    run.step()
    model.always = True
    with pytest.raises(RuntimeError, match="secret value seen") as caught:
        run.step()
    # the failure on private records must not be chained to the one that is shown
    assert caught.value.__context__ is None


def test_nothing_private_is_in_the_representations_of_values_on_the_way():
    from privada.clipping import Batch
    from privada.core.values import ClippedSum

    assert "123" not in repr(ClippedSum(torch.tensor([123.0]), 1.0))
    assert "123" not in repr(Batch(torch.tensor([123.0]), torch.tensor([1])))


def test_a_diagonal_geometry_goes_through_the_query():
    run = trainer(seed=2)
    scales = {"weight": torch.full((3, 5), 2.0), "bias": torch.ones(3)}
    release = run.gradients.release(pv.preconditioning.diagonal(scales), 1.0)
    undone = pv.preconditioning.diagonal(scales, restore=True)
    restored = trainer(seed=2).gradients.release(undone, 1.0)
    flat = run._run.parameters.layout.join(scales)
    assert torch.allclose(restored.gradient, release.gradient * flat)
    assert torch.allclose(release.gradient, release.value / 20, rtol=1e-6)


def test_the_expected_batch_size_divides_whatever_was_drawn():
    run = trainer(seed=2, ledger=pv.Ledger(None))
    assert {
        run.gradients.release(pv.preconditioning.isotropic(), 1.0).batch_size for _ in range(5)
    } == {20}


def test_the_progress_bar_ends_with_the_epsilon(capsys):
    trainer(steps=3).fit(progress=True)
    shown = capsys.readouterr().err
    assert "dp-sgd" in shown
    assert "3/3" in shown
    assert "epsilon" in shown


def test_dp_sgd_learns():
    x, y = problem(n=4000)
    fitted = trainer(
        data=(x, y),
        method=pv.methods.DPSGD(lr=4.0, clip=1.0),
        batch_size=400,
        steps=100,
        noise_multiplier=None,
        delta=None,
        budget=pv.Budget(2.0, 1e-5),
        seed=0,
    ).fit()
    with torch.no_grad():
        right = fitted.model(torch.tensor(x)).argmax(dim=1).numpy() == y
    assert right.mean() > 0.9


def test_charges_of_a_run_are_exactly_its_steps():
    fitted = trainer(steps=37).fit()
    assert fitted.ledger.totals() == {events.poisson(0.1, 1.0): 37}
    assert math.isclose(fitted.statement().epsilon, fitted.epsilon())


def test_a_copied_trainer_trains_as_the_original_does():
    x, y = problem()
    network = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    first = trainer(network, (x, y), seed=5, ledger=pv.Ledger(None))
    second = copy.deepcopy(first)
    before = [p.detach().clone() for p in first.model.parameters()]
    for each in (first, second):
        each.fit()
    for old, a, b in zip(before, first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(old, a)


def test_a_copy_of_a_trainer_has_no_plan_of_its_own():
    first = trainer(steps=10)
    second = copy.deepcopy(first)
    for _ in range(6):
        first.step()
    with pytest.raises(pv.BudgetExceeded, match="declared before the first look"):
        second.fit()
    with pytest.raises(pv.BudgetExceeded, match="declared before the first look"):
        second.fit()  # to ask again does not help
    assert sum(first.ledger.totals().values()) <= 10
    assert first.epsilon() == first.ledger.price(first.planned(), 1e-3)
    assert not first.ledger.interrupted(first.statement().run)


def test_rows_of_a_sparse_matrix_stay_sparse_and_train_as_dense_ones_do():
    rng = np.random.default_rng(0)
    x = scipy.sparse.random(80, 30, density=0.2, format="csr", dtype=np.float32, random_state=0)
    y = rng.integers(0, 3, 80)
    models = []
    for data in ((x, y), (x.toarray(), y)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(30, 6), nn.Tanh(), nn.Linear(6, 3))
        made = trainer(model, data, seed=2, method=pv.methods.DPSGD(lr=0.5, clip=0.1)).fit()
        models.append(model)
        if data[0] is x:
            assert made._run.records.fetch(np.array([0])).sparse
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_sparse_rows_become_dense_for_a_model_that_cannot_take_them():
    x = scipy.sparse.random(80, 30, density=0.2, format="csr", dtype=np.float32, random_state=0)
    y = np.zeros(80, dtype=np.int64)
    model = nn.Sequential(nn.Unflatten(1, (5, 6)), nn.Flatten(), nn.Linear(30, 3))
    made = trainer(model, (x, y)).fit()
    assert not made._run.records.fetch(np.array([0])).sparse


def test_a_compiled_model_is_trained_through_what_it_was_made_from():
    models = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
        trainer(torch.compile(model) if compiled else model, seed=3).fit()
        models.append(model)
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(a, b)


def test_a_model_with_a_compiled_layer_is_refused():
    model = nn.Sequential(torch.compile(nn.Linear(5, 4)), nn.Linear(4, 3))
    with pytest.raises(pv.ModelError, match="compiled layer '0'"):
        trainer(model)


def test_what_is_charged_under_the_name_of_a_run_is_within_its_budget():
    budget = pv.Budget(1.0, 1e-4)
    ledger = pv.Ledger(None, pv.Budget(5.0, 1e-4), dataset="patients")
    other = events.gaussian(6.0)
    ledger.charge({other: 1}, run="mine", purpose="statistics")
    ledger.charge({other: 1}, run="another", purpose="statistics")
    alone = trainer(budget=budget, noise_multiplier=None, delta=None)
    mine = trainer(budget=budget, noise_multiplier=None, delta=None, ledger=ledger, run="mine")
    assert mine.noise_multiplier > 1.05 * alone.noise_multiplier
    mine.fit()
    own = mine.planned() + Counter({other: 1})
    assert 0.99 < mine.statement().run_epsilon == epsilon_of(own, 1e-4) <= 1.0
    with pytest.raises(ArgumentError, match="a new run"):
        trainer(budget=budget, noise_multiplier=None, delta=None, ledger=ledger, run="mine")


def test_a_run_whose_budget_is_spent_before_it_begins_is_refused():
    ledger = pv.Ledger(None, pv.Budget(5.0, 1e-4), dataset="patients")
    ledger.charge({events.gaussian(2.0): 1}, run="mine", purpose="statistics")
    with pytest.raises(BudgetExceeded, match=r"others of run .mine."):
        trainer(
            budget=pv.Budget(1.0, 1e-4),
            noise_multiplier=None,
            delta=None,
            ledger=ledger,
            run="mine",
        )


# ---------------------------------------------------------------------- data frames


@pytest.mark.parametrize("kind", ["float64", "Float32", "object", "mixed"])
def test_data_frames_of_numbers_are_like_arrays(kind):
    x, y = problem()
    x[:, 4] = x[:, 4] > 0
    frame = pd.DataFrame(x.astype(np.float64), index=np.arange(len(x))[::-1])
    frame = frame.astype({4: bool}) if kind == "mixed" else frame.astype(kind)
    targets = pd.Series(y, index=frame.index).astype("object" if kind == "object" else "Int64")
    one, two = (trainer(data=data, seed=1).fit() for data in ((x, y), (frame, targets)))
    torch.testing.assert_close(one.model.weight, two.model.weight)


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["Smith"] * 200),
        pd.Series(["Smith"] * 200, dtype="category"),
        pd.Series(pd.date_range("2020-01-01", periods=200)),
    ],
)
def test_data_frames_of_others_are_refused_without_a_quotation(column):
    x, y = problem()
    frame = pd.DataFrame(x)
    frame[4] = column
    for data, which in (((frame, y), "inputs"), ((x, column), "targets")):
        with pytest.raises(pv.DataError, match=f"{which} to be numbers in every column") as refused:
            trainer(data=data)
        assert "Smith" not in str(refused.value)
        assert refused.value.__context__ is None


def test_a_history_holds_no_record_and_is_pickled_as_figures():
    import pickle

    made = trainer(seed=3).fit()
    history = made.history
    copied = pickle.loads(pickle.dumps(history))
    assert type(copied) is tuple
    assert copied == tuple(history)
    held, seen = [history], set()
    while held:
        each = held.pop()
        if id(each) in seen or isinstance(each, (type, int, float, str)):
            continue
        seen.add(id(each))
        assert each is not made._run.records
        held += list(getattr(each, "__dict__", {}).values())
        held += list(each) if isinstance(each, (list, tuple, set)) else []
    assert len(seen) > 5
