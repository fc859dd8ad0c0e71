"""What a forward and a backward pass say about per-example gradients.

While a model runs, every torch function that is given a trainable parameter is seen here. A rule
runs it with the parameter as a constant and notes its input; the gradient of its output arrives in
the backward pass. Together these are the per-example gradients in factors, so that autograd never
computes a gradient of a parameter. A use without a rule is noted too, by name: nothing passes
unseen, and what is not recorded is not in the sum either, so that the clip norm bounds whatever is.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import CheckpointError

from privada.clipping.contributions import Contribution, DenseGrad
from privada.clipping.example_layouts import FIRST, ExampleLayout
from privada.clipping.parameter_views import ParameterView
from privada.clipping.reads import (
    NotFollowed,
    RefuseReads,
    RefuseValueOperations,
    refuse_reads,
)
from privada.clipping.replacing import replaced

Key = tuple[str, int]

_PACKED = frozenset(getattr(torch._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))


_SHAPES = frozenset({"__get__", "dim", "size"})
HALF = (torch.bfloat16, torch.float16)


def whole_precision(values: Tensor) -> Tensor:
    """Return what autocast made short in float32, in which norms and sums are taken."""
    return values.float() if values.dtype in HALF else values


@dataclass(eq=False)
class ParameterUse:
    """One operation on parameters: what it was given, and later the gradient of its output."""

    key: Key
    examples: int
    layout: ExampleLayout | None
    tail: int
    build: Callable[["ParameterUse"], Iterable[Contribution]]
    stack: tuple[str, ...] = ()
    shape: torch.Size = field(default_factory=torch.Size)
    lead: torch.Size | None = None  # of what can be spread over the examples
    output: Tensor | None = None
    gradient: Tensor | None = None
    inputs: tuple[tuple[Tensor, int], ...] = ()

    def note(self, *inputs: Tensor) -> None:
        """Keep inputs until the backward pass, and their versions."""
        self.inputs = tuple((values, values._version) for values in inputs)

    def given(self) -> tuple[Tensor, ...]:
        """Return the inputs, unless they were changed in place since."""
        for values, version in self.inputs:
            if values._version != version:
                raise NotFollowed(f"the input that {self.key[0]!r} saw is changed in place later")
        return tuple(whole_precision(values.detach()) for values, _ in self.inputs)

    def arrange(self, values: Tensor, tail: int) -> Tensor:
        """Return values as (examples, positions, *tail)."""
        if self.layout is None:
            raise NotFollowed(f"no layout is known for use {self.key}")
        return self.layout.arrange(values, self.examples, tail)

    def contributions(self) -> list[Contribution]:
        """Return what the use contributes to the gradients; nothing if it did not matter."""
        if self.gradient is None:
            return []
        self.gradient = whole_precision(self.gradient)
        return list(self.build(self))


class _CaptureGrad(torch.autograd.Function):
    """The identity; its backward pass notes the gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, values: Tensor, use: ParameterUse) -> Tensor:
        ctx.use = use
        ctx.mark_dirty(values)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        ctx.use.gradient = gradient.reshape(ctx.use.shape)
        return None, gradient, None


Rule = Callable[..., Any]


@dataclass(frozen=True)
class Unknown:
    """A use of a parameter that no rule knows, and the modules that were running."""

    name: str
    function: str
    stack: tuple[str, ...]


class Recorder(TorchFunctionMode):
    """Notes every use of trainable parameters while it is entered."""

    def __init__(
        self,
        modules: list[tuple[str, nn.Module]],
        pieces: dict[int, tuple[str, ParameterView]],
        rules: dict[Any, Rule],
        layouts: dict[Key, ExampleLayout],
        whole_modules: frozenset[str],
        examples: int,
        asking: bool = False,
    ) -> None:
        super().__init__()
        self._modules, self._rules = modules, rules
        self._pieces = pieces
        self._views: list[Tensor] = []  # kept alive, so that their ids stay theirs
        self._layouts, self.whole_modules, self.asking = layouts, whole_modules, asking
        self._paused = 0
        self._counts: Counter[str] = Counter()
        self.examples = examples
        self.anchor = torch.zeros((), requires_grad=True)
        self._edges: list[tuple[ParameterUse, GradientEdge]] = []
        self.uses: list[ParameterUse] = []
        self.unknown: list[Unknown] = []
        self.copies: list[tuple[ParameterView, Tensor]] = []
        self.stack: list[str] = []
        self.batched_modules: set[str] = set()
        self.packings: list[Any] = []
        self._packed: dict[int, tuple[Tensor, int]] = {}

    # ------------------------------------------------------------------ seeing

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function, by its rule if it is given a trainable parameter."""
        kwargs = kwargs or {}
        if self.examples > 1:
            refuse_reads(func, sys._getframe(1))
        if self._packed:
            packed = next((self._packed[id(v)] for v in args if id(v) in self._packed), None)
            if packed is not None:
                return self._run_packed(func, args, kwargs, packed[1])
        if func is torch._VF._pack_padded_sequence:
            result = func(*args, **kwargs)
            self._packed[id(result[0])] = result[0], args[0].shape[1 if args[2] else 0]
            return result
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch.is_grad_enabled():
            return func(*args, **kwargs)
        name = self._tracked_in(args) or self._tracked_in(kwargs.values())
        if name is None:
            return func(*args, **kwargs)
        if self._paused:  # a module that runs by example has copies of its own parameters alone
            result = func(*args, **kwargs)
            if any(isinstance(v, Tensor) and v.requires_grad for v in tree_leaves(result)):
                self.unknown.append(Unknown(name, _name_of(func), tuple(self.stack)))
            return result
        rule = self._rules.get(func)
        if rule is not None:
            result = rule(self, *args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if result is None:  # x[...] = p
            self.unknown.append(Unknown(name, _name_of(func), tuple(self.stack)))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            self._track_view(value, args, name, func)
        return result

    def _tracked_in(self, values: Iterable[Any]) -> str | None:
        for value in values:
            if isinstance(value, Tensor):
                found = self._pieces.get(id(value))
                if found is not None:
                    return found[0]
            elif isinstance(value, (list, tuple)):
                inner = self._tracked_in(value)
                if inner is not None:
                    return inner
        return None

    def _track_view(self, value: Any, args: tuple[Any, ...], name: str, func: Any) -> None:
        """Follow a view of a parameter; note any other result that depends on one as unknown."""
        if not isinstance(value, Tensor) or not value.requires_grad or id(value) in self._pieces:
            return
        base = next((a for a in args if isinstance(a, Tensor) and id(a) in self._pieces), None)
        if base is not None and _is_view(value, base, self._pieces[id(base)][1]):
            name, piece = self._pieces[id(base)]
            offset = piece.offset + int(value.storage_offset() - base.storage_offset())
            self._pieces[id(value)] = (
                name,
                ParameterView(offset, tuple(value.shape), value.stride()),
            )
            self._views.append(value)
            return
        self.unknown.append(Unknown(name, _name_of(func), tuple(self.stack)))

    def _run_packed(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], length: int
    ) -> Any:
        """Run a function of packed rows, whose examples their shape does not tell.

        They go to recurrent layers, and are unpacked to the length that they were packed from: the
        longest of the batch would let an example's length be seen in the others' shapes.
        """
        if func is torch._VF._pad_packed_sequence:
            unpack: Any = func
            return unpack(*args[:4], max(args[4], length))
        if func not in _PACKED and getattr(func, "__name__", "") not in _SHAPES:
            if self.examples > 1:
                raise NotFollowed(f"it works on packed rows ({func.__name__})")
            return self._run(func, args, kwargs)
        result = self._run(func, args, kwargs)
        if func in _PACKED:
            self._packed[id(result[0])] = result[0], length
        return result

    @contextmanager
    def seeing(self) -> Iterator[None]:
        """See the torch functions that a rule calls, too."""
        with self:
            yield

    # ------------------------------------------------------------------ noting

    def piece(self, value: Any) -> ParameterView | None:
        """Return the piece that a tensor is, None if it is no trainable parameter."""
        found = self._pieces.get(id(value))
        return None if found is None else found[1]

    def constant(self, value: Any) -> Any:
        """Return a parameter cut off from autograd; anything else as it is."""
        return value.detach() if id(value) in self._pieces else value

    def use(
        self,
        values: Iterable[Any],
        tail: int,
        build: Callable[[ParameterUse], Iterable[Contribution]],
    ) -> ParameterUse:
        """Return a new use of the first parameter among `values`."""
        name = next(self._pieces[id(v)][0] for v in values if id(v) in self._pieces)
        key = name, self._counts[name]
        self._counts[name] += 1
        layout = self._layouts.get(key)
        if self.examples == 1:
            layout = layout or FIRST
        elif layout is None and not self.asking:
            raise NotFollowed(f"{name!r} is used more often than on dummy examples")
        use = ParameterUse(key, self.examples, layout, tail, build, tuple(self.stack))
        self.uses.append(use)
        return use

    def capture_grad(self, values: Tensor, use: ParameterUse) -> Tensor:
        """Return values as they are; the gradient that comes back to them will be in `use`.

        Where autograd has a place for the gradient it is asked for it. What no gradient reaches yet
        has none, and that of a view is lost when it is written to: those pass through a tap.
        """
        use.shape = values.shape
        if values.requires_grad and not values._is_view():
            self._edges.append((use, get_gradient_edge(values)))
            if self.asking:
                use.output = values.detach().clone()
            return values
        if values._is_view():  # the tap changes what it is given, which a view does not survive
            base = values._base
            assert base is not None
            plain = base.is_contiguous() and values.is_contiguous()
            values = base if plain and base.numel() == values.numel() else values.clone()
        tapped: Tensor = _CaptureGrad.apply(self.anchor, values, use)  # type: ignore[no-untyped-call]
        tapped = tapped if tapped.shape == use.shape else tapped.view(use.shape)
        if self.asking:
            use.output = tapped.detach().clone()
        return tapped

    def backward(self, loss: Tensor, again: bool = False) -> list[Tensor | None]:
        """Note the gradients of a loss in all uses, and return those of the copies.

        With `again`, it can be asked for those of another loss.
        """
        wanted: list[Any] = [self.anchor, *(edge for _, edge in self._edges)]
        wanted += [copy for _, copy in self.copies]
        try:
            with self.watching():
                # what torch.autograd.grad does, which modes would not see into
                gradients = _engine_run_backward(
                    (loss,), (torch.ones_like(loss),), again, False, tuple(wanted), True,
                    accumulate_grad=False,
                )  # fmt: skip
        except CheckpointError as error:
            raise NotFollowed(
                "torch.utils.checkpoint runs its layers a second time, unseen; leave it out"
            ) from error
        found: list[Any] = list(gradients[1:])
        for (use, _), gradient in zip(self._edges, found, strict=False):
            use.gradient = gradient
        return found[len(self._edges) :]

    def expand_per_example(self, use: ParameterUse, values: Tensor, tail: int) -> Tensor:
        """Return one copy of the values for each example, if no example owns them."""
        use.lead = values.shape[: values.ndim - tail]
        if use.layout is None or not use.layout.expand:
            return values
        if use.layout.expand == "instead":
            values = values[0]
        return values.expand(self.examples, *values.shape)

    # ------------------------------------------------------------------ running

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Refuse reads of values while dummy examples run through a loss and back."""
        if not self.asking or self.examples == 1:
            yield
            return
        with RefuseReads(), RefuseValueOperations():  # type: ignore[no-untyped-call]
            yield

    @contextmanager
    def recording(self) -> Iterator["Recorder"]:
        """Enter the recorder, with the modules that have no rule run example by example."""
        handles: list[Any] = []
        patched: list[nn.Module] = []
        try:
            for name, module in self._modules:
                if name in self.whole_modules:
                    module.forward = self._by_example(module)
                    patched.append(module)
                if self.asking:
                    enter = self._enter(name)
                    handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
                    handles.append(module.register_forward_hook(self._leave, always_call=True))
                if isinstance(module, nn.RNNBase):
                    note = self._note_packing
                    handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
            watch = RefuseValueOperations() if self.asking else nullcontext()  # type: ignore[no-untyped-call]
            with self, watch:
                yield self
        finally:
            for handle in handles:
                handle.remove()
            for module in patched:
                del module.forward

    def _enter(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.stack.append(name)
            given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
            own = all(_batched(v, self.examples) and self.piece(v) is None for v in given)
            if given and own:
                self.batched_modules.add(name)

        return hook

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.stack.pop()

    def _note_packing(self, module: nn.Module, inputs: Any, named: Any) -> None:
        packed = inputs[0] if inputs else named.get("input")
        if isinstance(packed, nn.utils.rnn.PackedSequence):
            self.packings.append(packed.unsorted_indices)

    def _by_example(self, module: nn.Module) -> Callable[..., Any]:
        """Return a forward pass in which every example has its own copy of the parameters."""
        pieces = [
            (parameter, piece)
            for parameter in module.parameters()
            if (piece := self.piece(parameter)) is not None
        ]

        def forward(*args: Any, **kwargs: Any) -> Any:
            self._paused += 1
            del module.forward
            try:
                copies = [
                    parameter.detach().expand(self.examples, *parameter.shape).requires_grad_()
                    for parameter, _ in pieces
                ]
                in_dims = tree_map(
                    lambda v: 0 if isinstance(v, Tensor) and _batched(v, self.examples) else None,
                    (args, kwargs),
                )

                def one(own: list[Tensor], args: Any, kwargs: Any) -> Any:
                    args, kwargs = _lifted(args, in_dims[0]), _lifted(kwargs, in_dims[1])
                    ids = (id(parameter) for parameter, _ in pieces)
                    with replaced(module.modules(), dict(zip(ids, own, strict=True))):
                        out = module(*args, **kwargs)
                    return tree_map(lambda v: v.squeeze(0) if isinstance(v, Tensor) else v, out)

                result = vmap(one, in_dims=(0, *in_dims), randomness="different")(
                    copies, args, kwargs
                )
            finally:
                module.forward = forward
                self._paused -= 1
            self.copies += [(piece, own) for (_, piece), own in zip(pieces, copies, strict=True)]
            return result

        return forward


def _name_of(func: Any) -> str:
    return getattr(func, "__name__", str(func))


def _batched(value: Tensor, examples: int) -> bool:
    return value.ndim > 0 and value.shape[0] == examples


def _lifted(values: Any, in_dims: Any) -> Any:
    """Give the tensors that were mapped over a batch of one."""
    leaves, dims = tree_leaves(values), tree_leaves(in_dims, is_leaf=lambda v: v is None)
    lifted = iter(v.unsqueeze(0) if d == 0 else v for v, d in zip(leaves, dims, strict=True))
    return tree_map(lambda _: next(lifted), values)


def _is_view(value: Tensor, base: Tensor, piece: ParameterView) -> bool:
    """Return whether a tensor shares its base's memory and has each coordinate at most once."""
    if value.untyped_storage().data_ptr() != base.untyped_storage().data_ptr():
        return False
    if value.dtype != base.dtype or base.stride() != piece.stride:
        return False
    reach = 0  # of the dimensions so far; the next must step over it
    for step, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size > 1 and step <= reach:
            return False
        reach += step * (size - 1)
    return True


def whole_contributions(
    copies: list[tuple[ParameterView, Tensor]], gradients: Iterable[Tensor | None]
) -> list[Contribution]:
    """Return the contributions of modules that ran example by example."""
    return [
        DenseGrad(piece, gradient)
        for (piece, _), gradient in zip(copies, gradients, strict=True)
        if gradient is not None
    ]
