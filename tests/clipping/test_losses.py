"""Losses taken example by example, held to the loss of batches of one."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from privada.clipping.losses import example_losses
from privada.core.errors import ModelError

B, C, T = 5, 4, 3


def logits(*shape):
    return torch.randn(B, *shape, dtype=torch.float64)


def classes(*shape):
    return torch.randint(C, (B, *shape))


def shares(*shape):
    return torch.softmax(logits(*shape), dim=1)


def ignoring(*shape):
    """Return targets of which some, in one example all, are to be ignored."""
    targets = classes(*shape)
    targets[torch.rand(targets.shape) < 0.4] = -100
    targets[0] = 1
    return targets


def seven(targets):
    return targets.masked_fill(targets == -100, 7)


def huber(output, target):
    return functional.huber_loss(output, target, delta=0.5)


def own(output, target):
    return (output.sum(dim=-1) - target).abs().sqrt().mean()


def reading(output, target):
    """A loss that vmap cannot follow."""
    return output.sum() * 2 if float(output.sum()) > 0 else (output * target).sum()


def through_numpy(output, target):
    return (output * float(np.mean(target.numpy()))).sum()


@dataclass
class Weighted:
    """A loss with a setting; equal ones are equal, so it has no hash."""

    factor: float

    def __call__(self, output, target):
        return self.factor * functional.mse_loss(output, target)


def of_a_pair(output, target):
    return functional.mse_loss(output, target["a"]) + target["b"].mean()


WEIGHT = torch.rand(C, dtype=torch.float64) + 0.1
# name -> (loss, outputs, targets)
LOSSES = {
    "cross entropy": (functional.cross_entropy, lambda: (logits(C), classes())),
    "its module": (nn.CrossEntropyLoss(), lambda: (logits(C), classes())),
    "of sequences": (nn.CrossEntropyLoss(), lambda: (logits(C, T), classes(T))),
    "of images": (nn.CrossEntropyLoss(), lambda: (logits(C, 2, T), classes(2, T))),
    "of probabilities": (nn.CrossEntropyLoss(), lambda: (logits(C), shares(C))),
    "of probabilities of sequences": (nn.CrossEntropyLoss(), lambda: (logits(C, T), shares(C, T))),
    "of smoothed probabilities": (
        nn.CrossEntropyLoss(label_smoothing=0.2),
        lambda: (logits(C), shares(C)),
    ),
    "ignored": (nn.CrossEntropyLoss(), lambda: (logits(C, T), ignoring(T))),
    "another ignored": (
        nn.CrossEntropyLoss(ignore_index=7),
        lambda: (logits(C, T), seven(ignoring(T))),
    ),
    "an ignored class": (nn.CrossEntropyLoss(ignore_index=1), lambda: (logits(C, T), classes(T))),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.3), lambda: (logits(C, T), classes(T))),
    "smoothed and ignored": (
        nn.CrossEntropyLoss(label_smoothing=0.3),
        lambda: (logits(C, T), ignoring(T)),
    ),
    "weighted": (nn.CrossEntropyLoss(weight=WEIGHT), lambda: (logits(C, T), classes(T))),
    "weighted, smoothed and ignored": (
        nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1),
        lambda: (logits(C, T), ignoring(T)),
    ),
    "summed cross entropy": (
        nn.CrossEntropyLoss(reduction="sum"),
        lambda: (logits(C, T), ignoring(T)),
    ),
    "likelihood": (functional.nll_loss, lambda: (shares(C).log(), classes())),
    "its module, of sequences": (nn.NLLLoss(), lambda: (shares(C, T).log(), ignoring(T))),
    "weighted likelihood": (nn.NLLLoss(weight=WEIGHT), lambda: (shares(C).log(), classes())),
    "squares": (functional.mse_loss, lambda: (logits(C), logits(C))),
    "squares of numbers": (functional.mse_loss, lambda: (logits(), logits())),
    "squares of images": (nn.MSELoss(), lambda: (logits(2, T, C), logits(2, T, C))),
    "sums of squares": (nn.MSELoss(reduction="sum"), lambda: (logits(C), logits(C))),
    "squares that broadcast": (nn.MSELoss(), lambda: (logits(1), logits())),
    "squares of whole numbers": (nn.MSELoss(), lambda: (logits(C), classes(C))),
    "absolute values": (nn.L1Loss(), lambda: (logits(C), logits(C))),
    "sums of absolute values": (nn.L1Loss(reduction="sum"), lambda: (logits(), logits())),
    "binary": (nn.BCELoss(), lambda: (logits(C).sigmoid(), shares(C))),
    "weighted binary": (nn.BCELoss(weight=WEIGHT), lambda: (logits(C).sigmoid(), shares(C))),
    "binary of logits": (nn.BCEWithLogitsLoss(), lambda: (logits(C), shares(C))),
    "binary of numbers": (nn.BCEWithLogitsLoss(), lambda: (logits(), logits().sigmoid())),
    "binary with weights of positives": (
        nn.BCEWithLogitsLoss(pos_weight=WEIGHT),
        lambda: (logits(C), shares(C)),
    ),
    "smooth absolute values": (nn.SmoothL1Loss(beta=0.3), lambda: (logits(C), logits(C))),
    "huber": (nn.HuberLoss(delta=0.4), lambda: (logits(C), logits(C))),
    "huber of numbers": (huber, lambda: (logits(), logits())),
    "divergence": (nn.KLDivLoss(), lambda: (shares(C).log(), shares(C))),
    "divergence by example": (
        nn.KLDivLoss(reduction="batchmean"),
        lambda: (shares(C).log(), shares(C)),
    ),
    "margin": (nn.MultiMarginLoss(), lambda: (logits(C), classes())),
    "poisson": (nn.PoissonNLLLoss(), lambda: (logits(C), shares(C))),
    "own": (own, lambda: (logits(C), logits())),
    "own, with a setting": (Weighted(0.3), lambda: (logits(C), logits(C))),
    "reading": (reading, lambda: (logits(C), logits(C))),
    "through numpy": (through_numpy, lambda: (logits(C), logits(C))),
    "targets in a dict": (of_a_pair, lambda: (logits(C), {"a": logits(C), "b": logits()})),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", range(3))
def test_the_losses_and_their_gradients_are_those_of_batches_of_one(name, seed):
    loss, make = LOSSES[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        output, target = make()
    output = output.detach().requires_grad_()
    found = example_losses(loss, output, target)
    alone = [
        loss(output[i : i + 1], torch.utils._pytree.tree_map(lambda t, i=i: t[i : i + 1], target))
        for i in range(B)
    ]
    expected = torch.stack([value.reshape(()) for value in alone])
    assert found.shape == (B,)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14, equal_nan=True)
    slopes = [
        torch.autograd.grad(each.sum(), output, retain_graph=True)[0] for each in (found, expected)
    ]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-14, equal_nan=True)


def test_an_example_with_nothing_but_ignored_targets_is_not_a_number():
    targets = torch.full((2, 3), -100)
    targets[1] = 1
    found = example_losses(nn.CrossEntropyLoss(), torch.randn(2, 4, 3), targets)
    assert torch.isnan(found).tolist() == [True, False]


@pytest.mark.parametrize("loss", [nn.MSELoss(reduction="none"), lambda a, b: a - b])
def test_a_loss_of_many_numbers_is_refused(loss):
    with pytest.raises(ModelError, match="reduction"):
        example_losses(loss, torch.zeros(3, 2), torch.zeros(3, 2))


def test_a_loss_that_fails_says_so():
    def fails(output, target):
        raise ValueError("of its own")

    with pytest.raises(ValueError, match="of its own"):
        example_losses(fails, torch.zeros(3, 2), torch.zeros(3, 2))
