"""What to choose from: a list, a grid, distributions, or a function that suggests."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from privada.core.deprecation import renamed_argument
from privada.core.errors import ArgumentError
from privada.core.randomness import RandomSource, SeededSource, integers, uniforms
from privada.core.validation import integer, real

Settings = dict[str, Any]


class Space(Protocol):
    """Makes the list of candidates' settings, without looking at any data."""

    def candidates(self) -> list[Settings]:
        """Return the settings of each candidate."""


@dataclass(frozen=True)
class Grid:
    """Every combination of the given values; a list of mappings is several grids, one by one.

    scikit-learn's `ParameterGrid`, and a `param_grid` as `GridSearchCV` takes it, mean the same.

    Example:
        >>> import privada as pv
        >>> pv.selection.Grid({"lr": [0.1, 1.0], "clip": [1.0]}).candidates()
        [{'lr': 0.1, 'clip': 1.0}, {'lr': 1.0, 'clip': 1.0}]
    """

    values: Mapping[str, Iterable[Any]] | Sequence[Mapping[str, Iterable[Any]]]

    def candidates(self) -> list[Settings]:
        """Return each combination, the last name's values changing fastest."""
        grids = [self.values] if isinstance(self.values, Mapping) else list(self.values)
        found: list[Settings] = []
        for grid in grids:
            columns = []
            for name, values in grid.items():
                if isinstance(values, str | bytes) or not isinstance(values, Iterable):
                    raise ArgumentError(
                        f"Expected the grid to have a list of values for {name!r}, got {values!r}. "
                        f"Write [{values!r}] for a single one."
                    )
                columns.append(list(values))
                if not columns[-1]:
                    raise ArgumentError(
                        f"Expected at least one value for {name!r}, got an empty list."
                    )
            found += [
                dict(zip(grid, each, strict=True)) for each in itertools.product(*columns) if grid
            ]
        return found


@dataclass(frozen=True)
class RandomSpace:
    """Candidates drawn from distributions, each name's independently.

    Args:
        distributions: for each name a list of values, or a distribution of `scipy.stats`:
            anything that has its `ppf`.
        pool: how many candidates are drawn. They are drawn before any data is read, and the search
            then chooses among them; a price is known only for a finite list.
        seed: decides which. It protects nothing: the pool is public.

    Example:
        >>> import privada as pv
        >>> from scipy.stats import loguniform
        >>> rates = loguniform(1e-3, 1)
        >>> space = pv.selection.RandomSpace({"lr": rates, "clip": [0.5, 1.0]}, pool=20)
        >>> len(space.candidates())
        20
    """

    distributions: Mapping[str, Any]
    pool: int = 100
    seed: int = 0

    def candidates(self) -> list[Settings]:
        """Return the pool."""
        rng = SeededSource(self.seed, "pool")
        return [
            {name: _drawn(name, source, rng) for name, source in self.distributions.items()}
            for _ in range(integer("pool", self.pool))
        ]


def _below(rng: RandomSource, count: int) -> int:
    return int(integers(rng, count, 1)[0])


def _between(rng: RandomSource, low: float, high: float) -> float:
    return low + (high - low) * float(uniforms(rng, 1)[0])


def _drawn(name: str, source: Any, rng: RandomSource) -> Any:
    if hasattr(source, "ppf"):
        value = source.ppf(float(uniforms(rng, 1)[0]))
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(source, str | bytes) or not isinstance(source, Sequence | np.ndarray):
        raise ArgumentError(
            f"Expected a list of values or a distribution of scipy.stats for {name!r}, got "
            f"{source!r}."
        )
    if not len(source):
        raise ArgumentError(f"Expected at least one value for {name!r}, got an empty list.")
    value = source[_below(rng, len(source))]
    return value.item() if isinstance(value, np.generic) else value


@renamed_argument("bits", "rng")
class Trial:
    """Suggests the settings of one candidate, by the names that Optuna's trials have.

    Example:
        >>> import privada as pv
        >>> def settings(trial):
        ...     trial.suggest_float("lr", 1e-3, 1.0, log=True)
        ...     trial.suggest_categorical("clip", [0.5, 1.0])
        >>> pool = pv.selection.Suggest(settings, pool=5).candidates()
        >>> sorted(pool[0])
        ['clip', 'lr']
    """

    def __init__(self, rng: RandomSource) -> None:
        self._bits = rng
        self.params: Settings = {}

    def _keep(self, name: str, draw: Callable[[], Any]) -> Any:
        if name not in self.params:
            self.params[name] = draw()
        return self.params[name]

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a number between two others, on a logarithmic scale or in steps if asked."""
        low, high = real("low", low), real("high", high)
        if low > high or (log and low <= 0):
            raise ArgumentError(
                f"Expected low <= high, and low > 0 on a logarithmic scale, for {name!r}, got "
                f"low={low!r}, high={high!r}."
            )
        if step is not None:
            steps = math.floor((high - low) / real("step", step) + 1e-9)
            return float(self._keep(name, lambda: low + step * _below(self._bits, steps + 1)))
        if log:
            ends = math.log(low), math.log(high)
            return float(self._keep(name, lambda: min(high, math.exp(_between(self._bits, *ends)))))
        return float(self._keep(name, lambda: _between(self._bits, low, high)))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """Return a whole number between two others, both included."""
        low, high = integer("low", low, least=-(2**53)), integer("high", high, least=-(2**53))
        if low > high or (log and low <= 0):
            raise ArgumentError(
                f"Expected low <= high, and low > 0 on a logarithmic scale, for {name!r}, got "
                f"low={low!r}, high={high!r}."
            )
        if log:
            ends = math.log(low - 0.5), math.log(high + 0.5)

            def draw() -> int:
                return min(high, max(low, round(math.exp(_between(self._bits, *ends)))))

            return int(self._keep(name, draw))
        steps = (high - low) // integer("step", step)
        return int(self._keep(name, lambda: low + step * _below(self._bits, steps + 1)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return one of some choices."""
        listed = list(choices)
        if not listed:
            raise ArgumentError(f"Expected at least one choice for {name!r}, got none.")
        return self._keep(name, lambda: listed[_below(self._bits, len(listed))])


@dataclass(frozen=True)
class Suggest:
    """Candidates that a function suggests, one trial at a time, as with Optuna.

    Args:
        function: is given a `Trial` and asks it for settings; what it asked for is the candidate.
        pool: how many candidates are made, before any data is read.
        seed: decides which. The pool is public.

    Example:
        >>> import privada as pv
        >>> space = pv.selection.Suggest(lambda t: t.suggest_int("hidden", 8, 64, log=True), pool=3)
        >>> all(8 <= each["hidden"] <= 64 for each in space.candidates())
        True
    """

    function: Callable[[Trial], object]
    pool: int = 100
    seed: int = 0

    def candidates(self) -> list[Settings]:
        """Return the pool."""
        rng = SeededSource(self.seed, "pool")
        found = []
        for _ in range(integer("pool", self.pool)):
            trial = Trial(rng)
            self.function(trial)
            found.append(trial.params)
        return found


def candidates_of(space: Any) -> list[Settings]:
    """Return the settings of each candidate of a space, a grid as a mapping, or a list."""
    if hasattr(space, "candidates"):
        found = space.candidates()
    elif isinstance(space, Mapping):
        found = Grid(space).candidates()
    elif isinstance(space, Iterable) and not isinstance(space, str | bytes):
        found = [dict(each) if isinstance(each, Mapping) else each for each in space]
    else:
        raise ArgumentError(
            f"Expected space to be a mapping of names to lists of values, a list of settings, or "
            f"one of pv.selection's spaces, got space={space!r}."
        )
    wrong = next((each for each in found if not isinstance(each, Mapping)), None)
    if wrong is not None:
        raise ArgumentError(
            f"Expected each candidate to be a mapping of names to values, got {wrong!r}."
        )
    if not found or not all(found):
        raise ArgumentError(
            f"Expected at least one candidate with at least one setting, got space={space!r}. "
            "Give a grid such as {'lr': [0.1, 1.0]}."
        )
    return [dict(each) for each in found]
