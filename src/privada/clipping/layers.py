"""Models in which examples touch each other are refused: clipping one would not bound it."""

import torch
from torch import nn
from torch.utils._pytree import tree_map

from privada.clipping.batch import Batch, call
from privada.core.errors import ModelError

_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
_TABLES = (nn.Embedding, nn.EmbeddingBag)
_INSTANCE_NORMS = (nn.modules.instancenorm._InstanceNorm,)


def refuse_mixing_layers(model: nn.Module) -> None:
    """Raise if a layer mixes the examples of a batch, or keeps statistics of them.

    Example:
        >>> import torch
        >>> from privada.clipping import refuse_mixing_layers
        >>> refuse_mixing_layers(torch.nn.GroupNorm(2, 4))
    """
    for name, module in model.named_modules():
        where = f"layer {name!r}" if name else "the model itself"
        kind = type(module).__name__
        if isinstance(module, _BATCH_NORMS):
            features = getattr(module, "num_features", 0)
            groups = next((g for g in (32, 16, 8, 4, 2) if features % g == 0), 1)
            raise ModelError(
                f"Expected layers that treat each example by itself, got {kind} in {where}, which "
                f"mixes the examples of a batch and keeps their un-noised statistics. Replace it "
                f"by torch.nn.GroupNorm({groups}, {features}) or torch.nn.LayerNorm."
            )
        if isinstance(module, _INSTANCE_NORMS) and module.track_running_stats:
            raise ModelError(
                f"Expected layers that keep nothing of the data, got {kind} with "
                f"track_running_stats=True in {where}. Set track_running_stats=False."
            )
        if isinstance(module, _TABLES) and module.max_norm is not None:
            raise ModelError(
                f"Expected layers that are functions of their input, got {kind} with "
                f"max_norm={module.max_norm} in {where}, which changes its table at each forward "
                "pass, outside the release. Leave out max_norm."
            )
        hooks = [type(hook).__name__ for hook in module._forward_pre_hooks.values()]
        if "SpectralNorm" in hooks or kind == "_SpectralNorm":
            raise ModelError(
                f"Expected layers that are functions of their input, got spectral normalisation "
                f"in {where}, which updates itself at each forward pass. Remove it."
            )


@torch.no_grad()
def refuse_mixing_models(model: nn.Module, batch: Batch) -> None:
    """Raise if a made-up batch shows that one example's output depends on another, or on state.

    The first two of three made-up examples are run beside the third and beside themselves, under
    the same random state; their outputs must not change, nor may any buffer, nor may anything be
    written to a parameter.
    """
    if batch.size < 3:
        return
    before = {name: value.clone() for name, value in model.named_buffers()}
    written = {name: value._version for name, value in model.named_parameters()}
    outputs = []
    for others in ((0, 1, 2), (0, 1, 1)):
        chosen = torch.tensor(others)
        with torch.random.fork_rng(devices=[]):  # both runs start from the caller's state
            inputs = tree_map(lambda t, chosen=chosen: t[chosen.to(t.device)], batch.inputs)
            outputs.append(call(model, inputs))
    changed = [n for n, v in model.named_buffers() if not torch.equal(v, before[n])]
    for name, value in model.named_buffers():
        value.copy_(before[name])
    if changed:
        raise ModelError(
            f"Expected a model that keeps nothing of the data, but its buffers {changed} change at "
            "a forward pass, which would carry un-noised statistics. Remove them, or set the layer "
            "to evaluation mode for good."
        )
    rewritten = [n for n, v in model.named_parameters() if v._version != written[n]]
    if rewritten:
        raise ModelError(
            f"Expected a model that is moved by releases alone, but its parameters {rewritten} are "
            "written to at a forward pass, as max_norm of an embedding does. That would carry "
            "un-noised facts about the data. Leave it out."
        )
    first, second = outputs
    if not isinstance(first, torch.Tensor) or first.shape[:1] != (3,):
        raise ModelError(
            f"Expected the model to return one output per example (first dimension 3 for 3 "
            f"examples), got {getattr(first, 'shape', type(first).__name__)}. Return a tensor "
            "whose first dimension is the batch."
        )
    same = torch.isclose(first[:2], second[:2], rtol=1e-3, atol=1e-5, equal_nan=True)
    if not bool(same.all()):
        raise ModelError(
            "Expected a model that treats each example by itself, but one example's output "
            "changed with its neighbours in the batch. Clipping cannot bound that: replace what "
            "averages or compares over the batch dimension."
        )
