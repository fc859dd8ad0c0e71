"""Rows of a Hugging Face data set as a model takes them: its columns, cut and padded."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from privada.clipping.model_losses import IGNORED, base_model
from privada.core.structure import as_pair, as_tensor, target_of

MASK, TOKENS = "attention_mask", "input_ids"


class Rows:
    """Makes a batch of one of a row: the model's columns, cut and padded to one length."""

    def __init__(
        self,
        columns: frozenset[str] | None,
        length: int | None,
        padding: int,
        causal: bool,
        collator: Callable[[list[Any]], Any] | None,
    ) -> None:
        self._columns, self._length, self._padding = columns, length, padding
        self._causal, self._collator = causal, collator
        # what has no tokens, such as an image, has the shape of the first row
        self.fixed_lengths = collator is None

    def __call__(self, rows: list[Any]) -> Any:
        """Return a batch of one of a list of one row."""
        (row,) = rows
        return self.one(row)

    def one(self, row: Any, labelled: bool = True) -> tuple[dict[str, Tensor], Any]:
        """Return the inputs and labels of a row as a batch of one; None for labels that it lacks.

        Args:
            row: the row.
            labelled: whether it must have labels.
        """
        if not isinstance(row, Mapping):
            raise TypeError("a row is not a dictionary")
        kept = {n: v for n, v in row.items() if self._takes(n) and v is not None}
        if self._collator is not None:
            kept = dict(self._collator([kept]))
        target = target_of(kept)
        if target is None and self._causal and TOKENS in kept:
            target, kept = "labels", kept | {"labels": kept[TOKENS]}
            if self._collator is None and MASK in kept:  # what is masked is not to be learnt
                seen = zip(kept[TOKENS], kept[MASK], strict=True)
                kept["labels"] = [int(t) if m else IGNORED for t, m in seen]
        missing = target is None
        if target is None:
            if labelled:
                raise KeyError("labels")
            target, kept = "labels", kept | {"labels": 0}
        inputs, labels = as_pair({"labels": kept.pop(target), **kept})
        if self._collator is not None:
            made = {n: as_tensor(v) for n, v in inputs.items()}
            return made, None if missing else as_tensor(labels)
        tokens = len(inputs[TOKENS]) if TOKENS in inputs else 0
        if TOKENS in inputs and MASK not in inputs and self._takes(MASK):
            inputs[MASK] = torch.ones(tokens, dtype=torch.int64)
        made = {name: self._shaped(name, value) for name, value in inputs.items()}
        return made, None if missing else self._shaped("labels", labels, tokens)

    def _takes(self, name: str) -> bool:
        named = ("labels", "label")
        return self._columns is None or name in self._columns or name in named

    def _shaped(self, name: str, value: Any, tokens: int | None = None) -> Tensor:
        """Return a batch of one, cut or padded if it is a row of tokens."""
        values = as_tensor(value)
        of_tokens = values.ndim == 1 and (tokens is None or len(values) == tokens)
        if self._length is None or not of_tokens or values.is_floating_point():
            return values[None]
        filling = {TOKENS: self._padding, "labels": IGNORED}.get(name, 0)
        made = torch.full((1, self._length), filling, dtype=torch.int64)
        kept = values[: self._length]
        made[0, : len(kept)] = kept
        return made


def columns_of(model: nn.Module) -> frozenset[str] | None:
    """Return the names that a model takes, None where it does not say."""
    kinds = inspect.signature(base_model(model).forward).parameters
    named = {n for n, p in kinds.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    return frozenset(named) or None


def padding_token(model: Any, processing_class: Any) -> int:
    """Return the token that rows are padded with."""
    for owner in (processing_class, getattr(model, "config", None)):
        found = getattr(owner, "pad_token_id", None)
        if isinstance(found, int) and found >= 0:
            return found
    return 0  # which is masked


def names_of(rows: Any) -> list[str]:
    """Return the names of the columns, which are public."""
    names = getattr(rows, "column_names", None)
    first = rows[0] if names is None else None
    return list(first) if isinstance(first, Mapping) else list(names or [])
