"""The effective step size of DPAdam, and the limit that noise alone gives it."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import chi2

from privada import charts
from privada.core.errors import ArgumentError
from privada.core.validation import integer, probability
from privada.methods import DPAdam
from privada.train.trainer import Trainer
from privada.updates.learning_rates import rate_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class StepSizes:
    """The effective step sizes of a run of DPAdam, step by step, and their limit.

    Attributes:
        steps: the steps that were looked at, counted from 1.
        median, low, high: over the coordinates; `low` and `high` are `tail` of them from both ends.
        limit: lr / (sigma C / B + eps), which changes where the learning rate does.
        noise_low, noise_high: where `low` and `high` would be if releases were noise alone.
        tail: the share of coordinates below `low`, and above `high`.
        method: the method and its settings in words.

    Guarantee: post-processing of the run's releases, which are all that it costs.

    Example:
        >>> from privada.selection import StepSizes
        >>> one = StepSizes((1,), (0.9,), (0.5,), (2.0,), (1.0,), (0.4,), (9.0,), 0.05, "dp-adam")
        >>> one.ratio
        0.9

    Reference: Mohapatra et al. (2022), The Role of Adaptive Optimizers for Honest Private
    Hyperparameter Selection, arXiv 2111.04906, Section 6.1.
    """

    steps: tuple[int, ...]
    median: Numbers
    low: Numbers
    high: Numbers
    limit: Numbers
    noise_low: Numbers
    noise_high: Numbers
    tail: float
    method: str

    @property
    def ratio(self) -> float:
        """The median over the limit at the last step: 1 if noise is all there is, less if not."""
        return self.median[-1] / self.limit[-1]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}
        return plain | {"ratio": self.ratio}

    def figure(self) -> "go.Figure":
        """Return a chart over the steps: the median in its band, and the limit as a line.

        Dotted lines are where the band would be with noise alone.
        """
        figure = charts.new(
            "Effective step size of DPAdam"
            f"<br><sup>{self.method} · last median at {self.ratio:.3g} of the limit</sup>",
            "step",
            "lr / (√v̂ + eps)",
            legend={"orientation": "h", "x": 0, "y": -0.16, "yanchor": "top"},
            margin={"l": 90, "r": 30, "t": 80, "b": 110},
        )
        blue, red, grey = charts.COLOURS[0], charts.COLOURS[1], "#666666"
        share = f"{100 * (1 - 2 * self.tail):.3g} %"
        band = {"x": self.steps, "mode": "lines", "hoverinfo": "skip"}
        figure.add_scatter(
            y=self.high, line={"width": 0}, legendgroup="band", showlegend=False, **band
        )
        figure.add_scatter(
            y=self.low,
            line={"width": 0},
            fill="tonexty",
            fillcolor="rgba(0,114,178,0.22)",
            legendgroup="band",
            name=f"{share} of coordinates",
            **band,
        )
        for values, shown in ((self.noise_low, True), (self.noise_high, False)):
            figure.add_scatter(
                y=values,
                line={"color": grey, "width": 1.5, "dash": "dot"},
                legendgroup="noise",
                name=f"{share} if there were noise alone",
                showlegend=shown,
                **band,
            )
        figure.add_scatter(
            x=self.steps,
            y=self.median,
            mode="lines",
            line={"color": blue, "width": 2.5},
            name="median",
            hovertemplate="step %{x}: %{y:.4g}<extra></extra>",
        )
        figure.add_scatter(
            x=self.steps,
            y=self.limit,
            mode="lines",
            line={"color": red, "width": 2.5, "dash": "dash"},
            name="limit: lr / (σC/B + eps)",
            hovertemplate="limit %{y:.4g}<extra></extra>",
        )
        ticks = [m * 10.0**e for e in range(-12, 9) for m in (1, 2, 5)]
        figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{t:g}" for t in ticks])
        if len(self.steps) > 1:
            figure.update_xaxes(type="log", dtick=1)
        return figure


def _freedom(beta2: float, step: int) -> float:
    """Return the degrees of freedom of Adam's corrected second moment of noise at a step.

    It is a weighted mean of squares of independent Gaussians. A chi-square with this many degrees
    of freedom has the same relative variance, 2 sum of w^2.
    """
    kept = beta2**step
    return (1 + beta2) * (1 - kept) / ((1 - beta2) * (1 + kept))


def effective_step_sizes(trainer: Trainer, *, every: int = 1, tail: float = 0.05) -> StepSizes:
    """Take the steps that a DPAdam trainer has left, and return its effective step sizes.

    Theorem 3 of Mohapatra et al. (2022): "The effective step size (ESS) for DPAdam with g -> 0
    converges to ESS* = alpha / ((sigma C / L) + xi)." There the average noisy gradient over a lot
    of size L is g + N(0, sigma^2 C^2) / L, the ESS of a parameter is alpha / (sqrt(v) + xi), v
    being its second moment corrected for its start, and g -> 0 means that the clipped gradients
    vanish beside the noise. Here alpha, L and xi are `lr`, the batch size B and `eps`.

    What is true at g = 0: v has the mean (sigma C / B)^2 at every step, as the correction sees to,
    and after many steps the relative variance 2 (1 - beta2) / (1 + beta2). So an ESS does not
    settle on the limit; it stays around it, by about sqrt((1 - beta2) / (2 (1 + beta2))) of it: 1.6
    % with beta2 = 0.999. `noise_low` and `noise_high` say how far, with a chi-square in the place
    of the weighted sum of squares. Gradients that do not vanish add to v, and make steps shorter.

    Args:
        trainer: a `Trainer` whose method is `DPAdam`, with steps left. It is trained.
        every: look at every so many steps; the first and the last are always looked at.
        tail: the share of the coordinates to leave out of the band at each end, below 0.5.

    Returns:
        The median and the band of the step sizes at each step looked at, and their limit.

    Guarantee: nothing but the run's own releases is looked at, through Adam's second moment, which
    is post-processing: the run costs what it would have cost anyway.

    Edge cases: a trainer that has taken some steps goes on from there. Where `clipping` is not by
    the norm alone, the limit has the noise that it needs in the place of sigma C / B.

    Example:
        >>> import privada as pv, torch
        >>> from privada.selection import effective_step_sizes
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> trainer = pv.Trainer(
        ...     torch.nn.Linear(64, 10), torch.nn.CrossEntropyLoss(), (x / 16, y),
        ...     method=pv.methods.DPAdam(clip=0.1), batch_size=100, steps=50,
        ...     noise_multiplier=4.0, delta=1e-4,
        ... )
        >>> sizes = effective_step_sizes(trainer)
        >>> len(sizes.steps), round(sizes.limit[0], 4)
        (50, 0.25)

    Reference: Mohapatra et al. (2022), The Role of Adaptive Optimizers for Honest Private
    Hyperparameter Selection, arXiv 2111.04906, Theorem 3.
    """
    method = getattr(trainer, "method", None)
    if not isinstance(trainer, Trainer) or not isinstance(method, DPAdam):
        given = type(trainer).__name__ if method is None else f"one of {method.name}"
        raise ArgumentError(
            f"Expected a Trainer whose method is DPAdam, got {given}. Make it with "
            "method=pv.methods.DPAdam(...)."
        )
    every = integer("every", every)
    if probability("tail", tail) >= 0.5:
        raise ArgumentError(f"Expected tail in (0, 0.5), got tail={tail!r}. 0.05 leaves 90 %.")
    if trainer.steps_done >= trainer.steps:
        raise ArgumentError(
            f"Expected a trainer with steps left, got one that took all {trainer.steps}: second "
            "moments of earlier steps are not kept. Give it before fit()."
        )
    rate, batch_size = rate_of(method.lr), trainer.batch_size
    std = (
        trainer.noise_multiplier
        * method.clipping.sensitivity(method.clip)
        / method.clipping.expected_terms(batch_size)
    )
    rows: list[Numbers] = []
    steps: list[int] = []
    first = trainer.steps_done
    while trainer.steps_done < trainer.steps:
        number = trainer.steps_done
        trainer.step()
        if (number - first) % every and trainer.steps_done < trainer.steps:
            continue
        steps.append(number + 1)
        second = trainer._state.rule["second"].double().cpu().numpy()
        second = second / (1 - method.beta2 ** steps[-1])
        # a step size falls as the second moment grows: upper quantiles of one are lower of other
        middle, above, below = np.quantile(second, [0.5, 1 - tail, tail])
        freedom = _freedom(method.beta2, steps[-1])
        noise = [std**2 * float(chi2.ppf(p, freedom)) / freedom for p in (1 - tail, tail)]
        squares = (middle, above, below, std**2, *noise)
        rows.append(tuple(rate(number) / (math.sqrt(v) + method.eps) for v in squares))
    median, low, high, limit, noise_low, noise_high = zip(*rows, strict=True)
    return StepSizes(
        steps=tuple(steps),
        median=median,
        low=low,
        high=high,
        limit=limit,
        noise_low=noise_low,
        noise_high=noise_high,
        tail=float(tail),
        method=method.describe(),
    )
