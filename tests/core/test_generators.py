"""Random generators of a data set's own are found wherever reading an item may use them."""

import io
import itertools
import random
from functools import cached_property, partial
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import privada as pv
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


class Shifting:
    def __init__(self) -> None:
        self.own = random.Random(0)

    def __call__(self, index: int) -> float:
        return index + self.own.random()


class WithinAnObjectOfTheClass:
    shifting: ClassVar[list[Any]] = [Shifting()]

    def __getitem__(self, index: int) -> float:
        return float(self.shifting[0](index))


elsewhere: Any = ModuleType("elsewhere")
elsewhere.own = np.random.default_rng(0)


class OfAModule:
    def __getitem__(self, index: int) -> float:
        return index + float(elsewhere.own.normal())


class ByIterator:
    def __init__(self) -> None:
        self.shifts = itertools.cycle([0.0, 1.0])

    def __getitem__(self, index: int) -> float:
        return index + next(self.shifts)


class ByGeneratorFunction:
    def __init__(self) -> None:
        self.shifts = (float(each) for each in range(100))

    def __getitem__(self, index: int) -> float:
        return index + next(self.shifts)


OWN = [
    WithinAnObjectOfTheClass, OfAModule, ByIterator, ByGeneratorFunction,
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


class OpenFile:
    """A file can be read from where one likes, though it is an iterator too."""

    def __init__(self) -> None:
        self.file = io.StringIO("0.5")

    def __getitem__(self, index: int) -> float:
        self.file.seek(0)
        return index + float(self.file.read())


@pytest.mark.parametrize(
    "make", [OpenFile, UsedElsewhere, ByGlobalFunctions, ByModel, random.SystemRandom]
)
def test_what_is_hidden_or_not_used_is_let_through(make: Any) -> None:
    assert own_generator(make()) is None


class Lazy:
    """Makes a generator when it is first needed."""

    def __init__(self) -> None:
        self.own: Any = None

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        if self.own is None:
            self.own = np.random.default_rng(0)
        return torch.full((2,), float(self.own.normal())), 0


@pytest.mark.parametrize("example", [None, (torch.zeros(2), 0)])
def test_a_generator_that_is_made_late_is_found_before_anything_is_released(example: Any) -> None:
    """By reading the first record, or else, if none is read before, by the first batch."""
    ledger = pv.Ledger(None)
    with pytest.raises(pv.DataError, match="generator or an iterator of its own, got one in 'own'"):
        pv.Trainer(
            nn.Linear(2, 2), nn.CrossEntropyLoss(), Lazy(), method=pv.methods.DPSGD(lr=0.1),
            batch_size=9, steps=2, noise_multiplier=1.0, delta=1e-3, ledger=ledger,
            example=example,
        ).fit()  # fmt: skip
    assert bool(ledger.charges()) == (example is not None)
