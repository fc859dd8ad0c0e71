"""Which rows were fitted in this process, and on which account."""

import os
import threading

import numpy as np
import pytest
import scipy.sparse
from dp_accounting import GaussianDpEvent

import privada as pv
from privada.scikit_learn import fit_registry, row_digests
from privada.scikit_learn.row_digests import digest

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(2000, 5)).astype(np.float32)
OTHERS = RNG.normal(size=(2000, 5)).astype(np.float32)


def overlap(one, two):
    first, second = digest(one), digest(two)
    assert first.overlaps(second) == second.overlaps(first)
    return first.overlaps(second)


def paid():
    return pv.Ledger(None, pv.Budget(20.0, 1e-6))


def fit(rows, ledger, *, shared=False, family="one", cost=1):
    with fit_registry.record_fit(digest(rows), family, ledger, shared=shared) as others:
        if cost:
            ledger.charge({GaussianDpEvent(5.0): cost}, run=f"run-{os.urandom(4).hex()}")
        return others


# ---------------------------------------------------------------------- digests


def test_rows_in_common_are_counted_and_not_their_order():
    assert overlap(ROWS, ROWS[::-1])
    assert overlap(ROWS[:1000], ROWS[900:1900])
    assert not overlap(ROWS[:1000], ROWS[1000:])
    assert not overlap(ROWS, OTHERS)
    # ten of a thousand may be the same by chance
    assert not overlap(ROWS[:1000], ROWS[990:1990])
    assert overlap(ROWS[:1000], ROWS[989:1989])
    assert not overlap(ROWS[:10], ROWS[9:19])
    assert overlap(ROWS[:10], ROWS[8:18])


def test_columns_in_common_are_seen_if_they_say_something():
    assert overlap(ROWS[:, :2], ROWS[:, 1:])
    for dull in (np.zeros(2000), np.arange(2000), np.eye(2000)[3]):
        column = dull.astype(np.float32)[:, None]
        assert not overlap(np.hstack([ROWS, column]), np.hstack([OTHERS, column]))


@pytest.mark.parametrize("features", [1, 5, 300])
def test_sparse_rows_are_like_dense_ones(features):
    sparse = scipy.sparse.random(3000, features, density=0.2, format="csr", dtype=np.float32, rng=1)
    one, two = digest(sparse), digest(sparse.toarray())
    np.testing.assert_array_equal(one.rows, two.rows)
    assert one.columns & two.columns
    negative = -np.zeros((1, features), np.float32)
    assert np.signbit(negative).all()
    assert len(digest(negative).rows) == len(digest(np.empty((0, features))).rows) == 0


def test_rows_that_differ_a_little_differ():
    for change in (
        lambda rows: np.nextafter(rows, np.float32(9)),
        lambda rows: rows[:, [1, 0, 2, 3, 4]],
        lambda rows: -rows,
    ):
        assert not np.intersect1d(digest(ROWS).rows, digest(change(ROWS)).rows).size
    numbers = RNG.integers(0, 2, (5000, 40)).astype(np.float32)
    assert len(digest(numbers).rows) == len(np.unique(numbers, axis=0))


def test_of_many_rows_a_sample_is_kept(monkeypatch):
    # keys differ from process to process: of the part, some hundred rows are kept whatever they are
    whole, part = digest(ROWS), digest(ROWS[500:1500])
    monkeypatch.setattr(row_digests, "_KEPT", 400)
    few = digest(ROWS)
    assert len(few.rows) == 400
    assert few.overlaps(whole)
    assert few.overlaps(part)
    assert few.overlaps(digest(ROWS[::-1].copy()))
    both = few.joined(digest(OTHERS))
    assert len(both.rows) <= 400
    assert both.overlaps(part)
    assert not few.overlaps(digest(OTHERS))


# ---------------------------------------------------------------------- accounts


def test_a_second_fit_on_an_account_of_its_own_is_refused():
    fit(ROWS, paid())
    with pytest.raises(pv.ArgumentError, match="without a ledger none would count"):
        fit(ROWS[::2], paid(), family="two")
    with pytest.raises(pv.ArgumentError, match="without a ledger none would count"):
        fit(OTHERS, paid(), family="one")
    fit(OTHERS, paid(), family="two")


def test_a_fit_that_was_not_charged_is_forgotten():
    fit(ROWS, paid(), cost=0)
    fit(ROWS, paid())


def test_a_shared_ledger_takes_over_what_was_fitted_before():
    fit(ROWS, paid(), cost=2)
    fit(OTHERS, paid(), family="two", cost=3)
    ledger = paid()
    assert fit(ROWS, ledger, shared=True, family="three") == []
    assert sum(charge.count for charge in ledger.charges()) == 3
    assert fit(ROWS, ledger, shared=True, family="three") == []
    assert sum(charge.count for charge in ledger.charges()) == 4
    other = paid()
    assert fit(ROWS, other, shared=True) == ["in memory"]
    assert sum(charge.count for charge in other.charges()) == 1


def test_two_threads_do_not_both_have_an_account_of_their_own():
    begun, refused, end = threading.Event(), [], threading.Event()

    def first():
        ledger = paid()
        with fit_registry.record_fit(digest(ROWS), "one", ledger, shared=False):
            begun.set()
            end.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert begun.wait(60)
        for shared in (False, True):
            with pytest.raises(pv.ArgumentError) as error:
                fit(ROWS, paid(), shared=shared, family="two")
            refused.append(error)
    finally:
        end.set()
        thread.join()
    assert len(refused) == 2
    fit(ROWS, paid())  # nothing was charged there


def test_a_forked_process_has_no_account_of_its_own(monkeypatch):
    monkeypatch.setattr(fit_registry, "_home", os.getpid() + 1)
    with pytest.raises(pv.ArgumentError, match="another one started"):
        fit(ROWS, paid())
    fit(ROWS, paid(), shared=True)


def test_rows_are_known_through_what_was_made_of_them():
    middle, last = ROWS * 2, ROWS * 3
    fit_registry.record_transform(ROWS, middle)
    fit_registry.record_transform(middle, last)
    fit(last, paid())
    for rows in (ROWS, middle, last):
        with pytest.raises(pv.ArgumentError, match="without a ledger none would count"):
            fit(rows, paid(), family="two")
    fit(ROWS * 4, paid(), family="two")  # nobody saw how these were made
