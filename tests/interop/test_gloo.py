"""Four torch processes on our server: process groups, collectives, barriers."""

import json
import pathlib
import subprocess
import sys

import pytest
from servers import OurServer

WORLD = 4
INIT_METHODS = ["store", "prefixed_store", "tcp", "env"]


@pytest.fixture(scope="module")
def reports():
    """The reports of the four processes. One job runs all init methods, because importing torch is slow."""
    servers = {method: OurServer() for method in INIT_METHODS}
    script = pathlib.Path(__file__).parent / "gloo_job.py"
    try:
        job = subprocess.run(
            [
                *(sys.executable, "-W", "ignore", script, str(WORLD)),
                *(f"{method}={server.host}:{server.port}" for method, server in servers.items()),
            ],
            capture_output=True,
            text=True,
            timeout=100,
        )
    finally:
        for server in servers.values():
            server.stop()
    assert job.returncode == 0, job.stderr
    return [json.loads(line) for line in job.stdout.splitlines()]


@pytest.mark.parametrize("method", INIT_METHODS)
def test_four_processes_run_collectives_and_barriers(reports, method):
    assert len(reports) == WORLD
    for rank, report in enumerate(reports):
        results = report[method]
        assert (results["rank"], results["world_size"]) == (rank, WORLD)
        assert results["all_reduce"] == [10.0, 40.0]
        assert results["broadcast"] == 42.0
        assert results["all_gather"] == [0, 1, 4, 9]
        # All processes had added 1 before any of them passed the barrier.
        assert results["arrived_after_barrier"] == WORLD
        assert results["pair_sum"] == (1.0 if rank < 2 else 5.0)
