"""The engine of one pass, held to the loop over examples, before any record is read.

Made-up examples run through both, one at a time and together, and each parameter's gradient is
compared by itself: one that is missing is noticed however small it is beside the others. This is
done on a copy of the model in float64, where rounding is out of sight. In float32 a unit of a deep
network that is close to the edge of its ReLU may fall on either side of it, which moves gradients
by a percent in an engine without fault.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from privada.clipping.calling import call
from privada.clipping.leaves import leaves
from privada.clipping.losses import Loss, one_example
from privada.clipping.one_pass import OnePassEngine
from privada.clipping.recorded_model import enlarged
from privada.clipping.reference import PerExampleEngine
from privada.core.tensors import Parameters
from privada.data.batch import Batch
from privada.preconditioning import FlatScaling

# How many numbers of a pattern are made, or compared, at a time.
_PART = 1 << 20
# What a copy of a model in float64 may take; a larger model is compared as it is.
_COPY_BYTES = 1 << 31
_NO_CLIP, _PLAIN = 1e30, FlatScaling(None, None)
# How far parameters are moved, in units of their last place, to see what rounding may do, how
# often, and how many times as much as that is allowed.
_LAST_PLACES, _MOVES, _ROOM = 32.0, 3, 8.0
# A norm that is as good as none: beside it what squares lose by underflow is large.
_NOTHING = 1e-15


class Disagreement(Exception):
    """The engine of one pass does not give what the loop over examples gives."""


@dataclass(frozen=True)
class _Tolerance:
    """How far gradients may be apart: a share of each parameter's own, and one of all.

    Gradients that are sums of nothing but rounding, as that of a bias before a normalisation, are
    small beside the others and known by that alone. With `each` None, only all together count.
    `norms` is the share by which a bound on a norm may be below it.
    """

    each: float | None
    overall: float
    norms: float = 0.0


_EXACT = _Tolerance(1e-9, 1e-13, norms=1e-9)
_SINGLE = _Tolerance(1e-3, 1e-5, norms=1e-3)
# Of one that was compared in float64, or has bfloat16 inside.
_ROUGH = _Tolerance(None, 5e-2)


def hold_to_the_loop(
    engine: OnePassEngine, loss: Loss, parameters: Parameters, example: Batch
) -> None:
    """Raise unless an engine gives the gradients that a loop over dummy examples gives.

    Raises:
        Disagreement: it does not.
    """
    loop = PerExampleEngine(engine.model, loss, parameters, "loop")
    if parameters.dtype is torch.float64 and not engine.half:
        with moved(parameters):
            _Comparison(engine, loop, parameters, example, _EXACT).run()
        return
    exactly = _in_float64(engine, loss, parameters, example)
    with moved(parameters):
        tolerance = _ROUGH if exactly or engine.half else _SINGLE
        _Comparison(engine, loop, parameters, example, tolerance).run()


@contextmanager
def moved(parameters: Parameters) -> Iterator[None]:
    """Move the parameters a little for as long as dummy examples run.

    Many models start with zeros somewhere, where gradients tell nothing.
    """
    before = parameters.read()
    try:
        _move(parameters)
        yield
    finally:
        parameters.write_(before)


@torch.no_grad()
def _move(parameters: Parameters) -> None:
    start = 0
    with parameters.trainable() as tensors:
        for tensor in tensors:
            step = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
            write_pattern(step, start, 0.1)
            tensor.add_(step.view(tensor.shape))
            start += len(step)


def write_pattern(values: Tensor, start: int, width: float) -> None:
    """Write numbers that are spread evenly over a width around zero, from a place on."""
    for part in torch.split(values, _PART):
        places = torch.arange(start, start + len(part), dtype=torch.float64, device=part.device)
        part.copy_(places.mul_(0.6180339887).frac_().sub_(0.5).mul_(width))
        start += len(part)


# ---------------------------------------------------------------------- comparing


class _Comparison:
    """Compares an engine with a loop on dummy examples, one at a time and together."""

    def __init__(
        self,
        engine: OnePassEngine,
        loop: PerExampleEngine,
        parameters: Parameters,
        example: Batch,
        tolerance: _Tolerance,
    ) -> None:
        self._engine, self._loop, self._parameters = engine, loop, parameters
        self._singles, self._example = list(example.chunks(1)), example
        self._tolerance = tolerance
        self._state = torch.get_rng_state()
        self._rounding: list[float] | None = None
        self._geometries = [_PLAIN]
        if parameters.size <= _PART:
            scale = parameters.zeros()
            write_pattern(scale, 0, 1.0)
            self._geometries.append(FlatScaling(scale.add_(1.0), None))

    def run(self) -> None:
        """Raise unless they agree."""
        model, first = self._engine.model, self._singles[0]
        draws = self._draws(first)
        self._compare(together=not draws)
        if not draws:
            return
        training = [module for module in model.modules() if module.training]
        try:
            model.eval()  # without dropout
            if not self._draws(first):
                self._compare(together=True)
        finally:
            for module in training:
                module.training = True

    def _draws(self, one: Batch) -> bool:
        """Return whether the model or the loss draws random numbers."""
        torch.set_rng_state(self._state)
        with torch.no_grad():
            dense = one.dense()
            one_example(self._loop.loss, call(self._engine.model, dense.inputs), dense.targets)
        return not torch.equal(self._state, torch.get_rng_state())

    def _compare(self, together: bool) -> None:
        """Raise unless they agree on each example alone and, if asked for, beside the others."""
        sizes, norms = [], []
        for one in self._singles:
            expected = self._by_loop(one)
            own = [0.0 if part is None else _norm(part) for part in expected]
            sizes.append(own)
            norms.append([self._whitened_norm(expected, each) for each in self._geometries])
            self._close(self._by_engine(one), expected, own)
            del expected
        thorough = together and self._tolerance.each is not None
        if together:
            few = self._example.size
            counts: tuple[int, ...] = (few, 2) if thorough else (few,)
            if self._tolerance is _EXACT:  # elsewhere rounding may go its own ways in larger ones
                counts += (*self._engine.sizes,)
            for count in counts:
                self._compare_batch(count, sizes)
        if thorough:
            self._compare_norms(norms)
        else:
            self._compare_clipped(norms)

    def _compare_batch(self, count: int, sizes: list[list[float]]) -> None:
        """Raise unless some examples have the gradients together that they have one by one.

        Those of a larger batch are the same ones, several times each.
        """
        few = len(self._singles)
        batch = enlarged(self._example, count) if count > few else next(self._example.chunks(count))
        left, own = self._by_engine(batch), [0.0] * len(sizes[0])
        for place, (one, each) in enumerate(zip(self._singles, sizes, strict=True)):
            times = sum(i * few // count == place for i in range(count)) if count > few else 1
            if place < count:
                left.sub_(self._by_engine(one), alpha=times)
            own = [total + times * size for total, size in zip(own, each, strict=True)]
        self._close(left, [None] * len(own), own)

    def _compare_norms(self, norms: list[list[float]]) -> None:
        """Raise unless examples are clipped by bounds on their norms that are close to these."""
        torch.set_rng_state(self._state)
        bounds = self._engine.norms(self._example, self._geometries)
        for bound, true in zip(bounds, zip(*norms, strict=True), strict=True):
            for most, norm in zip(bound.tolist(), true, strict=True):
                if not self._bounds(most, norm):
                    raise Disagreement(
                        f"its bound on a norm is {most:.4g}, where the loop over examples has "
                        f"norm {norm:.4g}"
                    )

    def _bounds(self, most: float, norm: float) -> bool:
        """Return whether a number is a bound on a norm and not far from it."""
        if not norm or math.isinf(most):  # infinite where a gradient is made for its norm
            return True

        def within(room: float) -> bool:
            least, largest = norm * (1 - self._tolerance.norms), 1.01 * norm + _NOTHING
            return least - room <= most <= largest + room

        return within(0.0) or within(2 * math.hypot(*self._of_rounding()))

    def _compare_clipped(self, norms: list[list[float]]) -> None:
        """Raise if what is left of a clipped example is longer than the clip norm.

        This holds whatever rounding has made of the gradient before.
        """
        for one, (norm, *_) in zip(self._singles, norms, strict=True):
            left = _norm(self._by_engine(one, norm / 2)) if norm else 0.0
            if not left <= norm / 2 * (1 + 1e-5):
                raise Disagreement(f"what it clips to norm {norm / 2:.4g} has norm {left:.4g}")

    def _whitened_norm(self, parts: Sequence[Tensor | None], scaling: FlatScaling) -> float:
        if scaling.scale is None:
            return math.hypot(*(0.0 if part is None else _norm(part) for part in parts))
        scales = self._parameters.layout.pieces(scaling.scale)
        pairs = zip(parts, scales, strict=True)
        return math.hypot(*(0.0 if part is None else _norm(part / s) for part, s in pairs))

    def _by_engine(self, batch: Batch, clip: float = _NO_CLIP) -> Tensor:
        """Return the sum of some examples' gradients, made with the same random numbers."""
        torch.set_rng_state(self._state)
        with self._engine.by_itself():
            return self._engine.clipped_sum(batch, _PLAIN, clip).value

    def _by_loop(self, one: Batch) -> Sequence[Tensor | None]:
        """Return one example's gradients; zero if they are not finite, as everywhere."""
        torch.set_rng_state(self._state)
        found = [
            None if part is None else part.to_dense() for part in self._loop.gradient(one.dense())
        ]
        if all(part is None or bool(part.isfinite().all()) for part in found):
            return found
        return [None] * len(found)

    def _close(
        self, found: Tensor, expected: Sequence[Tensor | None], sizes: Sequence[float]
    ) -> None:
        """Raise unless two gradients agree; `sizes` are those of each parameter's gradients."""
        names = self._parameters.layout.names
        errors = [
            _norm(piece) if part is None else _distance(piece, part)
            for piece, part in zip(self._parameters.layout.pieces(found), expected, strict=True)
        ]
        off = self._off(errors, sizes, [0.0] * len(names))
        off = None if off is None else self._off(errors, sizes, self._of_rounding())
        if off is not None:
            where, error, size = off
            raise Disagreement(
                f"its gradient is off by {error:.2g}{where}, where the loop over examples has norm "
                f"{size:.2g}"
            )

    def _off(
        self, errors: Sequence[float], sizes: Sequence[float], rounding: Sequence[float]
    ) -> tuple[str, float, float] | None:
        """Return the first parameter whose gradient is too far off, None if there is none."""
        tolerance, size = self._tolerance, math.hypot(*sizes)
        if tolerance.each is None:
            error = math.hypot(*errors)
            if not error <= tolerance.overall * size + math.hypot(*rounding) + 1e-12:
                return "", error, size
            return None
        least = tolerance.overall * size + (1e-15 if tolerance is _EXACT else 1e-12)
        for name, error, own, loose in zip(
            self._parameters.layout.names, errors, sizes, rounding, strict=True
        ):
            if not error <= tolerance.each * own + least + loose:
                return f" in {name!r}", error, own
        return None

    def _of_rounding(self) -> list[float]:
        """Return how far rounding may take the gradients of each parameter.

        That is several times what parameters do to them that are moved in their last places.
        """
        if self._rounding is None:
            none = [0.0] * len(self._parameters.layout.names)
            self._rounding = none if self._tolerance is _EXACT else self._moved_by_last_places()
        return self._rounding

    def _moved_by_last_places(self) -> list[float]:
        eps = torch.finfo(self._parameters.dtype).eps
        before = self._parameters.read()
        unmoved = [self._by_loop(one) for one in self._singles]
        largest = [0.0] * len(self._parameters.layout.names)
        try:
            for move in range(_MOVES):
                step = torch.empty_like(before)
                write_pattern(step, move * len(step), 2 * _LAST_PLACES * eps)
                self._parameters.write_(before)
                self._parameters.add_(step.mul_(before))
                del step
                total = [0.0] * len(largest)
                for one, parts in zip(self._singles, unmoved, strict=True):
                    for i, (a, b) in enumerate(zip(self._by_loop(one), parts, strict=True)):
                        if a is not None and b is not None:
                            total[i] += _distance(a, b)
                largest = [max(a, b) for a, b in zip(largest, total, strict=True)]
        finally:
            self._parameters.write_(before)
        return [_ROOM * each for each in largest]


def _parts(values: Tensor) -> Sequence[Tensor]:
    """Return views of the rows of a tensor, some at a time."""
    if not values.ndim:
        return [values]
    return torch.split(values, max(1, _PART * len(values) // max(1, values.numel())))


def _norm(values: Tensor) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in _parts(values)))


def _distance(one: Tensor, other: Tensor) -> float:
    """Return the norm of a difference, made in parts."""
    pairs = zip(_parts(one), _parts(other), strict=True)
    return math.sqrt(sum(float((a.double() - b.double()).square().sum()) for a, b in pairs))


# ---------------------------------------------------------------------- in float64


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether anything is computed in fewer digits than float64 has."""

    short = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and value.is_floating_point():
                self.short = self.short or value.dtype is not torch.float64
        return result


def _in_float64(engine: OnePassEngine, loss: Loss, parameters: Parameters, example: Batch) -> bool:
    """Compare a copy of the engine in float64; return whether its model can be run so.

    Raises:
        Disagreement: it does not give what the loop gives.
    """
    with _without_autocast(parameters.device.type):
        try:
            copied = _copied(engine.model, loss, parameters)
            if copied is None:
                return False
            model, same_loss = copied
            own = Parameters(model)
            batch = Batch(*tree_map(_doubled, (example.inputs, example.targets)))
            loop = PerExampleEngine(model, same_loss, own, "loop")
            comparison = _Comparison(engine.twin(model, same_loss, own), loop, own, batch, _EXACT)
            _move(own)
            if _reaches(model, same_loss, batch, parameters):
                return False
            comparison.run()
        except Disagreement:
            watch = _Watch()  # type: ignore[no-untyped-call]
            with watch:
                loop.gradient(next(batch.chunks(1)).dense())
            if watch.short:
                return False
            raise
        except Exception:  # a model that casts, or makes tensors in float32, cannot be run so
            return False
    return True


def _without_autocast(kind: str) -> Any:
    return torch.autocast(kind, enabled=False)


def _doubled(values: Any) -> Any:
    if isinstance(values, Tensor) and values.is_floating_point():
        return values.double()
    return values


def _copied(model: nn.Module, loss: Loss, parameters: Parameters) -> tuple[nn.Module, Loss] | None:
    """Return a model and its loss in float64, apart from the given ones; None if too large."""
    tensors = list(_tensors(model))
    if isinstance(loss, nn.Module):
        tensors += _tensors(loss)
    different = {id(tensor): tensor for tensor in tensors}
    if 8 * sum(tensor.numel() for tensor in different.values()) > _COPY_BYTES:
        return None
    # what the copy finds here it does not copy: no second copy in float32 is made on the way
    known: dict[int, Any] = {
        key: _converted(tensor) for key, tensor in different.items() if _plain(tensor)
    }
    copied: tuple[nn.Module, Loss] = copy.deepcopy((model, loss), known)
    if Parameters(copied[0]).layout != parameters.layout:
        return None
    return copied


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Yield a module's parameters and buffers, and tensors that are plain attributes of it."""
    yield from module.parameters()
    yield from module.buffers()
    for inner in module.modules():
        yield from (value for value in vars(inner).values() if isinstance(value, Tensor))


def _plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.is_floating_point() and tensor.is_leaf


def _converted(tensor: Tensor) -> Tensor:
    same = tensor.detach().to(torch.float64, copy=True)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(same, requires_grad=tensor.requires_grad)
    return same.requires_grad_(tensor.requires_grad)


def _reaches(model: nn.Module, loss: Loss, batch: Batch, parameters: Parameters) -> bool:
    """Return whether a copied model or its loss still uses the parameters it was copied from."""
    one = next(batch.chunks(1)).dense()
    with torch.enable_grad():
        value = one_example(loss, call(model, one.inputs), one.targets)
    return bool(parameters.names_of(leaves(value)))
