"""What a budget affords, before any data is read: noise, searches and a recommendation."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from privada.accounting.budget import Budget
from privada.accounting.calibration import noise_multiplier as noise_of_a_run
from privada.accounting.repetition import stopping_rate
from privada.core import formatting
from privada.core.errors import ArgumentError
from privada.core.validation import integer, positive
from privada.selection.prices import WAYS, noise_multiplier, often_no_run, price

if TYPE_CHECKING:
    import plotly.graph_objects as go

EPOCHS = (1.0, 3.0, 10.0, 30.0, 100.0)
CANDIDATES = (1, 4, 10, 40, 1000)
# The recommendation's rule: noise this close to the least counts as good as the least,
NEAR = 1.10
# an optimiser should have this many steps to make,
ENOUGH_STEPS = 500
# and a larger search is called cheap when it needs so little more noise than the smallest.
CHEAP = 1.25

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class Setting:
    """One way to spend a whole budget on a single run, and the noise it then needs.

    A step releases the average gradient with noise of standard deviation sigma C / B in each
    coordinate, where sigma is `noise_multiplier`, C the clip norm and B `batch_size`. With a
    learning rate eta, the noise of T steps adds up to eta sigma C sqrt(T) / B in each coordinate,
    while average gradients of length C at most move the model by eta C T at most. The ratio of the
    two needs neither eta nor C: `run_noise` = sigma / (B sqrt(T)). It is the figure to compare
    settings by; the multiplier alone is not, since it grows with the batch. Over d coordinates the
    noise has a norm sqrt(d) times as long.

    Example:
        >>> from privada.selection.planning import Setting
        >>> Setting(batch_size=100, epochs=4.0, steps=400, noise_multiplier=2.0).run_noise
        0.001

    Reference: Sander, Stock and Sablayrolles (2023), TAN Without a Burn, whose total amount of
    noise is this figure but for constants.
    """

    batch_size: int
    epochs: float
    steps: int
    noise_multiplier: float
    parameters: int | None = None

    def __str__(self) -> str:
        return f"{_epochs(self.epochs)} in batches of {self.batch_size:,}"

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
class Search:
    """The price of choosing among candidates in one way, in noise and in epsilon.

    `noise_multiplier` is what each run needs so that the whole search fits the budget, `times` the
    same over the noise of a single run; both are None where no amount of noise is enough.
    `epsilon` is the cost of the search if each run has the noise of a single run instead.
    `one_at_most` is the chance that it makes one run or none, since some ways stop at random.

    Example:
        >>> from privada.selection.planning import Search
        >>> Search("compose-pld", 4, 4.5, 1.9, 2.1, 0.0, "all models").times
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
        >>> from privada.selection.planning import Recommendation, Setting
        >>> setting = Setting(batch_size=100, epochs=4.0, steps=400, noise_multiplier=2.0)
        >>> Recommendation(setting, None, ("It is the only one.",)).warnings
        ()
    """

    setting: Setting
    search: Search | None
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        warned = (f"Warning: {each}" for each in self.warnings)
        return "\n".join((*self.reasons, *warned))


@dataclass(frozen=True)
class Affordable:
    """What a budget affords: what `plan` returns.

    `settings` has one entry for each batch size and number of epochs, `searches` one for each
    number of candidates and way, at the recommended setting. `whole_noise` is the run noise with
    all records in every step, which is the same for any number of steps.

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
    settings: tuple[Setting, ...]
    whole_noise: float
    searches: tuple[Search, ...]
    recommendation: Recommendation

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
        return [_noise_chart(self), _price_chart(self)]

    def picture(self) -> "go.Figure":
        """Return both charts side by side in one figure, for a single picture."""
        return _side_by_side(self.figure(), _headline(self))


def default_delta(records: int) -> float:
    """Return the largest power of ten that is not above n^-1.1, and so well below 1 / n.

    Guarantee: it depends on the number of records alone, which is taken as public.

    Edge cases: never above 0.1, which is for eight records or fewer.

    Example:
        >>> from privada.selection.planning import default_delta
        >>> default_delta(60_000), default_delta(1_000)
        (1e-06, 0.0001)
    """
    records = integer("records", records, remedy="Give the number of records.")
    places = 1
    while 10 ** (10 * places) < records**11:  # in whole numbers, so that powers of ten are exact
        places += 1
    return float(f"1e-{places}")


def default_batch_sizes(records: int) -> tuple[int, ...]:
    """Return up to five powers of two, each four times the last, up to a third of the records.

    Edge cases: none is below 16, unless a third of the records is.

    Example:
        >>> from privada.selection.planning import default_batch_sizes
        >>> default_batch_sizes(60_000)
        (64, 256, 1024, 4096, 16384)
    """
    third = max(1, integer("records", records, remedy="Give the number of records.") // 3)
    top = 1 << (third.bit_length() - 1)
    return tuple(top // 4**i for i in (4, 3, 2, 1, 0) if top // 4**i >= min(16, top))


def plan(
    *,
    records: int,
    budget: Budget,
    parameters: int | None = None,
    batch_sizes: Iterable[int] | None = None,
    epochs: Iterable[float] | None = None,
    candidates: Iterable[int] = CANDIDATES,
    sampling: str = "poisson",
) -> Affordable:
    """Return what a budget affords: the noise of single runs, the price of searches, and advice.

    Each pair of a batch size B and a number of epochs is a run of T = ceil(epochs n / B) steps,
    whose noise is calibrated to the whole budget. The advice follows a rule. Settings whose run
    noise is within 10% of the least in the table count as good. Among them those of 500 steps or
    more are preferred, then the fewest epochs, which cost the least work, and for equal work the
    least noise. If none of them has so many steps, it is the one that has most.
    Searches are priced at that setting. `parameters` is the number of trained parameters; it scales
    the norm of the noise and does not change the choice.

    Guarantee: all of it is computed from public quantities; no data is read, nothing is charged.
    Runs made as listed cost at most the budget. The advice is a rule of thumb about noise: it
    promises no accuracy.

    Edge cases: without `batch_sizes` there are up to five powers of two below a third of the
    records; without `epochs` they are 1, 3, 10, 30 and 100. Repeated entries count once. A way that
    cannot reach the budget with any noise has no multiplier. A delta of 1 / n or more is warned
    about in the recommendation. With very many records the rule asks for much work: give only what
    can be computed. Prices are those of training; scores on records that no candidate is trained on
    cost nothing beside it, as `select` makes them.

    Example:
        >>> import privada as pv
        >>> from privada.selection import plan
        >>> afforded = plan(
        ...     records=60_000, budget=pv.Budget(1.0, 1e-6), batch_sizes=[256, 1024],
        ...     epochs=[10, 30], candidates=[4, 40],
        ... )
        >>> advice = afforded.recommendation
        >>> advice.setting.batch_size, advice.setting.epochs, advice.search.how
        (1024, 10.0, 'repeat-logarithmic')

    Reference: Sander, Stock and Sablayrolles (2023), TAN Without a Burn, for the noise; Mohapatra
    et al. (2022), The Role of Adaptive Optimizers for Honest Private Hyperparameter Selection,
    arXiv 2111.04906, Sections 4 and 5, for the search.
    """
    records = integer("records", records, remedy="Give the number of records.")
    if not isinstance(budget, Budget):
        raise ArgumentError(
            f"Expected budget to be a Budget, got budget={budget!r}. Give Budget(epsilon, delta)."
        )
    if parameters is not None:
        parameters = integer("parameters", parameters, remedy="Give the number that is trained.")
    sizes = _sorted(
        "batch_sizes",
        default_batch_sizes(records)
        if batch_sizes is None
        else (_checked_size(each, records) for each in batch_sizes),
    )
    passes = _sorted(
        "epochs", (positive("epochs", each) for each in (EPOCHS if epochs is None else epochs))
    )
    counts = _sorted("candidates", (integer("candidates", each) for each in candidates))

    def run(size: int, steps: int) -> float:
        return noise_of_a_run(
            epsilon=budget.epsilon,
            delta=budget.delta,
            sampling_rate=size / records,
            steps=steps,
            sampling=sampling,
        )

    def setting(size: int, duration: float) -> Setting:
        steps = math.ceil(duration * records / size)
        return Setting(size, duration, steps, run(size, steps), parameters)

    settings = tuple(setting(size, duration) for size in sizes for duration in passes)
    chosen = _choose(settings)
    searches = tuple(
        search for count in counts for search in _searches(chosen, count, records, budget, sampling)
    )
    return Affordable(
        records=records,
        budget=budget,
        parameters=parameters,
        sampling=sampling,
        settings=settings,
        whole_noise=run(records, 1) / records,
        searches=searches,
        recommendation=_recommend(records, budget, settings, chosen, searches),
    )


def _checked_size(value: int, records: int) -> int:
    size = integer("batch_size", value)
    if size > records:
        raise ArgumentError(
            f"Expected batch_size <= records, got batch_size={size} with records={records}. Give "
            "the expected number of records in a step."
        )
    return size


def _sorted(name: str, values: Iterable[_Number]) -> list[_Number]:
    found = sorted(set(values))
    if not found:
        raise ArgumentError(f"Expected at least one of {name}, got none. Leave it out or give one.")
    return found


def _choose(settings: tuple[Setting, ...]) -> Setting:
    """Return the setting that `plan`'s rule prefers."""
    least = min(each.run_noise for each in settings)
    near = [each for each in settings if each.run_noise <= NEAR * least]
    enough = [each for each in near if each.steps >= ENOUGH_STEPS]
    if enough:
        return min(enough, key=lambda each: (each.epochs, each.run_noise))
    return min(near, key=lambda each: (-each.steps, each.epochs))


def _searches(
    setting: Setting, count: int, records: int, budget: Budget, sampling: str
) -> list[Search]:
    """Return the price of a search among so many runs of one setting, in each way."""
    rate = setting.batch_size / records
    prices = price(
        noise_multiplier=setting.noise_multiplier,
        sampling_rate=rate,
        steps=setting.steps,
        candidates=count,
        delta=budget.delta,
        sampling=sampling,
    )
    by_way = {each.how: each for each in prices}

    def needed(how: str) -> float | None:
        try:
            return noise_multiplier(
                epsilon=budget.epsilon,
                delta=budget.delta,
                sampling_rate=rate,
                steps=setting.steps,
                candidates=count,
                how=how,
                sampling=sampling,
            )
        except ArgumentError:  # the arguments are checked: no amount of noise reaches the budget
            return None

    found = []
    for how in WAYS:
        noise = needed(how)
        times = None if noise is None else noise / setting.noise_multiplier
        priced = by_way[how]
        chance = _one_at_most(how, count)
        found.append(Search(how, count, noise, times, priced.epsilon, chance, priced.released))
    return found


def _one_at_most(how: str, count: int) -> float:
    """Return the chance that a search among so many candidates makes one run or none."""
    if how == "repeat-poisson":
        return math.exp(-count) * (1 + count)
    if count == 1:
        return 1.0
    if how.startswith("compose"):
        return 0.0
    if how == "repeat-logarithmic":
        gamma = stopping_rate(count, 0.0)
        return (1 - gamma) / -math.log(gamma)
    return 1 / count  # a coin of this rate ends the search


def _cheapest(searches: Iterable[Search], count: int) -> Search | None:
    """Return the search among so many candidates that needs the least noise, if one can be had."""
    able = [
        s
        for s in searches
        if s.candidates == count
        and s.noise_multiplier is not None
        and not often_no_run(s.how, count)
    ]
    return min(able, key=lambda s: s.noise_multiplier or math.inf, default=None)


def _recommend(
    records: int,
    budget: Budget,
    settings: tuple[Setting, ...],
    chosen: Setting,
    searches: tuple[Search, ...],
) -> Recommendation:
    best = {each: _cheapest(searches, each) for each in sorted({s.candidates for s in searches})}
    able = {count: search for count, search in best.items() if count > 1 and search is not None}
    few = able[min(able)] if able else None
    reasons = [*_about_setting(settings, chosen), *_about_searches(able, searches, few)]
    warnings = []
    if chosen.steps < ENOUGH_STEPS:
        warnings.append(
            f"{_steps(chosen.steps)} may be too few to train. Give a smaller batch size or more "
            "epochs."
        )
    norm = chosen.run_noise_norm
    if norm is not None and norm >= 1:
        warnings.append(
            f"Over the whole run the noise is {norm:.3g} times as long as all clipped gradients "
            "can be at most. Train fewer parameters, for instance the last layers of a public "
            "model, or get more records or a larger budget."
        )
    bound = 1 / records
    if budget.delta >= bound:
        warnings.append(
            f"delta={budget.delta:g} is not below 1 / n = {bound:.3g}: it would allow publishing a "
            f"whole record now and then. Choose a smaller delta, for instance "
            f"{default_delta(records):g}."
        )
    reasons.append("This is a rule of thumb about noise, not a promise of accuracy.")
    return Recommendation(chosen, few, tuple(reasons), tuple(warnings))


def _about_setting(settings: tuple[Setting, ...], chosen: Setting) -> list[str]:
    least = min(settings, key=lambda each: each.run_noise)
    found = [
        f"Train for {chosen}: {_steps(chosen.steps)} at a noise multiplier of "
        f"{chosen.noise_multiplier:.4g}."
    ]
    words = (
        f"Over the run the noise in one coordinate is {chosen.run_noise:.3g} of what the clipped "
        "gradients can add up to"
    )
    if chosen == least:
        found.append(f"{words}, the least of the table.")
    else:
        found.append(
            f"{words}, {chosen.run_noise / least.run_noise - 1:.1%} above the least of the table, "
            f"which is {least}, {_steps(least.steps)}."
        )
    if chosen.parameters is not None:
        found.append(
            f"Over {chosen.parameters:,} parameters its norm is {chosen.run_noise_norm:.3g} of the "
            f"clip norm, and in a single step {chosen.step_noise_norm:.3g} times the clip norm."
        )
    return found


def _about_searches(
    able: dict[int, Search], searches: tuple[Search, ...], few: Search | None
) -> list[str]:
    """Return what to say of tuning; `able` has the cheapest search for each number above one."""
    if few is None:
        return []
    found = [
        f"The best of {few.candidates:,} costs least by {few.how}: {few.times:.3g} times the noise "
        f"of one run, {few.noise_multiplier:.4g}, keeps the search within the budget."
    ]
    if few.one_at_most > 0:
        found[-1] += (
            " The number of runs is then random, and the best model alone is released; "
            f"{_chance(few)}."
        )
    composed = next(s for s in searches if (s.how, s.candidates) == ("compose-pld", few.candidates))
    if few.how != composed.how and composed.times is not None:
        found.append(
            f"To make all {few.candidates} runs and look at all of them, compose-pld needs "
            f"{composed.times:.3g} times the noise."
        )
    most = few.noise_multiplier or math.inf
    cheap = [s for s in able.values() if (s.noise_multiplier or math.inf) <= CHEAP * most]
    many = max(cheap, key=lambda s: s.candidates)
    if many != few:
        more = (many.noise_multiplier or math.inf) / most - 1
        found.append(
            f"Once a search is paid for, more candidates cost little: {many.candidates:,} by "
            f"{many.how} need {more:.0%} more noise than {few.candidates:,}; {_chance(many)}."
        )
    advice = (
        "dp-adam at its usual learning rate of .001, and dp-adam-wosm, needed no search for the "
        "learning rate on the data of Mohapatra et al. (2022): choose among 4 clip norms, not "
        "among 40 pairs of "
        "learning rate and clip norm"
    )
    if 4 in able and 40 in able:
        four, forty = (able[k].noise_multiplier or math.inf for k in (4, 40))
        advice += f", and each run has {1 - four / forty:.0%} less noise"
    found.append(advice + ".")
    found.append(
        "Searches are priced for training; scores on records set apart cost nothing beside it."
    )
    return found


def _chance(search: Search) -> str:
    return f"with probability {search.one_at_most:.1%} there is one run or none"


def _epochs(number: float) -> str:
    return "1 epoch" if number == 1 else f"{number:g} epochs"


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number:,} steps"


# The ways as the chart draws them: what composes is broken.
_DASHES = {"compose-pld": "dash", "compose-rdp": "dot"}
_REFERENCE = "#888888"


def _headline(afforded: Affordable) -> str:
    epsilon = formatting.epsilon(afforded.budget.epsilon)
    delta = formatting.delta(afforded.budget.delta)
    return f"What epsilon {epsilon} at delta {delta} affords with {afforded.records:,} records"


def _noise_chart(afforded: Affordable) -> "go.Figure":
    from privada import charts

    scale = math.sqrt(afforded.parameters or 1)
    where = "in one coordinate"
    if afforded.parameters is not None:
        where = f"over {afforded.parameters:,} parameters"
    figure = charts.new(f"Noise of the run {where}", "batch size", "noise / clip norm", height=500)
    sizes = sorted({each.batch_size for each in afforded.settings})
    for duration in sorted({each.epochs for each in afforded.settings}):
        line = [each for each in afforded.settings if each.epochs == duration]
        figure.add_scatter(
            x=[each.batch_size for each in line],
            y=[each.run_noise * scale for each in line],
            customdata=[[each.noise_multiplier, each.steps] for each in line],
            name=_epochs(duration),
            mode="lines+markers",
            hovertemplate="batch %{x:,}<br>%{customdata[1]:,} steps<br>noise multiplier "
            "%{customdata[0]:.4g}<br>noise over the run %{y:.3g}",
        )
    figure.add_scatter(
        x=[sizes[0], sizes[-1]],
        y=[afforded.whole_noise * scale] * 2,
        name="all records in every step",
        mode="lines",
        line={"color": _REFERENCE, "dash": "dot"},
        hoverinfo="skip",
    )
    chosen = afforded.recommendation.setting
    figure.add_scatter(
        x=[chosen.batch_size],
        y=[chosen.run_noise * scale],
        name="recommended",
        mode="markers",
        marker={"symbol": "circle-open", "size": 18, "color": "#000000", "line": {"width": 2.5}},
        hoverinfo="skip",
    )
    return _on_log_axes(figure, sizes)


def _price_chart(afforded: Affordable) -> "go.Figure":
    from privada import charts

    figure = charts.new(
        "Price of a search, each run with the noise of one", "candidates", "epsilon", height=500
    )
    counts = sorted({each.candidates for each in afforded.searches})
    for how in WAYS:
        line = [each for each in afforded.searches if each.how == how]
        figure.add_scatter(
            x=counts,
            y=[each.epsilon for each in line],
            customdata=[
                (
                    formatting.epsilon(each.epsilon),
                    "no noise is enough"
                    if each.times is None
                    else f"{each.times:.3g} times the noise",
                )
                for each in line
            ],
            name=how,
            mode="lines+markers",
            line={"dash": _DASHES.get(how, "solid")},
            hovertemplate="%{x:,} candidates<br>epsilon %{customdata[0]}<br>"
            "within the budget: %{customdata[1]}",
        )
    figure.add_scatter(
        x=[counts[0], counts[-1]],
        y=[afforded.budget.epsilon] * 2,
        name="budget",
        mode="lines",
        line={"color": _REFERENCE, "width": 3},
        hoverinfo="skip",
    )
    return _on_log_axes(figure, counts)


def _on_log_axes(figure: "go.Figure", across: list[int]) -> "go.Figure":
    """Return the figure with logarithmic axes that name the values of x, and 1, 2, 5 of y."""
    heights = [y for trace in figure.data for y in trace.y]
    lowest = min(heights) / 1.15
    highest = max(max(heights) * 1.15, 2 * lowest)
    powers = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    digits = (1, 2, 5) if len(powers) <= 4 else (1,)
    ticks = [(digit, power) for power in powers for digit in digits]
    figure.update_xaxes(type="log", tickvals=across, ticktext=[f"{each:,}" for each in across])
    figure.update_yaxes(
        type="log",
        range=[math.log10(lowest), math.log10(highest)],
        tickvals=[digit * 10.0**power for digit, power in ticks],
        ticktext=[_number(digit, power) for digit, power in ticks],
    )
    return figure


def _number(digit: int, power: int) -> str:
    if -4 < power < 5:
        return f"{digit * 10.0**power:,g}"
    return f"{digit}·10<sup>{power}</sup>".replace("-", "−")


def _side_by_side(figures: list["go.Figure"], title: str) -> "go.Figure":
    """Return one figure of two, each with its legend below it."""
    from privada import charts

    both = charts.new(title, margin={"l": 70, "r": 20, "t": 95, "b": 50})
    places = ((0.0, 0.45), (0.56, 1.0))
    for ending, place, figure in zip(("", "2"), places, figures, strict=True):
        for turn, trace in enumerate(figure.data):
            both.add_trace(trace)
            drawn = both.data[-1]
            drawn.update(xaxis=f"x{ending}", yaxis=f"y{ending}", legend=f"legend{ending}")
            drawn.line.color = drawn.line.color or charts.COLOURS[turn % len(charts.COLOURS)]
        both.update_layout(
            {
                f"xaxis{ending}": figure.layout.xaxis.to_plotly_json()
                | {"domain": place, "anchor": f"y{ending}"},
                f"yaxis{ending}": figure.layout.yaxis.to_plotly_json()
                | {"domain": (0.38, 1.0), "anchor": f"x{ending}"},
                f"legend{ending}": {"x": place[0], "xanchor": "left", "y": 0.24, "yanchor": "top"},
            }
        )
        both.add_annotation(
            text=f"<b>{figure.layout.title.text}</b>",
            x=place[0],
            y=1.0,
            xref="paper",
            yref="paper",
            xanchor="left",
            yanchor="bottom",
            yshift=8,
            showarrow=False,
        )
    return both
