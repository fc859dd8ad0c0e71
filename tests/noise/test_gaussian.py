import copy
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privada.accounting import Ledger, events
from privada.core.errors import ArgumentError, EventError, LedgerError
from privada.core.randomness import SecureSource, SeededSource, uniforms
from privada.core.receipts import Receipt
from privada.core.values import ClippedSum, Release
from privada.noise import GaussianNoise
from privada.noise import gaussian as module
from privada.noise.gaussian import add_noise_
from tests.forks import PATIENCE, from_fork
from tests.releases import paid

COUNT = 4_000_000
PAIRS = 1 << 18


class Constant:
    """RandomSource that are all the same."""

    secure = False

    def __init__(self, byte):
        self.byte = byte

    def draw(self, size):
        return np.full(size, self.byte, np.uint8)


def normals(rng, count=COUNT):
    drawn = np.empty(count)
    for place, some in module._Normals((count + 1) // 2).halves(rng, count, 1.0):
        drawn[place] = some
    return drawn


@pytest.fixture(scope="module", params=["secure", "seeded"])
def sample(request):
    """Normals from both sources; of secure ones each test below has a false alarm in 1e7 at most.

    Six standard deviations are passed once in 5e8.
    """
    rng = SecureSource() if request.param == "secure" else SeededSource(1, "noise")
    return np.concatenate([normals(rng, 2 * PAIRS) for _ in range(8)])


def test_moments_are_those_of_a_standard_normal(sample):
    n = sample.size
    # the k-th sample moment of a normal has variance (m_2k - m_k^2) / n
    for order, expected, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        found = (sample**order).mean()
        assert abs(found - expected) < 6 * np.sqrt(spread / n), order


def test_distribution_is_normal(sample):
    assert stats.kstest(sample[::8], "norm").pvalue > 1e-8


def test_tails_are_neither_cut_nor_fat(sample):
    for limit in (2.0, 3.0, 4.0, 4.5, 5.0):
        expected = sample.size * 2 * stats.norm.sf(limit)
        found = int((np.abs(sample) > limit).sum())
        low, high = stats.poisson.interval(1 - 1e-8, expected)
        assert low <= found <= high, limit


def test_halves_of_a_pair_and_neighbours_are_independent(sample):
    half = PAIRS
    first, second = sample[:half], sample[half : 2 * half]
    bound = 6 / np.sqrt(half)
    for a, b in ((first, second), (first[1:], first[:-1]), (first, sample[2 * half : 3 * half])):
        a, b = a[: b.size], b[: a.size]
        assert abs((a * b).mean()) < bound
        assert abs(((a**2 - 1) * (b**2 - 1)).mean()) < 2 * bound
        assert abs((np.sign(a) * np.sign(b)).mean()) < bound


def test_extreme_bits_give_finite_normals_that_reach_the_tails():
    for byte in (0x00, 0xFF, 0x80, 0x7F, 0x01):
        assert np.isfinite(normals(Constant(byte), 16)).all()
    # all-zero bits are the smallest uniform, 2^-32 of 2^-54: the largest radius
    pair = normals(Constant(0), 2)
    assert np.hypot(*pair) == pytest.approx(np.sqrt(2 * 86 * np.log(2)), rel=1e-6)


class SmallRadii:
    """RandomSource whose leading 32 bits are below a bound, so that only far tails are drawn."""

    secure = False

    def __init__(self, below):
        self.inner, self.below = SeededSource(4, "tails"), below

    def draw(self, size):
        drawn = self.inner.draw(size)
        if self.inner.position == 1:  # the pairs; what follows are the finer uniforms
            words = drawn.view(np.uint32)
            words[: words.size // 2] %= np.uint64(self.below)
        return drawn


def test_the_far_tails_have_the_right_law():
    for below in (1 << 20, 1 << 16, 1 << 6, 1):
        drawn = normals(SmallRadii(below), 2 * PAIRS).reshape(2, PAIRS)
        # given u < below / 2^32, r^2 / 2 - log(2^32 / below) is a standard exponential
        excess = (drawn**2).sum(axis=0) / 2 - np.log(2.0**32 / below)
        assert stats.kstest(excess, "expon").pvalue > 1e-6


@given(
    std=st.floats(1e-6, 1e6),
    size=st.integers(1, 700),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_releases_lie_on_a_lattice_that_depends_on_the_noise_alone(std, size, scale, seed):
    value = torch.sin(torch.arange(size, dtype=torch.float32)) * scale * std
    before = value.clone()
    add_noise_(value, std, SeededSource(seed, "noise"))
    spacing = 2.0 ** (np.floor(np.log2(std)) - 5)
    points = value.double() / spacing
    assert torch.equal(points, points.round())
    assert float((value - before).abs().max()) <= 10.9 * std + spacing


def test_two_inputs_reach_the_same_set_of_outputs():
    seen = []
    for shift in (0.0, 0.0031 + 1e-7):
        value = torch.full((200_000,), shift)
        add_noise_(value, 0.01, SeededSource(3, "noise"))
        seen.append({v for v in value.tolist() if abs(v) < 0.02})
    assert seen[0] == seen[1]
    assert len(seen[0]) > 100


def test_lattice_points_have_the_probabilities_of_a_rounded_gaussian():
    value = torch.full((2_000_000,), 0.3)
    add_noise_(value, 1.0, SeededSource(5, "noise"))
    points, counts = np.unique(np.rint(value.double().numpy() * 32).astype(int), return_counts=True)
    edges = (np.arange(points[0], points[-1] + 2) - 0.5) / 32
    expected = np.diff(stats.norm.cdf(edges - 0.3)) * value.numel()
    observed = np.zeros_like(expected)
    observed[points - points[0]] = counts
    common = expected > 20
    wanted = expected[common] * observed[common].sum() / expected[common].sum()
    assert stats.chisquare(observed[common], wanted).pvalue > 1e-6


def test_noise_is_unbiased_wherever_the_value_lies_in_its_cell():
    for shift in (0.0, 0.004, 0.012, 0.0156, 0.031):
        value = torch.full((1_000_000,), shift)
        add_noise_(value, 1.0, SeededSource(8, "noise"))
        assert abs(float(value.double().mean()) - shift) < 6 / 1000


def test_a_value_far_larger_than_the_noise_keeps_its_noise():
    value = torch.full((100_000,), 1000.0)
    add_noise_(value, 1.0, SeededSource(9, "noise"))
    assert float(value.double().std()) == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 1001])
def test_any_length_and_type_works(dtype, size):
    value = torch.zeros(size, dtype=dtype)
    add_noise_(value, 1.0, SecureSource())
    assert value.dtype == dtype
    assert torch.isfinite(value).all()


@pytest.fixture
def parts(monkeypatch):
    """Work on a hundred coordinates at a time, in a number of threads."""

    def use(threads):
        monkeypatch.setattr(module, "_PAIRS", 50)
        monkeypatch.setattr(module, "_buffers", threading.local())
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)

    return use


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("size", [1, 99, 100, 101, 250, 1234])
def test_every_part_of_a_vector_is_noised_once(parts, threads, secure, size):
    parts(threads)
    rng = SecureSource() if secure else SeededSource(1, "noise")
    drawn = np.zeros(size)
    for _ in range(100):
        value = torch.zeros(size)
        add_noise_(value, 1.0, rng)
        drawn += value.numpy() ** 2
    # sums of 100 squares: noise twice would give 200, none 0; one false alarm in 5e8 each
    assert (drawn > stats.chi2.ppf(1e-9 / size, 100)).all()
    assert drawn.mean() < stats.chi2.isf(1e-9, 100 * size) / size
    whole = value[: size // 10 * 10].view(-1, 10)
    assert len({tuple(row) for row in whole.tolist()}) == len(whole)


def test_a_thread_that_fails_is_heard(parts):
    class Failing(SecureSource):
        def draw(self, size):
            if threading.current_thread() is not threading.main_thread():
                raise OSError("no more entropy")
            return super().draw(size)

    parts(2)
    with pytest.raises(OSError, match="no more entropy"):
        add_noise_(torch.zeros(400), 1.0, Failing())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_devices_get_the_same_noise(dtype):
    values = torch.linspace(-50, 50, 1001, dtype=dtype)
    here, there = values.clone(), values.clone()
    for add, value in ((module._add_here, here), (module._add_there, there)):
        noise = module._Normals(501).halves(SeededSource(1, "noise"), 1001, 40.0)
        add(value, noise, 2.0**-7)
    assert torch.equal(here, there)


@pytest.mark.parametrize("size", [3, 1000])
def test_no_value_raises_whatever_numpy_is_set_to(parts, size):
    parts(2)
    value = torch.tensor([3e38, float("nan"), float("inf")]).repeat(size)[:size]
    with np.errstate(all="raise"):
        add_noise_(value, 1e-3, SecureSource())
        add_noise_(torch.full((size,), 1e-45), 1.0, SecureSource())


def exact_normals(rng, count):
    """The normals that the same bits would give without rounding, in units of 64 to 1."""
    pairs = (count + 1) // 2
    first, second = rng.draw(8 * pairs).view(np.uint32).reshape(2, pairs)
    u = (first + 0.5) * 2.0**-32
    rare = np.flatnonzero(first < 1 << 16)
    u[rare] = (first[rare] + uniforms(rng, rare.size)) * 2.0**-32
    angle = second.view(np.int32) * (np.pi * 2.0**-31)
    radius = np.sqrt(-2 * np.log(u)) * 64
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


# docs/noise.md has these: distances in standard deviations, and the error of a cell there
CELL_ERRORS = {0.5: 2.0**-16, 1: 2.0**-16, 2: 2.0**-15, 4: 2.0**-14, 6: 2.0**-14}


@pytest.mark.parametrize(("distance", "most"), CELL_ERRORS.items())
def test_rounding_takes_no_more_from_a_cell_than_the_docs_say(distance, most):
    """What crosses a border is its density times the mean distance that normals are moved."""
    sources = {0.5: 1 << 32, 1: 1 << 32, 2: 1 << 32, 4: 1 << 22, 6: 1 << 6}
    drawn = 64 * normals(SmallRadii(sources[distance]), 2 * PAIRS)  # cells have width 1
    exact = exact_normals(SmallRadii(sources[distance]), 2 * PAIRS)
    near = np.abs(np.abs(exact) - 64 * distance) < 8
    assert near.sum() > 10_000
    assert 2 * np.abs(drawn - exact)[near].mean() <= most


def below(u):
    """The share of uniforms below u: 32 bits, and 53 more where these are small."""
    return np.where(u < 2.0**-16, u, np.floor(u * 2.0**32 + 0.5) * 2.0**-32)


@pytest.mark.parametrize(("distance", "most"), {0: 2**-33, 2: 2**-31, 4: 2**-25, 5: 0}.items())
def test_bits_are_enough_for_every_cell(distance, most):
    cosine = np.abs(np.cos(np.random.default_rng(1).random(1 << 20) * 2 * np.pi))
    for left in (distance - 0.5 / 64, distance - 0.2 / 64):
        near, far = (np.maximum(x, 0) / cosine for x in (left, left + 1 / 64))
        high, low = np.exp(-(near**2) / 2), np.exp(-(far**2) / 2)
        wrong = ((below(high) - below(low)) - (high - low)).sum() / (high - low).sum()
        assert abs(wrong) <= most


def test_noise_follows_the_sensitivity_that_the_sum_carries():
    for sensitivity in (0.1, 1.0, 30.0):
        clipped = ClippedSum(torch.zeros(200_000), sensitivity)
        release = GaussianNoise(SeededSource(2, "noise")).release(clipped, paid(1.5), batch_size=10)
        assert release.noise_std == pytest.approx(1.5 * sensitivity)
        assert float(release.value.double().std()) == pytest.approx(1.5 * sensitivity, rel=0.02)
        assert release.batch_size == 10


@pytest.mark.parametrize("multiplier", [0, -1.0, float("nan"), float("inf")])
def test_there_is_no_release_without_noise(multiplier):
    clipped = ClippedSum(torch.zeros(3), 1.0)
    with pytest.raises((ArgumentError, EventError), match="noise_multiplier"):
        GaussianNoise().release(clipped, paid(multiplier), 1.0)
    assert torch.equal(clipped.value, torch.zeros(3))


@pytest.mark.parametrize("unpaid", [1.0, None, events.gaussian(1.0), Ledger(None)])
def test_there_is_no_release_without_a_receipt(unpaid):
    clipped = ClippedSum(torch.zeros(3), 1.0)
    with pytest.raises(ArgumentError, match="Expected receipt to be the receipt of a charge"):
        GaussianNoise().release(clipped, unpaid, 1.0)
    assert torch.equal(clipped.value, torch.zeros(3))
    with pytest.raises(ArgumentError, match="Expected receipt to be the receipt of a charge"):
        Release(clipped.value, 1.0, 1.0, unpaid)


def test_the_multiplier_is_the_one_that_was_paid():
    event = events.poisson(0.1, 3.0)
    receipt = Ledger(None).charge({event: 1}, run="a").use(event)
    release = GaussianNoise().release(ClippedSum(torch.zeros(3), 2.0), receipt, 1.0)
    assert release.noise_std == 6.0
    assert release.receipt.event == event


def test_one_charge_pays_for_one_release():
    clipped, receipt = ClippedSum(torch.zeros(3), 1.0), paid()
    GaussianNoise().release(clipped, receipt, 1.0)
    before = clipped.value.clone()
    with pytest.raises(LedgerError, match="one charge pays for one release"):
        GaussianNoise().release(clipped, receipt, 1.0)
    assert torch.equal(clipped.value, before)


def test_a_receipt_of_several_pays_for_so_many():
    receipt = paid(count=3)
    for left in (2, 1, 0):
        GaussianNoise().release(ClippedSum(torch.zeros(3), 1.0), receipt, 1.0)
        assert receipt.left == left
    with pytest.raises(LedgerError, match="Cannot spend"):
        receipt.spend()


def test_a_receipt_that_is_not_spent_cannot_be_copied_or_made():
    receipt = paid()
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(LedgerError, match="Cannot copy a receipt"):
            act(receipt)
    with pytest.raises(LedgerError, match="only a charge does"):
        Receipt(object(), receipt.event, "a", "training", 1)
    release = GaussianNoise().release(ClippedSum(torch.zeros(3), 1.0), receipt, 1.0)
    for again in (copy.deepcopy(release), pickle.loads(pickle.dumps(release))):
        assert torch.equal(again.value, release.value)
        with pytest.raises(LedgerError, match="Cannot spend"):
            again.receipt.spend()


def test_a_fork_cannot_spend_its_parents_receipt():
    receipt = paid()

    def spend():
        try:
            receipt.spend()
        except LedgerError as error:
            return str(error).encode()
        return b"spent"

    assert b"forked process" in from_fork(spend)
    receipt.spend()


@pytest.mark.parametrize("sensitivity", [1e-31, 1e31])
def test_noise_that_float32_has_no_room_for_is_refused(sensitivity):
    clipped = ClippedSum(torch.zeros(3), sensitivity)
    with pytest.raises(ArgumentError, match="between 1e-30 and 1e\\+30"):
        GaussianNoise().release(clipped, paid(), 1.0)
    assert torch.equal(clipped.value, torch.zeros(3))


@pytest.mark.parametrize("sensitivity", [2e-30, 5e29])
def test_noise_is_true_at_the_ends_of_what_float32_has_room_for(sensitivity):
    clipped = ClippedSum(torch.zeros(100_000), sensitivity)
    release = GaussianNoise(SeededSource(1, "noise")).release(clipped, paid(), 1.0)
    assert float((release.value.double() / sensitivity).std()) == pytest.approx(1, rel=0.02)


PROGRAM = """
import torch
from privada.accounting import Ledger, events
from privada.noise import GaussianNoise
from privada.core.values import ClippedSum
torch.manual_seed(0)
event = events.gaussian(1.0)
receipt = Ledger(None).charge({event: 1}, run="a").use(event)
print(GaussianNoise().release(ClippedSum(torch.zeros(8), 1.0), receipt, 1.0).value.tolist())
"""


def test_noise_does_not_repeat_across_restarts_even_under_a_global_seed():
    command = [sys.executable, "-c", PROGRAM]
    runs = [subprocess.check_output(command, timeout=PATIENCE) for _ in range(3)]
    assert len(set(runs)) == 3


def test_noise_does_not_repeat_across_forks():
    source = GaussianNoise()

    def released():  # eight numbers of a lattice: all the same by chance once in 1e15
        return source.release(ClippedSum(torch.zeros(8), 1.0), paid(), 1.0).value.numpy().tobytes()

    assert len({from_fork(released) for _ in range(4)}) == 4


def test_global_generators_are_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    add_noise_(torch.zeros(100), 1.0, SecureSource())
    assert torch.equal(before, torch.get_rng_state())


def test_the_source_says_whether_it_is_private():
    assert "AES-256" in GaussianNoise().describe()
    assert GaussianNoise(SeededSource(0, "noise")).describe() == "seeded: not a private release"
