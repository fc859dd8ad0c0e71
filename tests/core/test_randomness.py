import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from privada.core.errors import ArgumentError
from privada.core.randomness import (
    SecureSource,
    SeededSource,
    integers,
    make_source,
    random_words,
    uniforms,
)
from tests.forks import PATIENCE, from_fork


def test_seeded_bits_repeat_and_their_streams_and_draws_do_not():
    first = SeededSource(3, "noise")
    a, b = first.draw(64), first.draw(64)
    assert (SeededSource(3, "noise").draw(64) == a).all()
    assert (SeededSource(3, "noise", position=1).draw(64) == b).all()
    others = [a, b, SeededSource(3, "sampling").draw(64), SeededSource(4, "noise").draw(64)]
    assert len({bytes(x) for x in others}) == 4


def test_a_longer_draw_begins_like_a_shorter_one():
    assert (SeededSource(1, "x").draw(3 << 20)[:100] == SeededSource(1, "x").draw(100)).all()


def test_key_stream_is_aes_256_in_counter_mode():
    # NIST SP 800-38A, F.5.5: the key stream is the encryption of successive counters. With a
    # zero counter the first block is AES-256 of zero, checked against an independent mode (ECB).
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    from privada.core.randomness import _key_stream

    key = bytes(range(32))
    ecb = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    expected = b"".join(ecb.update(i.to_bytes(16, "big")) for i in range(70_000))
    assert bytes(_key_stream(key, len(expected))[: len(expected)]) == expected


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))]
)
def test_a_copy_of_secure_bits_repeats_nothing(copied):
    rng = SecureSource()
    twin = copied(rng)
    assert bytes(rng.draw(32)) != bytes(twin.draw(32))


def test_secure_bits_do_not_repeat_across_a_fork():
    rng = SecureSource()
    rng.draw(16)
    drawn = {from_fork(lambda: bytes(rng.draw(16))) for _ in range(4)}
    drawn.add(bytes(rng.draw(16)))
    assert len(drawn) == 5


def test_secure_bits_do_not_repeat_across_processes():
    program = (
        "from privada.core.randomness import SecureSource; print(bytes(SecureSource().draw(16)))"
    )
    command = [sys.executable, "-c", program]
    runs = [subprocess.check_output(command, timeout=PATIENCE) for _ in range(3)]
    assert len(set(runs)) == 3


def test_secure_bits_look_uniform():
    counts = np.bincount(SecureSource().draw(1 << 22), minlength=256)
    # one false alarm in 1e8; a byte that is a sixth too likely, or a bit by 0.5 %, is found
    assert stats.chisquare(counts).pvalue > 1e-8


def test_integers_are_uniform_and_in_range():
    drawn = integers(SeededSource(5, "x"), 7, 70_000)
    assert drawn.min() == 0
    assert drawn.max() == 6
    assert stats.chisquare(np.bincount(drawn)).pvalue > 1e-6


def test_integers_reject_what_would_bias_them():
    values = [np.array([2**64 - 1, 5], dtype=np.uint64), np.array([4], dtype=np.uint64)]

    class Scripted:
        secure = False

        def draw(self, size):
            return values.pop(0).view(np.uint8)

    # 2^64 mod 3 = 1: the last word would make 0 more likely and must be drawn again
    assert integers(Scripted(), 3, 2).tolist() == [1, 2]


def test_uniforms_are_uniform_and_strictly_inside():
    drawn = uniforms(SeededSource(2, "u"), 50_000)
    assert 0 < drawn.min() <= drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > 1e-6


def test_make_bits_is_secure_unless_seeded():
    assert make_source(None, "x").secure
    assert not make_source(0, "x").secure
    assert random_words(make_source(0, "x"), 3).dtype == np.uint64


@pytest.mark.parametrize("seed", [-1, 1.5, "a", True])
def test_a_bad_seed_is_refused(seed):
    with pytest.raises(ArgumentError, match="seed"):
        SeededSource(seed, "x")


class Ones:
    secure = False

    def draw(self, size):
        return np.full(size, 255, dtype=np.uint8)


def test_uniforms_stay_below_one():
    assert uniforms(Ones(), 1)[0] < 1
