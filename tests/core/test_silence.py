"""Nothing that runs in silence is heard, except an interrupt."""

import contextlib
import gc
import io
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import privada as pv
from privada.core.silence import pass_on_signals, silenced
from tests.alarms import alarmed


def contained(act: Any) -> str:
    """Run something as records are run, and return what became of it."""
    try:
        act()
    except BaseException as error:
        pass_on_signals(error)
        return "failed"
    return "fine"


def raise_it(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, BaseException]
)
def test_whatever_is_raised_without_a_signal_is_a_failure(error: type[BaseException]) -> None:
    with silenced():
        assert contained(lambda: raise_it(error("private"))) == "failed"


def interrupt() -> None:
    """Do as Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):  # Python looks for signals between instructions
        pass


def test_an_interrupt_gets_out_with_nothing_beside_it() -> None:
    def act() -> None:
        try:
            raise ValueError("private")
        except ValueError:
            interrupt()

    with pytest.raises(KeyboardInterrupt) as caught, silenced():
        contained(act)
    assert caught.value.__context__ is caught.value.__cause__ is None
    frames = [entry.name for entry in caught.traceback]
    assert "act" not in frames
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_a_record_catches_gets_out_at_the_end() -> None:
    def act() -> None:
        try:
            interrupt()
        except BaseException as error:
            raise ValueError("private") from error

    found: list[str] = []
    with pytest.raises(KeyboardInterrupt) as caught, silenced():
        found.append(contained(act))
    assert found == ["failed"]
    assert caught.value.__context__ is None
    with silenced():  # and once only
        pass


@pytest.mark.parametrize("error", [SystemExit, TimeoutError])
def test_what_a_handler_of_ones_own_raises_gets_out(error: type[BaseException]) -> None:
    def handle(*_: object) -> None:
        raise error("time is up")

    def act() -> None:
        signal.raise_signal(signal.SIGALRM)
        for _ in range(1000):
            pass

    with alarmed(handle, 100.0), pytest.raises(error, match="time is up"), silenced():
        contained(act)


def test_a_handler_of_ones_own_is_left_alone() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with silenced():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_heard(capsys: Any, caplog: Any) -> None:
    go, done = threading.Event(), threading.Event()

    def talk() -> None:
        go.wait(10)
        print("from a thread")
        logging.getLogger("other").warning("from a thread")
        done.set()

    other = threading.Thread(target=talk)
    other.start()
    with silenced():
        print("private")
        logging.getLogger("other").warning("private")
        started = threading.Thread(target=print, args=("of a record's thread",))
        started.start()
        started.join()
        go.set()
        done.wait(10)
    other.join()
    assert capsys.readouterr() == ("from a thread\n", "")
    assert [record.message for record in caplog.records] == ["from a thread"]


def test_streams_are_as_before_and_keep_what_was_written(monkeypatch: Any) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stream)
    stream.write("before ")
    with silenced():
        assert sys.stdout is stream
        assert stream.write("private") == 7
        stream.writelines(["private"])
        stream.flush()
        stream.buffer.write(b"private")
        with silenced():
            print("private")
        print("private")
    stream.write("after")
    stream.flush()
    assert raw.getvalue() == b"before after"
    assert set(vars(stream)) <= {"mode"}


def test_a_stream_that_cannot_be_changed_or_is_not_there_does_no_harm(monkeypatch: Any) -> None:
    class Fixed:
        __slots__ = ()

        def write(self, text: str) -> int:
            return len(text)

    monkeypatch.setattr(sys, "stdout", Fixed())
    monkeypatch.setattr(sys, "stderr", None)
    with silenced():
        assert contained(lambda: print("private")) == "fine"


def test_a_warning_leaves_no_mark_by_which_it_would_be_missing_later() -> None:
    def warn() -> None:
        warnings.warn_explicit("of a record", UserWarning, __file__, 1, registry=registry)

    registry: dict[Any, Any] = {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        with silenced():
            warn()
        assert not [key for key in registry if key != "version"]
        warn()
        warn()
    assert len(said) == 1


def test_a_warning_that_a_record_insists_on_does_not_get_out() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with silenced(), warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("of a record", stacklevel=1)
        warnings.warn("of nobody", stacklevel=1)
    assert [str(each.message) for each in said] == ["of nobody"]


def test_what_torch_says_once_is_still_said_after_a_record_made_it_say_so() -> None:
    said = """
import warnings
import numpy, torch
from privada.core.silence import silenced

fixed = numpy.frombuffer(b"12345678", numpy.float64)
with silenced():
    torch.from_numpy(fixed)
assert not torch.is_warn_always_enabled()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    torch.from_numpy(fixed)
    torch.from_numpy(fixed)
print(len(said))
"""
    ended = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert ended.stdout == "1\n"


class OwnHandling(logging.Logger):
    """Does as absl's logger does."""

    def handle(self, record: Any) -> None:
        self.callHandlers(record)


def log_by_a_logger_of_its_own() -> None:
    logger = OwnHandling("odd")
    logger.parent = logging.getLogger()
    logger.error("record 17")


def log_past_all_loggers() -> None:
    record = logging.makeLogRecord({"msg": "record 17", "levelno": logging.ERROR})
    for handler in logging.getLogger().handlers:
        handler.handle(record)


@pytest.mark.parametrize("log", [log_by_a_logger_of_its_own, log_past_all_loggers])
def test_logs_that_take_another_way_do_not_get_out(log: Any, caplog: Any) -> None:
    with silenced():
        log()
    assert caplog.records == []
    log()
    assert len(caplog.records) >= 1


class WithoutTraceback(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("record 17")


def test_an_exception_that_hides_where_it_was_raised_is_a_failure() -> None:
    fate = ""
    with contextlib.suppress(RuntimeError):  # more than a report of pytest's can show
        fate = contained(lambda: raise_it(WithoutTraceback()))
    assert fate == "failed"


CHANGES = {
    "gradients": (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    "type": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "errors": (np.geterr, lambda: np.seterr(all="raise")),
    "output": (lambda: sys.stdout, lambda: setattr(sys, "stdout", io.StringIO())),
    "error output": (lambda: sys.stderr, lambda: setattr(sys, "stderr", io.StringIO())),
    "logging": (
        lambda: logging.root.manager.disable,
        lambda: logging.disable(logging.CRITICAL),
    ),
    "folder": (os.getcwd, lambda: os.chdir("/")),
}


class Leaving(torch.utils.data.Dataset[Any]):
    """One record changes a setting of the process, and fails before it is set back."""

    def __init__(self, setting: str) -> None:
        self.look, self.change = CHANGES[setting]
        self.found: dict[int, Any] = {}

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        self.found[index] = self.look()
        if index == 3:
            self.change()
            raise ValueError
        return torch.ones(2), 0


@pytest.fixture
def restored(monkeypatch: Any) -> Any:
    """Put the settings back if the library does not, for the tests that follow."""
    dtype, errors, level = torch.get_default_dtype(), np.geterr(), logging.root.manager.disable
    monkeypatch.chdir(Path.cwd())
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(dtype)
    np.seterr(**errors)
    logging.disable(level)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("setting", CHANGES)
def test_what_a_record_sets_is_set_back_before_the_next(setting: str) -> None:
    dataset = Leaving(setting)
    trainer = pv.Trainer(
        torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), dataset, batch_size=6, steps=1,
        method=pv.methods.DPSGD(lr=0.1), noise_multiplier=1.0, delta=1e-3,
    )  # fmt: skip
    before = dataset.look()
    trainer.fit()
    assert dataset.look() == before
    assert dataset.found == dict.fromkeys(range(6), before)


class Switching(torch.nn.Module):
    """Sets gradients aside for a while, in which one record makes it fail."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        torch.set_grad_enabled(False)
        if bool((x == 7).any()):
            raise ValueError
        torch.set_grad_enabled(True)
        return self.layer(x)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_a_model_that_fails_in_the_middle_leaves_no_setting_behind(engine: str) -> None:
    x = torch.ones(6, 2)
    x[3] = 7.0
    trainer = pv.Trainer(
        Switching(), torch.nn.CrossEntropyLoss(), (x, torch.zeros(6, dtype=torch.int64)), steps=2,
        batch_size=6, method=pv.methods.DPSGD(lr=0.1), noise_multiplier=1.0, delta=1e-3,
        engine=engine,
    )  # fmt: skip
    assert trainer.fit().steps_done == 2
    assert torch.is_grad_enabled()


def test_a_file_that_a_record_left_open_is_not_told_of_later(tmp_path: Any) -> None:
    path = tmp_path / "record17"
    path.write_text("?")

    def read() -> None:
        file = path.open()
        try:
            raise ValueError(file)
        except ValueError as error:
            kept = error  # by which the exception holds its frame, and that the exception
        raise kept

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with silenced():
            assert contained(read) == "failed"
        gc.collect()
    assert said == []
