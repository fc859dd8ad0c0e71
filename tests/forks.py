"""Work in forked children and in threads, and for how long a test waits for either."""

import os
import signal
import threading
import time
from collections.abc import Callable

PATIENCE = 120.0  # seconds until a child or a thread counts as stuck; machines are shared


def limited() -> None:
    """Have this process, a forked child, ended when it is stuck.

    By no handler in Python, which would not run while it waits for a lock of SQLite's.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)


def in_fork(work: Callable[[], None]) -> int:
    """Do some work in a forked child and return its exit code; a child that hangs is stopped."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            limited()
            work()
            code = 0
        except BaseException as error:
            os.write(2, f"in the forked child: {error!r}\n".encode())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def at_once(work: Callable[[int], int], number: int = 6) -> list[int]:
    """Do some work in several forked children, let go together; return the exit codes it gives."""
    read, write = os.pipe()
    children = []
    for place in range(number):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                limited()
                os.close(write)
                os.read(read, 1)  # until the parent closes its end
                code = work(place)
            except BaseException as error:
                os.write(2, f"in the forked child: {error!r}\n".encode())
            finally:
                os._exit(code)
        children.append(child)
    os.close(read)
    time.sleep(0.2)
    os.close(write)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def from_fork(work: Callable[[], bytes]) -> bytes:
    """Return what some work in a forked child gives, which must be short."""
    read, write = os.pipe()

    def send() -> None:
        os.write(write, work())

    try:
        assert in_fork(send) == 0
        return os.read(read, 4096)
    finally:
        os.close(read)
        os.close(write)


def together(work: Callable[[int], None], number: int = 8) -> None:
    """Do some work in several threads at once; raise what any of them raises."""
    start, raised = threading.Barrier(number), []

    def one(place: int) -> None:
        try:
            start.wait(PATIENCE)
            work(place)
        except BaseException as error:
            raised.append(error)

    # daemons, so that one that is stuck does not keep the tests from ending
    threads = [threading.Thread(target=one, args=(place,), daemon=True) for place in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread was stuck"
    if raised:
        raise raised[0]
