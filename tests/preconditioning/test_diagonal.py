import pytest
import torch
from torch import nn

import privada as pv
from privada.core.tensors import Parameters
from tests.releases import released

MODEL = nn.Linear(3, 2)
PARAMETERS = Parameters(MODEL)


def test_isotropic_has_neither_scale_nor_shift():
    scaling = pv.preconditioning.isotropic().on(PARAMETERS)
    assert scaling.scale is None
    assert scaling.shift is None


@pytest.mark.parametrize(
    "scales",
    [2.0, torch.full((8,), 2.0), {"weight": torch.tensor(2.0), "bias": torch.full((2,), 2.0)}],
    ids=["number", "vector", "map"],
)
def test_scales_may_be_a_number_a_vector_or_a_map(scales):
    scaling = pv.preconditioning.diagonal(scales).on(PARAMETERS)
    assert torch.equal(scaling.scale, torch.full((8,), 2.0))


def test_a_map_broadcasts_to_each_parameter():
    features = torch.tensor([1.0, 2.0, 3.0])
    scales = {"weight": features, "bias": torch.tensor([9.0])}
    scaling = pv.preconditioning.diagonal(scales).on(PARAMETERS)
    assert scaling.scale.tolist() == [1, 2, 3, 1, 2, 3, 9, 9]


def test_restoring_undoes_the_whitening_of_a_release():
    scale, shift = torch.arange(1.0, 9.0), torch.ones(8)
    gradient = torch.randn(8)
    preconditioner = pv.preconditioning.diagonal(scale, shift=shift, restore=True)
    scaling = preconditioner.on(PARAMETERS)
    whitened = released((gradient - shift) / scale * 10, noise_std=1.0, batch_size=10)
    assert torch.allclose(preconditioner.restore(whitened, scaling).gradient, gradient, atol=1e-6)


def test_a_release_is_used_as_it_is_unless_the_geometry_restores():
    preconditioner = pv.preconditioning.diagonal(2.0, shift=1.0)
    release = released(torch.ones(8), noise_std=1.0, batch_size=4)
    assert preconditioner.restore(release, preconditioner.on(PARAMETERS)) is release


def test_the_type_follows_the_model():
    parameters = Parameters(nn.Linear(3, 2).double())
    assert pv.preconditioning.diagonal(2.0).on(parameters).scale.dtype == torch.float64
