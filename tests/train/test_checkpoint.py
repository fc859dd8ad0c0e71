"""Checkpoints: a run goes on as if nothing had happened, and a bad file is a clear error."""

import contextlib
import copy
import hashlib
import io
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import privada as pv
from privada.accounting import Budget, Ledger, epsilon_of, events
from privada.core.errors import BudgetExceeded, CheckpointError, PrivadaError
from privada.core.randomness import SecureSource
from privada.core.tensors import Parameters
from privada.core.values import Release
from privada.methods.method import Method, Parts
from privada.train import checkpoint
from privada.updates import ParameterStep, State, UpdateRule, scheduled

STEPS = 7
EVENT = events.poisson(0.1, 4.0)


@dataclass(frozen=True)
class Heavy(Method):
    """Heavy-ball momentum whose state is a tensor and a number, with a rate that changes."""

    name: ClassVar[str] = "heavy"
    lr: float

    def parts(self, steps: int) -> Parts:
        def init(parameters: Parameters) -> State:
            return {"speed": torch.zeros(parameters.size), "turns": 0}

        def update(
            release: Release, state: State, parameters: Parameters, lr: float
        ) -> tuple[ParameterStep, State]:
            speed = 0.9 * state["speed"] + release.gradient
            return ParameterStep(speed, -lr), {"speed": speed, "turns": state["turns"] + 1}

        return Parts(
            rule=UpdateRule(init, update), controller=scheduled(lambda k: self.lr / (1 + k))
        )


METHODS = {"dp-sgd": pv.methods.DPSGD(lr=0.1, clip=1.0), "heavy": Heavy(lr=0.1, clip=1.0)}


def make_model(hidden: int = 4, seed: int = 5) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(
            torch.nn.Linear(3, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 2)
        )


def make_trainer(model: torch.nn.Module | None = None, **given: Any) -> pv.Trainer:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 3, generator=generator)
    chosen: dict[str, Any] = {"method": METHODS["dp-sgd"], "batch_size": 6, "steps": STEPS}
    if "budget" not in given:
        chosen |= {"noise_multiplier": 4.0, "delta": 1e-5}
    if "epochs" in given:
        chosen.pop("steps")
    return pv.Trainer(
        make_model() if model is None else model,
        torch.nn.CrossEntropyLoss(),
        (x, (x.sum(dim=1) > 0).long()),
        **(chosen | given),
    )


def charged(path: Path) -> int:
    with Ledger(path) as ledger:
        return sum(charge.count for charge in ledger.charges())


def contents_of(path: Path) -> dict[str, Any]:
    return checkpoint.read(path, {})


def assert_equal(one: torch.nn.Module, other: torch.nn.Module) -> None:
    first, second = one.state_dict(), other.state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def take(trainer: pv.Trainer, steps: int) -> pv.Trainer:
    for _ in range(steps):
        trainer.step()
    return trainer


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of a run of seven steps after its third, in a folder of its own."""
    folder = tmp_path / "saved"
    folder.mkdir()
    take(make_trainer(seed=1, ledger=tmp_path / "ledger"), 3).save(folder / "run.pt")
    return folder / "run.pt"


def resume(saved: Path, model: torch.nn.Module | None = None, **given: Any) -> pv.Trainer:
    """Go on from a checkpoint that `saved` made."""
    ledger = saved.parent.parent / "ledger"
    return make_trainer(model, **({"seed": 1, "ledger": ledger, "resume": saved} | given))


# ---------------------------------------------------------------------- going on


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("stop", range(STEPS + 1))
@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
def test_a_resumed_run_is_the_uninterrupted_one(
    tmp_path: Path, method: Method, stop: int, sampling: str
) -> None:
    settings: dict[str, Any] = {"method": method, "seed": 11, "sampling": sampling}
    whole = make_trainer(**settings).fit()
    path, ledger = tmp_path / "run.pt", tmp_path / "ledger"
    first = take(make_trainer(ledger=ledger, **settings), stop)
    first.save(path)
    second = make_trainer(make_model(seed=99), ledger=ledger, resume=path, **settings)
    assert_equal(first.model, second.model)
    assert second.steps_done == stop
    second.fit()
    assert_equal(whole.model, second.model)
    assert whole.history == second.history
    assert charged(ledger) == STEPS
    assert second.epsilon() == whole.epsilon()
    assert second.ledger.charges()[0].run == first.ledger.charges()[0].run if stop else True


def test_a_run_resumed_at_every_step_is_the_uninterrupted_one(tmp_path: Path) -> None:
    path, ledger = tmp_path / "run.pt", tmp_path / "ledger"
    settings: dict[str, Any] = {"method": METHODS["heavy"], "seed": 11}
    whole = make_trainer(**settings).fit()
    trainer = make_trainer(ledger=ledger, **settings)
    for _ in range(STEPS):
        trainer.step().save(path)
        trainer = make_trainer(ledger=ledger, resume=path, **settings)
    assert_equal(whole.model, trainer.model)
    assert whole.history == trainer.history
    assert charged(ledger) == STEPS


def test_fit_saves_as_it_goes_at_the_end_and_when_it_fails(tmp_path: Path) -> None:
    path, ledger = tmp_path / "run.pt", tmp_path / "ledger"
    whole = make_trainer(seed=11).fit()
    trainer = make_trainer(seed=11, ledger=ledger)
    step, seen = trainer.step, []

    def failing() -> pv.Trainer:
        if trainer.steps_done == 5:
            raise KeyboardInterrupt
        seen.append(contents_of(path)["step"] if path.exists() else None)
        return step()

    trainer.step = failing  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(checkpoint=path, checkpoint_steps=2)
    assert seen == [0, 0, 2, 2, 4]  # also if it is killed in the first step
    resumed = make_trainer(seed=11, ledger=ledger, resume=path)
    assert resumed.steps_done == 5
    resumed.fit(checkpoint=path)
    assert_equal(whole.model, resumed.model)
    assert contents_of(path)["step"] == STEPS
    done = make_trainer(seed=11, ledger=ledger, resume=path).fit()
    assert_equal(whole.model, done.model)
    assert charged(ledger) == STEPS
    assert sorted(each.name for each in tmp_path.iterdir()) == ["ledger", "run.pt"]


def test_random_layers_go_on_where_they_were(tmp_path: Path) -> None:
    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Dropout(0.5), *make_model())

    path, ledger = tmp_path / "run.pt", tmp_path / "ledger"
    whole = make_trainer(model(), seed=11).fit()
    take(make_trainer(model(), seed=11, ledger=ledger), 3).save(path)
    torch.rand(5)  # the global generator is not what they draw from
    resumed = make_trainer(model(), seed=11, ledger=ledger, resume=path).fit()
    assert_equal(whole.model, resumed.model)


def test_saving_changes_nothing(tmp_path: Path) -> None:
    plain = take(make_trainer(seed=11), STEPS)
    saving = make_trainer(seed=11)
    for _ in range(STEPS):
        saving.save(tmp_path / "run.pt")
        saving.step()
        saving.save(tmp_path / "run.pt")
    assert_equal(plain.model, saving.model)


# ---------------------------------------------------------------------- the bill


def test_steps_from_an_old_checkpoint_are_charged_again(tmp_path: Path) -> None:
    old, ledger = tmp_path / "old.pt", tmp_path / "ledger"
    trainer = make_trainer(ledger=ledger)
    take(trainer, 2).save(old)
    trainer.fit()
    assert charged(ledger) == STEPS
    for number in (1, 2):
        again = make_trainer(ledger=ledger, resume=old).fit()
        assert charged(ledger) == STEPS + number * (STEPS - 2)
        assert again.epsilon() == epsilon_of({EVENT: charged(ledger)}, 1e-5)


def test_a_run_resumed_from_old_checkpoints_stops_at_the_budget(tmp_path: Path) -> None:
    old, ledger = tmp_path / "old.pt", tmp_path / "ledger"
    settings: dict[str, Any] = {"budget": Budget(1.0, 1e-5), "ledger": ledger}
    take(make_trainer(**settings), 3).save(old)
    take(make_trainer(resume=old, **settings), 2)
    resumed = make_trainer(resume=old, **settings)
    with pytest.raises(BudgetExceeded):
        resumed.fit()
    assert resumed.steps_done < STEPS
    assert Ledger(ledger).epsilon() <= 1.0
    spent = charged(ledger)
    with pytest.raises(BudgetExceeded):
        make_trainer(resume=old, **settings).step()
    assert charged(ledger) == spent


@pytest.mark.parametrize("limit", [None, 50.0])
def test_a_resumed_run_keeps_to_its_own_budget_on_a_larger_ledger(
    tmp_path: Path, limit: float | None
) -> None:
    """`budget` is what the run may cost, whatever the ledger would allow."""
    old, ledger = tmp_path / "old.pt", tmp_path / "ledger"
    Ledger(ledger, None if limit is None else Budget(limit, 1e-5)).close()
    settings: dict[str, Any] = {"budget": Budget(1.0, 1e-5), "ledger": ledger}
    take(make_trainer(**settings), 3).save(old)
    for _ in range(3):
        with contextlib.suppress(BudgetExceeded):
            make_trainer(resume=old, **settings).fit()
    assert epsilon_of(Ledger(ledger).totals(), 1e-5) <= 1.0


def test_a_run_on_a_shared_ledger_goes_on_with_its_own_noise(tmp_path: Path) -> None:
    """It was calibrated to what the ledger had left; by now others have charged it, and itself."""
    path = tmp_path / "run.pt"
    with Ledger(tmp_path / "ledger", Budget(1.2, 1e-5)) as ledger:
        settings: dict[str, Any] = {"budget": Budget(1.15, 1e-5), "ledger": ledger}
        first = take(make_trainer(**settings), 3)
        first.save(path)
        ledger.charge(events.gaussian(300.0), run="another")
        again = make_trainer(resume=path, **settings)
        assert again.noise_multiplier == first.noise_multiplier
        with contextlib.suppress(BudgetExceeded):
            again.fit()
        assert again.steps_done > 3
        assert ledger.epsilon() <= 1.2


def test_a_run_that_is_planned_anew_is_not_reported_for_less_than_its_first_plan(
    tmp_path: Path,
) -> None:
    """Steps that are taken again stand in the place of later ones, which have more noise."""
    path, ledger = tmp_path / "run.pt", tmp_path / "ledger"
    settings: dict[str, Any] = {"method": pv.methods.ADPSGD(lr=0.1), "budget": Budget(1.0, 1e-5)}
    first = make_trainer(ledger=ledger, **settings)
    plan = epsilon_of(first.planned(), 1e-5)
    take(first, 1).save(path)
    take(first, 2).statement()
    again = make_trainer(ledger=ledger, resume=path, **settings)
    with contextlib.suppress(BudgetExceeded):
        again.fit()
    statement = again.statement()
    assert again.ledger.interrupted(statement.run)
    assert statement.run_epsilon >= plan * (1 - 1e-9)
    assert statement.epsilon >= statement.run_epsilon * (1 - 1e-9)


@pytest.mark.parametrize("where", ["in memory", "in another file"])
def test_a_resumed_run_is_never_reported_for_less_than_its_steps(
    tmp_path: Path, where: str
) -> None:
    """The model holds what all the steps released, whichever ledger is given to the resumed run."""
    path = tmp_path / "run.pt"
    ledgers = (None, None) if where == "in memory" else (tmp_path / "one", tmp_path / "two")
    take(make_trainer(ledger=ledgers[0]), 4).save(path)
    try:
        resumed = make_trainer(ledger=ledgers[1], resume=path).fit()
    except PrivadaError:
        return
    true = epsilon_of({EVENT: STEPS}, 1e-5)
    assert resumed.epsilon() >= true
    assert resumed.statement().run_epsilon >= true


def test_saving_settles_the_account(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    trainer = make_trainer(ledger=ledger)
    trainer.gradients.account._block = 5
    take(trainer, 2)
    assert charged(ledger) == 5
    trainer.save(tmp_path / "run.pt")
    assert charged(ledger) == 2


def test_a_checkpoint_that_cannot_be_written_costs_nothing_more(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    trainer = make_trainer(ledger=ledger)
    trainer.gradients.account._block = 6
    folder, step = tmp_path / "missing", trainer.step
    with pytest.raises(CheckpointError, match="Cannot write the checkpoint"):
        trainer.fit(checkpoint=folder / "run.pt", checkpoint_steps=2)
    assert trainer.steps_done == 0
    assert charged(ledger) == 0
    folder.mkdir()

    def losing() -> pv.Trainer:
        shutil.rmtree(folder, ignore_errors=True)
        return step()

    trainer.step = losing  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="Cannot write the checkpoint"):
        trainer.fit(checkpoint=folder / "run.pt", checkpoint_steps=2)
    assert trainer.steps_done == 2
    assert charged(ledger) == 2


# ---------------------------------------------------------------------- what is in it


def numbers_in(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [each for part in value.values() for each in numbers_in(part)]
    if isinstance(value, (list, tuple)):
        return [each for part in value for each in numbers_in(part)]
    return [value]


def test_a_private_checkpoint_holds_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[bytes] = []
    true = os.urandom

    def watched(size: int) -> bytes:
        keys.append(true(size))
        return keys[-1]

    path = tmp_path / "run.pt"
    with monkeypatch.context() as patch:
        patch.setattr(os, "urandom", watched)
        trainer = take(make_trainer(method=METHODS["heavy"]), 3)
        keys = [key for key in keys if len(key) >= 16]
        assert isinstance(trainer._run.noise.rng, SecureSource)
        assert len(keys) >= 6  # sampling and noise, three times
        trainer.save(path)
    content = contents_of(path)
    assert content["positions"] == {}
    assert content["settings"]["seed"] is None
    whole = path.read_bytes()
    assert not any(key in whole for key in keys)
    assert set(content) == {
        "version",
        "settings",
        "run",
        "step",
        "releases",
        "finished",
        "prepared",
        "preconditioner",
        "clip",
        "model",
        "rule",
        "controller",
        "evaluations",
        "rates",
        "positions",
        "noise",
        "level",
        "fit_level_at",
        "multipliers",
        "noise_multiplier",
        "stopping",
    }
    allowed = (int, float, str, bool, Tensor, type(None))
    assert all(isinstance(each, allowed) for each in numbers_in(content))


def test_a_seeded_checkpoint_holds_the_places_in_the_streams(saved: Path) -> None:
    positions = contents_of(saved)["positions"]
    assert set(positions) == {"noise", "sampling", "model"}
    assert all(place >= 3 for place in positions.values())


def test_nothing_in_a_checkpoint_changes_with_the_private_records_alone(tmp_path: Path) -> None:
    """Apart from releases there is nothing of the records: no batch size, no loss, no norm."""
    generator = torch.Generator().manual_seed(8)
    contents = []
    for number in range(2):
        x = torch.randn(60, 3, generator=generator) * (1 + 10 * number)
        trainer = pv.Trainer(
            make_model(),
            torch.nn.CrossEntropyLoss(),
            (x, torch.full((60,), number)),
            method=METHODS["dp-sgd"],
            batch_size=6,
            steps=STEPS,
            noise_multiplier=4.0,
            delta=1e-5,
            seed=1,
        )
        take(trainer, 3).save(tmp_path / "run.pt")
        content = contents_of(tmp_path / "run.pt")
        del content["run"], content["model"]
        contents.append(content)
    assert contents[0] == contents[1]


# ---------------------------------------------------------------------- bad files


class Armed:
    """A pickle that runs a command when it is opened."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def zipped(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def legacy(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


@pytest.mark.parametrize("write", [pickle.dumps, zipped, legacy])
@pytest.mark.parametrize("deep", [False, True])
def test_a_foreign_pickle_is_not_executed(
    saved: Path, write: Callable[[Any], bytes], deep: bool
) -> None:
    mark = saved.with_name("executed")
    armed = Armed(f"touch {mark}")
    content = contents_of(saved) | {"rule": {"speed": armed}}
    saved.write_bytes(write(content if deep else armed))
    with pytest.raises(CheckpointError, match="Cannot read the checkpoint"):
        resume(saved)
    assert not mark.exists()
    pickle.loads(pickle.dumps(armed))  # that it would have worked
    assert mark.exists()


@pytest.mark.parametrize("key", ["rule", "model", "run", "step", "version", "more"])
def test_code_in_a_checkpoint_that_is_whole_is_not_executed(saved: Path, key: str) -> None:
    mark = saved.with_name("executed")
    checkpoint.write(saved, contents_of(saved) | {key: Armed(f"touch {mark}")})
    with pytest.raises(CheckpointError, match="Cannot read the checkpoint"):
        resume(saved)
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"hello\n", b"epsilon = 1\n" * 100, b"{}", bytes(1000), b"PK\x03\x04", b"\x80\x02."],
)
def test_a_file_of_another_kind_is_a_clear_error(saved: Path, content: bytes) -> None:
    saved.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"Cannot read the checkpoint '{saved}'"):
        resume(saved)


def test_a_missing_file_and_a_folder_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        make_trainer(resume=tmp_path / "missing.pt")
    with pytest.raises(CheckpointError, match="Cannot read"):
        make_trainer(resume=tmp_path)
    trainer = make_trainer()
    with pytest.raises(CheckpointError, match="Check that the folder exists"):
        trainer.save(tmp_path / "missing" / "run.pt")
    with pytest.raises(CheckpointError, match="Cannot write"):
        trainer.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_cut_short_anywhere_is_a_clear_error(saved: Path) -> None:
    whole, settings = saved.read_bytes(), make_trainer(seed=1)._fingerprint
    for size in range(0, len(whole), 17):
        saved.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="Cannot read the checkpoint") as caught:
            checkpoint.read(saved, settings)
    assert "the ledger still knows what was spent" in str(caught.value)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    return bool(one == other)


def test_a_flipped_bit_is_noticed_or_changes_nothing(saved: Path) -> None:
    whole, settings = saved.read_bytes(), make_trainer(seed=1)._fingerprint
    true = checkpoint.read(saved, settings)
    found: dict[str, list[int]] = {"raised": [], "other": []}
    refused = 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place * 5 % 8)
        saved.write_bytes(changed)
        try:
            if not same(checkpoint.read(saved, settings), true):
                found["other"].append(place)
        except CheckpointError:
            refused += 1
        except Exception:
            found["raised"].append(place)
    assert refused > 300
    assert found == {"raised": [], "other": []}


def test_a_newer_version_is_a_clear_error(saved: Path) -> None:
    newer = contents_of(saved) | {"version": checkpoint._VERSION + 1}
    checkpoint.write(saved, newer)
    with pytest.raises(CheckpointError, match=r"format 3.*Upgrade Privada"):
        resume(saved)


def in_format_1(saved: Path, method: str | None = None) -> None:
    """Rewrite a checkpoint as the first version of Privada wrote it."""
    content = contents_of(saved) | {"version": 1}
    content["shape"], content["done"] = content.pop("preconditioner"), content.pop("releases")
    del content["clip"], content["settings"]["noise"]
    if method is not None:
        content["settings"]["method"] = method
    packed = io.BytesIO()
    torch.save(content, packed)
    digest = hashlib.sha256(packed.getvalue()).digest()
    saved.write_bytes(checkpoint._MARK + digest + packed.getvalue())


def test_a_checkpoint_of_the_first_format_goes_on_as_it_would_have(saved: Path) -> None:
    whole = make_trainer(seed=1).fit()
    in_format_1(saved)
    found = resume(saved).fit()
    assert_equal(found.model, whole.model)
    assert sum(found.ledger.totals().values()) == STEPS


def test_the_first_format_called_a_preconditioner_a_geometry(tmp_path: Path) -> None:
    def made(**given: Any) -> pv.Trainer:
        scales = pv.preconditioning.diagonal(2.0)
        method = pv.methods.AdaDPS(lr=0.1, preconditioner=scales)
        return make_trainer(method=method, seed=1, **given)

    path, ledger = tmp_path / "run.pt", tmp_path / "ledger"
    take(made(ledger=ledger), 3).save(path)
    now = contents_of(path)["settings"]["method"]
    in_format_1(path, now.replace("preconditioner=", "geometry="))
    assert_equal(made(ledger=ledger, resume=path).fit().model, made().fit().model)


def test_a_first_format_whose_scales_were_in_other_units_is_refused_in_words(saved: Path) -> None:
    in_format_1(saved, "dp2-rmsprop (clip=1.0)")
    with pytest.raises(CheckpointError, match="in other units now"):
        resume(saved)


@pytest.mark.parametrize("content", [[1, 2], {"model": {}}, {"format": "another"}, 3, "text"])
def test_a_file_of_another_program_is_a_clear_error(saved: Path, content: Any) -> None:
    torch.save(content, saved)
    with pytest.raises(CheckpointError, match="not a Privada checkpoint"):
        resume(saved)


PARTS = ("settings", "run", "step", "model", "rule", "controller", "rates", "positions")


@pytest.mark.parametrize("key", PARTS)
@pytest.mark.parametrize("how", ["missing", "of another kind"])
def test_a_part_that_is_missing_or_wrong_is_a_clear_error(saved: Path, key: str, how: str) -> None:
    content = contents_of(saved) | {key: None}
    if how == "missing":
        del content[key]
    checkpoint.write(saved, content)
    with pytest.raises(CheckpointError):
        resume(saved)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 12}, r"batch_size: 6\.0 there, 12\.0 here"),
        ({"steps": 9}, "steps: 7 there, 9 here"),
        ({"epochs": 2}, "epochs: None there, 2 here"),
        ({"noise_multiplier": 5.0}, "noise_multiplier: 4.0 there, 5.0 here"),
        ({"budget": Budget(1.0, 1e-5)}, "budget: None there"),
        ({"sampling": "fixed-size"}, "sampling: 'poisson' there"),
        ({"seed": 2}, "seed: 1 there, 2 here"),
        ({"seed": None}, "seed: 1 there, None here"),
        ({"method": pv.methods.DPSGD(lr=0.2, clip=1.0)}, r"lr=0\.1\)' there"),
        ({"method": pv.methods.DPSGD(lr=0.1, clip=2.0)}, r"clip=2\.0"),
        ({"method": METHODS["heavy"]}, "heavy"),
    ],
)
def test_other_settings_are_named(saved: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        resume(saved, **settings)
    assert "Resume with the settings" in str(caught.value)


def test_another_model_is_a_clear_error(saved: Path) -> None:
    for model in (make_model(hidden=5), torch.nn.Linear(3, 2)):
        with pytest.raises(CheckpointError, match="of this model"):
            resume(saved, model)
    assert charged(saved.parent.parent / "ledger") == 3


# ---------------------------------------------------------------------- crashes while writing


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("the disk is full"),
        OSError(28, "No space left on device"),
        KeyboardInterrupt(),
        MemoryError(),
        pickle.PicklingError("cannot"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_crash_while_writing_leaves_the_old_checkpoint(
    saved: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    before = saved.read_bytes()
    trainer = take(resume(saved), 2)

    def half(content: Any, file: Any) -> None:
        file.write(zipped(content)[:500])
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", half)
        with pytest.raises((CheckpointError, type(error))) as caught:
            trainer.save(saved)
    if isinstance(error, (RuntimeError, OSError)):
        assert isinstance(caught.value, CheckpointError)
        assert "The old one is untouched" in str(caught.value)
    assert saved.read_bytes() == before
    assert [each.name for each in saved.parent.iterdir()] == [saved.name]
    assert resume(saved).steps_done == 3
    trainer.save(saved)
    assert resume(saved).steps_done == 5


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_the_old_checkpoint(
    saved: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before = saved.read_bytes()
    trainer = take(resume(saved), 2)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "fsync") if call == "fsync" else (Path, "replace")), fail)
        with pytest.raises(CheckpointError, match="untouched"):
            trainer.save(saved)
    assert saved.read_bytes() == before
    assert [each.name for each in saved.parent.iterdir()] == [saved.name]


def test_the_new_file_is_on_the_disk_before_it_takes_the_name(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append("sync"), sync(file))[1])
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (done.append("replace"), replace(self, to))[1]
    )
    make_trainer(seed=1).save(saved)
    assert done[:2] == ["sync", "replace"]


def test_a_failed_resume_leaves_the_model_and_the_checkpoint_alone(saved: Path) -> None:
    model = make_model(seed=99)
    before, file = copy.deepcopy(model), saved.read_bytes()
    with pytest.raises(CheckpointError):
        resume(saved, model, seed=2)
    assert_equal(model, before)
    assert saved.read_bytes() == file
