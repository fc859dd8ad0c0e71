"""What every accountant must do: bound the true cost, in every process and for every event.

To add an accountant, write one file as `SumAccountant` here is, and add a line to ACCOUNTANTS.
"""

import math
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privada.accounting import (
    Accountant,
    LossDistributionAccountant,
    MomentsAccountant,
    RenyiAccountant,
    accountants,
    batch_size,
    epsilon,
    epsilon_of,
    events,
    noise_multiplier,
    steps,
)
from privada.accounting.events import Tally
from privada.core.errors import ArgumentError, EventError
from tests.forks import PATIENCE


@dataclass(frozen=True)
class SumAccountant:
    """Adds up the epsilon of each event alone, each at its share of delta: basic composition.

    An example of an accountant in one file. Events of which only divergences are known cost
    infinity.
    """

    name, description, slow = "sum", "basic composition", False

    def epsilon(self, tally: Tally, delta: float) -> float:
        total = 0.0
        for event, count in tally.items():
            release = events.release_of(event)
            if release is None:
                return math.inf
            share = delta / sum(tally.values())
            total += count * epsilon_of({event: 1}, share, "pld")
        return total * (1 + 1e-12)


ACCOUNTANTS = [
    LossDistributionAccountant(),
    RenyiAccountant(),
    RenyiAccountant(common_orders=False),
    MomentsAccountant(),
    SumAccountant(),
]
GAUSSIAN, POISSON = events.gaussian(4.0), events.poisson(0.02, 1.5)
FIXED = events.fixed_size(1000, 20, 3.0)
SELECTED = events.Selected((events.items_of({POISSON: 20}),), 3.0, 1.0)
PARALLEL = events.Parallel((events.items_of({GAUSSIAN: 2}), events.items_of({POISSON: 30})))
TALLIES = {
    "one Gaussian": {GAUSSIAN: 1},
    "Gaussians": {GAUSSIAN: 7, events.gaussian(9.0): 2},
    "Poisson": {POISSON: 100},
    "both": {POISSON: 50, GAUSSIAN: 1, events.poisson(1e-4, 0.9): 500},
    "fixed size": {FIXED: 60},
    "many multipliers": {events.poisson(0.02, 1 + k / 20): 2 for k in range(60)},
    "selected": {SELECTED: 1},
    "parts": {PARALLEL: 1, GAUSSIAN: 1},
    "failures": {events.Failure(1e-7): 3, GAUSSIAN: 1},
    "failures alone": {events.Failure(1e-7): 3},
}


@pytest.fixture(params=ACCOUNTANTS, ids=lambda each: each.name)
def accountant(request: pytest.FixtureRequest) -> Accountant:
    found: Accountant = request.param
    return found


# ---------------------------------------------------------------------- a value


def test_it_is_a_value(accountant: Accountant) -> None:
    assert isinstance(accountant, Accountant)
    assert accountant.name.isprintable()
    assert accountant.description.isprintable()
    assert isinstance(accountant.slow, bool)
    again = pickle.loads(pickle.dumps(accountant))
    assert again == accountant
    assert hash(again) == hash(accountant)


def test_names_stand_for_values() -> None:
    for name in accountants.ACCOUNTANTS:
        value = accountants.accountant_of(name)
        assert value.name == name
        assert accountants.IN_WORDS[name] == value.description
        assert epsilon_of({POISSON: 30}, 1e-5, name) == epsilon_of({POISSON: 30}, 1e-5, value)


def test_different_accountants_are_different_values() -> None:
    assert len({*ACCOUNTANTS}) == len(ACCOUNTANTS)
    found = [epsilon_of({POISSON: 100}, 1e-5, each) for each in ACCOUNTANTS]
    assert len({*found}) >= 4


@pytest.mark.parametrize("unknown", ["PLD", "", None, 3, RenyiAccountant, object()])
def test_what_is_no_accountant_is_refused(unknown: object) -> None:
    with pytest.raises(ArgumentError, match="accountant"):
        epsilon_of({POISSON: 1}, 1e-5, unknown)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="accountant"):
        noise_multiplier(
            epsilon=1.0,
            delta=1e-5,
            sampling_rate=0.1,
            steps=3,
            accountant=unknown,  # type: ignore[arg-type]
        )


def test_everything_that_asks_for_an_accountant_takes_a_value(accountant: Accountant) -> None:
    sigma = noise_multiplier(
        epsilon=2.0, delta=1e-5, sampling_rate=0.05, steps=20, accountant=accountant
    )
    spent = epsilon(
        sampling_rate=0.05, noise_multiplier=sigma, steps=20, delta=1e-5, accountant=accountant
    )
    assert 1.9 < spent <= 2.0
    asked = {"epsilon": 2.0, "delta": 1e-5, "noise_multiplier": sigma, "accountant": accountant}
    assert steps(**asked, sampling_rate=0.05, most=1000) >= 20  # type: ignore[arg-type]
    assert batch_size(**asked, population=1000, steps=20) >= 45  # type: ignore[arg-type]


# ---------------------------------------------------------------------- an upper bound


def gaussian_delta(epsilon: float, sigma: float) -> float:
    """Return the delta of a Gaussian by its closed form, in high precision.

    Reference: Balle and Wang (2018), Improving the Gaussian Mechanism, Theorem 8.
    """
    with mp.workdps(50):
        e, s = mp.mpf(epsilon), mp.mpf(sigma)
        return float(mp.ncdf(1 / (2 * s) - e * s) - mp.exp(e) * mp.ncdf(-1 / (2 * s) - e * s))


@pytest.mark.parametrize("sigma", [0.7, 3.0, 40.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_a_gaussian_costs_no_less_than_its_closed_form(
    accountant: Accountant, sigma: float, delta: float
) -> None:
    found = epsilon_of({events.gaussian(sigma): 1}, delta, accountant)
    assert gaussian_delta(found, sigma) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("count", [1, 4, 25])
def test_gaussians_compose_to_no_less_than_one_with_less_noise(
    accountant: Accountant, count: int
) -> None:
    found = epsilon_of({events.gaussian(5.0): count}, 1e-5, accountant)
    assert gaussian_delta(found, 5.0 / math.sqrt(count)) <= 1e-5 * (1 + 1e-9)


@pytest.mark.parametrize("name", TALLIES)
def test_it_costs_no_less_than_the_tight_accountant(accountant: Accountant, name: str) -> None:
    """Which the tests hold to closed forms and to bounds from below."""
    tally = TALLIES[name]
    least = epsilon_of(tally, 1e-5, LossDistributionAccountant())
    assert epsilon_of(tally, 1e-5, accountant) >= least * (1 - 2e-3)


# ---------------------------------------------------------------------- what always holds


def test_nothing_costs_nothing(accountant: Accountant) -> None:
    assert epsilon_of({}, 1e-5, accountant) == 0
    assert epsilon_of({POISSON: 0}, 1e-5, accountant) == 0
    assert epsilon_of({events.Failure(1e-7): 3}, 1e-5, accountant) == 0


def test_no_noise_costs_infinity(accountant: Accountant) -> None:
    assert epsilon_of({events.gaussian(0.0): 1, POISSON: 2}, 1e-5, accountant) == math.inf


def test_failures_as_probable_as_delta_cost_infinity(accountant: Accountant) -> None:
    assert epsilon_of({events.Failure(1e-5): 1}, 1e-5, accountant) == math.inf
    assert epsilon_of({events.Failure(6e-6): 2, GAUSSIAN: 1}, 1e-5, accountant) == math.inf


def test_failures_take_their_share_of_delta(accountant: Accountant) -> None:
    with_failures = epsilon_of({events.Failure(4e-6): 2, GAUSSIAN: 1}, 1e-5, accountant)
    assert with_failures >= epsilon_of({GAUSSIAN: 1}, 2e-6, accountant)


def test_two_relations_together_are_refused(accountant: Accountant) -> None:
    with pytest.raises(EventError, match="one neighbouring relation"):
        epsilon_of({POISSON: 1, FIXED: 1}, 1e-5, accountant)


@pytest.mark.parametrize("name", TALLIES)
def test_more_costs_more_and_a_larger_delta_less(accountant: Accountant, name: str) -> None:
    tally = TALLIES[name]
    here = epsilon_of(tally, 1e-5, accountant)
    more = Counter(tally) + Counter(tally)
    assert epsilon_of(more, 1e-5, accountant) >= here * (1 - 2e-3)
    assert epsilon_of(tally, 1e-4, accountant) <= here * (1 + 2e-3)


@given(
    rate=st.floats(1e-3, 0.5),
    sigma=st.floats(0.8, 20),
    count=st.integers(1, 100),
    less=st.floats(1.05, 3),
)
@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda each: each.name)
def test_less_noise_costs_more(
    accountant: Accountant, rate: float, sigma: float, count: int, less: float
) -> None:
    here = epsilon_of({events.poisson(rate, sigma): count}, 1e-5, accountant)
    there = epsilon_of({events.poisson(rate, sigma / less): count}, 1e-5, accountant)
    assert there >= here * (1 - 2e-3)


def test_the_order_of_a_tally_means_nothing(accountant: Accountant) -> None:
    tally = TALLIES["many multipliers"] | {GAUSSIAN: 1}
    backwards = dict(reversed(tally.items()))
    accountants.costs._epsilon.cache_clear()
    first = epsilon_of(tally, 1e-5, accountant)
    accountants.costs._epsilon.cache_clear()
    assert epsilon_of(backwards, 1e-5, accountant) == first


PROGRAM = """
from privada.accounting import epsilon_of
from tests.contracts.test_accountants import ACCOUNTANTS, TALLIES
for each in ACCOUNTANTS:
    for tally in TALLIES.values():
        print(repr(epsilon_of(tally, 1e-5, each)))
"""


def test_every_process_finds_the_same_to_the_last_bit() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    (answers,) = found
    assert len(answers.split()) == len(ACCOUNTANTS) * len(TALLIES)
