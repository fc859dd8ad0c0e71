"""The comparison on real tables: its cases and its page. Its figures are not tested."""

import json

import numpy as np
import pandas as pd
import pytest
from benchmarks.tables_accuracy import CASES, RESULTS, Case, _measured, _rows, baseline, page

KEPT = json.loads((RESULTS / "tables_accuracy.json").read_text())


def test_the_page_is_what_was_measured():
    assert (RESULTS / "tables_accuracy.md").read_text() == page(KEPT)
    assert len(KEPT) >= 10
    assert set(KEPT) <= set(CASES)


def case(person=None):
    rows = {
        "who": [i // 5 for i in range(500)],
        "x": range(500),
        "y": ["a", "b", "a", "a", None] * 100,
    }
    return Case(
        "Made up", "here", lambda: pd.DataFrame({"rownames": range(500), **rows}), "y", "binary",
        left_out=("x",), person=person,
    )  # fmt: skip


@pytest.mark.parametrize("person", [None, "who"])
def test_a_fifth_is_held_out_without_columns_that_give_the_target_away(person):
    private, held_out = case(person).rows()
    assert len(private) + len(held_out) == 400
    assert len(held_out) == 80
    assert list(private) == ["who", "y"]
    if person is not None:
        assert set(private["who"]).isdisjoint(held_out["who"])


def test_a_baseline_guesses_the_most_frequent_class_and_files_lack_the_target():
    with _rows(case()) as rows:
        found = _measured(rows, lambda: baseline(rows))
        assert found["accuracy"] == np.mean(rows.truth == "a")
        assert found["AUC"] == 0.5
        assert list(pd.read_csv(rows.folder / "new.csv")) == ["who"]


def test_a_contender_that_fails_is_said_to():
    def refuse():
        raise ValueError("no missing values")

    with _rows(case()) as rows:
        assert _measured(rows, refuse) == {"failed": "ValueError"}
