"""Real `torchrun` and `rallypoint join` as nodes of one job, and how each reacts to signals and failures."""

import base64
import pickle
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import clock
import pytest
import torch.distributed as dist
from nodes import OurNode, TorchNode
from servers import OurServer

PROCESS_TIMEOUT = 100
"""Seconds to wait for torchrun to join or to exit. Importing torch alone takes several seconds on a busy machine."""

REPORT_SCRIPT = 'echo "told $GROUP_RANK $GROUP_WORLD_SIZE $RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT"'


class Torchrun:
    """A `torchrun` process with one worker, which runs `command`."""

    def __init__(self, endpoint, run_id, nodes, *command, addr="127.0.0.1", restarts=0, **config):
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint),
                *("--rdzv-id", run_id, "--nnodes", "{}:{}".format(*nodes), "--nproc-per-node", "1"),
                *("--local-addr", addr, "--monitor-interval", "0.1", "--max-restarts", str(restarts), "--no-python"),
                *("--rdzv-conf", ",".join(f"{key}={value}" for key, value in config.items())),
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def exit_code(self):
        self.out, self.err = self.process.communicate(timeout=PROCESS_TIMEOUT)
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def reported_values(text):
    [line] = [line for line in text.splitlines() if "told " in line]
    return line.partition("told ")[2].split()


@pytest.mark.parametrize("host", ["torchrun", "ours"])
def test_torchrun_and_our_node_form_a_job_on_either_host(port, host):
    endpoint = f"127.0.0.1:{port}"
    hosts = {"torchrun": int(host == "torchrun"), "ours": int(host == "ours")}
    command = ("sh", "-c", REPORT_SCRIPT)
    with (
        Torchrun(endpoint, "job", (2, 2), *command, is_host=hosts["torchrun"]) as torchs,
        OurNode(endpoint, "job", (2, 2), command=command, is_host=hosts["ours"], read_timeout=PROCESS_TIMEOUT) as ours,
    ):
        assert ours.joined(PROCESS_TIMEOUT).world_size == 2
        mine = reported_values(ours.line(PROCESS_TIMEOUT))
        assert torchs.exit_code() == 0, torchs.err
        assert ours.exit_code() == 0, ours.log
        theirs = reported_values(torchs.out)
    # Group rank and rank differ. Everything else is the same on both nodes.
    assert {mine[0], theirs[0]} == {"0", "1"} and {mine[2], theirs[2]} == {"0", "1"}
    assert (mine[1], *mine[3:]) == (theirs[1], *theirs[3:])
    assert (mine[1], mine[3]) == ("2", "2")


@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_and_our_node_form_a_static_job(port, rank):
    torchrun = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(1 - rank)),
        *("--master-addr", "127.0.0.1", "--master-port", str(port), "--nproc-per-node", "1", "--no-python", "sh", "-c", REPORT_SCRIPT),
    ]
    ours = OurNode(
        f"127.0.0.1:{port}", "none", (2, 2), command=("sh", "-c", REPORT_SCRIPT), backend="static", rank=rank, timeout=PROCESS_TIMEOUT
    )
    with ours:
        torchs = subprocess.run(torchrun, capture_output=True, text=True, timeout=PROCESS_TIMEOUT, stdin=subprocess.DEVNULL)
        assert torchs.returncode == 0, torchs.stderr
        assert ours.joined(PROCESS_TIMEOUT).rank == rank
        mine, theirs = reported_values(ours.line(PROCESS_TIMEOUT)), reported_values(torchs.stdout)
        assert ours.exit_code(PROCESS_TIMEOUT) == 0, ours.log
    shared = ["127.0.0.1", str(port)]
    assert mine == [str(rank), "2", str(rank), "2", *shared]
    assert theirs == [str(1 - rank), "2", str(1 - rank), "2", *shared]


def state_lists(server, run_id):
    """Returns the participants, the redundancy list and the closed flag of the state of `run_id`."""
    store = dist.TCPStore(server.host, server.port, is_master=False, wait_for_workers=False)
    key = f"torch.rendezvous.{run_id}"
    if not store.check([key]) or (value := store.get(key)) == b"Y2FuaW1hZGFt":
        return set(), set(), False
    state = pickle.loads(base64.b64decode(value))
    return set(state.participants), state.redundancy_list, state.closed


wait_until = partial(clock.wait_until, within=PROCESS_TIMEOUT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_our_node_signaled_while_waiting_leaves_immediately_without_closing_the_rendezvous(number):
    server = OurServer()
    with OurNode(server, "job", (2, 2)) as ours:
        wait_until("the node to be listed", lambda: len(state_lists(server, "job")[0]) == 1)
        start = time.monotonic()
        ours.signal(number)
        assert ours.exit_code() == 128 + number
        assert time.monotonic() - start < 5
    participants, _, closed = state_lists(server, "job")
    assert (participants, closed) == (set(), False)
    server.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_torchrun_signaled_while_waiting_stays_listed_or_closes_the_rendezvous(number):
    """Defect T11 in docs/compatibility.md: torchrun stays listed after SIGTERM, and closes the rendezvous after SIGINT."""
    server = OurServer()
    with Torchrun(f"{server.host}:{server.port}", "job", (2, 2), "true", is_host=0) as torchs:
        wait_until("the node to be listed", lambda: len(state_lists(server, "job")[0]) == 1)
        torchs.process.send_signal(number)
        assert torchs.exit_code() != 0
    participants, _, closed = state_lists(server, "job")
    assert (len(participants), closed) == (1, number == signal.SIGINT)
    server.stop()


def test_our_spare_exits_with_success_and_a_torchrun_spare_fails():
    """Defect T12 in docs/compatibility.md: a torchrun spare that was not needed fails with an AttributeError."""
    server = OurServer()
    endpoint = f"{server.host}:{server.port}"
    with OurNode(server, "job", (1, 1)) as working:
        assert working.joined().world_size == 1
        with OurNode(server, "job", (1, 1)) as ours, Torchrun(endpoint, "job", (1, 1), "true", is_host=0) as torchs:
            wait_until("both nodes to be listed as spares", lambda: len(state_lists(server, "job")[1]) == 2)
            closer = threading.Thread(target=close, args=(server, "job"))
            closer.start()
            assert ours.exit_code(PROCESS_TIMEOUT) == 0, ours.log
            assert torchs.exit_code() == 1
            assert "'NoneType' object has no attribute 'is_failed'" in torchs.err
            closer.join()
    server.stop()


def close(server, run_id):
    """Closes the rendezvous, as a finished node does."""
    with TorchNode(server, run_id, (1, 1)) as node:
        node.close()


def test_torchruns_failing_node_closes_the_rendezvous_and_ours_does_not():
    """PyTorch issue 147064: a torchrun node whose worker fails closes the rendezvous for all nodes."""
    server = OurServer()
    with OurNode(server, "ours", (1, 1), command=("false",)) as ours:
        assert ours.joined().world_size == 1
        assert ours.exit_code() == 1
    participants, _, closed = state_lists(server, "ours")
    assert (participants, closed) == (set(), False)
    with OurNode(server, "ours", (1, 1)) as next_node:
        assert next_node.joined().number == 1
    with Torchrun(f"{server.host}:{server.port}", "torchs", (1, 1), "false", is_host=0) as torchs:
        assert torchs.exit_code() == 1
    assert state_lists(server, "torchs")[2]
    with OurNode(server, "torchs", (1, 1)) as next_node:
        assert next_node.exit_code() == 3
    server.stop()


def test_our_node_stops_its_command_and_leaves_when_torchrun_restarts_its_workers(tmp_path):
    """If our node did not leave, torchrun would wait for it, while our node would wait for its command to exit."""
    server = OurServer()
    once = f"[ -e {tmp_path}/failed ] || {{ touch {tmp_path}/failed; exit 1; }}"
    with (
        OurNode(server, "job", (1, 2), command=("sleep", "300"), last_call_timeout=PROCESS_TIMEOUT) as ours,
        Torchrun(
            f"{server.host}:{server.port}", "job", (1, 2), "sh", "-c", once, restarts=1, is_host=0, last_call_timeout=1
        ) as torchs,
    ):
        assert ours.joined(PROCESS_TIMEOUT).world_size == 2
        assert ours.exit_code(PROCESS_TIMEOUT) == 6
        assert "other nodes have left round 0" in "".join(ours.log)
        assert torchs.exit_code() == 0, torchs.err
    server.stop()


def test_torchrun_that_waits_at_the_exit_barrier_is_removed_without_a_warning(tmp_path):
    """Torchrun sends no heartbeats while it waits at the exit barrier, because its only connection to the store is in use."""
    server = OurServer()
    options = {"is_host": 0, "keep_alive_interval": 1}
    command = ("sh", "-c", f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done")
    with (
        OurNode(server, "job", (2, 2), command=command, **options) as ours,
        Torchrun(f"{server.host}:{server.port}", "job", (2, 2), "true", **options) as torchs,
    ):
        assert ours.joined(PROCESS_TIMEOUT).world_size == 2
        wait_until("torchrun to be removed", lambda: "was removed from the rendezvous" in "".join(ours.log))
        (tmp_path / "go").touch()
        assert ours.exit_code(PROCESS_TIMEOUT) == 0
        assert torchs.exit_code() == 0, torchs.err
    [line] = [line for line in ours.log if "was removed from the rendezvous" in line]
    assert "so this is probably not a failure" in line and "INFO" in line, line
    assert "WARN" not in "".join(ours.log), ours.log
    server.stop()
