"""The plan of a budget as values: runs, searches, the recommendation, and all of them together."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from privada.accounting.budget import Budget

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class PlannedRun:
    """One way to spend a whole budget on a single run, and the noise it then needs.

    A step releases the average gradient with noise of standard deviation sigma C / B in each
    coordinate, where sigma is `noise_multiplier`, C the clip norm and B `batch_size`. With a
    learning rate eta, the noise of T steps adds up to eta sigma C sqrt(T) / B in each coordinate,
    while average gradients of length C at most move the model by eta C T at most. The ratio of the
    two needs neither eta nor C: `run_noise` = sigma / (B sqrt(T)). It is the figure to compare
    settings by; the multiplier alone is not, since it grows with the batch. Over d coordinates the
    noise has a norm sqrt(d) times as long.

    Example:
        >>> from privada.selection.planning import PlannedRun
        >>> PlannedRun(batch_size=100, epochs=4.0, steps=400, noise_multiplier=2.0).run_noise
        0.001

    Reference: Sander, Stock and Sablayrolles (2023), TAN Without a Burn, arXiv 2210.03403, whose
    total amount of noise is this figure but for constants.
    """

    batch_size: int
    epochs: float
    steps: int
    noise_multiplier: float
    parameters: int | None = None

    def __str__(self) -> str:
        return f"{epochs_in_words(self.epochs)} in batches of {self.batch_size:,}"

    @property
    def step_noise(self) -> float:
        """The noise in one coordinate of one step's average gradient, over the clip norm."""
        return self.noise_multiplier / self.batch_size

    @property
    def run_noise(self) -> float:
        """The noise in one coordinate of the mean of all steps' average gradients, likewise."""
        return self.step_noise / math.sqrt(self.steps)

    @property
    def step_noise_norm(self) -> float | None:
        """The norm of one step's noise over the clip norm, if the model's size is known."""
        return self._norm(self.step_noise)

    @property
    def run_noise_norm(self) -> float | None:
        """The norm of the noise in the mean over all steps, over the clip norm."""
        return self._norm(self.run_noise)

    def _norm(self, noise: float) -> float | None:
        return None if self.parameters is None else noise * math.sqrt(self.parameters)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, by name."""
        named = ("step_noise", "run_noise", "step_noise_norm", "run_noise_norm")
        fields = asdict(self) | {name: getattr(self, name) for name in named}
        del fields["parameters"]
        return fields


@dataclass(frozen=True)
class PlannedSearch:
    """The price of choosing among candidates in one way, in noise and in epsilon.

    `noise_multiplier` is what each run needs so that the whole search fits the budget, `times` the
    same over the noise of a single run; both are None where no amount of noise is enough.
    `epsilon` is the cost of the search if each run has the noise of a single run instead.
    `one_at_most` is the chance that it makes one run or none, since some ways stop at random.

    Example:
        >>> from privada.selection.planning import PlannedSearch
        >>> PlannedSearch("compose-pld", 4, 4.5, 1.9, 2.1, 0.0, "all models").times
        1.9
    """

    how: str
    candidates: int
    noise_multiplier: float | None
    times: float | None
    epsilon: float
    one_at_most: float
    released: str


@dataclass(frozen=True)
class Recommendation:
    """A setting, a search if one is asked for, and the reasons in words.

    Guarantee: none. It is a rule of thumb about noise, not a promise of accuracy.

    Example:
        >>> from privada.selection.planning import PlannedRun, Recommendation
        >>> setting = PlannedRun(batch_size=100, epochs=4.0, steps=400, noise_multiplier=2.0)
        >>> Recommendation(setting, None, ("It is the only one.",)).warnings
        ()
    """

    setting: PlannedRun
    search: PlannedSearch | None
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        warned = (f"Warning: {each}" for each in self.warnings)
        return "\n".join((*self.reasons, *warned))


@dataclass(frozen=True)
class BudgetPlan:
    """What a budget affords: what `plan` returns.

    `settings` has one entry for each batch size and number of epochs, `searches` one for each
    number of candidates and way, at the recommended setting. `whole_noise` is the run noise with
    all records in every step, which is the same for any number of steps. `adaptive_noise` is the
    noise multiplier that the recommended run needs on an adaptive ledger with the same budget.

    Example:
        >>> import privada as pv
        >>> from privada.selection import plan
        >>> afforded = plan(
        ...     records=60_000, budget=pv.Budget(1.0, 1e-6), batch_sizes=[1024], epochs=[30],
        ...     candidates=[4],
        ... )
        >>> len(afforded.settings), len(afforded.searches)
        (1, 6)
    """

    records: int
    budget: Budget
    parameters: int | None
    sampling: str
    settings: tuple[PlannedRun, ...]
    whole_noise: float
    searches: tuple[PlannedSearch, ...]
    recommendation: Recommendation
    adaptive_noise: float

    def __str__(self) -> str:
        return str(self.recommendation)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        advice = self.recommendation
        return {
            "records": self.records,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "parameters": self.parameters,
            "sampling": self.sampling,
            "settings": [each.to_dict() for each in self.settings],
            "whole_noise": self.whole_noise,
            "adaptive_noise": self.adaptive_noise,
            "searches": [asdict(each) for each in self.searches],
            "recommendation": {
                "setting": advice.setting.to_dict(),
                "search": None if advice.search is None else asdict(advice.search),
                "reasons": list(advice.reasons),
                "warnings": list(advice.warnings),
            },
        }

    def figure(self) -> list["go.Figure"]:
        """Return two charts: noise against batch size, and price against candidates."""
        from privada.selection.planning_charts import noise_chart, price_chart

        return [noise_chart(self), price_chart(self)]

    def picture(self) -> "go.Figure":
        """Return both charts side by side in one figure, for a single picture."""
        from privada.selection.planning_charts import both_charts

        return both_charts(self)


def epochs_in_words(number: float) -> str:
    """Return a number of epochs in words."""
    return "1 epoch" if number == 1 else f"{number:g} epochs"


def steps_in_words(number: int) -> str:
    """Return a number of steps in words."""
    return "1 step" if number == 1 else f"{number:,} steps"
