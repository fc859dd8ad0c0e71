"""The trainer of transformers, with privacy."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from privada import loggers
from privada.accounting import Statement
from privada.clipping.calling import call
from privada.clipping.losses import Loss
from privada.clipping.model_losses import ModelLoss
from privada.core.errors import ArgumentError, DataError
from privada.core.overlap import refuse_private
from privada.core.validation import integer, shown
from privada.huggingface.arguments import check_labels, check_settings
from privada.huggingface.callbacks import adapted, figures_of, split
from privada.huggingface.rows import Rows, columns_of, padding_token
from privada.huggingface.validation import EVALUATED, ComputeMetrics, Evaluation
from privada.methods import Method
from privada.train.callbacks import Callback
from privada.train.stopping import EarlyStopping
from privada.train.trainer import Trainer


class PredictionOutput(NamedTuple):
    """What `PrivateTrainer.predict` returns, as transformers' trainer does.

    Attributes:
        predictions: the logits, a row for each row of the data set.
        label_ids: the labels, None where the rows have none.
        metrics: always empty: figures of rows are those of `evaluate`, which wants public ones.

    Example: see `PrivateTrainer`.
    """

    predictions: np.ndarray
    label_ids: np.ndarray | None
    metrics: dict[str, float]


class PrivateTrainer:
    """Fine-tunes a model of transformers under differential privacy; made like its Trainer.

    Args:
        model: a model of transformers, or one that peft has adapted: parameters without gradients
            are not trained.
        args: None; for transformers' TrainingArguments the error says what to write.
        train_dataset: private rows, as `datasets.Dataset` gives them: dictionaries with the model's
            inputs, and "labels" or "label". Other columns are left out.
        method: how to train, such as `pv.methods.DPAdam(lr=1e-3, clip=1.0)`.
        batch_size: the expected number of rows, or of persons with `groups`, in a step.
        eval_dataset: public rows to evaluate the model on while it trains, and in `evaluate`.
        max_length: the number of tokens that all rows are cut or padded to; public, so choose it
            without looking at the private rows. Not for rows without input_ids, as of images.
        processing_class: the tokenizer, for its padding token and to be saved with the model.
        data_collator: what makes a batch of one of a list of one row, in the place of cutting and
            padding. It must always return the same shapes.
        loss: a function of (output, labels); by default `ModelLoss(model)`.
        compute_metrics: a function of the logits and labels of the public rows, as transformers
            has it, that returns numbers by name. By default accuracy, R^2 or perplexity, as it
            suits the model; the loss comes with either.
        metric_for_best_model, greater_is_better: the figure that early stopping goes by, by default
            the first, and whether more of it is better, by default unless its name ends with loss.
        eval_steps: how many steps lie between two evaluations, by default a tenth of the run.
        eval_batch_size: how many public rows run through the model at a time.
        callbacks: objects of `pv.Callback`, or callbacks of transformers, which see what is public.
            Its EarlyStoppingCallback ends the run by the public rows.
        report_to: "tensorboard" or "mlflow", or a list of them, to log what is public of the run.
        logging_dir: the folder for TensorBoard.
        logging_steps: how many steps lie between two logs, by default fifty in a run.

    The other arguments are those of `pv.Trainer`: `epochs` or `steps`, `budget` or
    `noise_multiplier` with `delta`, `ledger`, `groups`, `unit` and so on.

    Guarantee: as for `pv.Trainer`. With `groups` it is for all rows of a person.

    Edge cases: a causal language model whose rows have no labels learns their tokens, padding left
    out. Of a row without a mask, padding is masked. Training loss and accuracy are not shown, since
    they would tell of private rows without noise: `evaluate` takes public rows, and refuses the
    private ones. A collator that pads to the longest row is refused, as is gradient accumulation,
    which a larger `batch_size` replaces. Callbacks of transformers get no optimiser and no loader
    of private rows; those that want a gradient before its noise are refused.

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
        args: Any = None,
        *,
        train_dataset: Any,
        method: Method | None = None,
        batch_size: float | None = None,
        eval_dataset: Any = None,
        max_length: int | None = None,
        processing_class: Any = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        loss: Loss | None = None,
        compute_metrics: ComputeMetrics | None = None,
        metric_for_best_model: str | None = None,
        greater_is_better: bool | None = None,
        eval_steps: int | None = None,
        eval_batch_size: int = EVALUATED,
        callbacks: Sequence[Any] = (),
        report_to: Any = None,
        logging_dir: str | os.PathLike[str] | None = None,
        logging_steps: int | None = None,
        stopping: EarlyStopping | None = None,
        **settings: Any,
    ) -> None:
        check_settings(args, settings, train_dataset, max_length, data_collator)
        if method is None or batch_size is None:
            raise ArgumentError(
                f"Expected method and batch_size, got method={shown(method)}, batch_size="
                f"{shown(batch_size)}. Write method=pv.methods.DPAdam(lr=1e-3, clip=1.0), "
                "batch_size=256, the expected number of rows in a step."
            )
        self.loss: Loss = ModelLoss(model) if loss is None else loss
        self._processing = processing_class
        causal = isinstance(self.loss, ModelLoss) and self.loss.shifted
        padding = padding_token(model, processing_class)
        check_labels(train_dataset, causal, data_collator)
        self._rows = Rows(columns_of(model), max_length, padding, causal, data_collator)
        self._private, self._public = train_dataset, eval_dataset
        self._every = None if logging_steps is None else integer("logging_steps", logging_steps)
        self._loggers = _loggers(report_to, logging_dir, self._every)
        self._evaluation = Evaluation(
            compute_metrics, metric_for_best_model, greater_is_better, eval_steps, eval_batch_size
        )
        validation = None
        if eval_dataset is not None:
            refuse_private(eval_dataset, train_dataset)
            validation = self._evaluation.of(eval_dataset, model, self.loss, self._rows)
        self._callbacks, stopping = split(callbacks, validation, stopping)
        self.trainer = Trainer(
            model,
            self.loss,
            train_dataset,
            method=method,
            batch_size=batch_size,
            collate=self._rows,
            validation=validation,
            stopping=stopping,
            **settings,
        )

    @property
    def model(self) -> nn.Module:
        """The model, which is trained in place."""
        return self.trainer.model

    def train(
        self,
        progress: bool | None = None,
        *,
        resume_from_checkpoint: Any = None,
        callbacks: Sequence[Any] = (),
        **options: Any,
    ) -> "PrivateTrainer":
        """Take all remaining steps; the arguments are those of `pv.Trainer.fit`."""
        if resume_from_checkpoint not in (None, False):
            raise ArgumentError(
                "Expected a run to go on from a checkpoint when its trainer is made, got "
                f"resume_from_checkpoint={shown(resume_from_checkpoint)}. Give train() "
                "checkpoint=PATH, and the next PrivateTrainer resume=PATH with the same ledger."
            )
        later, _ = split(callbacks, None, None)
        run = self.trainer._run
        called = adapted([*self._callbacks, *later], self._every, run.population, self._processing)
        self.trainer.fit(progress, callbacks=[*called, *self._loggers], **options)
        return self

    @property
    def log_history(self) -> list[dict[str, float]]:
        """The evaluations so far, under the names that transformers gives them."""
        return [{**figures_of(each), "step": each.step} for each in self.trainer.evaluations]

    def evaluate(self, eval_dataset: Any = None, batch_size: int | None = None) -> dict[str, float]:
        """Return the figures of public rows, each with its baseline.

        They are "eval_loss" with "eval_accuracy", "eval_R^2" or "eval_perplexity", or what
        `compute_metrics` returns. "eval_loss_baseline" is the loss of the best answer that is the
        same for every row, made from the labels of these rows: of classes or words their
        frequencies. The loss and the perplexity of words are averages over all tokens.

        Nothing is charged: rows that are the private ones are refused. Before the end of the run,
        the model is evaluated as it would be left then.
        """
        rows = self._public if eval_dataset is None else eval_dataset
        if rows is None:
            raise ArgumentError(
                "Expected eval_dataset with public rows, got None. Give it here or to the trainer."
            )
        refuse_private(rows, self._private)
        _refuse_empty(rows)
        asked = self._evaluation
        if batch_size is not None:
            asked = replace(asked, batch_size=integer("batch_size", batch_size))
        return figures_of(self.trainer.evaluate(asked.of(rows, self.model, self.loss, self._rows)))

    def predict(self, test_dataset: Any, batch_size: int = EVALUATED) -> PredictionOutput:
        """Return the logits of rows, which need no labels.

        The model is private as the statement says; what it gives for somebody's row tells of that
        row to whoever sees it.
        """
        _refuse_empty(test_dataset)
        device = next(self.model.parameters()).device
        size, before = integer("batch_size", batch_size), self.model.training
        found: list[Tensor] = []
        labels: list[Any] = []
        self.model.eval()
        try:
            with torch.no_grad():
                for inputs, own in self._batches(test_dataset, size):
                    outputs = call(self.model, {n: v.to(device) for n, v in inputs.items()})
                    found.append(getattr(outputs, "logits", outputs).cpu())
                    labels.extend(own)
        finally:
            self.model.train(before)
        known = None if any(each is None for each in labels) else torch.cat(labels).numpy()
        return PredictionOutput(torch.cat(found).numpy(), known, {})

    def _batches(self, rows: Any, size: int) -> Iterator[tuple[Any, list[Any]]]:
        """Yield rows, some at a time, made as private ones are; labels may be missing."""
        for start in range(0, len(rows), size):
            places = range(start, min(start + size, len(rows)))
            made = [self._rows.one(rows[place], labelled=False) for place in places]
            inputs = tree_map(lambda *parts: torch.cat(parts), *(each for each, _ in made))
            yield inputs, [labels for _, labels in made]

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


def _loggers(
    report_to: Any, folder: str | os.PathLike[str] | None, every: int | None
) -> list[Callback]:
    """Return loggers by the names that transformers has for them."""
    asked = report_to if isinstance(report_to, (list, tuple)) else [report_to]
    found: list[Callback] = []
    for each in asked:
        if each in (None, "none"):
            continue
        if each == "tensorboard":
            if folder is None:
                raise ArgumentError(
                    "Expected logging_dir, the folder for TensorBoard, got None. Give "
                    "logging_dir='runs/first'."
                )
            found.append(loggers.TensorBoard(folder, every=every))
        elif each == "mlflow":
            found.append(loggers.MLflow(every=every))
        else:
            raise ArgumentError(
                f"Expected report_to to be 'tensorboard', 'mlflow' or 'none', got report_to="
                f"{shown(report_to)}. Derive a callback from pv.loggers.Logger for others, and "
                "give it as callbacks=[callback]."
            )
    return found


def _refuse_empty(rows: Any) -> None:
    if len(rows) == 0:
        raise DataError("Expected at least one row, got an empty data set.")
