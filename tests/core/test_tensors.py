import torch
from torch import nn

from privada.core.tensors import Parameters


def model():
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))


def test_read_and_write_round_trip_in_the_order_of_the_names():
    net = model()
    parameters = Parameters(net)
    flat = parameters.read()
    assert parameters.layout.names == tuple(name for name, _ in net.named_parameters())
    assert torch.equal(flat[:6].view(2, 3), net[0].weight)
    parameters.write_(torch.arange(11.0))
    assert parameters.read().tolist() == list(range(11))
    assert net[2].bias.item() == 10


def test_a_read_is_a_copy():
    net = model()
    flat = Parameters(net).read()
    flat.zero_()
    assert not torch.equal(net[0].weight, torch.zeros(2, 3))


def test_add_moves_the_model_in_place():
    net = model()
    parameters = Parameters(net)
    before, kept = parameters.read(), net[0].weight
    parameters.add_(torch.ones(11))
    assert torch.allclose(parameters.read(), before + 1)
    assert net[0].weight is kept


def test_split_and_join_are_inverse():
    layout = Parameters(model()).layout
    flat = torch.arange(11.0)
    assert torch.equal(layout.join(layout.split(flat)), flat)
    assert layout.size == 11


def test_tied_parameters_occur_once():
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    net[1].weight = net[0].weight
    assert Parameters(net).size == 9


def test_a_released_gradient_goes_where_optimisers_look():
    net = model()
    Parameters(net).set_gradient(torch.arange(11.0))
    assert net[2].bias.grad.item() == 10
    assert net[0].weight.grad.shape == (2, 3)
