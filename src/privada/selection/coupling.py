"""How learning rate and clip norm depend on each other: a grid of private runs, paid in full."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privada.accounting import Budget, Ledger, Statement
from privada.core.errors import ArgumentError
from privada.core.public_examples import Public
from privada.core.randomness import SeededSource
from privada.core.validation import integer, positive
from privada.participation import Participation
from privada.query.scores import Score, accuracy
from privada.selection.candidates import Recipe, made
from privada.selection.prices import Price
from privada.selection.result import CandidateResult, Selection
from privada.selection.search import select

if TYPE_CHECKING:
    import plotly.graph_objects as go

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Peak:
    """The best learning rate at one clip norm.

    `learning_rate` is where the parabola through the best score and its two neighbours, over the
    logarithm of the learning rate, has its top. `inside` is False where the best score is at an end
    of the grid: the best learning rate may then be beyond it.

    Example:
        >>> from privada.selection import Peak
        >>> Peak(clip=0.5, learning_rate=2.0, inside=True).inside
        True
    """

    clip: float
    learning_rate: float
    inside: bool


@dataclass(frozen=True, eq=False)
class Coupling:
    """Scores of private runs over a grid of learning rates and clip norms, and their price.

    Attributes:
        learning_rates, clips: both sides of the grid, in ascending order.
        each: the score of every run: repeats, learning rates and clip norms are its axes.
        score: what was measured.
        method: the name of the method.
        noise_multiplier: the noise of the best cell's runs, the same everywhere unless the recipe
            makes some cells train longer.
        price: what the whole grid costs by itself.
        tried: every run's settings, score and model, in the order of `each`.
        statement: what was promised, what it cost with everything else on the ledger, and what it
            rests on.

    Guarantee: all of it together, models included, is differentially private at `price`.

    Example:
        >>> import numpy as np, privada as pv
        >>> from privada.selection import Coupling
        >>> price = pv.selection.Price("compose-pld", 1.0, 1e-5, 9, "all models")
        >>> rates, clips = (0.1, 0.2, 0.4, 0.8, 1.6), (0.5, 1.0, 2.0)
        >>> scores = [[-abs(np.log2(lr * clip / 0.4)) for clip in clips] for lr in rates]
        >>> made = Coupling(rates, clips, np.array([scores]), pv.selection.accuracy(), "dp-sgd",
        ...                 1.0, price, (), None)
        >>> round(made.slope(), 6), round(made.peaks()[0].learning_rate, 6)
        (-1.0, 0.8)

    Reference: Mohapatra et al. (2022), The Role of Adaptive Optimizers for Honest Private
    Hyperparameter Selection, arXiv 2111.04906, Section 4.1 and Figure 2.
    """

    learning_rates: tuple[float, ...]
    clips: tuple[float, ...]
    each: Values
    score: Score
    method: str
    noise_multiplier: float
    price: Price
    tried: tuple[CandidateResult, ...]
    statement: Statement

    @cached_property
    def scores(self) -> Values:
        """The mean over repeats, one row for each learning rate, one column for each clip norm."""
        return np.asarray(self.each.mean(axis=0))

    @property
    def best(self) -> tuple[float, float]:
        """The learning rate and the clip norm of the best mean score, the first of equal ones."""
        row, column = np.unravel_index(int(self._utilities.argmax()), self.scores.shape)
        return self.learning_rates[row], self.clips[column]

    @property
    def best_score(self) -> float:
        """The best mean score."""
        return float(self.scores.flat[int(self._utilities.argmax())])

    @property
    def _utilities(self) -> Values:
        """The scores, turned so that more is better."""
        return self.scores if self.score.greater else -self.scores

    def peaks(self) -> tuple[Peak, ...]:
        """Return the best learning rate at each clip norm."""
        logs = np.log(self.learning_rates)
        found = []
        for clip, utilities in zip(self.clips, self._utilities.T, strict=True):
            top = _middle(utilities)
            inside = 0 < top < len(logs) - 1
            where = (
                _vertex(logs[top - 1 : top + 2], utilities[top - 1 : top + 2]) if inside else None
            )
            found.append(Peak(clip, math.exp(logs[top] if where is None else where), inside))
        return tuple(found)

    def slope(self) -> float:
        """Return s of the fit best lr = constant * clip^s over the clip norms, by least squares.

        Theorem 2 of Mohapatra et al. (2022) has s = -1 for DP-SGD: lr and clip matter by their
        product alone. Where every gradient is clipped that is exact. The steps of DPAdam do not
        depend on the clip norm then, so that s = 0.

        Edge cases: clip norms whose best learning rate is at an end of the grid are left out. With
        fewer than two others there is no slope to speak of, which is an error. Where scores hardly
        depend on the learning rate, their best one is chance, and the slope is too.
        """
        inside = [peak for peak in self.peaks() if peak.inside]
        if len(inside) < 2:
            raise ArgumentError(
                "Expected at least two clip norms whose best learning rate is inside the grid, got "
                f"{len(inside)} of {len(self.clips)}. Give learning_rates over a wider range, or "
                "more clips."
            )
        clips, rates = np.log([[peak.clip, peak.learning_rate] for peak in inside]).T
        return float(np.polyfit(clips, rates, 1)[0])

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the models as plain values."""
        rate, clip = self.best
        try:
            slope: float | None = self.slope()
        except ArgumentError:
            slope = None
        return {
            "method": self.method,
            "score": self.score.name,
            "greater_is_better": self.score.greater,
            "learning_rates": list(self.learning_rates),
            "clips": list(self.clips),
            "scores": self.scores.tolist(),
            "each": self.each.tolist(),
            "best": {"learning_rate": rate, "clip": clip, "score": self.best_score},
            "peaks": [vars(peak) for peak in self.peaks()],
            "slope": slope,
            "noise_multiplier": self.noise_multiplier,
            "price": vars(self.price),
            "statement": self.statement.to_dict(),
        }

    def figure(self) -> "go.Figure":
        """Return a heat map of the mean scores, brighter where they are better.

        Losses are coloured by their logarithm, as in Figure 2 of Mohapatra et al. (2022). A frame
        marks the best cell, and a line the cells of the same lr * clip; dots are the best learning
        rates at each clip norm, hollow where they are at an end of the grid.
        """
        from privada.selection.coupling_charts import heat_map

        return heat_map(self)


def _middle(utilities: Values) -> int:
    """Return the place of the best; of several equal ones, the middle one."""
    places = np.flatnonzero(utilities == utilities.max())
    return int(places[len(places) // 2])


def _vertex(x: Values, y: Values) -> float:
    """Return where the parabola through three points has its top, the middle one being highest."""
    left, right = x[0] - x[1], x[2] - x[1]
    down, drop = y[0] - y[1], y[2] - y[1]
    bend = right * down - left * drop
    if bend == 0:
        return float(x[1])
    return float(x[1] + (right**2 * down - left**2 * drop) / (2 * bend))


def _ascending(name: str, values: Any) -> tuple[float, ...]:
    """Return a list of positive numbers in ascending order, each once."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ArgumentError(
            f"Expected {name} to be a list of numbers, got {name}={values!r}. Write [{values!r}] "
            "for a single one."
        )
    found = sorted(positive(f"each of {name}", value) for value in values)
    if not found:
        raise ArgumentError(
            f"Expected {name} to have at least one number, got an empty list. Give values such as "
            "[0.1, 0.3, 1.0]."
        )
    if len(set(found)) < len(found):
        raise ArgumentError(
            f"Expected {name} to be different from each other, got {name}={found}. Use repeats= to "
            "run a pair more than once."
        )
    return tuple(found)


def coupling_grid(
    recipe: Recipe,
    data: Any,
    *,
    learning_rates: Iterable[float],
    clips: Iterable[float],
    test: Public,
    score: Score | None = None,
    repeats: int = 1,
    budget: Budget | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    sampling: str | Participation = "poisson",
    ledger: Ledger | str | os.PathLike[str] | None = None,
    seed: int | None = None,
    unit: str = "record",
    groups: Any = None,
    rows_per_unit: int | None = None,
    state: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    progress: bool = False,
) -> Coupling:
    """Train a method at every pair of learning rate and clip norm, and return all scores.

    This is a study of a method, not a way to tune one: all models are looked at, so all are paid
    for. To tune, use `select`, which releases one model and is much cheaper.

    Args:
        recipe: a function of `lr` and `clip` that returns a `Candidate`.
        data: the private records, as for `Trainer`.
        learning_rates, clips: both sides of the grid, in any order.
        test: the records that scores are of, as `pv.Public(records)`: scores on them cost nothing.
        score: `accuracy()`, `bounded_loss(loss, bound)` or a `Score` of your own.
        repeats: how often each pair is run, each time with other weights, batches and noise.
        budget: what the grid as a whole may cost; the noise is calibrated to it.
        noise_multiplier: the noise of every run instead, with the `delta` to report epsilon at.
        sampling, ledger, seed, unit, groups, rows_per_unit: as for `Trainer`.
        state, n_jobs, progress: as for `select`.

    Returns:
        The scores of the grid, with their price and their statement.

    Guarantee: all models and scores together are (epsilon, delta)-differentially private at
    `price`, the composition of all runs, which the ledger is charged before the first of them. The
    `test` records get no protection.

    Edge cases: whatever is wrong with an argument or a candidate raises before anything is charged.
    A run that diverges has the score that its model has; one that is not a number counts as the
    worst.

    Example:
        >>> import privada as pv, torch
        >>> from sklearn.datasets import load_digits
        >>> from privada.selection import coupling_grid
        >>> x, y = load_digits(return_X_y=True)
        >>> def recipe(lr, clip):
        ...     return pv.selection.Candidate(
        ...         torch.nn.Linear(64, 10), torch.nn.CrossEntropyLoss(),
        ...         pv.methods.DPSGD(lr=lr, clip=clip), batch_size=150, epochs=1,
        ...     )
        >>> found = coupling_grid(
        ...     recipe, (x[:1500] / 16, y[:1500]), test=pv.Public((x[1500:] / 16, y[1500:])),
        ...     learning_rates=[0.5, 2.0], clips=[0.5, 1.0, 2.0], budget=pv.Budget(8.0, 1e-4),
        ... )
        >>> found.scores.shape, found.price.runs, found.price.epsilon <= 8.0
        ((2, 3), 6, True)

    Reference: Mohapatra et al. (2022), The Role of Adaptive Optimizers for Honest Private
    Hyperparameter Selection, arXiv 2111.04906, Section 4.1, Theorem 2 and Figure 2.
    """
    rates, norms = _ascending("learning_rates", learning_rates), _ascending("clips", clips)
    _check_public(test)
    pairs = [{"lr": lr, "clip": clip} for lr in rates for clip in norms]
    score = accuracy() if score is None else score
    found = select(
        recipe,
        data,
        space=pairs * integer("repeats", repeats),
        validation=test,
        score=score,
        how="compose-pld",
        budget=budget,
        noise_multiplier=noise_multiplier,
        delta=delta,
        sampling=sampling,
        ledger=ledger,
        seed=seed,
        unit=unit,
        groups=groups,
        rows_per_unit=rows_per_unit,
        state=state,
        n_jobs=n_jobs,
        progress=progress,
    )
    method = made(recipe, pairs[0], SeededSource(0, "name")).method.name
    return _coupling_of(found, rates, norms, score, method)


def _check_public(test: Public) -> None:
    if not isinstance(test, Public):
        raise ArgumentError(
            f"Expected test to be declared public, got {type(test).__name__}. Every score is shown "
            "without noise: give records that need no protection, as test=pv.Public(records), or "
            "use pv.selection.select, which scores private ones with noise."
        )


def _coupling_of(
    found: Selection, rates: tuple[float, ...], clips: tuple[float, ...], score: Score, method: str
) -> Coupling:
    """Return the scores of all runs as a grid."""
    each = np.array([run.score for run in found.tried]).reshape(-1, len(rates), len(clips))
    each.setflags(write=False)
    return Coupling(
        learning_rates=rates,
        clips=clips,
        each=each,
        score=score,
        method=method,
        noise_multiplier=found.noise_multiplier,
        price=found.price,
        tried=found.tried,
        statement=found.statement,
    )
