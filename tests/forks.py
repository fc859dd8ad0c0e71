"""Work in forked children."""

import os
import signal
from collections.abc import Callable


def in_fork(work: Callable[[], None]) -> int:
    """Do some work in a forked child and return its exit code; a child that hangs is stopped."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(30)
            work()
            code = 0
        except BaseException as error:
            os.write(2, f"in the forked child: {error!r}\n".encode())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
