"""Signal handlers that come in the middle of something."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def alarmed(handle: Callable[..., Any], seconds: float) -> Iterator[None]:
    """Have a handler called after some seconds, and as often as it sets the timer again.

    pytest-timeout waits by the same signal: its time goes on where it was, once this is over.
    """
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left)
