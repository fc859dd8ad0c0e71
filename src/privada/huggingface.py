"""Models and data sets of Hugging Face, trained under differential privacy.

Nothing here imports transformers or datasets: what they give is used as it is.
"""

import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from privada.accounting import Statement
from privada.clipping.calling import call
from privada.clipping.losses import Loss, example_losses
from privada.clipping.model_losses import IGNORED, ModelLoss, base_model
from privada.core.errors import ArgumentError, DataError
from privada.core.overlap import refuse_private
from privada.core.structure import as_pair, as_tensor, target_of
from privada.core.validation import integer, shown
from privada.methods import Method
from privada.train.trainer import Trainer

__all__ = ["ModelLoss", "PrivateTrainer"]

_MASK, _TOKENS = "attention_mask", "input_ids"


class PrivateTrainer:
    """Fine-tunes a model of transformers under differential privacy; made like its Trainer.

    Args:
        model: a model of transformers, or one that peft has adapted: parameters without gradients
            are not trained.
        train_dataset: private rows, as `datasets.Dataset` gives them: dictionaries with the model's
            inputs, and "labels" or "label". Other columns are left out.
        method: how to train, such as `pv.methods.DPAdam(lr=1e-3, clip=1.0)`.
        batch_size: the expected number of rows, or of persons with `groups`, in a step.
        eval_dataset: public rows, for `evaluate`.
        max_length: the number of tokens that all rows are cut or padded to; public, so choose it
            without looking at the private rows. Not for rows without input_ids, as of images.
        processing_class: the tokenizer, for its padding token and to be saved with the model.
        data_collator: what makes a batch of one of a list of one row, in the place of cutting and
            padding. It must always return the same shapes.
        loss: a function of (output, labels); by default `ModelLoss(model)`.

    The other arguments are those of `pv.Trainer`: `epochs` or `steps`, `budget` or
    `noise_multiplier` with `delta`, `ledger`, `groups`, `unit` and so on.

    Guarantee: as for `pv.Trainer`. With `groups` it is for all rows of a person.

    Edge cases: a causal language model whose rows have no labels learns their tokens, padding left
    out. Of a row without a mask, padding is masked. Training loss and accuracy are not shown, since
    they would tell of private rows without noise: `evaluate` takes public rows, and refuses the
    private ones. A collator that pads to the longest row is refused, as is gradient accumulation,
    which a larger `batch_size` replaces.

    Example:
        >>> import datasets, privada as pv, transformers
        >>> sizes = dict(vocab_size=50, hidden_size=8, num_hidden_layers=1, intermediate_size=8)
        >>> config = transformers.BertConfig(**sizes, num_attention_heads=1)
        >>> rows = {"input_ids": [[4, 5, 6], [7, 8]] * 50, "labels": [0, 1] * 50}
        >>> trainer = pv.huggingface.PrivateTrainer(
        ...     transformers.BertForSequenceClassification(config),
        ...     train_dataset=datasets.Dataset.from_dict(rows), max_length=4,
        ...     method=pv.methods.DPAdam(lr=0.01, clip=1.0), batch_size=20, steps=3,
        ...     budget=pv.Budget(epsilon=2.0, delta=1e-3),
        ... ).train()
        >>> trainer.epsilon() <= 2.0
        True

    Reference: Yu et al. (2022), Differentially Private Fine-tuning of Language Models,
    arXiv 2110.06500; Li et al. (2022), Large Language Models Can Be Strong Differentially Private
    Learners, arXiv 2110.05679.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        train_dataset: Any,
        method: Method,
        batch_size: float,
        eval_dataset: Any = None,
        max_length: int | None = None,
        processing_class: Any = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        loss: Loss | None = None,
        **settings: Any,
    ) -> None:
        _check_settings(settings, train_dataset, max_length, data_collator)
        self.loss: Loss = ModelLoss(model) if loss is None else loss
        self._processing = processing_class
        causal = isinstance(self.loss, ModelLoss) and self.loss.shifted
        padding = _padding_token(model, processing_class)
        _check_labels(train_dataset, causal, data_collator)
        self._rows = _Rows(_columns_of(model), max_length, padding, causal, data_collator)
        self._private, self._public = train_dataset, eval_dataset
        if eval_dataset is not None:
            refuse_private(eval_dataset, train_dataset)
        self.trainer = Trainer(
            model,
            self.loss,
            train_dataset,
            method=method,
            batch_size=batch_size,
            collate=self._rows,
            **settings,
        )

    @property
    def model(self) -> nn.Module:
        """The model, which is trained in place."""
        return self.trainer.model

    def train(self, progress: bool = False, **options: Any) -> "PrivateTrainer":
        """Take all remaining steps; the arguments are those of `pv.Trainer.fit`."""
        self.trainer.fit(progress, **options)
        return self

    def evaluate(self, eval_dataset: Any = None, batch_size: int = 32) -> dict[str, float]:
        """Return the loss on public rows, with the accuracy or the perplexity.

        The perplexity is e to the average loss over all tokens. Nothing is charged: rows that are
        the private ones are refused.
        """
        rows = self._public if eval_dataset is None else eval_dataset
        if rows is None:
            raise ArgumentError(
                "Expected eval_dataset with public rows, got None. Give it here or to the trainer."
            )
        refuse_private(rows, self._private)
        scores = _Scores()
        for inputs, labels in self._batches(rows, batch_size):
            outputs = self._outputs(inputs)
            scores.add(self.loss, outputs, labels)
        return scores.found()

    def predict(self, test_dataset: Any, batch_size: int = 32) -> Tensor:
        """Return the logits of rows, which need no labels.

        The model is private as the statement says; what it gives for somebody's row tells of that
        row to whoever sees it.
        """
        found = []
        for inputs, _ in self._batches(test_dataset, batch_size, labelled=False):
            outputs = self._outputs(inputs)
            found.append(getattr(outputs, "logits", outputs))
        return torch.cat(found)

    def save_model(self, output_dir: str | os.PathLike[str]) -> Path:
        """Save the model, the tokenizer and the statement in a folder, and return it.

        `from_pretrained` reads the model as any other. What is saved is as private as the model.
        """
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        parts: tuple[Any, ...] = (self.model, self._processing)
        for each in parts:
            if hasattr(each, "save_pretrained"):
                each.save_pretrained(folder)
        (folder / "privacy_statement.json").write_text(self.statement().to_json())
        return folder

    def epsilon(self, delta: float | None = None) -> float:
        """Return the epsilon of everything charged on the ledger, earlier runs included."""
        return self.trainer.epsilon(delta)

    def statement(self) -> Statement:
        """Return what was promised so far, what it cost and what it rests on."""
        return self.trainer.statement()

    def _outputs(self, inputs: Any) -> Any:
        before = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                return call(self.model, inputs)
        finally:
            self.model.train(before)

    def _batches(
        self, rows: Any, batch_size: int, labelled: bool = True
    ) -> Iterator[tuple[dict[str, Tensor], Any]]:
        """Yield public rows, some at a time, made as private ones are."""
        if len(rows) == 0:
            raise DataError("Expected at least one row, got an empty data set.")
        device = next(self.model.parameters()).device
        size = integer("batch_size", batch_size)
        for start in range(0, len(rows), size):
            places = range(start, min(start + size, len(rows)))
            made = [self._rows.one(rows[place], labelled) for place in places]
            yield tree_map(lambda *parts: torch.cat(parts).to(device), *made)


class _Rows:
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
        (row,) = rows
        return self.one(row)

    def one(self, row: Any, labelled: bool = True) -> tuple[dict[str, Tensor], Any]:
        """Return the inputs and labels of a row as a batch of one; labels may be missing."""
        if not isinstance(row, Mapping):
            raise TypeError("a row is not a dictionary")
        kept = {n: v for n, v in row.items() if self._takes(n) and v is not None}
        if self._collator is not None:
            kept = dict(self._collator([kept]))
        target = target_of(kept)
        if target is None and self._causal and _TOKENS in kept:
            target, kept = "labels", kept | {"labels": kept[_TOKENS]}
            if self._collator is None and _MASK in kept:  # what is masked is not to be learnt
                seen = zip(kept[_TOKENS], kept[_MASK], strict=True)
                kept["labels"] = [int(t) if m else IGNORED for t, m in seen]
        if target is None:
            if labelled:
                raise KeyError("labels")
            target, kept = "labels", kept | {"labels": 0}
        inputs, labels = as_pair({"labels": kept.pop(target), **kept})
        if self._collator is not None:
            return {n: as_tensor(v) for n, v in inputs.items()}, as_tensor(labels)
        tokens = len(inputs[_TOKENS]) if _TOKENS in inputs else 0
        if _TOKENS in inputs and _MASK not in inputs and self._takes(_MASK):
            inputs[_MASK] = torch.ones(tokens, dtype=torch.int64)
        made = {name: self._shaped(name, value) for name, value in inputs.items()}
        return made, self._shaped("labels", labels, tokens)

    def _takes(self, name: str) -> bool:
        named = ("labels", "label")
        return self._columns is None or name in self._columns or name in named

    def _shaped(self, name: str, value: Any, tokens: int | None = None) -> Tensor:
        """Return a batch of one, cut or padded if it is a row of tokens."""
        values = as_tensor(value)
        of_tokens = values.ndim == 1 and (tokens is None or len(values) == tokens)
        if self._length is None or not of_tokens or values.is_floating_point():
            return values[None]
        filling = {_TOKENS: self._padding, "labels": IGNORED}.get(name, 0)
        made = torch.full((1, self._length), filling, dtype=torch.int64)
        kept = values[: self._length]
        made[0, : len(kept)] = kept
        return made


class _Scores:
    """Adds up the loss and the right answers of public rows."""

    def __init__(self) -> None:
        self._loss, self._weight, self._right, self._count = 0.0, 0.0, 0.0, 0
        self._tokens = False

    def add(self, loss: Loss, outputs: Any, labels: Tensor) -> None:
        losses = example_losses(loss, outputs, labels).double()
        logits = getattr(outputs, "logits", outputs)
        weights = torch.ones_like(losses)
        if labels.ndim == 2 and logits.ndim == 3:
            self._tokens = True
            counted = labels[:, 1:] if getattr(loss, "shifted", False) else labels
            weights = (counted != IGNORED).sum(dim=1).double()
        fine = weights > 0
        self._loss += float((losses[fine] * weights[fine]).sum())
        self._weight += float(weights.sum())
        if labels.ndim == 1 and not labels.is_floating_point() and logits.ndim == 2:
            self._right += float((logits.argmax(dim=1) == labels).sum())
            self._count += len(labels)

    def found(self) -> dict[str, float]:
        average = self._loss / self._weight if self._weight else math.nan
        found = {"eval_loss": average}
        if self._tokens:
            found["eval_perplexity"] = math.exp(min(average, 700.0))
        if self._count:
            found["eval_accuracy"] = self._right / self._count
        return found


def _columns_of(model: nn.Module) -> frozenset[str] | None:
    """Return the names that a model takes, None where it does not say."""
    kinds = inspect.signature(base_model(model).forward).parameters
    named = {n for n, p in kinds.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    return frozenset(named) or None


def _padding_token(model: Any, processing_class: Any) -> int:
    for owner in (processing_class, getattr(model, "config", None)):
        found = getattr(owner, "pad_token_id", None)
        if isinstance(found, int) and found >= 0:
            return found
    return 0  # which is masked


def _check_settings(
    settings: dict[str, Any], rows: Any, max_length: int | None, collator: Any
) -> None:
    if max_length is not None:
        integer("max_length", max_length)
        if collator is not None:
            raise ArgumentError(
                "Expected max_length or data_collator, got both. Let the collator pad to a length "
                "that is known without the data (padding='max_length', max_length=64)."
            )
    if "collate" in settings:
        raise ArgumentError("Expected data_collator in the place of collate.")
    for name, remedy in _REMEDIES.items():
        if name in settings:
            raise ArgumentError(f"Expected no {name}, got {name}={shown(settings[name])}. {remedy}")
    if not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        raise DataError(
            f"Expected train_dataset with rows by number, got {type(rows).__name__}. Load it "
            "without streaming=True."
        )
    if isinstance(rows, Mapping):
        raise DataError(
            f"Expected train_dataset to be one data set, got several, {', '.join(rows)}. Give one "
            "of them, such as rows['train']."
        )
    if len(rows) == 0:
        raise DataError("Expected at least one row, got an empty train_dataset.")
    if max_length is None and collator is None and _TOKENS in _names_of(rows):
        raise ArgumentError(
            "Expected max_length, the number of tokens that rows are cut or padded to, got None. "
            "Choose it without looking at the private rows, such as max_length=64; rows of "
            "another length than the first would count as zero."
        )


def _check_labels(rows: Any, causal: bool, collator: Any) -> None:
    names = _names_of(rows)
    if names and not causal and collator is None and not {"labels", "label"} & set(names):
        raise DataError(
            f'Expected train_dataset with a column "labels" or "label", got {", ".join(names)}. '
            "Rename the column, as rows.rename_column does."
        )


def _names_of(rows: Any) -> list[str]:
    """Return the names of the columns, which are public."""
    names = getattr(rows, "column_names", None)
    first = rows[0] if names is None else None
    return list(first) if isinstance(first, Mapping) else list(names or [])


_REMEDIES = {
    "args": "Settings are arguments of PrivateTrainer: method, batch_size, epochs, budget.",
    "learning_rate": "It is the method's: pv.methods.DPAdam(lr=1e-3, clip=1.0).",
    "per_device_train_batch_size": "Give batch_size, the expected number of rows in a step.",
    "num_train_epochs": "Give epochs or steps.",
    "max_steps": "Give steps.",
    "max_grad_norm": "Give the method clip=, which bounds each example's gradient.",
    "compute_metrics": "evaluate() gives loss, accuracy and perplexity; predict() the logits.",
    "optimizers": "The method is the optimiser, such as pv.methods.DPAdam(lr=1e-3, clip=1.0).",
    "callbacks": "What callbacks see of a step is private; call evaluate() between runs.",
    "gradient_accumulation_steps": "Raise batch_size: large batches are worked through in parts.",
}
