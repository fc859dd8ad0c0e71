"""Former names: each works for one minor version, and says what it is called now."""

import importlib

import pytest
import torch

import privada
from privada import methods, preconditioning, updates
from privada.core.randomness import SeededSource

# module, former name, present module, present name
RENAMED = [
    ("privada", "Gate", "privada", "GradientQuery"),
    ("privada.sampling", "Poisson", "privada.participation", "PoissonSampler"),
    ("privada.sampling", "FixedSize", "privada.participation", "FixedSizeSampler"),
    ("privada.sampling", "Sampler", "privada.participation", "Sampler"),
    ("privada.geometry", "Geometry", "privada.preconditioning", "DiagonalScaling"),
    ("privada.geometry", "Shape", "privada.preconditioning", "Preconditioner"),
    ("privada.geometry", "Whitening", "privada.preconditioning", "FlatScaling"),
]
# former names of a module that is still there: these are not in its __all__
IN_PLACE = [
    ("privada.updates", "Move", "privada.updates", "ParameterStep"),
    ("privada.updates", "Rule", "privada.updates", "UpdateRule"),
    ("privada.selection", "Affordable", "privada.selection", "BudgetPlan"),
    ("privada.selection", "Random", "privada.selection", "RandomSpace"),
    ("privada.selection", "Tried", "privada.selection", "CandidateResult"),
]
PRESENT = {module: place for module, _, place, _ in RENAMED}


@pytest.mark.parametrize(("module", "former", "place", "now"), RENAMED + IN_PLACE)
def test_a_former_name_is_the_present_one(module, former, place, now):
    with pytest.warns(
        DeprecationWarning, match=rf"{module}\.{former} is now called {place}\.{now}"
    ):
        found = getattr(importlib.import_module(module), former)
    assert found is getattr(importlib.import_module(place), now)


MODULES = sorted({module for module, *_ in RENAMED} - {"privada"})


@pytest.mark.parametrize("module", MODULES)
def test_a_former_module_has_no_other_names(module):
    found = importlib.import_module(module)
    present = set(getattr(importlib.import_module(PRESENT[module]), "__all__", ()))
    former = {former for where, former, *_ in RENAMED if where == module}
    assert former <= set(found.__all__) <= former | present
    with pytest.raises(AttributeError, match="nothing"):
        found.nothing  # noqa: B018


@pytest.mark.parametrize("module", sorted({module for module, *_ in IN_PLACE}))
def test_a_module_does_not_list_its_former_names(module):
    found = importlib.import_module(module)
    assert not {former for where, former, *_ in IN_PLACE if where == module} & set(found.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        found.nothing  # noqa: B018


def test_a_former_module_is_found_on_the_package():
    for module in MODULES:
        assert getattr(privada, module.removeprefix("privada.")) is importlib.import_module(module)


def scales():
    return preconditioning.diagonal(2.0)


# the former argument, the present one, and what takes it
ARGUMENTS = [
    ("geometry", "preconditioner", lambda **given: methods.AdaDPS(lr=0.1, **given)),
    ("geometry", "preconditioner", lambda **given: methods.PASAN(lr=0.1, **given)),
    ("geometry", "preconditioner", lambda **given: methods.PAGAN(lr=0.1, **given)),
    (
        "geometry",
        "preconditioner",
        lambda **given: methods.Parts(
            rule=updates.sgd(), controller=updates.scheduled(0.1), **given
        ),
    ),
]


@pytest.mark.parametrize(("former", "now", "make"), ARGUMENTS)
def test_a_former_argument_is_the_present_one(former, now, make):
    value = scales()
    with pytest.warns(DeprecationWarning, match=f"The argument {former} of .* now called {now}"):
        found = make(**{former: value})
    assert getattr(found, now) is value
    with (
        pytest.raises(TypeError, match="which are the same"),
        pytest.warns(DeprecationWarning, match=former),
    ):
        make(**{former: value, now: value})


# a ledger's former methods and the present ones, each called with a label that is leased
METHODS = [
    ("hold", "lease", ()),
    ("check_held", "check_lease", ("token",)),
    ("while_held", "while_leased", ("token",)),
    ("give", "publish", ("digest",)),
    ("given", "published", ()),
]


@pytest.mark.parametrize(("former", "now", "arguments"), METHODS)
def test_a_former_method_of_a_ledger_is_the_present_one(former, now, arguments, monkeypatch):
    import privada as pv

    called = []

    def present(_, *given, **named):
        called.append((given, [value for value in named.values() if value is not None]))
        return "answer"

    monkeypatch.setattr(pv.Ledger, now, present)
    with pytest.warns(DeprecationWarning, match=rf"Ledger\.{former} is now called Ledger\.{now};"):
        getattr(pv.Ledger(None), former)("label", *arguments)
    assert called == [(("label", *arguments), [])]


def test_the_former_argument_of_a_former_method_is_the_present_one():
    import privada as pv

    ledger = pv.Ledger(None)
    token = ledger.lease("search")
    with pytest.warns(DeprecationWarning, match=r"Ledger\.give"):
        ledger.give("search", "1", held=("search", token))
    assert ledger.published("search") == "1"
    with (
        pytest.warns(DeprecationWarning, match="give"),
        pytest.raises(pv.LedgerError, match="taken over"),
    ):
        ledger.give("search", "1", held=("search", "another"))


def test_the_former_ways_to_ask_a_trainer_work():
    trainer = privada.Trainer(
        torch.nn.Linear(2, 1),
        torch.nn.MSELoss(),
        (torch.zeros(50, 2), torch.zeros(50, 1)),
        method=methods.DPSGD(lr=0.1),
        batch_size=10,
        steps=3,
        noise_multiplier=1.0,
        delta=1e-3,
        ledger=privada.Ledger(None),
    )
    with pytest.warns(DeprecationWarning, match=r"Trainer\.gate is now called"):
        query = trainer.gate
    assert query is trainer.gradients
    with pytest.warns(DeprecationWarning, match=r"Gate\.query is now called"):
        assert query.query(preconditioning.isotropic(), 1.0).noise_std == 1.0
    with pytest.warns(DeprecationWarning, match="The argument geometry of query is now called"):
        query.query(geometry=preconditioning.isotropic(), noise_multiplier=1.0)
    with pytest.warns(DeprecationWarning, match=r"Gate\.squares is now called"):
        assert query.squares(0.5, 2.0, population=50).batch_size == 50
    with pytest.warns(DeprecationWarning, match=r"Gate\.settle is now called"):
        query.settle()
    assert sum(trainer.ledger.totals().values()) == 3


def test_the_former_names_of_clippings_work():
    clipping, rng = privada.clipping.microbatches(2), SeededSource(0, "sampling")
    with pytest.warns(DeprecationWarning, match=r"Clipping\.terms is now called .*expected_terms"):
        assert clipping.terms(10) == clipping.expected_terms(10) == 5
    with pytest.warns(DeprecationWarning, match=r"Clipping\.deal is now .*assign_microbatches"):
        found = clipping.deal(6, 10, rng)
    expected = clipping.assign_microbatches(6, 10, SeededSource(0, "sampling"))
    assert torch.equal(found, expected)


def test_the_final_parameters_of_a_rule_were_called_its_answer():
    def mean(state):
        return state["mean"]

    sgd = updates.sgd()
    with pytest.warns(DeprecationWarning, match="The argument answer of UpdateRule"):
        rule = updates.UpdateRule(sgd.init, sgd.update, answer=mean)
    assert rule.final_parameters is mean
    with pytest.warns(DeprecationWarning, match=r"UpdateRule\.answer is now called"):
        assert rule.answer is mean


# module, former name, present name in the same module
RENAMED_IN_PLACE = [
    ("privada.tables", "Answers", "AnswerCache"),
    ("privada.tables", "Queries", "QueryPlan"),
    ("privada.tables", "draft", "infer_schema"),
    ("privada.tables", "draft_types", "schema_template"),
]


@pytest.mark.parametrize(("module", "former", "now"), RENAMED_IN_PLACE)
def test_a_name_that_is_renamed_in_place_still_works(module, former, now):
    found = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=rf"{module}\.{former} is now called .*\.{now};"):
        assert getattr(found, former) is getattr(found, now)
    assert former not in found.__all__
    assert now in found.__all__


def test_random_sources_were_called_bits():
    source = SeededSource(0, "noise")
    for make in (privada.noise.GaussianNoise, privada.selection.Trial):
        with pytest.warns(DeprecationWarning, match="The argument bits of .* now called rng"):
            made = make(bits=source)
        assert source in vars(made).values()
    with pytest.warns(DeprecationWarning, match="The argument bits of deal"):
        privada.clipping.microbatches(2).deal(4, 4, bits=source)


def test_the_former_argument_of_restoring_works():
    with pytest.warns(DeprecationWarning, match="The argument shape of Restoring"):
        found = preconditioning.restoring(shape=preconditioning.diagonal(2.0))
    assert isinstance(found, preconditioning.Restoring)


def test_utilities_of_scores_were_called_merits():
    score = privada.selection.accuracy()
    outputs, targets = torch.eye(2), torch.tensor([0, 0])
    with pytest.warns(DeprecationWarning, match=r"Score\.merits is now called"):
        assert torch.equal(score.merits(outputs, targets), score.utilities(outputs, targets))
    with pytest.warns(DeprecationWarning, match=r"Score\.from_merit is now called"):
        assert score.from_merit(0.5) == score.from_utility(0.5)
