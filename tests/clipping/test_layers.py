import pytest
from torch import nn

from privada.clipping.layers import refuse_mixing_layers
from privada.core.errors import ModelError


@pytest.mark.parametrize(
    ("layer", "remedy"),
    [
        (nn.BatchNorm1d(24), r"GroupNorm\(8, 24\)"),
        (nn.BatchNorm2d(64), r"GroupNorm\(32, 64\)"),
        (nn.BatchNorm3d(7), r"GroupNorm\(1, 7\)"),
        (nn.SyncBatchNorm(4), "GroupNorm"),
        (nn.LazyBatchNorm1d(), "GroupNorm"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "track_running_stats=False"),
        (nn.Embedding(5, 3, max_norm=1.0), "Leave out max_norm"),
        (nn.Embedding(5, 3, max_norm=1.0).requires_grad_(False), "Leave out max_norm"),
        (nn.EmbeddingBag(5, 3, max_norm=1.0), "Leave out max_norm"),
        (nn.utils.spectral_norm(nn.Linear(3, 3)), "spectral"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), "spectral"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_that_mix_or_keep_are_refused_with_their_place_and_the_remedy(layer, remedy):
    model = nn.Sequential(nn.Identity(), layer)
    with pytest.raises(ModelError, match=remedy) as caught:
        refuse_mixing_layers(model)
    assert "'1" in str(caught.value)


@pytest.mark.parametrize(
    "layer",
    [nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4), nn.RMSNorm(4), nn.LSTM(3, 4)],
)
def test_layers_that_treat_examples_alone_are_taken(layer):
    refuse_mixing_layers(nn.Sequential(layer))
