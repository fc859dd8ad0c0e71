"""What every noise must do: nothing unpaid, as much as was paid for, and nothing predictable."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy import stats

import privada as pv
from privada.accounting import events
from privada.core.errors import ArgumentError, LedgerError
from privada.core.randomness import SecureSource, SeededSource
from privada.core.values import ClippedSum, Release
from privada.noise.gaussian import lattice_spacing
from tests.examples.two_servers import TwoServers

NOISES = {
    "independent": pv.noise.Independent(),
    "two servers": TwoServers(),
    "banded": pv.noise.Banded(1),
}
SIGMA, SENSITIVITY = 1.7, 0.3
EVENT = events.poisson(0.1, SIGMA)


def receipt(event=EVENT, count=1):
    return pv.Ledger(None).charge({event: count}, run="first").use(event, count)


@pytest.fixture(params=NOISES)
def noise(request):
    return NOISES[request.param]


def test_it_is_a_noise_and_has_a_name(noise):
    assert isinstance(noise, pv.noise.Noise)
    assert isinstance(noise.name, str)
    assert copy.deepcopy(noise) == noise


def test_a_release_is_charged_as_the_sampler_says_or_as_more(noise):
    for sampling in (pv.participation.Poisson(), pv.participation.FixedSize()):
        sampler = sampling.among(100, batch_size=10)
        mine = pv.accounting.epsilon_of({noise.event(sampler, SIGMA): 50}, 1e-5)
        assert mine >= pv.accounting.epsilon_of({sampler.event(SIGMA): 50}, 1e-5)


def test_the_noise_has_the_standard_deviation_that_was_paid_for(noise):
    count = 20_000
    stream = noise.start(SecureSource())
    release = stream.release(ClippedSum(torch.zeros(count), SENSITIVITY), receipt(), 10)
    values = release.value.double().numpy()
    std = SIGMA * SENSITIVITY
    assert release.noise_std == pytest.approx(std)
    low, high = stats.chi2.interval(1 - 1e-8, count)  # a false alarm in 1e8
    assert low < (values**2).sum() / std**2 < high
    assert abs(values.mean()) < 6 * std / math.sqrt(count)
    spacing = lattice_spacing(std)  # of releases, smoothed out here
    values += np.random.default_rng(0).uniform(-spacing / 2, spacing / 2, count)
    assert stats.kstest(values / std, "norm").pvalue > 1e-8


def test_the_value_is_kept_under_the_noise(noise):
    stream = noise.start(SeededSource(3, "noise"))
    value = torch.linspace(-1, 1, 50)
    found = stream.release(ClippedSum(value.clone(), SENSITIVITY), receipt(), 10).value
    none = noise.start(SeededSource(3, "noise")).release(
        ClippedSum(torch.zeros(50), SENSITIVITY), receipt(), 10
    )
    # both lie on a lattice whose spacing is at most a thirty-second of the standard deviation
    assert float((found - none.value - value).abs().max()) <= SIGMA * SENSITIVITY / 16


def test_extra_coordinates_have_the_same_noise_and_come_apart(noise):
    clipped = ClippedSum(torch.zeros(24), SENSITIVITY, extra=20)
    release = noise.start(SecureSource()).release(clipped, receipt(), 10)
    assert release.value.shape == (4,)
    assert release.statistics.shape == (20,)  # so many are never all zero, on the lattice
    assert bool(release.statistics.any())


def test_releases_of_one_stream_are_unrelated(noise):
    stream, count = noise.start(SecureSource()), 20_000
    one, other = (
        stream.release(ClippedSum(torch.zeros(count), 1.0), receipt(), 10).value.double().numpy()
        for _ in range(2)
    )
    assert abs(np.corrcoef(one, other)[0, 1]) < 6 / math.sqrt(count)


def test_nothing_is_released_without_a_receipt_or_twice_for_one(noise):
    stream, paid = noise.start(SecureSource()), receipt()
    for wrong in (None, EVENT, SIGMA, object()):
        with pytest.raises(ArgumentError, match="receipt"):
            stream.release(ClippedSum(torch.zeros(3), SENSITIVITY), wrong, 10)
    stream.release(ClippedSum(torch.zeros(3), SENSITIVITY), paid, 10)
    clipped = ClippedSum(torch.zeros(3), SENSITIVITY)
    with pytest.raises(LedgerError, match="again"):
        stream.release(clipped, paid, 10)
    assert not bool(clipped.value.any())  # nothing was added either


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan")])
def test_a_sum_without_a_sensitivity_is_refused_and_nothing_is_spent(noise, wrong):
    paid = receipt()
    with pytest.raises(ArgumentError, match="sensitivity"):
        noise.start(SecureSource()).release(ClippedSum(torch.zeros(3), wrong), paid, 10)
    assert paid.left == 1


def test_it_says_whether_it_is_secure(noise):
    secure, seeded = noise.start(SecureSource()), noise.start(SeededSource(1, "noise"))
    assert secure.secure
    assert not seeded.secure
    assert "seeded: not a private release" in seeded.describe()
    assert "seeded" not in secure.describe()


def test_secure_noise_is_another_one_each_time_and_seeded_noise_the_same(noise):
    def draw(source):
        clipped = ClippedSum(torch.zeros(20), 1.0)
        return noise.start(source).release(clipped, receipt(), 10).value

    assert not torch.equal(draw(SecureSource()), draw(SecureSource()))
    assert torch.equal(draw(SeededSource(1, "noise")), draw(SeededSource(1, "noise")))


def test_a_release_cannot_be_made_without_a_receipt():
    with pytest.raises(ArgumentError, match="receipt"):
        Release(torch.zeros(3), 1.0, 10.0, None)
    with pytest.raises(TypeError):
        Release(torch.zeros(3), 1.0, 10.0)


@pytest.mark.parametrize("wrong", ["independent", pv.noise.Independent, 1.0])
def test_what_is_no_noise_is_refused_with_the_remedy(wrong):
    with pytest.raises(ArgumentError, match=r"noise.*pv\.noise\.Independent\(\)"):
        pv.Trainer(
            torch.nn.Linear(2, 1), torch.nn.MSELoss(), (torch.zeros(9, 2), torch.zeros(9, 1)),
            method=pv.methods.DPSGD(lr=0.1), batch_size=3, steps=1, noise_multiplier=1.0,
            delta=1e-3, noise=wrong,
        )  # fmt: skip
