"""Runs on a cluster, through joblib's own backends."""

import os

import pytest
from joblib import parallel_config

from tests.selection.test_search import BUDGET, searched

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_runs_on_a_ray_cluster():
    ray = pytest.importorskip("ray")
    from ray.util.joblib import register_ray

    here = searched(how="compose-pld", seed=1)
    # a cluster of its own, whatever else runs on this machine
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        register_ray()
        with parallel_config(backend="ray", n_jobs=2):
            found = searched(how="compose-pld", seed=1)
    finally:
        ray.shutdown()
    assert found.epsilon() <= BUDGET.epsilon
    assert [each.score for each in found.tried] == [each.score for each in here.tried]
