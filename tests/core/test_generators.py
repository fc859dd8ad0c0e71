"""Random generators of a data set's own are found wherever reading an item may use them."""

import random
from functools import cached_property, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from privada.core.generators import own_generator

somewhere = np.random.default_rng(0)


class Augmenting:
    def __init__(self) -> None:
        self.source = random.Random(0)

    def __call__(self, index: int) -> float:
        return index + self.source.random()


augmenting = Augmenting()


class ByHelper:
    def __getitem__(self, index: int) -> float:
        return self._augmented(index)

    def _augmented(self, index: int) -> float:
        return index + self._shift()

    def _shift(self) -> float:
        return float(somewhere.normal())


class ByStaticMethod:
    def __getitem__(self, index: int) -> float:
        return self.shifted(index)

    @staticmethod
    def shifted(index: int) -> float:
        return index + float(somewhere.normal())


class ByClassMethod:
    def __getitem__(self, index: int) -> float:
        return self.shifted(index)

    @classmethod
    def shifted(cls, index: int) -> float:
        return index + float(somewhere.normal())


class ByProperty:
    def __getitem__(self, index: int) -> float:
        return index + self.shift

    @property
    def shift(self) -> float:
        return float(somewhere.normal())


class ByCachedProperty:
    def __getitem__(self, index: int) -> float:
        return index + self.shift

    @cached_property
    def shift(self) -> float:
        return float(somewhere.normal())


class Inherited(ByHelper):
    def _augmented(self, index: int) -> float:
        return super()._augmented(index) + self._shift()


class OfTheClass:
    own = torch.Generator()

    def __getitem__(self, index: int) -> float:
        return index + float(torch.rand((), generator=self.own))


class InASlot:
    __slots__ = ("own",)

    def __init__(self) -> None:
        self.own = np.random.RandomState(0)

    def __getitem__(self, index: int) -> float:
        return index + float(self.own.normal())


class ByGlobalObject:
    def __getitem__(self, index: int) -> float:
        return augmenting(index)


class ByInnerFunction:
    def __getitem__(self, index: int) -> float:
        def shifted() -> float:
            return index + float(somewhere.normal())

        return shifted()


OWN = [
    ByHelper, ByStaticMethod, ByClassMethod, ByProperty, ByCachedProperty, Inherited, OfTheClass,
    InASlot, ByGlobalObject, ByInnerFunction, lambda: partial(print, augmenting),
]  # fmt: skip


@pytest.mark.parametrize("make", OWN)
def test_a_generator_is_found(make: Any) -> None:
    assert own_generator(make()) is not None


class UsedElsewhere:
    """Made, and described, with a generator: items are read without."""

    def __init__(self) -> None:
        self.values = self.drawn()

    def drawn(self) -> list[float]:
        return [float(somewhere.normal()) for _ in range(3)]

    def __getitem__(self, index: int) -> float:
        return self.values[index]


class ByGlobalFunctions:
    def __getitem__(self, index: int) -> float:
        shift = float(np.random.normal())  # noqa: NPY002
        return index + shift + random.random() + float(torch.rand(()))


class ByModel:
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())

    def __getitem__(self, index: int) -> Any:
        return self.model(torch.zeros(2))


@pytest.mark.parametrize("make", [UsedElsewhere, ByGlobalFunctions, ByModel, random.SystemRandom])
def test_what_is_hidden_or_not_used_is_let_through(make: Any) -> None:
    assert own_generator(make()) is None
