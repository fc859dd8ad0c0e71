"""The charts of a budget's plan: noise against batch size, and price against candidates."""

import math
from typing import TYPE_CHECKING

from privada import charts
from privada.core import formatting
from privada.selection.budget_plan import BudgetPlan, epochs_in_words
from privada.selection.prices import WAYS

if TYPE_CHECKING:
    import plotly.graph_objects as go

# The ways as the chart draws them: what composes is broken.
_DASHES = {"compose-pld": "dash", "compose-rdp": "dot"}
_REFERENCE = "#888888"


def _headline(afforded: BudgetPlan) -> str:
    epsilon = formatting.epsilon(afforded.budget.epsilon)
    delta = formatting.delta(afforded.budget.delta)
    return f"What epsilon {epsilon} at delta {delta} affords with {afforded.records:,} records"


def noise_chart(afforded: BudgetPlan) -> "go.Figure":
    """Return the noise of a run against its batch size, a line for each number of epochs."""
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
            name=epochs_in_words(duration),
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


def price_chart(afforded: BudgetPlan) -> "go.Figure":
    """Return the price of a search against the number of candidates, a line for each way."""
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


def both_charts(afforded: BudgetPlan) -> "go.Figure":
    """Return both charts side by side, for a single picture."""
    return _side_by_side([noise_chart(afforded), price_chart(afforded)], _headline(afforded))


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
