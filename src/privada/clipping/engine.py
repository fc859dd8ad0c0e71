"""The choice of an engine: one pass where its rules hold, per-example gradients where not."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from privada.clipping.clips import THRESHOLD, Clipping, checked
from privada.clipping.loss_checks import (
    refuse_flat_losses,
    refuse_hooks,
    refuse_parameters_elsewhere,
)
from privada.clipping.losses import Loss
from privada.clipping.one_pass import OnePassEngine
from privada.clipping.reads import NotFollowed
from privada.clipping.reference import PerExampleEngine
from privada.clipping.self_check import hold_to_the_loop, moved
from privada.core.errors import ArgumentError, ModelError
from privada.core.tensors import Parameters
from privada.core.validation import one_of
from privada.core.values import ClippedSum
from privada.data.batch import Batch
from privada.data.padding import Padding
from privada.preconditioning import FlatScaling

ENGINES = ("auto", "one-pass", "vmap", "loop")


class Engine(Protocol):
    """Turns a batch into a clipped sum, at the model's current parameters.

    `padding` says how batches are filled up; None if examples are always alone. `clipping` says
    how gradients are bounded.
    """

    padding: Padding | None
    clipping: Clipping

    def clipped_sum(self, batch: Batch | None, scaling: FlatScaling, clip: float) -> ClippedSum:
        """Return the sum of the whitened, clipped per-example gradients; zero for None."""

    def rows(self, batch: Batch) -> Iterator[torch.Tensor]:
        """Yield the gradients of the examples as rows, some at a time. They are private."""


def make_engine(
    how: str,
    model: nn.Module,
    loss: Loss,
    parameters: Parameters,
    example: Batch,
    clipping: Clipping = THRESHOLD,
    expected: float | None = None,
) -> Engine:
    """Return the engine for a model, tried on a dummy batch before any record is read.

    "auto" takes one pass, and per-example gradients for a model that its rules cannot follow: by
    vmap, or else one example at a time. A compiled model is run as it was before compilation. Each
    engine can clip in each way. `expected` is about how many records a batch will have.

    Guarantee: what the engine returns has the sensitivity that it says, for models that treat
    examples one by one; on dummy examples it was held to a loop over them.

    Raises:
        ArgumentError: the model or the loss does not accept the data's shapes and types.
        ModelError: the model mixes examples, or is compiled in parts; the loss or the model uses
            trainable tensors that are not the model's; the loss of one example is constant.

    Example:
        >>> import torch
        >>> from privada.clipping import Batch, make_engine
        >>> from privada.core.tensors import Parameters
        >>> from privada.preconditioning import FlatScaling
        >>> model, batch = torch.nn.Linear(3, 1), Batch(torch.ones(4, 3), torch.zeros(4, 1))
        >>> parameters = Parameters(model)
        >>> engine = make_engine("auto", model, torch.nn.MSELoss(), parameters, batch)
        >>> clipped = engine.clipped_sum(batch, FlatScaling(None, None), clip=0.5)
        >>> clipped.value.shape, clipped.sensitivity
        (torch.Size([4]), 0.5)
    """
    one_of("engine", how, ENGINES)
    checked(clipping).on(parameters.layout)  # which refuses layers that the model does not have
    example = replace(example, groups=None)
    model = not_compiled(model)
    refuse_hooks(parameters)
    with torch.random.fork_rng(devices=[]):
        refuse_parameters_elsewhere(model, loss, example)
        refuse_flat_losses(model, loss, parameters, example)
    failures: list[Exception] = []
    for kind in ("one-pass", "vmap", "loop") if how == "auto" else (how,):
        try:
            with torch.random.fork_rng(devices=[]):
                engine = _tried(kind, model, loss, parameters, example, clipping, expected)
                engine.pad(example)
        except ModelError:
            raise
        except Exception as error:  # whatever a user's model raises
            failures.append(error)
            continue
        if isinstance(engine, OnePassEngine) and engine.whole_modules:
            warnings.warn(
                f"No rule knows how the modules {sorted(engine.whole_modules)} use their "
                "parameters: gradients are made for each example there, with more memory.",
                stacklevel=3,
            )
        if kind != "one-pass" and failures and how == "auto":
            warnings.warn(
                f"The fast engine cannot follow this model ({failures[0]}), so gradients are made "
                f"for each example ({kind}): slower, and with more memory, but as private.",
                stacklevel=2,
            )
        return engine
    raise ArgumentError(
        "Expected a model and a loss that accept the data's shapes and types, but a dummy "
        f"example of them failed with: {failures[-1]}. Inputs: {_shapes(example.inputs)}; "
        f"targets: {_shapes(example.targets)} (first dimension: the batch)."
    ) from failures[-1]


def not_compiled(model: nn.Module) -> nn.Module:
    """Return the model that torch.compile was given; refuse one that is compiled in parts."""
    inner: nn.Module = getattr(model, "_orig_mod", model)
    for name, module in inner.named_modules():
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            raise ModelError(
                f"Expected a model that is not compiled, or compiled as a whole by "
                f"torch.compile(model), got a compiled layer {name!r}: per-example gradients "
                "cannot be read off it. Leave out the compilation; use it for prediction."
            )
    return inner


def _tried(
    kind: str,
    model: nn.Module,
    loss: Loss,
    parameters: Parameters,
    example: Batch,
    clipping: Clipping,
    expected: float | None,
) -> OnePassEngine | PerExampleEngine:
    if kind == "one-pass":
        with moved(parameters):
            engine = OnePassEngine(model, loss, parameters, example, expected=expected)
        hold_to_the_loop(engine, loss, parameters, example)
        if clipping.by_norm is None:  # it needs gradients, which are made in another way
            # gradients of units are bounded as others are: a threshold leaves those as they are
            plain = replace(clipping, control=THRESHOLD.control)
            engine.clipping = THRESHOLD.of_units() if clipping.by_unit else plain
            hold_to_the_loop(engine, loss, parameters, example)
        engine.clipping = clipping
        if not engine.uses_parameters:
            warnings.warn(
                "No trainable parameter was seen to reach the loss, so this model will not learn. "
                "If it uses torch.utils.checkpoint, give it use_reentrant=False.",
                stacklevel=4,
            )
        return engine
    reference = PerExampleEngine(
        model, loss, parameters, kind, clipping=clipping, expected=expected
    )
    if kind == "vmap" and (kept := reference.not_replaced(example.dense())):
        raise NotFollowed(f"the parameters {kept} are used where vmap cannot replace them")
    reference.clipped_sum(example, FlatScaling(None, None), 1.0)
    return reference


def _shapes(values: Any) -> str:
    return ", ".join(f"{tuple(t.shape)} {t.dtype}" for t in tree_leaves(values))
