"""What reads values in the middle of a batch, refused.

A program that reads a value, or makes a shape or a place depend on one, lets one example decide
what is done with another.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.nn.modules.transformer import _detect_is_causal_mask
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Reading a value in the middle of a batch lets one example decide what is done with another.
_READS = frozenset(
    {
        Tensor.item,
        Tensor.tolist,
        Tensor.numpy,
        Tensor.__array__,
        Tensor.__dlpack__,
        Tensor.__repr__,
        Tensor.__format__,
        Tensor.__reduce_ex__,
        Tensor.__deepcopy__,
        Tensor.data_ptr,
        Tensor.storage,
        Tensor.untyped_storage,
        Tensor.__bool__,
        Tensor.__float__,
        Tensor.__int__,
        Tensor.__index__,
        Tensor.__contains__,
        Tensor.is_nonzero,
        Tensor.equal,
        Tensor.allclose,
        torch.is_nonzero,
        torch.equal,
        torch.allclose,
    }
)


# torch's own layers read the number of examples, and whether a mask is the causal one. Those of
# transformers leave out a mask that masks nothing, to the same effect.
_READERS = frozenset(
    function.__code__
    for function in (
        nn.RNNBase.get_expected_hidden_size,
        nn.LSTM.get_expected_cell_size,
        nn.RNN.forward,
        nn.GRU.forward,
        nn.LSTM.forward,
        _detect_is_causal_mask,
    )
)
_READERS_ELSEWHERE = frozenset(
    ("transformers.masking_utils", name)
    for name in (
        "_ignore_causal_mask_sdpa",
        "_ignore_bidirectional_mask_sdpa",
        "find_packed_sequence_indices",
    )
)
# Operations that hand values to the program, or make a shape or a place depend on them.
_BY_VALUE = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "nonzero_numpy",
        "argwhere", "masked_select", "masked_scatter", "masked_scatter_", "bincount", "_unique",
        "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
    )
)  # fmt: skip


def _harmless(frame: FrameType | None, depth: int = 1) -> bool:
    """Return whether one of the next functions on the stack is a layer that may read."""
    while frame is not None and depth:
        place = frame.f_globals.get("__name__"), frame.f_code.co_name
        if frame.f_code in _READERS or place in _READERS_ELSEWHERE:
            return True
        frame, depth = frame.f_back, depth - 1
    return False


class NotFollowed(Exception):
    """A model, or a batch, that the rules cannot follow."""


class RefuseValueOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what reads values below torch's functions, or picks rows by them.

    A row that is there only for some values does not tell whose it is by its place. Made-up
    examples run under this; a model does not get to such operations later by itself.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket
        if sys._getframe(1).f_code is _engine_run_backward.__code__:
            return func(*args, **(kwargs or {}))  # torch's own formulas may look at zeros
        picks = name in _BY_VALUE or func is torch.ops.aten.repeat_interleave.Tensor
        if name in (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_):
            picks = _picks_rows(*args[:3])
        if picks and not _harmless(sys._getframe(1), 5):
            raise NotFollowed(f"shapes or paths depend on its values ({name})")
        return func(*args, **(kwargs or {}))


class RefuseReads(TorchFunctionMode):
    """Refuses torch functions that hand values to the program."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        refuse_reads(func, sys._getframe(1))
        return func(*args, **(kwargs or {}))


def refuse_reads(func: Any, frame: FrameType) -> None:
    """Raise if a torch function hands values to a program that is none of torch's layers."""
    if func in _READS and not _harmless(frame):
        raise NotFollowed(f"it reads values in the middle of a batch ({func.__name__})")


def _picks_rows(values: Tensor, places: Iterable[Any], given: Tensor | None = None) -> bool:
    """Return whether a mask decides how many rows are read, or which of them goes where."""
    masks = [p for p in places if p is not None and p.dtype in (torch.bool, torch.uint8)]
    if not masks or given is None:
        return bool(masks)
    left = values.ndim - sum(mask.ndim for mask in masks)
    return given.ndim > left and given.shape[0] != 1


@contextmanager
def without_reads() -> Iterator[None]:
    """Raise NotFollowed where values are read, or decide on a shape or a place."""
    with RefuseReads(), RefuseValueOperations():  # type: ignore[no-untyped-call]
        yield
