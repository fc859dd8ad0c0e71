"""The dry run: a model, a loss and an engine are tried on dummy examples before any charge."""

import contextlib
import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from privada import data as private_data
from privada.clipping import Clipping, Engine, make_engine
from privada.clipping.calling import call, of_tensors
from privada.clipping.losses import Loss
from privada.core.errors import ArgumentError, ModelError
from privada.core.hidden_streams import hidden_generator
from privada.core.randomness import SecureSource
from privada.core.silence import pass_on_signals, silenced
from privada.core.state import HeldState
from privada.core.tensors import Parameters
from privada.core.validation import shown
from privada.data.batch import scaled
from privada.preconditioning import FlatScaling
from privada.query.local import try_model
from privada.train.modes import training_mode
from privada.train.settings import TrainSettings

# What dummy examples are multiplied by to see whether a model or a loss keeps something of them.
_EXTREMES = (1.0, 0.0, 40.0, -1e6, 1e30, math.nan)


def check_model(model: Any, loss: Any) -> None:
    """Raise unless they can be a model and a loss."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"Expected model to be a torch.nn.Module, got model={shown(model)}. Give a model "
            "that is made, not its class."
        )
    _refuse_distributed(model)
    if not callable(loss) or isinstance(loss, type):
        raise ArgumentError(
            f"Expected loss to be a torch loss or a function of (output, target), got "
            f"loss={shown(loss)}. Use torch.nn.CrossEntropyLoss(), or the like."
        )


def _refuse_distributed(model: nn.Module) -> None:
    """Raise if a model sends gradients of its own to other processes, or is there in part."""
    kinds: tuple[type, ...] = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    sharded = sys.modules.get("torch.distributed.fsdp")  # which takes long to load
    if sharded is not None:
        kinds += (sharded.FSDPModule, sharded.FullyShardedDataParallel)
    for name, module in model.named_modules():
        if isinstance(module, kinds):
            where = f" in its part {name!r}" if name else ""
            raise ModelError(
                "Expected a plain model that is whole in this process, got "
                f"{type(module).__name__}{where}, which sends gradients without noise by itself, "
                "or splits the model. Give the model as it was before that was put around it, and "
                "executor=pv.execute.DataParallel() to train it on several processes. Nothing was "
                "charged."
            )


@dataclass(frozen=True)
class DryRun:
    """What a dry run found: the engine, and the state of user code that records must not change."""

    engine: Engine
    state: HeldState


def dry_run(
    model: nn.Module,
    loss: Loss,
    records: private_data.Records,
    parameters: Parameters,
    settings: TrainSettings,
    clipping: Clipping,
    rows_per_unit: int = 1,
) -> DryRun:
    """Run the model on dummy examples, so that faults show before anything is charged.

    Raises:
        ModelError: the model mixes examples, keeps something of them, or returns no tensor.
        ArgumentError: the model or the loss does not accept the data's shapes and types.
    """
    example = private_data.dummy_batch(records).dense()
    with training_mode(model):
        fault = try_model(model, example)
        expected = settings.batch_size * rows_per_unit
        engine = _engine(model, loss, records, parameters, settings.engine, clipping, expected)
        if fault is not None:
            raise fault
        state = HeldState(model, loss, readers=private_data.readers_of(records))
        _refuse_state(engine, state, records, parameters)
        settings.objective.gradient(model, parameters)  # which may be an error
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = call(model, example.inputs)
    if not of_tensors(outputs):
        raise ModelError(
            "Expected the model to return a tensor, or a dictionary or tuple of tensors, got "
            f"{type(outputs)}."
        )
    private_data.check_ranges(records, model, loss, outputs)
    return DryRun(engine, state)


def _engine(
    model: nn.Module,
    loss: Loss,
    records: private_data.Records,
    parameters: Parameters,
    how: str,
    clipping: Clipping,
    expected: float,
) -> Engine:
    """Return the engine; rows of a sparse matrix stay sparse where the model allows it."""
    example = private_data.dummy_batch(records)
    if example.sparse:
        if how in ("auto", "one-pass"):
            with contextlib.suppress(ArgumentError):
                return make_engine("one-pass", model, loss, parameters, example, clipping, expected)
        assert isinstance(records, private_data.ColumnRecords)
        records.make_dense()
        example = private_data.dummy_batch(records)
    return make_engine(how, model, loss, parameters, example, clipping, expected)


def _refuse_state(
    engine: Engine, state: HeldState, records: private_data.Records, parameters: Parameters
) -> None:
    """Raise if dummy examples, ordinary and extreme, leave something behind."""
    example, before = private_data.dummy_batch(records), parameters.read()
    with hidden_generator(SecureSource(), parameters.device), silenced(), state.watched():
        for factor in _EXTREMES:
            try:
                engine.clipped_sum(scaled(example, factor), FlatScaling(None, None), 1.0)
            except BaseException as error:  # a model may refuse what is extreme
                pass_on_signals(error)
        changed = state.changed()
    if changed:
        parameters.write_(before)
        raise ModelError(
            f"Expected a model and a loss that keep nothing of the data, but {changed} change "
            "when they run on dummy examples, and would carry un-noised facts from one "
            "record to the next. Remove what keeps state, such as observers, running maxima, "
            "counters and stored activations."
        )
