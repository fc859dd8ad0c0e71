"""Callbacks of transformers: they are called with what is public, and with nothing else."""

import pytest

import privada as pv
from tests.huggingface.test_trainer import labelled, trainer

transformers = pytest.importorskip("transformers")
PUBLIC = labelled(first=2, count=12)


class Recorder(transformers.TrainerCallback):
    """Notes what it is called with."""

    def __init__(self):
        self.calls, self.given, self.logs = [], set(), []

    def note(self, name, state, given):
        self.calls.append((name, state.global_step))
        self.given |= set(given)

    def on_train_begin(self, args, state, control, **given):
        self.note("begin", state, given)
        assert state.max_steps == args.max_steps == 4

    def on_epoch_end(self, args, state, control, **given):
        self.note(f"epoch {state.epoch:g}", state, given)

    def on_step_end(self, args, state, control, **given):
        self.note("step", state, given)

    def on_log(self, args, state, control, logs=None, **given):
        self.logs.append((state.global_step, set(logs)))

    def on_evaluate(self, args, state, control, metrics=None, **given):
        self.note("evaluate", state, given)
        assert metrics["eval_loss_baseline"] > 0

    def on_train_end(self, args, state, control, **given):
        self.note("end", state, given)


def test_it_is_called_as_by_the_trainer_of_transformers():
    seen = Recorder()
    trainer(
        steps=4, batch_size=40, sampling="poisson", eval_dataset=PUBLIC, eval_steps=2,
        logging_steps=2, callbacks=[seen],
    ).train()  # fmt: skip
    assert seen.calls == [
        ("begin", 0), ("step", 1), ("step", 2), ("epoch 1", 2), ("evaluate", 2), ("step", 3),
        ("step", 4), ("epoch 2", 4), ("evaluate", 4), ("end", 4),
    ]  # fmt: skip
    assert seen.given == {"model", "processing_class"}
    trained = {"epsilon", "learning_rate", "epoch"}
    reached = {"eval_accuracy", "eval_loss", "eval_accuracy_baseline", "eval_loss_baseline"}
    assert seen.logs == [
        (2, trained), (2, reached | {"epoch"}), (4, trained), (4, reached | {"epoch"}),
    ]  # fmt: skip


def test_those_that_come_with_transformers_print(capsys):
    kinds = (transformers.PrinterCallback(), transformers.trainer_callback.ProgressCallback())
    trainer(steps=2, eval_dataset=PUBLIC, callbacks=list(kinds)).train()
    assert "eval_accuracy" in capsys.readouterr().out


def test_early_stopping_goes_by_the_public_rows_and_restores_the_best():
    stopping = transformers.EarlyStoppingCallback(2, early_stopping_threshold=1e9)
    made = trainer(steps=9, eval_dataset=PUBLIC, eval_steps=1, callbacks=[stopping])
    settings = made.trainer._run.settings.stopping
    assert (settings.patience, settings.least, settings.restore_best) == (2, 1e9, True)
    made.train()
    assert made.trainer.steps_done == 3
    assert made.trainer.finished
    assert made.evaluate() == {
        name: value for name, value in made.log_history[0].items() if name != "step"
    }
    with pytest.raises(pv.ArgumentError, match="no eval_dataset"):
        trainer(callbacks=[transformers.EarlyStoppingCallback()])


def test_a_callback_may_end_the_run_and_ours_work_beside():
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **given):
            control.should_training_stop = state.global_step == 2
            return control

    class Count(pv.Callback):
        steps = 0

        def on_step(self, event):
            self.steps += 1

    count = Count()
    made = trainer(steps=5, callbacks=[Stop(), count]).train()
    assert made.trainer.steps_done == 2
    assert count.steps >= 1


def kind(**methods):
    return type("Wanting", (transformers.TrainerCallback,), methods)


def test_what_is_not_public_is_refused_with_the_remedy():
    between = kind(on_pre_optimizer_step=lambda self, args, state, control, **given: None)
    wanting = kind(on_step_end=lambda self, args, state, control, optimizer, **given: None)
    for each, words in ((between, "before its noise"), (wanting, "wants optimizer")):
        with pytest.raises(pv.ArgumentError, match=words) as caught:
            trainer(callbacks=[each()]).train()
        assert "pv.Callback" in str(caught.value)
    reading = kind(on_train_begin=lambda self, args, *rest, **given: args.output_dir)
    with pytest.raises(pv.ArgumentError, match=r"one that reads output_dir.*pv\.Callback"):
        trainer(callbacks=[reading()]).train()

    def save(self, args, state, control, **given):
        control.should_save = True

    with pytest.raises(pv.ArgumentError, match="should_save=True"):
        trainer(callbacks=[kind(on_step_end=save)()]).train()
    with pytest.raises(pv.ArgumentError, match=r"callbacks=\[EarlyStoppingCallback\(\)\]"):
        trainer(callbacks=[transformers.EarlyStoppingCallback])
    with pytest.raises(pv.ArgumentError, match="to be a list"):
        trainer(callbacks=transformers.PrinterCallback())


def test_a_callback_that_changes_the_model_is_undone():
    def change(self, args, state, control, model, **given):
        for each in model.parameters():
            each.data.zero_()

    with pytest.raises(pv.ArgumentError, match="leave the model's parameters"):
        trainer(steps=3, callbacks=[kind(on_step_end=change)()]).train()


def test_figures_are_reported(tmp_path):
    pytest.importorskip("tensorboard")
    trainer(
        steps=2, eval_dataset=PUBLIC, report_to="tensorboard", logging_dir=tmp_path / "logs"
    ).train()
    assert list((tmp_path / "logs").iterdir())
    with pytest.raises(pv.ArgumentError, match="checkpoint=PATH"):
        trainer().train(resume_from_checkpoint=True)
