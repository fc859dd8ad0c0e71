"""Any torch loss, taken example by example."""

from collections.abc import Callable, Hashable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from privada.core.errors import ModelError

Loss = Callable[[Any, Any], Tensor]


@runtime_checkable
class ExampleLosses(Protocol):
    """A loss that gives the losses of all examples at once, each as if it were a batch of its own.

    The engine holds it to the loop over examples, as it does every loss.
    """

    def example_losses(self, output: Any, target: Any) -> Tensor:
        """Return one loss for each example."""


# torch's own losses that are means or sums over elements: without reduction they give those.
_ELEMENTWISE: dict[Any, Callable[..., Tensor]] = {
    nn.MSELoss: functional.mse_loss,
    nn.L1Loss: functional.l1_loss,
    nn.BCEWithLogitsLoss: functional.binary_cross_entropy_with_logits,
    nn.BCELoss: functional.binary_cross_entropy,
    functional.mse_loss: functional.mse_loss,
    functional.l1_loss: functional.l1_loss,
    functional.binary_cross_entropy_with_logits: functional.binary_cross_entropy_with_logits,
    functional.binary_cross_entropy: functional.binary_cross_entropy,
}
_CLASSES: dict[Any, Callable[..., Tensor]] = {
    nn.CrossEntropyLoss: functional.cross_entropy,
    nn.NLLLoss: functional.nll_loss,
    functional.cross_entropy: functional.cross_entropy,
    functional.nll_loss: functional.nll_loss,
}


def one_example(loss: Loss, output: Any, target: Any) -> Tensor:
    """Return the loss of a batch of one as a number without dimensions."""
    value = loss(output, target)
    if value.numel() != 1:
        raise ModelError(
            f"Expected the loss of one example to be one number, got shape "
            f"{tuple(value.shape)}. Use a loss with reduction='mean' or 'sum'."
        )
    return value.reshape(())


def example_losses(loss: Loss, output: Any, target: Any) -> Tensor:
    """Return the loss of each example, each as if it were a batch of its own.

    torch's common losses are taken without their reduction; any other is mapped over the examples.
    """
    quick = _quick(loss, output, target)
    if quick is not None:
        return quick

    def one(output: Any, target: Any) -> Tensor:
        batch = tree_map(lambda t: t.unsqueeze(0), (output, target))
        return one_example(loss, *batch)

    try:
        return vmap(one, randomness="different")(output, target)
    except ModelError:
        raise
    except Exception:  # whatever vmap cannot follow
        count = len(tree_leaves(output)[0])
        rows = [one(*tree_map(lambda t, i=i: t[i], (output, target))) for i in range(count)]
        return torch.stack(rows)


def _quick(loss: Loss, output: Any, target: Any) -> Tensor | None:
    if isinstance(loss, ExampleLosses):
        return loss.example_losses(output, target)
    kind = type(loss) if isinstance(loss, nn.Module) else loss
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return None
    if not isinstance(kind, Hashable):
        return None
    reduction = getattr(loss, "reduction", "mean")
    if reduction == "none" or any(
        getattr(loss, name, None) is not None for name in ("weight", "pos_weight")
    ):
        return None
    if kind in _ELEMENTWISE and output.shape == target.shape:
        each = _ELEMENTWISE[kind](output, target, reduction="none")
        each = each.reshape(len(output), -1)
        return each.mean(dim=1) if reduction == "mean" else each.sum(dim=1)
    if kind in _CLASSES and output.ndim == target.ndim + 1 and target.dtype == torch.int64:
        ignored = getattr(loss, "ignore_index", -100)
        options: dict[str, Any] = {"ignore_index": ignored}
        if getattr(loss, "label_smoothing", 0.0):
            options["label_smoothing"] = loss.label_smoothing  # type: ignore[attr-defined]
        each = _CLASSES[kind](output, target, reduction="none", **options)
        if target.ndim == 1:  # one target each; one that is ignored has a loss of zero
            return each
        each = each.reshape(len(output), -1)
        if reduction == "sum":
            return each.sum(dim=1)
        # an example with nothing but ignored targets has no mean: it will count as zero
        return each.sum(dim=1) / (target != ignored).reshape(len(output), -1).sum(dim=1)
    return None
