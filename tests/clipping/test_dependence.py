"""Labels say at least what values show: whatever changes with an example has its label."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from privada.clipping.dependence import Dependence
from privada.clipping.labels import NOBODY, SEVERAL

N = 3
ROWS = torch.tensor([2, 0, 1])


def index_put(x, accumulate=False):
    out = torch.zeros_like(x)
    return out.index_put((ROWS, torch.tensor([0, 1, 0])), x[:, 0], accumulate)


def written_in_place(x):
    out = torch.zeros(4, N, x.shape[1], dtype=x.dtype)
    for t in range(4):
        out[t] = t * x
    out[2, 1:] += x[:-1]
    return out


def packed(x):
    lengths = torch.tensor([2, 4, 1])
    rows = pack_padded_sequence(x.view(N, 4, -1), lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(rows, batch_first=True)[0]


def complex_parts(x):
    return torch.view_as_real(torch.view_as_complex(x.view(N, -1, 2)) * (1 + 1j))


def gradient(function):
    """Return the gradient of a function's sum of squares, by which backward passes are seen."""

    def run(x):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(function(x).square().sum(), x)
        return found

    return run


def images(x):
    return x.view(N, 2, 2, -1)


torch.manual_seed(0)
CONV = nn.Conv2d(2, 4, 2, padding=1, groups=2).double()
UP = nn.ConvTranspose2d(2, 4, 2, groups=2).double()
GROUP, LAYER = nn.GroupNorm(2, 2).double(), nn.LayerNorm(12).double()
LINEAR, LSTM = nn.Linear(12, 5).double(), nn.LSTM(3, 2, batch_first=True).double()
HEADS = nn.MultiheadAttention(6, 2, batch_first=True).double()
TARGETS = torch.tensor([1, 0, 2])

# of (3, 12) numbers, rows the examples; those under APART keep examples apart, and labels say so
APART = {
    "arithmetic": lambda x: (2 * x + 1).tanh() / (1 + x * x),
    "where": lambda x: torch.where(x > 0, x, -x),
    "sum": lambda x: x.sum(dim=1),
    "statistics": lambda x: torch.stack([x.mean(1), x.std(1), x.amax(1), x.norm(dim=1)]),
    "median": lambda x: x.median(dim=1).values,
    "sort": lambda x: x.sort(dim=1).values,
    "cumulated": lambda x: x.cumsum(dim=1),
    "softmax": lambda x: x.softmax(dim=1),
    "linear": LINEAR,
    "matrix": lambda x: x.view(N, 3, 4) @ x.view(N, 4, 3),
    "vector": lambda x: x @ torch.ones(12, dtype=x.dtype),
    "transposed": lambda x: x.t().contiguous() * 2,
    "convolution": lambda x: CONV(images(x)),
    "transposed convolution": lambda x: UP(images(x)),
    "group norm": lambda x: GROUP(images(x)),
    "instance norm": lambda x: functional.instance_norm(images(x)),
    "layer norm": LAYER,
    "pooled": lambda x: functional.max_pool2d(images(x), 2),
    "averaged": lambda x: functional.avg_pool2d(images(x), 2),
    "adaptive": lambda x: functional.adaptive_avg_pool2d(images(x), 1),
    "larger": lambda x: functional.interpolate(images(x), scale_factor=2, mode="bilinear"),
    "padded": lambda x: functional.pad(images(x), (1, 1), value=3.0),
    "reflected": lambda x: functional.pad(images(x), (1, 1, 1, 1), mode="reflect"),
    "unfolded": lambda x: functional.unfold(images(x), 2),
    "stacked": lambda x: torch.cat([x, x.flip(1)], dim=1),
    "rolled": lambda x: x.roll(2, dims=1),
    "repeated": lambda x: x.repeat(1, 2),
    "picked": lambda x: x[torch.arange(N), torch.tensor([0, 3, 1])],
    "permuted": lambda x: x[ROWS],
    "selected": lambda x: x.index_select(0, ROWS),
    "gathered": lambda x: x.gather(1, torch.zeros(N, 2, dtype=torch.int64)),
    "put": index_put,
    "added to": lambda x: index_put(x, accumulate=True),
    "indices of its own": lambda x: x.gather(1, x.argsort(dim=1)),
    "one hot": lambda x: functional.one_hot(x.argmax(dim=1), 12).to(x.dtype) * x,
    "in place": lambda x: x.clone().mul_(2).add_(x).clamp_(max=1),
    "attention": lambda x: HEADS(*[x.view(N, 2, 6)] * 3)[0],
    "dot product": lambda x: functional.scaled_dot_product_attention(
        *[x.view(N, 2, 2, 3).float()] * 3
    ),
    "recurrent": lambda x: LSTM(x.view(N, 4, 3))[0],
    "packed": packed,
    "complex": complex_parts,
    "loss": lambda x: functional.cross_entropy(x[:, :4], TARGETS, reduction="none"),
    "norm of rows": lambda x: functional.normalize(x, dim=1),
    "frozen statistics": lambda x: functional.batch_norm(
        x, torch.zeros(12).double(), torch.ones(12).double()
    ),
    "fourier": lambda x: torch.fft.rfft(x, dim=1).abs(),
}
MIXING = {
    "mean": lambda x: x - x.mean(dim=0),
    "hidden by a clamp": lambda x: x / x.abs().amax().clamp(min=1e9),
    "hidden by a branch": lambda x: torch.where(x.max() > 1e9, -x, x),
    "written in place": written_in_place,
    "batch norm": lambda x: functional.batch_norm(x, None, None, training=True),
    "product": lambda x: x @ x.t(),
    "picked by values": lambda x: x[x.sum(dim=1).argsort()],
    "scattered by values": lambda x: torch.zeros_like(x).index_add(0, x[:, 0].argsort(), x),
    "not known": lambda x: torch.linalg.pinv(x),
}


def followed(function):
    x = torch.randn(N, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    inputs = x.clone()
    with (seen := Dependence()):
        seen.own(inputs)
        found = function(inputs)
        labels = seen.labels(found)
    return (
        x,
        found.detach(),
        torch.zeros(found.shape, dtype=torch.uint8) if labels is None else labels,
    )


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", [*APART, *MIXING])
def test_what_changes_with_an_example_has_its_label(name, backward):
    function = {**APART, **MIXING}[name]
    if backward:
        function = gradient(function)
    x, found, labels = followed(function)
    for example in range(N):
        for scale in (1e-3, 10.0):
            other = x.clone()
            other[example] += scale * torch.randn(12, dtype=x.dtype)
            changed = ~torch.isclose(function(other).detach(), found, rtol=1e-12, atol=0)
            allowed = (labels == example + 1) | (labels == SEVERAL)
            assert not bool((changed & ~allowed).any())


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", APART)
def test_what_is_kept_apart_is_seen_to_be(name, backward):
    function = gradient(APART[name]) if backward else APART[name]
    _, _, labels = followed(function)
    assert not bool((labels == SEVERAL).any())
    assert bool((labels != NOBODY).any())


@pytest.mark.parametrize("name", MIXING)
def test_what_could_mix_is_seen_whatever_the_values(name):
    _, _, labels = followed(MIXING[name])
    assert bool((labels == SEVERAL).any())


def test_a_second_batch_has_labels_of_its_own():
    first, second = torch.ones(2, 3), torch.ones(2, 3)
    with (seen := Dependence()):
        seen.own(first)
        kept = first.mean()
        seen.own(second, 3)
        found = second - kept
    assert seen.labels(second).tolist() == [[3] * 3, [4] * 3]
    assert bool((seen.labels(found) == SEVERAL).all())


def test_results_in_given_memory_have_the_labels_of_what_is_written():
    x = torch.ones(N, 2)
    with (seen := Dependence()):
        seen.own(x)
        place = torch.empty(2, N, 2)
        torch.mul(x, 2, out=place[0])
        torch.add(x, x.flip(0), out=place[1])
    assert seen.labels(place)[:, :, 0].tolist() == [[1, 2, 3], [SEVERAL, 2, SEVERAL]]


def test_tensors_without_ordinary_memory_are_not_followed():
    x = torch.eye(3).to_sparse()
    with pytest.raises(TypeError, match="sparse"), Dependence():
        torch.add(x, x)
