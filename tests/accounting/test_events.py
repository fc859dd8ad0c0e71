"""Events as values, as text and in words."""

import json
import math

import dp_accounting as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privada.accounting import events
from privada.core.errors import EventError

multipliers = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
probabilities = st.floats(0, 1, exclude_min=True)
known = st.one_of(
    st.builds(events.gaussian, multipliers),
    st.builds(events.poisson, probabilities, multipliers),
    st.integers(1, 10**12).flatmap(
        lambda n: st.builds(events.fixed_size, st.just(n), st.integers(1, n), multipliers)
    ),
)


def numbers(event):
    """Every number of an event, floats with every bit."""
    inner = event if isinstance(event, dp.GaussianDpEvent) else event.event
    rest = () if inner is event else tuple(v for v in vars(event).values() if v is not inner)
    return [float(v).hex() for v in (inner.noise_multiplier, *rest)]


@given(event=known)
def test_text_keeps_every_bit(event):
    again = events.decode(events.encode(event))
    assert type(again) is type(event)
    assert numbers(again) == numbers(event)
    assert events.encode(again) == events.encode(event)


@given(first=known, second=known)
def test_text_tells_events_apart(first, second):
    assert (events.encode(first) == events.encode(second)) == (first == second)


@given(event=known)
def test_text_is_json_with_a_kind(event):
    fields = json.loads(events.encode(event))
    assert fields["kind"] in ("gaussian", "poisson", "fixed-size")
    assert fields["noise_multiplier"] == events.multiplier(event)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "3",
        "null",
        "{}",
        '{"kind": "laplace", "noise_multiplier": 1.0}',
        '{"kind": "gaussian"}',
        '{"kind": "gaussian", "noise_multiplier": "much"}',
        '{"kind": "gaussian", "noise_multiplier": null}',
        '{"kind": "gaussian", "noise_multiplier": 1.0, "more": 1}',
        '{"kind": ["gaussian"], "noise_multiplier": 1.0}',
    ],
)
def test_text_that_is_not_an_event_is_refused(text):
    with pytest.raises(EventError, match="Expected the text of an event"):
        events.decode(text)


def test_a_rate_of_one_is_no_sampling():
    assert events.poisson(1, 2.0) == events.gaussian(2.0)
    assert events.poisson(math.nextafter(1, 0), 2.0) != events.gaussian(2.0)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (events.gaussian(1.25), ("1.25", "all records")),
        (events.poisson(0.0125, 1.5), ("1.5", "Poisson", "0.0125")),
        (events.fixed_size(1000, 64, 2.5), ("2.5", "64 of 1000", "without replacement")),
    ],
)
def test_words_say_the_noise_and_the_sampling(event, words):
    said = events.describe(event)
    assert all(word in said for word in ("Gaussian", *words))


def test_relations():
    poisson, fixed, full = (
        events.poisson(0.1, 1.0),
        events.fixed_size(10, 1, 1.0),
        events.gaussian(1.0),
    )
    assert events.common_relation([poisson, full]) == events.ADD_OR_REMOVE
    assert events.common_relation([full, fixed]) == events.REPLACE
    assert events.common_relation([full]) == events.ADD_OR_REMOVE
    assert events.common_relation([]) == events.ADD_OR_REMOVE


def test_a_mixture_of_relations_is_refused_with_the_remedy():
    with pytest.raises(EventError, match=r"Poisson.*fixed-size.*use one way of sampling"):
        events.common_relation([events.fixed_size(10, 1, 1.0), events.poisson(0.1, 1.0)])


def test_a_tally_counts_through_nested_compositions():
    a, b = events.poisson(0.1, 1.0), events.gaussian(2.0)
    nested = dp.SelfComposedDpEvent(
        dp.ComposedDpEvent([a, dp.SelfComposedDpEvent(b, 3), dp.NoOpDpEvent(), a]), 5
    )
    assert events.tally(nested) == {a: 10, b: 15}
    assert events.tally(nested, 2) == {a: 20, b: 30}


@given(st.dictionaries(known, st.integers(1, 1000), max_size=8))
def test_composing_a_tally_and_counting_it_gives_it_back(counts):
    assert events.tally(events.compose(counts)) == counts


@pytest.mark.parametrize("ask", [events.encode, events.describe, events.multiplier])
def test_an_unknown_event_is_refused_by_name(ask):
    with pytest.raises(EventError, match="LaplaceDpEvent"):
        ask(dp.LaplaceDpEvent(1.0))


def test_the_parts_of_an_event_are_read_back():
    assert events.multiplier(events.poisson(0.1, 3.0)) == 3.0
    assert events.sampling_rate(events.poisson(0.1, 3.0)) == 0.1
    assert events.sampling_rate(events.fixed_size(200, 50, 3.0)) == 0.25
    assert events.sampling_rate(events.gaussian(3.0)) == 1.0
