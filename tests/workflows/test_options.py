"""Options: from Python, from a file and from the command line."""

from pathlib import Path

import pytest

from privada.accounting.ledger import ROW, all_rows_of
from privada.core.errors import ArgumentError
from privada.selection.planning import default_delta
from privada.workflows import TrainOptions, TuneOptions, read_options


@pytest.fixture
def config(tmp_path):
    def write(text):
        (tmp_path / "run.toml").write_text(text)
        return tmp_path / "run.toml"

    return write


def test_what_is_given_wins_over_the_file(config):
    path = config('epsilon = 1.0\nbatch-size = 64\nclass = ["no", "yes"]\nhidden = 8\n')
    given = {"epsilon": 2.0, "batch_size": None, "classes": [], "resume": True, "table": "t.csv"}
    options = read_options(TrainOptions, path, given)
    assert (options.epsilon, options.batch_size) == (2.0, 64)
    assert (options.classes, options.hidden) == (("no", "yes"), (8,))
    assert read_options(TrainOptions, None, {"epsilon": 3.0}) == TrainOptions(3.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("speed = 1\nepsilon = 1.0", "got speed. Known: .*rows_per_person"),
        ("epsilon = ", "Cannot read the configuration"),
        ("target = 'sick'", "Expected epsilon, got none"),
        ("epsilon = 1.0\nlr = [1]\nhow = 'cheapest'", "got how"),
    ],
)
def test_a_file_with_a_mistake_is_refused(config, text, words):
    with pytest.raises(ArgumentError, match=words):
        read_options(TrainOptions, config(text), {})


def test_a_search_has_settings_of_its_own(config):
    path = config("epsilon = 1.0\nvalidation = 0.3\n[space]\nlr = [0.1, 1.0]\n")
    options = read_options(TuneOptions, path, {"space": {}, "how": None})
    assert (options.space, options.how, options.validation) == ({"lr": [0.1, 1.0]}, "cheapest", 0.3)


def test_a_zero_is_given():
    assert read_options(TrainOptions, None, {"epsilon": 1.0, "seed": 0}).seed == 0


def test_lists_and_paths_may_be_given():
    options = TrainOptions(1.0, classes=["a", "b"], text="words", schema=Path("s.toml"))
    assert (options.classes, options.text, options.schema) == (("a", "b"), ("words",), "s.toml")


def test_the_unit_follows_from_the_column_of_persons():
    assert TrainOptions(1.0).charged_unit == ROW
    assert TrainOptions(1.0, unit="visit").charged_unit == ROW
    assert TrainOptions(1.0, person="id").charged_unit == all_rows_of("person")
    assert TrainOptions(1.0, person="id", unit="client").charged_unit == all_rows_of("client")


def test_delta_follows_from_the_number_of_units():
    assert TrainOptions(1.0).budget(5000).delta == default_delta(5000)
    assert TrainOptions(1.0, delta=1e-7).budget(5000).delta == 1e-7
