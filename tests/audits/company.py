"""Adversarial trials: how far does one record move the clipped sum, whatever its company?

Models that make much of their last bits, on inputs that make them: attention, recurrent,
convolutional and linear models, in both types, with each way of clipping, on inputs of scales from
one to 1e12. A record is taken out of a batch, at any place, and the sums are compared.
"""

import random
import warnings

import torch
from torch import nn
from torch.nn import functional

from privada.clipping import automatic, ellipsoid, threshold
from privada.clipping.engine import make_engine
from privada.core.tensors import Parameters
from privada.data.batch import Batch
from privada.data.dummies import make_dummies
from privada.preconditioning import FlatScaling

CLIP = 1.0
TIME, WIDTH = 6, 8


class Last(nn.Module):
    """The last position of what a recurrent layer returns."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.out = layer, nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.out(self.layer(x)[0][:, -1])


class Decoder(nn.Module):
    """A causal decoder layer over its own input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(TIME * WIDTH, 3)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(TIME, dtype=x.dtype)
        return self.out(self.layer(x, x, tgt_mask=mask).flatten(1))


class PlainAttention(nn.Module):
    """Attention without normalisation, where softmax decides between near ties."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.out = nn.Linear(TIME * WIDTH, 3)

    def forward(self, x):
        return self.out(self.attention(x, x, x, need_weights=False)[0].flatten(1))


def encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(TIME * WIDTH, 3))


def convolutional():
    return nn.Sequential(
        nn.Unflatten(1, (1, TIME)), nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(),
        nn.Flatten(), nn.Linear(4 * TIME * WIDTH, 3),
    )  # fmt: skip


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(TIME * WIDTH, 3))


def perceptron():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(TIME * WIDTH, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(),
        nn.Linear(16, 3),
    )  # fmt: skip


MODELS = {
    "encoder": encoder,
    "decoder": Decoder,
    "attention": PlainAttention,
    "lstm": lambda: Last(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    "gru": lambda: Last(nn.GRU(WIDTH, WIDTH, batch_first=True)),
    "rnn": lambda: Last(nn.RNN(WIDTH, WIDTH, batch_first=True)),
    "convolution": convolutional,
    "linear": linear,
    "perceptron": perceptron,
}
CLIPS = {"threshold": threshold, "automatic": automatic, "ellipsoid": ellipsoid}
SCALES = (1.0, 1e2, 1e3, 1e4, 1e5, 1e8, 1e12)


def engine_of(model, dtype, clipping, how="auto", expected=24):
    first = Batch(torch.zeros(1, TIME, WIDTH, dtype=dtype), torch.zeros(1, dtype=torch.int64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_engine(
            how, model, functional.cross_entropy, Parameters(model), make_dummies(first), clipping,
            expected,
        )  # fmt: skip


def trials(name, dtype, clip, seed, count, how="auto"):
    """Return how far a record moved the sum, in clip norms, in each of `count` trials."""
    torch.manual_seed(seed)
    choose = random.Random(seed)
    model = MODELS[name]().to(dtype)
    gain = choose.choice((1.0, 3.0, 10.0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(gain)
    engine = engine_of(model, dtype, CLIPS[clip](), how)
    scale = None
    if choose.random() < 0.5:
        scale = torch.rand(Parameters(model).size, dtype=dtype) * 3 + 0.1
    scaling, found = FlatScaling(scale, None), []
    for _ in range(count):
        size = choose.randint(2, 40)
        inputs = torch.randn(size, TIME, WIDTH, dtype=dtype) * choose.choice(SCALES)
        if choose.random() < 0.3:  # near ties
            inputs = inputs.round(decimals=1)
            inputs[:, 1:] = inputs[:, :1] * (1 + 1e-7 * torch.randn(size, TIME - 1, 1, dtype=dtype))
        targets = torch.randint(3, (size,))
        gone = choose.randrange(size)
        left = torch.arange(size) != gone
        whole = engine.clipped_sum(Batch(inputs, targets), scaling, CLIP).value.double()
        part = engine.clipped_sum(Batch(inputs[left], targets[left]), scaling, CLIP).value
        found.append(float((whole - part.double()).norm()) / CLIP)
    return found
