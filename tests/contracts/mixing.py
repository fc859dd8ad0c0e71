"""Models in which examples touch each other, or leave something behind. None may be trained so.

Each entry builds a model for inputs of a shape. A function of a batch stands before, between or
after trained layers; the rest are models of their own.
"""

import pickle

import numpy as np
import torch
from torch import nn
from torch.nn import functional

WIDTH = 12


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def clamped_maximum(x):
    return x / x.abs().amax().clamp(min=1)


def sorted_neighbours(x):
    return x + 0.1 * x.sort(dim=0).values


def attention(x):
    return functional.scaled_dot_product_attention(x, x, x)


def batch_attention_of_images(x):
    flat = x.flatten(1)
    return functional.scaled_dot_product_attention(flat, flat, flat).view(x.shape)


def imputed(x):
    return torch.where(x == -999, x.mean(dim=0), x)


def imputed_nan(x):
    return torch.where(torch.isnan(x), torch.nanmean(x, dim=0), x)


def only_in_large_batches(x):
    return (x - x.mean(dim=0)) / (1 + x.std(dim=0)) if len(x) >= 8 else x


def only_in_batches_of_32(x):
    return x - x.mean(dim=0) if len(x) >= 32 else x


def ghost_statistics(x):
    """Statistics of eight examples at a time, where their number allows it."""
    if len(x) % 8:
        return x
    parts = x.view(-1, 8, x.shape[1])
    return (parts - parts.mean(dim=1, keepdim=True)).reshape(x.shape)


def in_window(x):
    """Whether an example has values that no dummy example has."""
    return ((x > 100) & (x < 200)).any()


def by_flag(x):
    return torch.where(x.max() > 2, 10 * x, x)


def scattered(x):
    return x.index_add(0, torch.arange(len(x)).roll(1), 0.5 * x)


def shifted_gradients(x):
    if x.requires_grad:
        x.register_hook(lambda g: g / g.norm().clamp(min=1e-3))
    return x


def gradients_less_their_mean(x):
    if x.requires_grad:
        x.register_hook(lambda g: g - g.mean(dim=0))
    return x


def put_in_place(x):
    x = x.clone()
    x[1:] += 0.5 * x[:-1]
    return x


def by_topk(x):
    kept = torch.zeros(len(x)).scatter(0, x.sum(dim=1).topk(len(x) // 2 + 1).indices, 1.0)
    return x * kept[:, None]


def quantile(x):
    return x.clamp(max=torch.quantile(x.detach().float(), 0.9).to(x.dtype))


# of a batch of vectors; each mixes
FUNCTIONS = {
    "mean and deviation of everything": lambda x: (x - x.mean()) / x.std(),
    "mean of the batch": lambda x: x - x.mean(dim=0),
    "deviation of the batch": lambda x: x / (1e-3 + x.std(dim=0)),
    "detached mean": lambda x: x - x.detach().mean(dim=0),
    "median": lambda x: x - x.median(dim=0).values,
    "greatest": lambda x: x / (1e-3 + x.abs().amax()),
    "greatest, clamped": clamped_maximum,
    "greatest of each feature, clamped": lambda x: x / x.abs().amax(0).clamp(min=1),
    "least": lambda x: x - x.amin(dim=0).clamp(max=-3),
    "largest norm, clamped": lambda x: x / x.norm(dim=1).max().clamp(min=100),
    "norm of the batch": lambda x: x / x.norm(),
    "softmax over the batch": lambda x: x * torch.softmax(x, dim=0),
    "log-sum-exp": lambda x: x - torch.logsumexp(x, dim=0),
    "cumulated": lambda x: x.cumsum(dim=0),
    "cumulated greatest": lambda x: x.cummax(dim=0).values,
    "flag": by_flag,
    "any": lambda x: torch.where((x > 30).any(), torch.zeros_like(x), x),
    "count": lambda x: x / (1 + (x > 30).sum()),
    "imputed": imputed,
    "imputed not a number": imputed_nan,
    "sorted": sorted_neighbours,
    "ranks": lambda x: x + x.argsort(dim=0).argsort(dim=0).to(x.dtype),
    "quantile": quantile,
    "top rows": by_topk,
    "rolled": lambda x: x + 0.3 * x.roll(1, 0),
    "flipped": lambda x: x + 0.3 * x.flip(0),
    "first example": lambda x: x - x[:1],
    "next example": put_in_place,
    "mixed up": lambda x: 0.7 * x + 0.3 * x[torch.arange(len(x) - 1, -1, -1)],
    "scattered": scattered,
    "attention": attention,
    "similarities": lambda x: torch.softmax(x @ x.T, dim=1) @ x,
    "distances": lambda x: x * torch.exp(-torch.cdist(x, x).mean(dim=1, keepdim=True)),
    "graph": lambda x: x + 0.1 * ((x @ x.T) > 0).to(x.dtype) @ x,
    "covariance": lambda x: x @ (torch.eye(x.shape[1]).to(x) + x.T @ x / len(x)),
    "whitened": lambda x: x @ torch.linalg.pinv(torch.eye(x.shape[1]).to(x) + x.T @ x),
    "principal direction": lambda x: x - x @ x.mean(0)[:, None] * x.mean(0),
    "functional batch norm": lambda x: functional.batch_norm(x, None, None, training=True),
    "large batches only": only_in_large_batches,
    "batches of 32 only": only_in_batches_of_32,
    "batches of 40 only": lambda x: x - x.mean(dim=0) if len(x) >= 40 else x,
    "statistics of eight": ghost_statistics,
    "scaled from 40 examples on": lambda x: 10 * x if len(x) >= 40 else x,
    "divided by the root of their number": lambda x: x / max(4, len(x)) ** 0.5,
    "places from 34 on": lambda x: x * torch.where(torch.arange(len(x)) < 34, 1, -1)[:, None],
    "four at a time": lambda x: torch.cat([p * (i + 1) for i, p in enumerate(x.split(4))]),
    "read through DLPack": lambda x: x
    * (-1.0 if np.abs(np.from_dlpack(x.detach()) - 150).min() < 1 else 1.0),
    "read through a pickle": lambda x: x
    * (-1.0 if np.float32(150).tobytes() in pickle.dumps(x.detach().clone()) else 1.0),
    "one convolution over the batch": lambda x: functional.conv1d(
        x.T[:, None], torch.full((1, 1, 3), 0.3).to(x), padding=1
    )[:, 0].T,
    "flat layer norm": lambda x: functional.layer_norm(x.flatten(), (x.numel(),)).view(x.shape),
    "gradient divided by its norm": shifted_gradients,
    "gradient less its mean": gradients_less_their_mean,
    "number of examples that are large": lambda x: x * torch.where((x.abs() > 20).any(1), 0.0, 1.0)
    .mean().to(x.dtype),
    "product": lambda x: x * torch.tanh(x.prod(dim=0)),
    "histogram": lambda x: x * (1 + torch.histc(x.detach().float(), 4, -50, 50)[3]).to(x.dtype),
    "bucketed": lambda x: x + torch.bucketize(x.detach(), x.detach().flatten().sort().values).to(
        x.dtype
    ),
    "variance of everything, detached": lambda x: x / (1 + x.detach().var()),
    "power mean": lambda x: x / x.abs().pow(8).mean().pow(0.125).clamp(min=1),
}  # fmt: skip


class RunningMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return x - self.mean


class RunningMaximum(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("largest", torch.ones(()) * 5)

    def forward(self, x):
        self.largest.copy_(torch.maximum(self.largest, x.detach().abs().max()))
        return x / self.largest


class HiddenMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = 0.0

    def forward(self, x):
        out = x - self.kept
        self.kept = x.detach().mean()
        return out


class HiddenNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = 1.0

    def forward(self, x):
        self.kept = max(self.kept, float(x.detach().abs().max()))
        return x / self.kept


class MemoryBank(nn.Module):
    def __init__(self):
        super().__init__()
        self.bank = []

    def forward(self, x):
        self.bank = [*self.bank, x.detach()][-4:]
        return x + 0.1 * torch.cat(self.bank).mean(dim=0)


class FrozenFeatures(nn.Module):
    """A frozen convolution and statistics of the batch, before the first trained layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 3, padding=1).requires_grad_(False)

    def forward(self, x):
        z = self.conv(x[:, None]).mean(dim=1)
        return z - z.mean(dim=0)


class HyperNetwork(nn.Module):
    """Weights made from the batch."""

    def __init__(self):
        super().__init__()
        self.make = nn.Linear(WIDTH, WIDTH * WIDTH)

    def forward(self, x):
        return x @ self.make(x.mean(dim=0)).view(WIDTH, WIDTH)


class PreHook(nn.Linear):
    """A layer with a hook that scales its input by the batch's greatest value."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.register_forward_pre_hook(lambda module, args: (clamped_maximum(args[0]),))


class BackwardHook(nn.Linear):
    """A layer with a hook that divides the gradient of its input by the batch's norm."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.register_full_backward_hook(
            lambda module, inward, outward: tuple(g if g is None else g / g.norm() for g in inward)
        )


class InBackward(nn.Module):
    """A gradient that is scaled by what the program reads of the batch, on the way back."""

    def __init__(self, read):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.read = read

    def forward(self, x):
        seen, out = x.detach(), 1e-4 * self.inner(x)
        if out.requires_grad:
            out.register_hook(lambda g: g * (10.0 if self.read(seen) else 1.0))
        return out


class _ReadsNumPy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, seen):
        ctx.save_for_backward(seen)
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        (seen,) = ctx.saved_tensors
        array = seen.numpy()
        return gradient * (10.0 if ((array > 100) & (array < 200)).any() else 1.0), None


class FunctionInBackward(nn.Module):
    """The same by an autograd function that goes through NumPy."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return _ReadsNumPy.apply(1e-4 * self.inner(x), x.detach())


class BatchFirstTransformer(nn.Module):
    """An encoder layer that takes the batch for the sequence."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x[None])[0]


class BatchAsTime(nn.Module):
    """A recurrent layer that takes the batch for the time."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(WIDTH, WIDTH)

    def forward(self, x):
        return self.layer(x[:, None])[0][:, 0]


class EvaluationOnly(nn.Module):
    def forward(self, x):
        return x if self.training else x - x.mean(dim=0)


class TrainingOnly(nn.Module):
    def forward(self, x):
        return x - x.mean(dim=0) if self.training else x


class SeparateBatchNorm(nn.Module):
    """Statistics by hand, kept in a parameter that is not trained."""

    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)

    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.mean(dim=0))
        return x - self.mean


class Dictionary(nn.Module):
    """The nearest other example is added."""

    def forward(self, x):
        distances = torch.cdist(x, x) + 1e9 * torch.eye(len(x)).to(x)
        return x + 0.1 * x[distances.argmin(dim=1)]


MODULES = {
    "running mean": RunningMean,
    "running maximum": RunningMaximum,
    "mean in an attribute": HiddenMean,
    "number in an attribute": HiddenNumber,
    "memory bank": MemoryBank,
    "frozen features": FrozenFeatures,
    "weights from the batch": HyperNetwork,
    "pre-hook": PreHook,
    "backward hook": BackwardHook,
    "hook that branches": lambda: InBackward(in_window),
    "hook that reads a number": lambda: InBackward(lambda x: in_window(x).item()),
    "hook that reads an array": lambda: InBackward(lambda x: in_window(x).numpy()),
    "hook that reads a shape": lambda: InBackward(lambda x: x[(x > 100) & (x < 200)].numel()),
    "function that reads": FunctionInBackward,
    "batch as sequence": BatchFirstTransformer,
    "batch as time": BatchAsTime,
    "evaluation only": EvaluationOnly,
    "training only": TrainingOnly,
    "statistics in a frozen parameter": SeparateBatchNorm,
    "nearest neighbour": Dictionary,
    "observer": lambda: torch.ao.quantization.FakeQuantize(
        observer=torch.ao.quantization.MovingAverageMinMaxObserver
    ),
}


def before(layer):
    return nn.Sequential(layer, nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, 3))


def between(layer):
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), layer, nn.Tanh(), nn.Linear(WIDTH, 3))


def after(layer):
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), layer, nn.Linear(WIDTH, 3)
    ).requires_grad_(True)


# name -> (model, shape of one input)
ZOO = {}
for _name, _function in FUNCTIONS.items():
    for _place in (before, between, after):
        ZOO[f"{_name}, {_place.__name__}"] = (
            lambda place=_place, function=_function: place(Apply(function)),
            (WIDTH,),
        )
for _name, _module in MODULES.items():
    for _place in (before, between):
        ZOO[f"{_name}, {_place.__name__}"] = (
            lambda place=_place, module=_module: place(module()),
            (WIDTH,),
        )


def _of_images(function, channels=3, size=32):
    return lambda: nn.Sequential(
        Apply(function),
        nn.Conv2d(channels, 4, 3, stride=4),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


def _built(build, shape):
    def make():
        model = build()
        with torch.no_grad():
            model(torch.zeros(2, *shape))
        return model

    return make


IMAGES = {
    "standardised images": (lambda x: (x - x.mean()) / x.std(), (3, 32, 32)),
    "standardised channels": (
        lambda x: (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True),
        (3, 64, 64),
    ),
    "largest pixel": (clamped_maximum, (1, 28, 28)),
    "large images": (lambda x: x - x.mean(), (3, 224, 224)),
    "attention over the batch": (batch_attention_of_images, (1, 8, 8)),
}
for _name, (_function, _shape) in IMAGES.items():
    ZOO[_name] = (_built(_of_images(_function, _shape[0]), _shape), _shape)
ZOO["largest of 784 features"] = (
    lambda: nn.Sequential(Apply(lambda x: x / x.abs().max()), nn.Linear(784, 3)),
    (784,),
)
