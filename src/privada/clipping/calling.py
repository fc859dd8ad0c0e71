"""How a model is called on the inputs of a batch."""

from collections.abc import Callable
from typing import Any


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """Call a model on one input, on the parts of a tuple, or on the entries of a dict."""
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)
