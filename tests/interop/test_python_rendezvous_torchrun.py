"""The plug-in for the backends `rallypoint` and `rallypoint-c10d` of torchrun, and the objects that it returns to torch."""

import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import textwrap
import time

import pytest
import torch.distributed as dist
from libraries import OURS, new_run_id
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo, api, registry

HERE = pathlib.Path(__file__).resolve().parent
BACKENDS = ["rallypoint", "rallypoint-c10d"]
PROCESS_TIMEOUT = 240
"""Seconds to wait for torchrun to exit. Importing torch in six processes is slow on a busy machine."""


@pytest.fixture
def endpoint(port):
    return f"127.0.0.1:{port}"


class Process:
    """A Python process whose output is read when it exits."""

    def __init__(self, *command):
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )

    def exit_code(self):
        self.log, _ = self.process.communicate(timeout=PROCESS_TIMEOUT)
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def start_node(backend, endpoint, job, nodes, workers, restarts, *command):
    return Process(
        *("-m", "torch.distributed.run", "--rdzv-backend", backend, "--rdzv-endpoint", endpoint, "--rdzv-id", job),
        *("--nnodes", nodes, "--nproc-per-node", workers, "--max-restarts", restarts, "--local-addr", "127.0.0.1"),
        *("--monitor-interval", "0.1", *command),
    )


def torchrun(backend, endpoint, job, directory, victim=-1, workers=2, nodes=2):
    return start_node(backend, endpoint, job, nodes, workers, 3, HERE / "plugin_worker.py", directory, victim)


def read_reports(directory):
    return {int(file.name[5:]): json.loads(file.read_text()) for file in pathlib.Path(directory).glob("done-*")}


@pytest.mark.timeout(2 * PROCESS_TIMEOUT)
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_nodes_restart_after_a_worker_is_killed_and_finish(backend, endpoint, tmp_path):
    job = new_run_id()
    with (
        torchrun(backend, endpoint, job, tmp_path, victim=3) as first,
        torchrun(backend, endpoint, job, tmp_path, victim=3) as second,
    ):
        for node in (first, second):
            assert node.exit_code() == 0, node.log
    reports = read_reports(tmp_path)
    assert sorted(reports) == [0, 1, 2, 3]
    assert {each["sum"] for each in reports.values()} == {10.0}
    assert {each["world_size"] for each in reports.values()} == {4}
    assert sorted(each["group_rank"] for each in reports.values()) == [0, 0, 1, 1]
    assert (tmp_path / "killed").exists()
    assert max(each["restarts"] for each in reports.values()) >= 1
    assert {each["agent_store"] for each in reports.values()} == {"True"}


@pytest.mark.timeout(2 * PROCESS_TIMEOUT)
def test_torchruns_c10d_backend_and_the_plug_in_form_one_job(endpoint, tmp_path):
    job = new_run_id()
    with (
        torchrun("rallypoint-c10d", endpoint, job, tmp_path, workers=1) as first,
        torchrun("c10d", endpoint, job, tmp_path, workers=1) as second,
    ):
        for node in (first, second):
            assert node.exit_code() == 0, node.log
    assert {rank: each["sum"] for rank, each in read_reports(tmp_path).items()} == {0: 3.0, 1: 3.0}


@pytest.mark.timeout(2 * PROCESS_TIMEOUT)
def test_survivors_of_a_killed_node_join_the_next_round_without_a_restart(endpoint, tmp_path):
    """The first node hosts the coordinator and has group rank 0. No worker fails, so the job needs no restart."""
    job = new_run_id()
    # Nodes need different times to import torch, and the first round must have all three.
    command = ("--rdzv-conf", "last_call_timeout=600", HERE / "native_worker.py", tmp_path)
    start = functools.partial(start_node, "rallypoint", endpoint, job, "2:3", 1, 0, *command)
    with start() as first:
        wait_for("the first node listens", lambda: is_listening(endpoint))
        with start() as second, start() as third:
            wait_for("all workers run", lambda: len(list(tmp_path.glob("started-0-*"))) == 3)
            first.process.kill()
            for node in (second, third):
                assert node.exit_code() == 0, node.log
    reports = read_reports(tmp_path)
    assert {rank: each["world_size"] for rank, each in reports.items()} == {0: 2, 1: 2}
    assert {each["round"] for each in reports.values()} == {"1"}
    assert {each["restarts"] for each in reports.values()} == {0}


def wait_for(what, condition):
    deadline = time.monotonic() + PROCESS_TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_listening(endpoint):
    host, port = endpoint.rsplit(":", 1)
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) == 0


@pytest.mark.timeout(2 * PROCESS_TIMEOUT)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_process_group_works_with_the_store_of_the_round(backend, endpoint):
    script = """
        import sys
        import torch
        import torch.distributed as dist
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

        parameters = RendezvousParameters(sys.argv[2], sys.argv[1], "job", 2, 2, local_addr="127.0.0.1")
        # The node with rank 0 serves the store. In the native rendezvous, a node ends with its handler.
        handler = get_rendezvous_handler(parameters)
        info = handler.next_rendezvous()
        dist.init_process_group("gloo", store=info.store, rank=info.rank, world_size=info.world_size)
        tensor = torch.tensor(float(info.rank + 1))
        dist.all_reduce(tensor)
        dist.barrier()
        dist.destroy_process_group()
        print("sum", tensor.item())
        handler.shutdown()
    """
    command = ("-c", textwrap.dedent(script), endpoint, backend)
    with Process(*command) as first, Process(*command) as second:
        for each in (first, second):
            assert each.exit_code() == 0, each.log
            assert "sum 3.0" in each.log


def parameters(backend, endpoint, **options):
    arguments = {"min_nodes": 1, "max_nodes": 1, "local_addr": "127.0.0.1", "run_id": new_run_id(), **options}
    return api.RendezvousParameters(backend, endpoint, **arguments)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_plug_in_returns_torchs_own_types(backend, endpoint):
    handler = registry.get_rendezvous_handler(parameters(backend, endpoint))
    assert isinstance(handler, RendezvousHandler)
    assert handler.get_backend() == backend
    assert handler.use_agent_store is True
    info = handler.next_rendezvous()
    assert type(info) is RendezvousInfo
    assert type(info.bootstrap_store_info) is RendezvousStoreInfo
    assert isinstance(info.store, dist.Store)
    assert (info.rank, info.world_size) == (0, 1)
    info.store.set("k", "v")
    assert dist.PrefixStore("p", info.store).compare_set("k", "", "w") == b"w"
    assert info.store.multi_get(["k", "p/k"]) == [b"v", b"w"]
    assert handler.num_nodes_waiting() == 0
    assert handler.shutdown() is True
    assert handler.is_closed() is True


def test_the_c10d_plug_in_raises_torchs_exceptions(endpoint):
    parameters_for = functools.partial(parameters, "rallypoint-c10d")
    arguments = parameters_for(endpoint)
    handler = registry.get_rendezvous_handler(arguments)
    handler.set_closed()
    with pytest.raises(api.RendezvousClosedError, match=arguments.run_id):
        handler.next_rendezvous()
    with OURS.ports.get_socket_with_port() as bound:
        closed_endpoint = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(api.RendezvousConnectionError):
            registry.get_rendezvous_handler(parameters_for(closed_endpoint, is_host=0, read_timeout=1))
    with pytest.raises(ValueError, match="did you mean 'join_timeout'"):
        registry.get_rendezvous_handler(parameters_for(endpoint, jion_timeout=1))


def test_the_native_plug_in_raises_torchs_exceptions(endpoint):
    parameters_for = functools.partial(parameters, "rallypoint")
    arguments = parameters_for(endpoint)
    handler = registry.get_rendezvous_handler(arguments)
    handler.set_closed()
    with pytest.raises(api.RendezvousClosedError, match=r"closed the job at .*\nhint: use a new --rdzv-id"):
        handler.next_rendezvous()
    del handler
    waiting = registry.get_rendezvous_handler(parameters_for(endpoint, min_nodes=2, max_nodes=2, join_timeout=5))
    with pytest.raises(api.RendezvousTimeoutError, match="1 of 2 nodes have joined"):
        waiting.next_rendezvous()
    with pytest.raises(ValueError, match="did you mean 'join_timeout'"):
        registry.get_rendezvous_handler(parameters_for(endpoint, jion_timeout=1))
    with pytest.raises(ValueError, match="needs an endpoint"):
        registry.get_rendezvous_handler(parameters_for(""))
