"""A metric: what is noted of each public record, and the one figure that is made of all of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from privada.core.errors import ArgumentError
from privada.core.validation import flag, printable_text, shown
from privada.query.scores import Score


def mean(noted: Tensor) -> float:
    """Return the average of what was noted."""
    return float(noted.double().mean())


def numbers(outputs: Any) -> Any:
    """Return the numbers among a model's outputs: the logits of those that have several parts."""
    return outputs["logits"] if isinstance(outputs, Mapping) and "logits" in outputs else outputs


@dataclass(frozen=True)
class Metric:
    """A figure of a model on public records.

    Args:
        name: what it is called.
        each: a function of (outputs, targets) of some records that returns what is to be noted of
            them: a tensor, or several, with one row for each record.
        reduce: a function of what was noted of all records that returns the figure; by default
            their average.
        greater: whether more is better.

    Guarantee: none. It is for records that are public; for private ones there is
    `pv.selection.Score`, whose noise is charged.

    Edge cases: records come in chunks, so that `each` must not mix them; `whole` makes a metric of
    all records at once.

    Example:
        >>> import privada as pv, torch
        >>> sure = pv.metrics.Metric(
        ...     "share above 0.9", lambda outputs, targets: outputs.softmax(1).amax(1) > 0.9
        ... )
        >>> sure.reduce(sure.each(torch.tensor([[9.0, 0.0], [1.0, 1.0]]), None))
        0.5
    """

    name: str
    each: Callable[[Any, Any], Any]
    reduce: Callable[[Any], float] = mean
    greater: bool = True

    def __post_init__(self) -> None:
        printable_text("name", self.name)
        for name in ("each", "reduce"):
            if not callable(getattr(self, name)):
                raise ArgumentError(
                    f"Expected {name} to be a function, got {name}={shown(getattr(self, name))}."
                )
        flag("greater", self.greater)

    def of(self, parts: list[Any]) -> float:
        """Return the figure of what `each` has noted of chunks of records."""
        leaves = [tree_flatten(part) for part in parts]
        columns = zip(*(flat for flat, _ in leaves), strict=True)
        joined = [torch.cat(column) for column in columns]
        return float(self.reduce(tree_unflatten(joined, leaves[0][1])))


def whole(name: str, function: Callable[[Any, Any], Any], *, greater: bool = True) -> Metric:
    """Return a metric of all outputs and all targets at once, such as one of scikit-learn.

    Guarantee: none; it is for public records.

    Edge cases: all outputs are kept until the last, which takes memory where they are large.

    Example:
        >>> import privada as pv, torch
        >>> gap = pv.metrics.whole(
        ...     "largest error", lambda outputs, targets: (outputs - targets).abs().max(),
        ...     greater=False,
        ... )
        >>> gap.of([gap.each(torch.zeros(3), torch.tensor([0.0, 2.0, -5.0]))])
        5.0
    """
    return Metric(
        name, lambda outputs, targets: (outputs, targets), lambda b: function(*b), greater
    )


def metric(value: Any) -> Metric:
    """Return a metric as it is, and a score of private records as one of public ones."""
    if isinstance(value, Score):
        score = value
        return Metric(
            score.name,
            lambda outputs, targets: score.each(outputs, targets).clamp(score.low, score.high),
            greater=score.greater,
        )
    if not isinstance(value, Metric):
        raise ArgumentError(
            f"Expected metrics to be of pv.metrics, got {shown(value)} among them. Use "
            "pv.metrics.accuracy(), or pv.metrics.whole(name, function)."
        )
    return value
