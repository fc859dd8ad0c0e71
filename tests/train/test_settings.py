"""What is asked of a run: checked before anything else, and what a checkpoint must match."""

import pytest

import privada as pv
from privada.train.settings import TrainSettings

GIVEN = {
    "batch_size": 10, "epochs": None, "steps": 5, "budget": None, "noise_multiplier": 1.0,
    "delta": 1e-3, "sampling": pv.participation.Poisson(), "ledger": None, "seed": None,
    "population": None, "unit": "record", "engine": "auto",
}  # fmt: skip


def settings(**changes):
    return TrainSettings(**(GIVEN | changes))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"noise_multiplier": None}, "neither"),
        ({"budget": pv.Budget(1.0, 1e-3)}, "both"),
        ({"steps": None}, "exactly one of epochs and steps"),
        ({"epochs": 2.0}, "exactly one of epochs and steps"),
        ({"population": 2**60}, "population <="),
        ({"delta": 2.0}, "delta"),
        ({"unit": ""}, "unit"),
        ({"seed": -1}, "seed"),
        ({"executor": "there"}, "executor"),
        ({"noise": "loud"}, "noise"),
    ],
)
def test_a_wrong_setting_is_named(changes, match):
    with pytest.raises(pv.ArgumentError, match=match):
        settings(**changes)


def test_epochs_are_passes_over_the_units():
    assert settings(steps=None, epochs=2.5).steps_for(101) == 26
    assert settings().steps_for(101) == 5
    with pytest.raises(pv.ArgumentError, match="at most 100,000,000 steps"):
        settings(steps=None, epochs=1e9).steps_for(1000)


def test_groups_make_the_unit_a_person_unless_it_has_another_name():
    assert settings(groups=[1, 2]).unit == "person"
    assert settings(groups=[1, 2], unit="hospital").unit == "hospital"
    assert settings().unit == "record"


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 11}, {"steps": 6}, {"noise_multiplier": 2.0}, {"seed": 3},
        {"sampling": pv.participation.FixedSize()}, {"groups": [1], "rows_per_unit": 2},
        {"objective": pv.objective.objective(0.1)},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_a_checkpoint_of_other_settings_does_not_match(changes):
    assert settings(**changes).fingerprint("dp-sgd") != settings().fingerprint("dp-sgd")


def test_where_sums_are_computed_and_what_is_charged_may_change_between_sessions():
    same = settings(executor=pv.execute.InParts(2), ledger="another", run="second")
    assert same.fingerprint("dp-sgd") == settings().fingerprint("dp-sgd")
