"""Settings for all tests."""

import torch


def pytest_configure(config):
    """One thread each: tests run side by side, and torch's threads would wait for each other."""
    torch.set_num_threads(1)
