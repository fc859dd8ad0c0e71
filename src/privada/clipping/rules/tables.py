"""Tables of rows that are looked up by number."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.nn import functional

from privada.clipping.contributions import Contribution, EmbeddingGrad
from privada.clipping.parameter_views import ParameterView
from privada.clipping.recording import ParameterUse, Recorder, Rule
from privada.core.errors import ModelError


def embedding(
    recorder: Recorder,
    input: Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """y = W[x]."""
    if max_norm is not None or scale_grad_by_freq:
        raise ModelError(
            f"Expected an embedding without max_norm and scale_grad_by_freq, got "
            f"max_norm={max_norm}, scale_grad_by_freq={scale_grad_by_freq}: the first changes the "
            "table outside the release, the second lets examples change each other's gradients. "
            "Leave them out."
        )
    piece = recorder.piece(weight)
    if piece is None:
        return NotImplemented
    use = recorder.use((weight,), 1, _build(piece, padding_idx))
    tokens = recorder.expand_per_example(use, input.long(), 0)
    use.note(tokens)
    return recorder.capture_grad(functional.embedding(tokens, recorder.constant(weight)), use)


def _build(piece: ParameterView, padding: int | None) -> Any:
    def build(use: ParameterUse) -> Iterable[Contribution]:
        assert use.gradient is not None
        tokens = use.arrange(use.given()[0], 0)
        outputs = use.arrange(use.gradient, 1)
        if padding is not None:
            outputs = outputs.masked_fill((tokens == padding % piece.shape[0]).unsqueeze(2), 0.0)
        yield EmbeddingGrad(piece, tokens, outputs)

    return build


RULES: dict[Any, Rule] = {functional.embedding: embedding}
