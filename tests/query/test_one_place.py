"""There is one place where private records are paid for, summed and released: query/."""

import ast

import pytest

from tests.test_imports import SOURCE, files, imported, part_of

# They give a query its account and its noise, and do not use them: a run and a search own both.
OWNERS = {"train", "selection"}
# It asks the queries of a run, the gradient's part by part: what it pays and releases is theirs.
ASKING = {"train/step.py"}


def calls(tree, name):
    """Yield the calls of a method, whatever it is called on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == name:
            yield node


def releases(tree):
    """Return whether a clipped sum is released: a lock, and an event's kind, take fewer things."""
    return any(len(call.args) + len(call.keywords) >= 2 for call in calls(tree, "release"))


def pays(tree):
    return any(calls(tree, "pay"))


def parts_where(found):
    return {
        part_of(path)
        for path in files()
        if path.relative_to(SOURCE).as_posix() not in ASKING and found(ast.parse(path.read_text()))
    }


def importers(*names):
    return {
        part_of(path)
        for path in files()
        if any(each.startswith(names) for each in imported(ast.parse(path.read_text())))
    }


def test_sums_are_released_by_queries_alone():
    assert parts_where(releases) == {"query"}


def test_receipts_are_paid_for_by_queries_alone():
    assert parts_where(pays) == {"query"}


def test_bounded_sums_of_histograms_and_scores_are_made_for_queries_alone():
    assert importers("privada.clipping.histograms", "privada.clipping.scores") == {"query"}


@pytest.mark.parametrize("module", ["privada.query.account", "privada.noise.GaussianNoise"])
def test_nobody_else_has_an_account_or_noise(module):
    assert importers(module) - {"query", "noise"} <= OWNERS


def test_queries_know_nothing_of_schemas():
    for path in (SOURCE / "query").glob("*.py"):
        assert not any("tables" in each for each in imported(ast.parse(path.read_text())))


def test_the_tests_can_fail():
    assert releases(ast.parse("noise.release(total, receipt, 1)"))
    assert not releases(ast.parse("lock.release()"))
    assert pays(ast.parse("Account(ledger, run='r').pay(event)"))
    assert importers("privada.core.errors") > OWNERS
