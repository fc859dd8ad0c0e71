"""Models in which examples touch each other are refused: clipping one would not bound it."""

from torch import nn

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
