"""The loss that a Hugging Face model computes from its labels, taken for each example."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from privada.clipping.losses import example_losses
from privada.core.errors import ModelError
from privada.core.validation import shown

# Positions with this label have no loss.
IGNORED = -100
_TOKENS, _CLOSE = 6, 1e-4


def base_model(model: Any) -> Any:
    """Return the model of transformers inside one that peft has adapted."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class ModelLoss:
    """The loss that a Hugging Face model has inside, as a function of (output, labels).

    A model of transformers that is given labels averages its loss over the batch, so that examples
    share it. This is the same loss for each example alone: cross-entropy for classes, the mean over
    an example's own tokens for language models and token classes, squared error for regression,
    binary cross-entropy for several labels at once.

    Args:
        model: a model of transformers, or one that peft has adapted, with a `.logits` in its
            output: for sequence or image classification, regression, token classification, masked
            or causal language modelling.

    Guarantee: none by itself. Each example's loss depends on its own output and labels alone.

    Edge cases: tokens with the label -100 do not count; an example in which none counts has no
    loss, and counts as zero. A model that reads tokens is asked for its own loss of a made-up
    example, and refused if that is another one. Models with an encoder and a decoder make inputs
    from their labels, and are refused.

    Example:
        >>> import torch, transformers
        >>> from privada.huggingface import ModelLoss
        >>> sizes = dict(vocab_size=50, hidden_size=8, num_hidden_layers=1, intermediate_size=8)
        >>> config = transformers.BertConfig(**sizes, num_attention_heads=1)
        >>> model = transformers.BertForSequenceClassification(config).eval()
        >>> tokens, labels = torch.tensor([[4, 5, 6]]), torch.tensor([1])
        >>> own = model(tokens, labels=labels).loss
        >>> bool(torch.isclose(own, ModelLoss(model)(model(tokens), labels)))
        True
    """

    def __init__(self, model: nn.Module) -> None:
        base = base_model(model)
        config = getattr(base, "config", None)
        if not isinstance(base, nn.Module) or config is None:
            raise ModelError(
                f"Expected a model of transformers, got {shown(model)}. Give the loss as a "
                "function of (output, target)."
            )
        if getattr(config, "is_encoder_decoder", False):
            raise ModelError(
                f"Expected a model that reads its inputs alone, got {type(base).__name__}, whose "
                "decoder reads the labels. Let each record have decoder_input_ids, and give the "
                "loss as a function of (output, labels)."
            )
        self._problem: str | None = getattr(config, "problem_type", None)
        self._single = getattr(config, "num_labels", None) == 1
        # whether labels are those of the next token; whether each is a word of the vocabulary
        self.shifted = self.of_words = False
        if getattr(base, "main_input_name", "input_ids") == "input_ids":
            self._compare(base, config)

    @property
    def of_numbers(self) -> bool:
        """Whether labels are numbers, and the loss their squared error."""
        return self._problem == "regression" or (self._problem is None and self._single)

    def aligned(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and the labels that they are for, the classes in the second dimension."""
        if logits.ndim != 3 or labels.ndim != 2:
            return logits, labels
        if self.shifted:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return logits.movedim(-1, 1), labels

    def __call__(self, output: Any, labels: Any) -> Tensor:
        """Return the average of the examples' losses."""
        return self.example_losses(output, labels).mean()

    def example_losses(self, output: Any, labels: Any) -> Tensor:
        """Return the loss of each example."""
        logits: Tensor = output.logits if hasattr(output, "logits") else output
        if logits.ndim == 3 and labels.ndim == 2:  # a label for each token
            return example_losses(functional.cross_entropy, *self.aligned(logits, labels))
        if logits.ndim != 2 or labels.ndim not in (1, 2):
            raise ModelError(
                "Expected logits of shape (examples, classes), with a label for each example, or "
                "(examples, tokens, classes), with a label for each token, got logits of shape "
                f"{tuple(logits.shape)} and labels of shape {tuple(labels.shape)}. Give the loss "
                "as a function of (output, labels)."
            )
        if self.of_numbers:
            wanted = labels.reshape(logits.shape).to(logits.dtype)
            return example_losses(functional.mse_loss, logits, wanted)
        if labels.ndim == 2:
            several = functional.binary_cross_entropy_with_logits
            return example_losses(several, logits, labels.to(logits.dtype))
        return example_losses(functional.cross_entropy, logits, labels)

    @torch.no_grad()
    def _compare(self, model: nn.Module, config: Any) -> None:
        """Find out whether labels are those of the next token; raise if the loss is another."""
        training, problem = model.training, getattr(config, "problem_type", None)
        try:
            device = next(model.parameters()).device
            words = min(_TOKENS, int(getattr(config, "vocab_size", _TOKENS)))
            tokens = torch.arange(_TOKENS, device=device)[None] % words
            output = model.eval()(input_ids=tokens)
            logits = output.logits
            self.of_words = logits.ndim == 3 and logits.shape[2] == config.vocab_size
            if logits.ndim == 3:
                labels = tokens.flip(1) % logits.shape[2]
            elif problem == "multi_label_classification":
                labels = torch.zeros_like(logits)
            elif self._single or problem == "regression":
                labels = torch.zeros_like(logits) if logits.shape[1] > 1 else logits.new_zeros(1)
            else:
                labels = torch.zeros(1, dtype=torch.int64, device=device)
            own = model(input_ids=tokens, labels=labels).loss
        except Exception:  # it needs other inputs; the dry run says what does not fit
            return
        finally:
            model.train(training)
            if hasattr(config, "problem_type"):
                config.problem_type = problem  # which a model writes down when it has labels
        for self.shifted in (False, True) if logits.ndim == 3 else (False,):
            if abs(float(self(output, labels) - own)) <= _CLOSE * (1 + abs(float(own))):
                return
        raise ModelError(
            f"Expected a model whose loss is that of its logits and labels, got "
            f"{type(model).__name__}, which computes another one. Give the loss as a function of "
            "(output, labels)."
        )
