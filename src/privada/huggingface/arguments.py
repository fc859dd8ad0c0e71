"""What a trainer of transformers may be given, and the remedy for what it may not."""

from collections.abc import Callable, Mapping
from typing import Any

from privada.core.errors import ArgumentError, DataError
from privada.core.validation import integer, shown
from privada.huggingface.rows import TOKENS, names_of

_METHOD = "It is the method's: pv.methods.DPAdam(lr=1e-3, clip=1.0)."
_SCHEDULE = "Give the method a schedule, such as lr=pv.updates.warmed_up(1e-3, steps=100)."
_AUTOCAST = "Make and train the trainer inside torch.autocast, with parameters in float32."
_SAVED = "Give train() checkpoint=PATH and checkpoint_steps=, and resume= to go on from it."
_LENGTH = "Give epochs or steps."
_EVALUATED = "Give eval_dataset, and eval_steps for how often."
_REMEDIES = {
    "learning_rate": _METHOD,
    "optim": _METHOD,
    "optimizers": "The method is the optimiser, such as pv.methods.DPAdam(lr=1e-3, clip=1.0).",
    "lr_scheduler_type": _SCHEDULE,
    "warmup_steps": _SCHEDULE,
    "per_device_train_batch_size": "Give batch_size, the expected number of rows in a step.",
    "per_device_eval_batch_size": "Give eval_batch_size.",
    "num_train_epochs": _LENGTH,
    "max_steps": _LENGTH,
    "max_grad_norm": "Give the method clip=, which bounds each example's gradient.",
    "gradient_accumulation_steps": "Raise batch_size: large batches are worked through in parts.",
    "eval_strategy": _EVALUATED,
    "evaluation_strategy": _EVALUATED,
    "load_best_model_at_end": "Give stopping=pv.EarlyStopping(..., restore_best=True).",
    "save_strategy": _SAVED,
    "save_steps": _SAVED,
    "resume_from_checkpoint": _SAVED,
    "output_dir": "Give save_model() a folder.",
    "tokenizer": "It is called processing_class.",
    "fp16": _AUTOCAST,
    "bf16": _AUTOCAST,
    "model_init": "Give a model; each search for settings is charged, by pv.selection.select.",
    "preprocess_logits_for_metrics": "compute_metrics gets the logits of the model.",
    "push_to_hub": "Save the model by save_model(), and push that folder.",
    "collate": "Give data_collator.",
    "validation": _EVALUATED,
}


def check_settings(
    args: Any, settings: dict[str, Any], rows: Any, max_length: int | None, collator: Any
) -> None:
    """Raise if something is given that is called otherwise here, or that there is not."""
    if max_length is not None:
        integer("max_length", max_length)
        if collator is not None:
            raise ArgumentError(
                "Expected max_length or data_collator, got both. Let the collator pad to a length "
                "that is known without the data (padding='max_length', max_length=64)."
            )
    if args is not None:
        raise ArgumentError(
            "Expected the settings as arguments of PrivateTrainer, got args. For these write "
            f"{_in_our_words(args)}."
        )
    if getattr(collator, "padding", None) in (True, "longest"):
        raise ArgumentError(
            f"Expected data_collator to pad to a length that is known without the data, got "
            f"{type(collator).__name__}, whose result is longer for a longer record. Give "
            "max_length=64 in its place, or padding='max_length', max_length=64 to the collator."
        )
    if type(collator).__name__ == "DataCollatorForLanguageModeling" and not collator.mlm:
        raise ArgumentError(
            "Expected rows of tokens without DataCollatorForLanguageModeling, whose result is "
            "longer for a longer record, got one. Give max_length=64 in its place: a causal model "
            "learns the tokens of rows that have no labels, padding left out."
        )
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
    if max_length is None and collator is None and TOKENS in names_of(rows):
        raise ArgumentError(
            "Expected max_length, the number of tokens that rows are cut or padded to, got None. "
            "Choose it without looking at the private rows, such as max_length=64; rows of "
            "another length than the first would count as zero."
        )


def _in_our_words(args: Any) -> str:
    """Return the settings of transformers' TrainingArguments as arguments of this trainer."""

    def of(name: str, otherwise: float) -> float:
        found = getattr(args, name, None)
        return found if isinstance(found, (int, float)) else otherwise

    rows = of("per_device_train_batch_size", 8) * of("gradient_accumulation_steps", 1)
    steps, decay = of("max_steps", -1), of("weight_decay", 0)
    long = f"steps={steps:g}" if steps > 0 else f"epochs={of('num_train_epochs', 3):g}"
    return (
        f"method=pv.methods.DPAdam(lr={of('learning_rate', 5e-5):g}, clip=1.0), "
        f"batch_size={rows:g}, {long}{f', weight_decay={decay:g}' if decay else ''}, "
        "budget=pv.Budget(epsilon, delta). Private training wants far larger batches and rates "
        "than other training does"
    )


def check_labels(rows: Any, causal: bool, collator: Callable[[list[Any]], Any] | None) -> None:
    """Raise if there is nothing to learn."""
    names = names_of(rows)
    if names and not causal and collator is None and not {"labels", "label"} & set(names):
        raise DataError(
            f'Expected train_dataset with a column "labels" or "label", got {", ".join(names)}. '
            "Rename the column, as rows.rename_column does."
        )
