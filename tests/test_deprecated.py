"""Former names: each works for one minor version, and says what it is called now."""

import importlib

import pytest

# module, former name, present module, present name
RENAMED = [
    ("privada.sampling", "Poisson", "privada.participation", "PoissonSampler"),
    ("privada.sampling", "FixedSize", "privada.participation", "FixedSizeSampler"),
    ("privada.sampling", "Sampler", "privada.participation", "Sampler"),
]


@pytest.mark.parametrize(("module", "former", "place", "now"), RENAMED)
def test_a_former_name_is_the_present_one(module, former, place, now):
    with pytest.warns(
        DeprecationWarning, match=rf"{module}\.{former} is now called {place}\.{now}"
    ):
        found = getattr(importlib.import_module(module), former)
    assert found is getattr(importlib.import_module(place), now)


@pytest.mark.parametrize("module", sorted({module for module, *_ in RENAMED}))
def test_a_former_module_has_no_other_names(module):
    found = importlib.import_module(module)
    assert set(found.__all__) == {former for where, former, *_ in RENAMED if where == module}
    with pytest.raises(AttributeError, match="nothing"):
        found.nothing  # noqa: B018


def test_a_former_module_is_found_on_the_package():
    import privada

    for module in {module for module, *_ in RENAMED}:
        assert getattr(privada, module.removeprefix("privada.")) is importlib.import_module(module)
