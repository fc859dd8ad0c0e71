"""The scikit-learn estimators."""

import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import privada as pv
from privada import defaults, tables
from tests.data import data_folder

X, Y = load_digits(return_X_y=True)
TEST = np.arange(len(Y)) % 5 == 0
QUICK = {"epsilon": 3.0, "epochs": 1.0}


# Non-deterministic, so that scikit-learn itself leaves out check_pipeline_consistency: noise that
# could be had again would not be private. All others apply, and none is expected to fail.
@parametrize_with_checks([pv.PrivateClassifier(**QUICK), pv.PrivateRegressor(**QUICK)])
def test_scikit_learns_own_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def fitted(**changes):
    return pv.PrivateClassifier(**({**QUICK, "bounds": (0, 16)} | changes)).fit(X[~TEST], Y[~TEST])


def test_a_fit_keeps_to_its_budget_and_learns():
    found = fitted(epochs=None)
    assert found.epsilon_ == found.statement_.epsilon <= 3.0
    assert found.statement_.delta == 1e-4
    assert found.score(X[TEST], Y[TEST]) > 0.85
    chances = found.predict_proba(X[TEST])
    assert chances.shape == (TEST.sum(), 10)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    np.testing.assert_array_equal(found.classes_[chances.argmax(axis=1)], found.predict(X[TEST]))
    assert found.n_steps_ == len(found.history_)


def test_a_regressor_restores_its_targets():
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-1, 1, (4000, 3))
    targets = 100 + 50 * inputs @ [0.5, -0.3, 0.1]
    found = pv.PrivateRegressor(epsilon=3.0, target_bounds=(50, 150)).fit(inputs, targets)
    assert found.score(inputs, targets) > 0.9
    plain = pv.PrivateRegressor(epsilon=3.0).fit(inputs, (targets - 100) / 50)
    assert plain.score(inputs, (targets - 100) / 50) > 0.9


def test_sparse_and_dense_inputs_give_the_same_model():
    dense = fitted(bounds=None, random_state=1)
    sparse = pv.PrivateClassifier(**QUICK, random_state=1).fit(
        scipy.sparse.csr_matrix(X[~TEST]), Y[~TEST]
    )
    some = X[TEST][:50]
    np.testing.assert_allclose(
        dense.predict_proba(some), sparse.predict_proba(scipy.sparse.csr_array(some)), atol=1e-3
    )


def test_a_seed_makes_it_reproducible_and_not_private():
    one, two = fitted(random_state=3), fitted(random_state=3)
    np.testing.assert_array_equal(one.predict_proba(X[:9]), two.predict_proba(X[:9]))
    assert not one.statement_.private
    assert fitted().statement_.private


def test_clones_pipelines_and_pickles():
    line = make_pipeline(FunctionTransformer(lambda x: x / 16), pv.PrivateClassifier(**QUICK))
    clone(line).fit(X, Y).predict(X[:3])
    found = fitted()
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict(X[:9]), found.predict(X[:9]))
    assert again.statement_.epsilon == found.epsilon_
    copied = clone(found)
    with pytest.raises(NotFittedError):
        copied.predict(X)


def test_all_kinds_of_models_and_methods():
    assert fitted(model="mlp", hidden=(8, 8)).predict(X[:3]).shape == (3,)
    assert fitted(method="dp-sgd", lr=2.0, clip=1.0).method_ == pv.methods.DPSGD(lr=2.0, clip=1.0)
    method = pv.methods.ADADP()
    assert fitted(method=method).method_ is method


def test_classes_may_be_said_beforehand():
    few = Y < 3
    found = pv.PrivateClassifier(**QUICK, classes=range(10)).fit(X[few], Y[few])
    assert len(found.classes_) == 10
    words = np.array(["a", "b", "c"])[Y[few]]
    assert set(pv.PrivateClassifier(**QUICK).fit(X[few], words).classes_) == {"a", "b", "c"}


# ---------------------------------------------------------------------- searches are not free


def test_a_search_of_scikit_learn_is_refused_without_a_ledger():
    grid = {"clip": [0.5, 1.0]}
    with pytest.raises(ValueError, match="without a ledger none would count"):
        GridSearchCV(pv.PrivateClassifier(**QUICK), grid, error_score="raise").fit(X, Y)
    with pytest.raises(ValueError, match="without a ledger none would count"):
        cross_val_score(pv.PrivateClassifier(**QUICK), X, Y, error_score="raise")
    with pytest.raises(ValueError, match="without a ledger none would count"):
        GridSearchCV(
            make_pipeline(pv.PrivateClassifier(**QUICK)), {"privateclassifier__clip": [0.5]},
            n_jobs=2, error_score="raise",
        ).fit(X, Y)  # fmt: skip


def test_a_search_of_scikit_learn_is_charged_on_a_ledger(tmp_path):
    path = tmp_path / "digits.ledger"
    ledger = pv.Ledger(path, pv.Budget(20.0, 1e-4))
    private = pv.PrivateClassifier(epsilon=3.0, delta=1e-4, epochs=1.0, ledger=path)
    GridSearchCV(private, {"clip": [0.5, 1.0]}, cv=2, error_score="raise").fit(X, Y)
    runs = {charge.run for charge in ledger.charges()}
    assert len(runs) == 5  # two settings on two folds each, and the best on everything
    assert 3.0 < ledger.epsilon() <= 20.0
    tight = pv.Ledger(tmp_path / "tight", pv.Budget(3.5, 1e-4))
    private.set_params(ledger=tight.path)
    with pytest.raises(pv.BudgetExceeded):
        GridSearchCV(private, {"clip": [0.5, 1.0]}, cv=2, error_score="raise").fit(X, Y)
    assert tight.epsilon() <= 3.5


# ---------------------------------------------------------------------- rubbish


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": "1"}, "epsilon"),
        ({"delta": 2.0}, "delta"),
        ({"bounds": (16, 0)}, "low < high"),
        ({"bounds": (0, np.inf)}, "low < high"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 10**6}, "batch_size"),
        ({"epochs": -1}, "epochs"),
        ({"lr": 0}, "lr"),
        ({"clip": -1}, "clip"),
        ({"method": "magic"}, "method"),
        ({"method": "adadps"}, "side information"),
        ({"method": pv.methods.DPSGD(lr=1.0), "lr": 2.0}, "left out"),
        ({"model": "forest"}, "linear"),
        ({"random_state": -1}, "random_state"),
        ({"random_state": np.random.RandomState(1)}, "random_state"),
        ({"classes": [0, 1]}, "classes"),
        ({"unit": ""}, "unit"),
    ],
)
def test_rubbish_is_refused_and_nothing_is_charged(changes, words):
    ledger = pv.Ledger(None, pv.Budget(9.0, 1e-4))
    with pytest.raises(pv.PrivadaError, match=words):
        fitted(ledger=ledger, **changes)
    assert ledger.totals() == {}


def test_sample_weights_are_refused():
    with pytest.raises(pv.ArgumentError, match="sample_weight"):
        pv.PrivateClassifier(**QUICK).fit(X, Y, sample_weight=np.ones(len(Y)))


def test_targets_without_order_are_refused():
    with pytest.raises(pv.ArgumentError, match="target_bounds"):
        pv.PrivateRegressor(**QUICK, target_bounds=(1, 1)).fit(X, Y)
    with pytest.raises(pv.ArgumentError, match="sparse"):
        pv.PrivateClassifier(**QUICK, bounds=(0, 16)).fit(scipy.sparse.csr_matrix(X), Y)


# ---------------------------------------------------------------------- defaults


@pytest.mark.parametrize("records", [1, 2, 10, 1000, 60_000, 10**7])
def test_defaults_follow_from_the_number_of_records(records):
    found = defaults.settings(records)
    assert 1 <= found.batch_size <= max(1, records / 3)
    steps = found.steps_on(records)
    rates = np.array([found.method.lr(step) for step in range(steps)])
    # what noise of unit size adds up to over the run
    assert np.sqrt((rates**2).sum()) == pytest.approx(0.6 / 3**0.5, rel=2e-3 + 2 / steps)
    assert rates[-1] == pytest.approx(rates[0] / steps)
    assert found == defaults.settings(records)


def test_defaults_on_adult_are_as_good_as_plain_training():
    """With epsilon 1 alone given: .84 at least; plain logistic regression has .85."""
    folder = data_folder("adult.csv.gz")
    table = tables.read(folder / "adult.csv.gz")
    # the form's own lists and ranges; Adult is a published table, so a draft of it shows no secret
    schema = tables.draft(table, target="income", public=True)
    columns = {k: v for k, v in schema.columns.items() if k != "split"} | {"split": tables.Ignore()}
    encoded = tables.encode(table, tables.Schema(schema.target, columns))
    train = table.texts("split") == "train"
    asked = pv.PrivateClassifier(epsilon=1.0, random_state=0)  # without, a rare run has less
    private = asked.fit(encoded.inputs[train], encoded.targets[train])
    assert private.epsilon_ <= 1.0
    assert private.score(encoded.inputs[~train], encoded.targets[~train]) >= 0.84
