"""How a model is called on the inputs of a batch, and what its outputs are."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """Call a model on one input, on the parts of a tuple, or on the entries of a dict.

    Of an output that is a dictionary, tuple or list, what holds no tensor is left out, such as a
    cache of keys and values: a loss of one example has no use for it.
    """
    if isinstance(inputs, dict):
        return _tensors_of(model(**inputs))
    if isinstance(inputs, (tuple, list)):
        return _tensors_of(model(*inputs))
    return _tensors_of(model(inputs))


def output_tensors(outputs: Any) -> list[Tensor]:
    """Return the tensors of an output, whatever it is nested in."""
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]


def of_tensors(outputs: Any) -> bool:
    """Return whether an output is a tensor, or a nesting of nothing but tensors."""
    leaves = tree_leaves(outputs)
    return bool(leaves) and all(isinstance(leaf, Tensor) for leaf in leaves)


def _tensors_of(outputs: Any) -> Any:
    if isinstance(outputs, Tensor) or of_tensors(outputs):
        return outputs
    if isinstance(outputs, Mapping):
        kept = {name: value for name, value in outputs.items() if of_tensors(value)}
        return type(outputs)(**kept) if kept else outputs
    if type(outputs) in (tuple, list):  # from the end, so that no place changes
        end = len(outputs)
        while end and not of_tensors(outputs[end - 1]):
            end -= 1
        return outputs[:end] if end else outputs
    return outputs
