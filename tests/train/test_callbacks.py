"""Callbacks: what they see, what they may do, and what nothing of theirs can change."""

import dataclasses

import pytest
import torch
from torch import nn

import privada as pv
from privada.core.errors import ArgumentError
from privada.train import progress_bar
from tests.train.test_evaluations import PRIVATE, PUBLIC, made


class Notes(pv.Callback):
    def __init__(self, name="", notes=None):
        self.name, self.notes = name, [] if notes is None else notes

    def note(self, what, event):
        self.notes.append((f"{self.name}{what}", event.step))

    def on_start(self, event):
        self.note("start", event)

    def on_step(self, event):
        self.note("step", event)

    def on_evaluation(self, event):
        self.note("evaluation", event)

    def on_end(self, event):
        self.note("end", event)


class Raises(Notes):
    def __init__(self, where, step, error):
        super().__init__()
        self.where, self.step, self.error = where, step, error

    def note(self, what, event):
        super().note(what, event)
        if (what, event.step) == (self.where, self.step):
            raise self.error


class Does(pv.Callback):
    def __init__(self, act):
        self.act = act

    def on_step(self, event):
        self.act(event)


def vector(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def short(**changes):
    return made(steps=4, **({"validation": pv.Validation(PUBLIC, every=2)} | changes))


def test_they_are_called_in_order():
    notes = Notes()
    short().fit(callbacks=[notes])
    assert notes.notes == [
        ("start", 0), ("step", 1), ("step", 2), ("evaluation", 2), ("step", 3), ("step", 4),
        ("evaluation", 4), ("end", 4),
    ]  # fmt: skip


def test_the_evaluation_at_the_end_is_told_of_too():
    notes = Notes()
    short(validation=pv.Validation(PUBLIC, every=3)).fit(callbacks=notes)
    assert notes.notes[-3:] == [("step", 4), ("evaluation", 4), ("end", 4)]


def test_a_run_that_goes_on_tells_only_what_is_new():
    run, notes = short(), Notes()
    for _ in range(3):
        run.step()
    run.fit(callbacks=[notes])
    assert notes.notes == [("start", 3), ("step", 4), ("evaluation", 4), ("end", 4)]
    again = Notes()
    run.fit(callbacks=[again])
    assert again.notes == [("start", 4), ("end", 4)]


def test_an_event_says_what_the_trainer_does():
    seen = []

    class Look(pv.Callback):
        def on_step(self, event):
            seen.append((event, event.epsilon, event.parameters()))

    run = short().fit(callbacks=[Look()])
    for (event, epsilon, _), step in zip(seen, run.history, strict=True):
        assert (event.step, event.lr, event.noise_multiplier) == (
            step.step, step.lr, step.noise_multiplier
        )  # fmt: skip
        assert epsilon == pytest.approx(step.epsilon)
        assert event.clip_norm == 1.0
        assert event.steps == 4
    assert torch.equal(torch.cat([v.flatten() for v in seen[-1][2].values()]), vector(run.model))
    assert [each[0].evaluation and each[0].evaluation.step for each in seen] == [None, 2, 2, 4]
    assert [each[0].finished for each in seen] == [False, False, False, True]
    assert dict(seen[0][0].settings) == {
        "run": run.statement().run, "method": run.method.describe(), "steps": 4, "batch_size": 30,
        "noise_multiplier": 2.0, "delta": 1e-4,
    }  # fmt: skip


def test_an_event_cannot_be_changed_nor_asked_later():
    seen = []
    run = short().fit(callbacks=[Does(seen.append)])
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen[0].lr = 3.0
    with pytest.raises(TypeError):
        seen[0].settings["delta"] = 1.0
    with pytest.raises(ArgumentError, match="before the callback returns"):
        seen[0].parameters()
    assert seen[0].epsilon == pytest.approx(run.history[0].epsilon)


def test_a_copy_of_the_parameters_is_a_copy():
    before = short().fit()
    run = short().fit(
        callbacks=[Does(lambda event: [v.zero_() for v in event.parameters().values()])]
    )
    assert torch.equal(vector(run.model), vector(before.model))


def test_callbacks_change_nothing():
    plain, called = short().fit(), short().fit(callbacks=[Notes(), Does(lambda e: e.epsilon)])
    assert torch.equal(vector(plain.model), vector(called.model))
    assert list(plain.history) == list(called.history)
    assert plain.ledger.totals() == called.ledger.totals()


@pytest.mark.parametrize("through", ["no_grad", "data", "load_state_dict"])
def test_a_change_of_the_parameters_is_undone_and_an_error(through):
    run = short()

    def change(event):
        if event.step < 2:
            return
        if through == "data":
            run.model.weight.data.add_(1.0)
        elif through == "no_grad":
            with torch.no_grad():
                run.model.weight.fill_(float("nan"))
        else:
            run.model.load_state_dict({n: v + 1 for n, v in run.model.state_dict().items()})

    def at(step):
        other = short()
        for _ in range(step):
            other.step()
        return vector(other.model)

    with pytest.raises(ArgumentError, match=r"Does\.on_step to leave the model's parameters"):
        run.fit(callbacks=[Does(change)])
    assert run.steps_done == 2
    assert torch.equal(vector(run.model), at(2))
    assert torch.equal(vector(run.fit().model), at(4))  # as if nothing had happened


def test_parameters_that_are_not_numbers_are_not_a_change():
    run = short(validation=None)
    with torch.no_grad():
        run.model.weight.fill_(float("nan"))
    run.fit(callbacks=[Notes()])
    assert run.steps_done == 4


def test_the_model_may_be_changed_when_the_run_is_finished():
    class Halve(pv.Callback):
        def on_end(self, event):
            if event.finished:
                run.model.double()

    run = short()
    assert run.fit(callbacks=[Halve()]).model.weight.dtype == torch.float64


@pytest.mark.parametrize("call", ["step", "finish", "fit"])
def test_no_step_is_taken_from_within(call):
    run = short()
    with pytest.raises(ArgumentError, match=rf"{call}\(\).*pv\.StopTraining"):
        run.fit(callbacks=[Does(lambda event: getattr(run, call)())])
    assert run.steps_done == 1
    assert run.fit().steps_done == 4


@pytest.mark.parametrize("where", ["start", "step", "evaluation"])
@pytest.mark.parametrize(
    "error", [RuntimeError("mine"), KeyboardInterrupt(), pv.BudgetExceeded("x")]
)
def test_an_error_is_the_users_and_the_run_can_go_on(tmp_path, where, error):
    ledger, place = tmp_path / "ledger", tmp_path / "run.pt"
    run = short(ledger=ledger)
    step = 0 if where == "start" else 2
    raises = Raises(where, step, error)
    with pytest.raises(type(error)):
        run.fit(callbacks=[raises], checkpoint=place)
    assert raises.notes[-1] == ("end", step)
    assert run.steps_done == step
    assert sum(run.ledger.totals().values()) == step
    run.ledger.close()
    again = short(ledger=ledger, resume=place)
    assert again.steps_done == step
    assert again.fit().steps_done == 4
    assert sum(again.ledger.totals().values()) == 4
    assert torch.equal(vector(again.model), vector(short().fit().model))


def test_an_error_at_the_end_leaves_a_finished_run():
    run = short()
    with pytest.raises(OSError, match="full"):
        run.fit(callbacks=[Raises("end", 4, OSError("full"))])
    assert run.statement().progress == "4 of 4 steps"
    assert run.fit().steps_done == 4


def test_all_that_were_started_are_ended_in_turn_whatever_happens():
    notes = []
    first, last = Notes("first ", notes), Notes("last ", notes)
    broken = Raises("start", 0, OSError("no"))
    with pytest.raises(OSError, match="no"):
        short().fit(callbacks=[first, broken, last])
    assert notes == [("first start", 0), ("first end", 0)]
    assert broken.notes == [("start", 0), ("end", 0)]


@pytest.mark.parametrize(("where", "step"), [("start", 0), ("step", 1), ("evaluation", 2)])
def test_training_can_be_stopped(where, step):
    stops = Raises(where, step, pv.StopTraining())
    run = short().fit(callbacks=[stops])
    assert run.steps_done == step
    assert stops.notes[-1] == ("end", step)
    if step:
        assert "then ended" in run.statement().progress
        assert run.evaluations[-1].step == step
        assert run.epsilon() == pytest.approx(
            run.ledger.price(run.planned(), run._run.charges.delta)
        )
    with pytest.raises(ArgumentError, match="given up by finish"):
        run.step()


def test_what_is_stopped_on_an_adaptive_ledger_costs_what_was_charged():
    ledger = pv.Ledger(None, pv.Budget(9.0, 1e-4))
    run = short(ledger=ledger).fit(callbacks=[Raises("step", 2, pv.StopTraining())])
    assert run.steps_done == 2
    assert sum(ledger.totals().values()) == 2


def test_stopping_at_the_last_evaluation_or_the_end_ends_as_usual():
    for where in ("evaluation", "end", "step"):
        run = short().fit(callbacks=[Raises(where, 4, pv.StopTraining())])
        assert run.statement().progress == "4 of 4 steps"


def test_a_stop_while_ending_does_not_hide_an_interruption():
    stops = Raises("end", 2, pv.StopTraining())
    with pytest.raises(KeyboardInterrupt):
        short().fit(callbacks=[stops, Raises("step", 2, KeyboardInterrupt())])


@pytest.mark.parametrize(
    ("callbacks", "words"),
    [
        (print, "a list of pv.Callback"),
        ("tensorboard", "a list of pv.Callback"),
        (Notes, "a list of pv.Callback"),
        ([print], "derived from pv.Callback"),
        ([Notes], "the class Notes"),
        (None, "a list of pv.Callback"),
    ],
)
def test_other_things_are_refused_before_a_step(callbacks, words):
    run = short()
    with pytest.raises(ArgumentError, match=words):
        run.fit(callbacks=callbacks)
    assert run.steps_done == 0


def test_a_budget_that_ends_first_ends_the_run():
    notes = Notes()
    run = pv.Trainer(
        nn.Linear(4, 2), nn.CrossEntropyLoss(), PRIVATE,
        method=pv.methods.ADPSGD(lr=1.0, alpha="adaptive"), batch_size=30, steps=400,
        noise_multiplier=1.0, seed=1, ledger=pv.Ledger(None, pv.Budget(3.0, 1e-4)),
        validation=pv.Validation(PUBLIC, every=1000),
    ).fit(callbacks=[notes])  # fmt: skip
    last = run.steps_done
    assert 0 < last < 400
    assert notes.notes[-3:] == [("step", last), ("evaluation", last), ("end", last)]


# ---------------------------------------------------------------------- the progress bar


class Terminal:
    def __init__(self, is_terminal):
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


@pytest.mark.parametrize(
    ("progress", "terminal", "shown"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_a_bar_is_shown_on_a_terminal_or_as_asked(monkeypatch, progress, terminal, shown):
    monkeypatch.setattr("sys.stderr", Terminal(terminal))
    assert progress_bar.is_shown(progress) is shown


def test_there_may_be_no_place_for_a_bar(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    assert progress_bar.is_shown(None) is False
    with pytest.raises(ArgumentError, match="progress"):
        short().fit(progress="yes")


def test_the_bar_shows_steps_epsilon_and_what_was_reached(capsys):
    run = short().fit(progress=True)
    said = capsys.readouterr()
    assert said.out == ""
    accuracy = run.evaluations[-1].values["accuracy"]
    assert "4/4" in said.err
    assert f"epsilon {run.epsilon():.4g}"[:9] in said.err
    assert f"accuracy {accuracy:.4g} (baseline" in said.err


def test_without_a_bar_nothing_is_shown(capsys):
    short().fit()
    said = capsys.readouterr()
    assert said.out == said.err == ""


def test_a_bar_prices_a_long_run_a_few_times(monkeypatch):
    priced = []
    price = pv.Ledger.price
    monkeypatch.setattr(
        pv.Ledger, "price", lambda self, *args: priced.append(args) or price(self, *args)
    )
    made(steps=200, validation=None).fit(progress=True)
    assert len(priced) <= progress_bar._PRICES + 3
