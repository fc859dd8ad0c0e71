"""The demonstration, as a function."""

import pytest

import privada as pv
from privada.core.errors import BudgetExceeded
from tests.report.test_page import Read


def test_the_demo_headlines_what_its_runs_cost_together(tmp_path):
    demo = pv.workflows.demo(epochs=2, output=tmp_path / "page.html")
    page = Read((tmp_path / "page.html").read_text("utf-8"))
    assert page.figures["epsilon"] == page.figures["spent"] == [demo.together]
    assert demo.together > 3
    own = sorted(each.trainer.statement().run_epsilon for each in demo.runs)
    assert sorted(page.figures["own"]) == own
    assert max(own) <= 2
    # the second run starts where the first ended
    ends = [each.trainer.history[-1].epsilon for each in demo.runs]
    starts = [each.trainer.history[0].epsilon for each in demo.runs]
    assert all(end < start for end, start in zip(ends, starts[1:], strict=False))
    assert ends[-1] == demo.together


def test_runs_that_do_not_fit_a_ledger_are_refused_before_the_first(tmp_path):
    pv.Ledger(tmp_path / "l", pv.Budget(0.1, 1e-4)).close()
    with pytest.raises(BudgetExceeded, match="Nothing was charged"):
        pv.workflows.demo(epochs=1, ledger=tmp_path / "l")
    assert pv.Ledger(tmp_path / "l").totals() == {}
