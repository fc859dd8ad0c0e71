"""Settings for all tests."""

import torch
from hypothesis import settings

# Nothing here is a test of time: machines are shared.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_configure(config):
    """One thread each: tests run side by side, and torch's threads would wait for each other."""
    torch.set_num_threads(1)
