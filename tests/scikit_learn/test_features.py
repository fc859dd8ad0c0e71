"""Estimators with a public encoder before the model."""

import pickle

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from torch import nn

import privada as pv

X, Y = load_digits(return_X_y=True)
TEST = np.arange(len(Y)) % 5 == 0


def encoder():
    torch.manual_seed(0)
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 2, 3), nn.ReLU())


def fitted(module, **changes):
    settings = {"epsilon": 3.0, "epochs": 2.0, "bounds": (0, 16), "seed": 0} | changes
    return pv.PrivateClassifier(features=module, **settings).fit(X[~TEST], Y[~TEST])


def test_features_are_those_of_rows_within_the_bounds_and_are_used_for_predictions(tmp_path):
    module = encoder()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = fitted(module, cache=tmp_path / "kept")
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert found.architecture_.inputs == 72
    assert module.training
    rows = torch.from_numpy(X[TEST] / 8 - 1).float()
    with torch.no_grad():
        encoded = module(rows).flatten(1)
        scores = found.model_[-1](encoded)
        torch.testing.assert_close(found.model_(rows), scores)
    assert np.array_equal(found.predict(X[TEST]), scores.argmax(dim=1))
    # the same as a fit on the features themselves
    by_hand = pv.PrivateClassifier(3.0, epochs=2.0, seed=0)
    with torch.no_grad():
        by_hand.fit(module(torch.from_numpy(X[~TEST] / 8 - 1).float()).flatten(1), Y[~TEST])
    torch.testing.assert_close(by_hand.model_.weight, found.model_[-1].weight, atol=1e-3, rtol=1e-3)
    assert len(list((tmp_path / "kept").iterdir())) == 1
    again = pickle.loads(pickle.dumps(found))
    assert np.array_equal(again.predict(X[TEST]), found.predict(X[TEST]))
    assert clone(found).fit(X[~TEST], Y[~TEST]).score(X[TEST], Y[TEST]) == found.score(
        X[TEST], Y[TEST]
    )


def test_the_statement_says_whose_encoder_it_is():
    said = " ".join(fitted(encoder()).statement_.assumptions)
    assert "Features were computed by Sequential, which was made without these records" in said
    fixed = " ".join(fitted(pv.features.Scattering2D((8, 8), J=1)).statement_.assumptions)
    assert "Features were computed" not in fixed


def test_sparse_rows_have_features_too():
    rows = scipy.sparse.csr_matrix(X[~TEST])
    dense = fitted(nn.Linear(64, 5))
    sparse = pv.PrivateClassifier(
        3.0, epochs=2.0, bounds=(-16, 16), seed=0, features=nn.Linear(64, 5)
    ).fit(rows, Y[~TEST])
    assert dense.architecture_ == sparse.architecture_
    assert sparse.predict(scipy.sparse.csr_matrix(X[TEST])).shape == (TEST.sum(),)


def test_a_regressor_has_features_and_the_rest_is_as_ever():
    found = pv.PrivateRegressor(
        3.0, bounds=(0, 16), target_bounds=(0, 9), features=encoder(), epochs=2.0, seed=0
    ).fit(X[~TEST], Y[~TEST])
    one, many = found.predict(X[:1]), found.predict(X)
    np.testing.assert_allclose(one, many[:1], rtol=1e-6)


def test_modules_that_mix_rows_are_refused_before_a_charge():
    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(dim=0)

    ledger = pv.Ledger(None, pv.Budget(3.0, 1e-4))
    asked = pv.PrivateClassifier(1.0, delta=1e-4, features=Centred(), ledger=ledger)
    with pytest.raises(pv.ModelError, match="by itself"):
        asked.fit(X, Y)
    assert not ledger.charges()


@pytest.mark.slow
def test_scattering_helps_on_digits():
    scattering = pv.features.Scattering2D((8, 8), J=1)
    whole = {"epochs": None}
    assert fitted(scattering, **whole).score(X[TEST], Y[TEST]) > 0.8
