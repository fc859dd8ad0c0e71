"""Planning, as a function."""

import privada as pv
from privada.selection.planning import default_delta


def test_a_plan_is_that_of_selection_with_a_default_delta(tmp_path):
    chart = tmp_path / "plan.html"
    found = pv.workflows.plan_budget(
        60_000, 1.0, batch_sizes=[1024], epochs=[10], candidates=[4], chart_files=[chart]
    )
    same = pv.selection.plan(
        records=60_000, budget=pv.Budget(1.0, default_delta(60_000)), batch_sizes=[1024],
        epochs=[10], candidates=[4],
    )  # fmt: skip
    assert found.to_dict() == same.to_dict()
    assert "Price of a search" in chart.read_text("utf-8")
