"""Private logistic regression on the words of film reviews."""

import importlib.util
import warnings
from pathlib import Path

import pytest

import privada as pv
from tests.datasets import data_folder


def script():
    path = Path(__file__).parent.parent / "docs" / "imdb.py"
    spec = importlib.util.spec_from_file_location("imdb", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_logistic_regression_on_imdb_reaches_the_expected_accuracy_and_epsilon():
    imdb = script()
    data = imdb.load(data_folder("imdb.npz"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # delta is 1 / n, as in the paper
        trainer = imdb.train(data)
    assert 0.82 < imdb.accuracy(trainer.model, data.test_x, data.test_y) < 0.85
    assert trainer.epsilon() == pytest.approx(1.36, abs=0.005)
    by_rdp = pv.accounting.epsilon(
        sampling_rate=64 / 25_000,
        noise_multiplier=1.0,
        steps=12_500,
        delta=4e-5,
        accountant="rdp",
    )
    assert by_rdp == pytest.approx(1.51, abs=0.005)
    assert trainer.statement().private
