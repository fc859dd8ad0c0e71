"""One training step, by each library: forward, backward, clip, noise, update."""

import copy
import importlib.util
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.models import Case
from privada.accounting import Ledger, events
from privada.clipping import Batch, make_engine
from privada.clipping.one_pass import OnePassEngine
from privada.core.tensors import Parameters
from privada.noise import GaussianNoise
from privada.preconditioning import FlatScaling
from privada.updates import sgd

CLIP, NOISE, RATE = 1.0, 1.0, 1e-3
Step = Callable[[], object]


def plain(case: Case) -> Step:
    """Plain PyTorch: no privacy."""
    model, (inputs, targets) = case.model(), case.batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        case.loss(model(inputs), targets).backward()
        optimizer.step()

    return step


def limit(case: Case) -> Step:
    """The limit: a plain step and one draw of torch's own normals over all parameters."""
    step = plain(case)
    size = sum(p.numel() for p in case.model().parameters())
    buffer = torch.empty(size)

    def both() -> None:
        step()
        buffer.normal_()

    return both


def _privada(case: Case, general: bool) -> Step:
    model, (inputs, targets) = case.model(), case.batch()
    parameters = Parameters(model)
    batch = Batch(inputs, targets)
    engine = make_engine("one-pass", model, case.loss, parameters, next(batch.chunks(3)))
    scale = 0.5 + torch.rand(parameters.size) if general else None
    scaling, noise, size = FlatScaling(scale, None), GaussianNoise(), len(targets)
    rule, event = sgd(), events.gaussian(NOISE)
    paid = Ledger(None).charge({event: 10**6}, run="benchmark")

    def step() -> None:
        clipped = engine.clipped_sum(batch, scaling, CLIP)
        release = noise.release(clipped, paid.use(event), size)
        move, _ = rule.update(release, {}, parameters, RATE)
        parameters.add_(*move)

    return step


def recorded(case: Case) -> float:
    """Return the megabytes of what layers with parameters are given and of their gradients.

    A tensor that several layers are given counts once, and the batch, which the plain step has
    too, not at all.
    """
    model, batch = case.model(), Batch(*case.batch())
    parameters = Parameters(model)
    engine = OnePassEngine(model, case.loss, parameters, next(batch.chunks(3)))
    recorder = engine._recorder(batch.size, engine._layouts)
    engine._forward(recorder, batch)
    inputs = {id(values): values for use in recorder.uses for values, _ in use.inputs}
    inputs.pop(id(batch.inputs), None)
    numbers = sum(values.numel() for values in inputs.values() if values.is_floating_point())
    numbers += sum(use.shape.numel() for use in recorder.uses)
    return 4e-6 * numbers


def isotropic(case: Case) -> Step:
    """Privada, clipping in the Euclidean norm."""
    return _privada(case, general=False)


def diagonal(case: Case) -> Step:
    """Privada, clipping in a general diagonal geometry."""
    return _privada(case, general=True)


def _peer_model(case: Case) -> nn.Module:
    from opacus.layers import DPLSTM, DPMultiheadAttention

    return case.model(lstm=DPLSTM, attention=_without_weights(DPMultiheadAttention))


def _without_weights(attention: type) -> Callable[..., nn.Module]:
    class Wrapped(nn.Module):
        def __init__(self, width: int, heads: int, batch_first: bool) -> None:
            super().__init__()
            self.inner = attention(width, heads, batch_first=batch_first)

        def forward(self, q: Tensor, k: Tensor, v: Tensor, need_weights: bool) -> object:
            return self.inner(q, k, v, need_weights=need_weights)

    return Wrapped


def opacus_hooks(case: Case) -> Step:
    """Opacus with per-example gradients."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    inputs, targets = case.batch()
    model = GradSampleModule(_peer_model(case), loss_reduction="mean")
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=RATE), noise_multiplier=NOISE, max_grad_norm=CLIP,
        expected_batch_size=len(targets),
    )  # fmt: skip

    def step() -> None:
        optimizer.zero_grad()
        case.loss(model(inputs), targets).backward()
        optimizer.step()

    return step


class _ByExample(nn.Module):
    """A loss that, without reduction, is one number for each example, as Opacus wants it."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss, self.reduction = copy.copy(loss), "mean"

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.loss.reduction = self.reduction
        value = self.loss(outputs, targets)
        return value.flatten(1).mean(dim=1) if value.ndim > 1 else value


def opacus_ghost(case: Case) -> Step:
    """Opacus with ghost clipping."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    inputs, targets = case.batch()
    model = GradSampleModuleFastGradientClipping(
        _peer_model(case), max_grad_norm=CLIP, use_ghost_clipping=True, loss_reduction="mean"
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=RATE), noise_multiplier=NOISE, max_grad_norm=CLIP,
        expected_batch_size=len(targets),
    )  # fmt: skip
    criterion = DPLossFastGradientClipping(
        model, optimizer, _ByExample(case.loss), loss_reduction="mean"
    )

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()

    return step


def jax_privacy(case: Case) -> Step:
    """JAX-Privacy, compiled, in a process of its own: its threads would disturb the others'."""
    command = [sys.executable, "-m", "benchmarks.jax_peer", case.name]
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert worker.stdin
    assert worker.stdout
    asked, answers = worker.stdin, worker.stdout

    def step() -> None:
        asked.write("\n")
        asked.flush()
        if not answers.readline():
            assert worker.stderr
            raise RuntimeError(worker.stderr.read().strip().splitlines()[-1])

    return step


def jax_privacy_here(case: Case) -> Step:
    """JAX-Privacy in this process."""
    from benchmarks import jax_peer

    return jax_peer.step(case, CLIP, NOISE, RATE)


CONTENDERS: dict[str, Callable[[Case], Step]] = {
    "plain PyTorch": plain,
    "limit": limit,
    "privada, isotropic": isotropic,
    "privada, diagonal": diagonal,
    "opacus, hooks": opacus_hooks,
    "opacus, ghost": opacus_ghost,
}
if importlib.util.find_spec("jax_privacy"):
    CONTENDERS["jax-privacy"] = jax_privacy
