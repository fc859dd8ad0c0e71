"""Planning: what a budget affords, before any data."""

import os
from collections.abc import Sequence
from pathlib import Path

from privada import charts
from privada.accounting import Budget
from privada.selection.planning import CANDIDATES, BudgetPlan, default_delta, plan


def plan_budget(
    records: int,
    epsilon: float,
    *,
    delta: float | None = None,
    parameters: int | None = None,
    batch_sizes: Sequence[int] | None = None,
    epochs: Sequence[float] | None = None,
    candidates: Sequence[int] | None = None,
    sampling: str = "poisson",
    chart_files: Sequence[str | os.PathLike[str]] = (),
) -> BudgetPlan:
    """Return what a budget affords, before any data: noise, searches and a recommendation.

    This is what `privada plan` does: `pv.selection.plan` with a default delta, and charts.

    Args:
        records: the number of records, taken as public.
        epsilon: the budget's epsilon.
        delta: the budget's delta, by default the largest power of ten not above n^-1.1.
        parameters: how many parameters are trained, which scales the norm of the noise.
        batch_sizes, epochs: what to consider.
        candidates: sizes of searches to price.
        sampling: "poisson" or "fixed-size".
        chart_files: files to draw the plan to: .html, .png, .svg or .pdf.

    Returns:
        The noise of each setting, the price of each search and a recommendation.

    Guarantee: no data is read and nothing is charged.

    Edge cases: pictures need the extra `pictures` and a Chrome or Chromium browser.

    Example:
        >>> import privada as pv
        >>> found = pv.workflows.plan_budget(60_000, 1.0, batch_sizes=[1024], epochs=[10])
        >>> found.budget.delta
        1e-06
    """
    found = plan(
        records=records,
        budget=Budget(epsilon, default_delta(records) if delta is None else delta),
        parameters=parameters,
        batch_sizes=batch_sizes or None,
        epochs=epochs or None,
        candidates=candidates or CANDIDATES,
        sampling=sampling,
    )
    for path in map(Path, chart_files):
        charts.write(found.figure() if path.suffix == ".html" else found.picture(), path)
    return found
