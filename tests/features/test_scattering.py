"""Scattering, held to kymatio and to what defines it."""

import math

import numpy as np
import pytest
import torch

import privada as pv
from privada.features import Scattering2D

# kymatio 0.3.0 on `image`: how many numbers, a sum of all with weights cos(0), cos(1), ..., the sum
# of squares, and the numbers at a few places. Its filters have 3.1415 for pi.
KYMATIO = {
    ((28, 28), 2, 8, 2): (
        3969, 3.41124, 6.728044, (0.353743, 0.00797, 0.011981, 0.002329, 0.013176, 0.013073),
    ),
    ((24, 40), 3, 6, 2): (
        1905, 0.1608, 2.024118, (0.219281, 0.001489, 0.010709, 0.021004, 0.01327, 0.006784),
    ),
    ((18, 17), 1, 4, 1): (
        360, -0.9309, 10.306481, (0.317411, -0.109619, 0.189266, 0.10201, 0.105584, 0.204685),
    ),
}  # fmt: skip


def image(height, width):
    row, column = np.mgrid[:height, :width]
    values = np.sin(0.05 * row**2 + 0.3 * column) * np.cos(0.2 * column * row)
    return torch.from_numpy(values.astype(np.float32))[None]


@pytest.mark.parametrize("case", KYMATIO, ids=str)
def test_numbers_are_those_of_kymatio(case):
    shape, scales, angles, order = case
    count, weighted, squares, some = KYMATIO[case]
    scattering = Scattering2D(shape, scales, angles, order=order, norm=None)
    found = scattering(image(*shape))[0].double().numpy()
    assert len(found) == count == scattering.outputs
    places = [0, count // 7, count // 3, count // 2, 2 * count // 3, count - 1]
    np.testing.assert_allclose(found[places], some, atol=3e-5)
    assert np.sum(found**2) == pytest.approx(squares, rel=3e-4)
    assert np.sum(found * np.cos(np.arange(count))) == pytest.approx(weighted, abs=3e-3)


def test_the_mean_of_what_a_wavelet_finds_in_waves():
    """A plane wave meets the wavelet of its own direction and frequency more than any other."""
    columns = torch.arange(32.0)
    waves = torch.cos(0.75 * math.pi * columns).expand(32, 32)
    found = Scattering2D((32, 32), norm=None)(torch.stack([waves, waves.T]))
    fine = found.view(2, 81, 8, 8)[:, 1:9, 2:-2, 2:-2].mean(dim=(2, 3))
    across, down = fine.argmax(dim=1).tolist()
    assert abs(across - down) == 4  # a quarter turn of eight angles over half a turn


def test_a_constant_is_seen_by_the_average_alone():
    found = Scattering2D((16, 16), norm=None)(torch.full((1, 16, 16), 3.0)).view(81, -1)
    torch.testing.assert_close(found[0], torch.full((16,), 3.0), rtol=1e-4, atol=0)
    assert float(found[1:].abs().max()) < 1e-4


@pytest.mark.parametrize("channels", [1, 3])
def test_rows_have_nearly_the_norm_that_was_asked_for_and_no_greater_one(channels):
    torch.manual_seed(0)
    units = torch.tensor([1e-1, 1, 10, 100, 1e3, 1e6]).view(6, 1, 1, 1)
    scattering = Scattering2D((channels, 12, 16), norm=2.0)
    norms = scattering(torch.rand(6, channels, 12, 16) * units).norm(dim=1)
    assert float(norms.max()) <= 2.0 + 1e-5
    torch.testing.assert_close(norms[3:], torch.full((3,), 2.0), atol=1e-2, rtol=0)
    assert float(scattering(torch.full((1, channels, 12, 16), 0.5)).norm()) < 1e-3


def test_the_unit_that_an_image_is_given_in_does_not_matter():
    torch.manual_seed(0)
    image = 100 * torch.rand(1, 12, 16)
    scattering = Scattering2D((12, 16))
    torch.testing.assert_close(scattering(image), scattering(10 * image), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(scattering(image), scattering(image - 50), atol=1e-3, rtol=1e-2)


def test_each_order_and_scale_is_scaled_by_itself():
    torch.manual_seed(0)
    row = Scattering2D((3, 16, 16))(255 * torch.rand(1, 3, 16, 16)).view(3, 81, -1)
    for group in (row[:, :1], row[:, 1:9], row[:, 9:17], row[:, 17:]):
        assert abs(float(group.mean())) < 1e-5
    spread = [float(group.std()) for group in (row[:, :1], row[:, 1:9], row[:, 9:17], row[:, 17:])]
    assert max(spread) < 1.1 * min(spread)


def test_rows_of_pixels_and_images_are_the_same_and_colours_are_apart():
    torch.manual_seed(0)
    images = torch.rand(4, 3, 16, 16)
    scattering = Scattering2D((3, 16, 16), norm=None)
    found = scattering(images)
    assert torch.equal(found, scattering(images.flatten(1)))
    alone = Scattering2D((16, 16), norm=None)(images[:, 1])
    torch.testing.assert_close(found.view(4, 3, -1)[:, 1], alone)
    assert scattering(images[:0]).shape == (0, scattering.outputs)
    pixels = (255 * images).round()
    torch.testing.assert_close(scattering(pixels.to(torch.uint8)), scattering(pixels))


@pytest.mark.parametrize("wrong", [(8,), 28, (4, 28), (2, 2, 2, 2), (28, -1), ("a", 3)])
def test_shapes_without_room_are_refused(wrong):
    with pytest.raises(pv.ArgumentError, match=r"shape|height"):
        Scattering2D(wrong)


def test_other_settings_and_images_are_refused():
    with pytest.raises(pv.ArgumentError, match="order"):
        Scattering2D((28, 28), order=3)
    with pytest.raises(pv.ArgumentError, match="norm"):
        Scattering2D((28, 28), norm=0)
    with pytest.raises(pv.DataError, match=r"28 x 28 pixels.*\(27, 28\)"):
        Scattering2D((28, 28))(torch.zeros(2, 27, 28))
