"""Which trainable tensors a value was made from."""

from typing import Any

from torch import Tensor


def leaves(*values: Tensor) -> list[Tensor]:
    """Return the tensors that autograd would give gradients of some values to.

    This follows the graph and not the numbers: a tensor whose gradient happens to be zero, or is
    very small, is found as well.
    """
    found: list[Tensor] = []
    seen: set[Any] = set()
    waiting: list[Any] = [value.grad_fn for value in values]
    found += [value for value in values if value.grad_fn is None and value.requires_grad]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            found.append(node.variable)
        waiting += [following for following, _ in node.next_functions]
    return found
