"""Settings for all tests."""

import os
import signal

import torch
from hypothesis import HealthCheck, settings

from privada.scikit_learn import fit_registry
from tests.postgres_server import remove_servers

# Nothing here is a test of time: machines are shared.
settings.register_profile(
    "exploring", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# The same examples each time, so that a test that fails tells of a change and not of a draw; with
# --hypothesis-profile=exploring there are new ones.
settings.register_profile("unhurried", settings.get_profile("exploring"), derandomize=True)
settings.load_profile("unhurried")


# by which rich and typer would show the command line's words otherwise than to a pipe
TERMINAL = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TERMINAL_WIDTH", "TTY_COMPATIBLE")


def pytest_configure(config):
    """Words as wide as 80 columns, whoever runs the tests and where; and one thread each.

    Tests run side by side, and torch's threads would wait for each other. A script that runs tests
    in the background ignores Ctrl-C for them; tests that press it want what a user has.
    """
    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["COLUMNS"] = "80"
    for name in TERMINAL:
        os.environ.pop(name, None)


def pytest_sessionfinish():
    """End servers that tests have started; a worker of pytest-xdist runs nothing at its exit."""
    remove_servers()


def pytest_runtest_setup(item):
    """Let each test begin alike, whatever ran before it in its process.

    Torch's generator starts anew, and no rows were fitted yet.
    """
    torch.manual_seed(0)
    fit_registry.forget_fits()
