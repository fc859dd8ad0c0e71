"""What private records cause stays inside: nothing that they raise, warn, log or print gets out."""

import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import Any, NoReturn

import numpy as np
import torch

_MISSING = object()
_TRACEBACK: Any = vars(BaseException)["__traceback__"]
# What writes: to flush text would write what was printed before.
_OF_TEXT, _OF_BYTES = ("write", "writelines", "flush"), ("write", "writelines")
# Whether the user interrupted while records were looked at.
_interrupted = False
# Filters, streams and loggers are one for the process: they are put back in order.
_alone = threading.RLock()


def _new_lock() -> None:
    """In a forked child, while it has one thread: nobody here holds the lock."""
    global _alone
    _alone = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


@contextmanager
def silenced() -> Iterator[None]:
    """Keep in what runs here warns, logs and prints; an interrupt ends it, whoever catches it.

    Threads that were there before go on printing and logging; Python's warnings are one for the
    process, and those of other threads are lost meanwhile. What is written past Python's streams,
    by a C library, a subprocess or os.write, is not kept in. Threads take turns here.
    """
    others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
    with _alone, _interrupts(), _warnings(), _loggers(others), _streams(others), settings_kept():
        yield


@contextmanager
def settings_kept() -> Iterator[None]:
    """Put back what is one for the process and what code sets for a while, to set it back later.

    A record that raises in the middle, or that alone takes that way, would leave it as it is, for
    the other records and for the user: torch's gradients and default type, NumPy's handling of
    errors, the standard streams, the level of logging, the working directory.
    """
    before = _settings()
    try:
        yield
    finally:
        for (put_back, then), (_, now) in zip(before, _settings(), strict=True):
            if now != then and then is not None:
                put_back(then)


def _settings() -> list[tuple[Callable[[Any], Any], Any]]:
    """Return how each of them is put back, and what it is."""
    return [
        (torch.set_grad_enabled, torch.is_grad_enabled()),
        (torch.set_default_dtype, torch.get_default_dtype()),
        (lambda errors: np.seterr(**errors), np.geterr()),
        (lambda stream: setattr(sys, "stdout", stream), sys.stdout),
        (lambda stream: setattr(sys, "stderr", stream), sys.stderr),
        (logging.disable, logging.root.manager.disable),
        (os.chdir, _folder()),
    ]


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 (this is asked for each record)
    except OSError:  # it was removed
        return None


def pass_on_signals(error: BaseException) -> None:
    """Raise what the handler of a signal raised, such as an interrupt; return for anything else.

    To be called in the handler of an exception that a record may have caused. A record can raise
    whatever it likes, SystemExit and KeyboardInterrupt too: it is by where it was raised that a
    signal's exception is known. What is raised has nothing of the records beside it.
    """
    if _from_signal(error):
        error.__cause__ = error.__context__ = None
        raise error.with_traceback(None)
    # else what it holds, an open file say, may be told of when it is collected some time later
    traceback.clear_frames(_TRACEBACK.__get__(error))


def _from_signal(error: BaseException) -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False  # Python runs handlers in the main thread alone
    codes = {_code(signal.getsignal(each)) for each in signal.valid_signals()} - {None}
    # not error.__traceback__, which a class of its own may answer as it likes
    trace = _TRACEBACK.__get__(error)
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code(handler: Any) -> CodeType | None:
    """Return the code that a handler runs, None for one that is not written in Python."""
    function = getattr(handler, "__func__", handler)
    code = getattr(function, "__code__", None)
    if code is None and callable(handler):
        code = getattr(type(handler).__call__, "__code__", None)
    return code


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Do as Python's own handler does, and note it."""
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt


@contextmanager
def _interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end, if one was raised by a signal and then caught."""
    global _interrupted
    usual = signal.default_int_handler
    here = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is usual
    )
    if not here:
        yield
        return
    _interrupted = False
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, usual)
    if _interrupted:
        raise KeyboardInterrupt


@contextmanager
def _warnings() -> Iterator[None]:
    """Ignore warnings, and leave no mark by which they would be missing later."""
    always = torch.is_warn_always_enabled()
    # recorded into a list that nobody reads: code may have filters of its own that show warnings
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("ignore")
        torch.set_warn_always(True)  # else torch notes what it has said once, and is silent then
        try:
            yield
        finally:
            torch.set_warn_always(always)


@contextmanager
def _loggers(others: set[int | None]) -> Iterator[None]:
    """Drop what is logged, except by other threads."""
    kept: list[tuple[Any, str, Any]] = [
        (logging.Logger, "handle", logging.Logger.handle),
        (logging.Logger, "callHandlers", logging.Logger.callHandlers),
        (logging.Handler, "handle", logging.Handler.handle),
    ]  # the later ones for loggers with a handle of their own, as absl's, and code without a logger

    def dropping(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(self: Any, record: logging.LogRecord) -> Any:
            return method(self, record) if threading.get_ident() in others else None

        return called

    for kind, name, method in kept:
        setattr(kind, name, dropping(method))
    try:
        yield
    finally:
        for kind, name, method in kept:
            setattr(kind, name, method)


@contextmanager
def _streams(others: set[int | None]) -> Iterator[None]:
    """Drop what is written to the standard streams, except by other threads.

    The streams themselves are changed, since libraries keep hold of them.
    """
    changed: list[tuple[Any, str, Any]] = []
    try:
        for stream in {id(each): each for each in _standard() if each is not None}.values():
            with suppress(AttributeError, TypeError, ValueError):  # fixed, or closed for good
                _change(stream, _OF_TEXT, others, changed)
                _change(stream.buffer, _OF_BYTES, others, changed)
        yield
    finally:
        for part, name, before in reversed(changed):
            with suppress(AttributeError):  # somebody else has put it back
                if before is _MISSING:
                    delattr(part, name)
                else:
                    setattr(part, name, before)


def _change(
    part: Any, names: tuple[str, ...], others: set[int | None], changed: list[tuple[Any, str, Any]]
) -> None:
    """Give one stream methods that drop, and note which it had of its own."""
    for name in names:
        before = part.__dict__.get(name, _MISSING)
        setattr(part, name, _dropping(getattr(part, name), others))
        changed.append((part, name, before))


def _standard() -> tuple[Any, ...]:
    return sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__


def _dropping(method: Callable[..., Any], others: set[int | None]) -> Callable[..., Any]:
    def called(*given: Any) -> Any:
        if threading.get_ident() in others:
            return method(*given)
        return len(given[0]) if given and hasattr(given[0], "__len__") else None

    return called
