"""method="newton" behind fit and predict."""

import numpy as np
import pytest

import privada as pv
from privada import defaults

RECORDS = 2000


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (RECORDS, 5)) * np.array([1, 1, 0.05, 1, 1])
    return x, (x @ [1.0, -1.0, 20.0, 0, 0]) / 3


def test_a_classifier_and_a_regressor_are_fitted_within_their_budget(table):
    x, numbers = table
    classifier = pv.PrivateClassifier(epsilon=1.0, method="newton", bounds=(-1, 1), seed=0)
    classifier.fit(x, numbers > 0)
    assert classifier.epsilon_ <= 1.0
    assert classifier.n_steps_ == 40
    assert classifier.score(x, numbers > 0) > 0.95
    regressor = pv.PrivateRegressor(
        epsilon=1.0, method="newton", bounds=(-1, 1), target_bounds=(-1, 1), seed=0
    )
    assert regressor.fit(x, numbers).score(x, numbers) > 0.99
    # a feature that is twenty times as short as others takes plain steps too long
    usual = pv.PrivateRegressor(epsilon=1.0, bounds=(-1, 1), target_bounds=(-1, 1), seed=0)
    assert usual.fit(x, numbers).score(x, numbers) < 0.9


def test_persons_are_protected_with_all_their_rows(table):
    x, numbers = table
    fitted = pv.PrivateRegressor(epsilon=3.0, method="newton", bounds=(-1, 1), seed=0)
    fitted.fit(x, numbers, groups=np.arange(RECORDS) // 2)
    assert fitted.statement_.unit == "person"
    assert fitted.score(x, numbers) > 0.95


def test_settings_that_are_given_are_kept(table):
    x, numbers = table
    fitted = pv.PrivateRegressor(method="newton", epochs=7, clip=0.5, lr=0.9, seed=0)
    fitted.fit(x, numbers)
    assert fitted.n_steps_ == 7
    assert (fitted.method_.clip, fitted.method_.lr) == (0.5, 0.9)
    fitted = pv.PrivateRegressor(method=pv.methods.PrivateNewton(share=0.4), seed=0)
    assert fitted.fit(x, numbers).method_.share == 0.4
    assert fitted.n_steps_ == 40


def test_models_that_are_not_linear_are_refused_with_words(table):
    with pytest.raises(pv.ModelError, match=r"Expected a torch.nn.Linear .* Use another method"):
        pv.PrivateClassifier(method="newton", model="mlp").fit(table[0], table[1] > 0)


def test_the_clip_norm_follows_from_public_numbers():
    def clip(records, features, outputs, epsilon):
        budget = pv.Budget(epsilon, 1e-6)
        return defaults.newton(records, features, outputs, budget).method.clip

    assert clip(4000, 263, 2, 1.0) == pytest.approx(2 * clip(2000, 263, 2, 1.0), rel=1e-3)
    assert clip(4000, 263, 2, 3.0) > 2 * clip(4000, 263, 2, 1.0)
    assert clip(4000, 527, 2, 1.0) == pytest.approx(clip(4000, 263, 2, 1.0) / 2**0.5, rel=1e-3)
    assert clip(10**7, 10, 2, 1.0) == 8.0
    assert clip(10**7, 10, 1, 1.0) == 5.7
