"""Global generators: hidden for a while, with streams for each record, then as before."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from privada.core.hidden_streams import HiddenStreams, hidden_generator
from privada.core.randomness import SecureSource, SeededSource

CPU = torch.device("cpu")
_numpy: Any = np.random


def drawn() -> tuple[float, ...]:
    """Return a number of each global generator; normals, of which two are made at a time."""
    return float(torch.randn(1)), _numpy.randn(), random.gauss(0, 1)


def seed_all() -> None:
    torch.manual_seed(0)
    _numpy.seed(0)
    random.seed(0)


@pytest.fixture(autouse=True)
def known() -> None:
    seed_all()


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("failing", [False, True])
def test_all_generators_go_on_as_if_nothing_had_been(waiting: bool, failing: bool) -> None:
    def run(hide: bool) -> list[tuple[float, ...]]:
        seed_all()
        found = [drawn()] if waiting else []
        if hide:
            try:
                with hidden_generator(SecureSource(), CPU):
                    drawn()
                    if failing:
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                pass
        return [*found, drawn(), drawn(), drawn()]

    assert run(hide=True) == run(hide=False)


def test_a_numpy_generator_of_another_kind_is_put_back() -> None:
    before = _numpy.get_bit_generator()
    other = np.random.PCG64(3)
    _numpy.set_bit_generator(other)
    try:
        first = np.random.RandomState(np.random.PCG64(3)).rand(2)
        with hidden_generator(SecureSource(), CPU):
            drawn()
        assert _numpy.get_bit_generator() is other
        assert _numpy.rand(2).tolist() == first.tolist()
    finally:
        _numpy.set_bit_generator(before)


def test_one_within_another_leaves_the_outer_as_it_was() -> None:
    def outer(nested: bool) -> list[tuple[float, ...]]:
        with hidden_generator(SeededSource(1, "model"), CPU):
            found = [drawn()]
            if nested:
                with hidden_generator(SecureSource(), CPU):
                    drawn()
            return [*found, drawn(), drawn()]

    assert outer(nested=True) == outer(nested=False)


def test_streams_of_a_record_depend_on_the_secret_and_the_record_alone() -> None:
    with hidden_generator(SeededSource(1, "model"), CPU) as streams:
        start = drawn()
        streams.of_record(7)
        first = drawn()
        streams.of_record(8)
        other = drawn()
        drawn()
        streams.of_record(7)
        assert drawn() == first
        streams.restart()
        assert drawn() == start
    numbers = {*start, *first, *other}
    assert len(numbers) == 9
    with hidden_generator(SeededSource(2, "model"), CPU) as streams:
        streams.of_record(7)
        assert not numbers & set(drawn())


def test_a_normal_that_one_record_leaves_over_is_not_the_next_records() -> None:
    with hidden_generator(SeededSource(1, "model"), CPU) as streams:
        streams.of_record(7)
        usual = drawn(), drawn()
        streams.of_record(6)
        drawn()  # which leaves one over
        streams.of_record(7)
        assert (drawn(), drawn()) == usual


def test_seeds_of_records_are_all_different() -> None:
    with hidden_generator(SecureSource(), CPU) as streams:
        assert len({streams.of_record(index) for index in range(2000)}) == 2000
    other = HiddenStreams(SecureSource(), CPU)
    assert other._secret != streams._secret
