"""Jobs with one torchrun node and one `rallypoint run` node."""

import os
import pathlib
import signal

import pytest
from agents import Launcher, wait_until

WORKER = pathlib.Path(__file__).parent / "elastic_worker.py"

CONF = "join_timeout=120,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=4,read_timeout=120"


ADDRESSES = {"ours": "127.0.0.1", "torchrun": "127.0.0.2"}
"""The address of each kind of node.

Nodes are ranked by address, so our node is group rank 0 and publishes the master's address in each round. Torch's node
would publish it only in its first round, and a node that joins later would not find it.
"""


def launch(kind, port, nodes, directory, *, hosts, share=True):
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHON_EXEC": os.sys.executable}
    if not share:
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return Launcher(
        kind,
        *("--nnodes", nodes, "--nproc-per-node", 2, "--max-restarts", 5),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"),
        *("--rdzv-conf", f"{CONF},is_host={int(hosts)}", "--local-addr", ADDRESSES[kind]),
        *(WORKER, directory),
        environment=environment,
    )


def starts(directory, world):
    """Returns the (rank, pid) of each worker that has run in a world of this size."""
    names = (path.name.split(".") for path in directory.glob(f"{world}.*.*"))
    return {(int(rank), int(pid)) for _, rank, pid in names}


def parent(pid):
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def workers_of(launcher, directory, world):
    """Returns the process ids of a launcher's running workers.

    Torchrun's workers are its children. Ours are children of the agent, which is a child of the process in `launcher`.
    """
    found = []
    for _, pid in starts(directory, world):
        try:
            ancestors = [parent(pid)]
            while ancestors[-1] > 1 and len(ancestors) < 3:
                ancestors.append(parent(ancestors[-1]))
            if launcher.process.pid in ancestors:
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


@pytest.mark.parametrize("victim", ["ours", "torchrun"])
@pytest.mark.parametrize("host", ["ours", "torchrun"])
def test_both_nodes_restart_and_finish_after_a_worker_on_either_is_killed(port, tmp_path, victim, host):
    with (
        launch(host, port, "2", tmp_path, hosts=True) as first,
        launch({"ours": "torchrun", "torchrun": "ours"}[host], port, "2", tmp_path, hosts=False) as second,
    ):
        both = (first, second)
        before = wait_until("first start", lambda: len(s := starts(tmp_path, 4)) == 4 and s, *both)
        assert {rank for rank, _ in before} == {0, 1, 2, 3}
        [agent] = [launcher for launcher in both if launcher.kind == victim]
        os.kill(workers_of(agent, tmp_path, 4)[0], signal.SIGKILL)
        after = wait_until("second start", lambda: len(s := starts(tmp_path, 4) - before) >= 4 and s, *both)
        assert {rank for rank, _ in after} == {0, 1, 2, 3}
        (tmp_path / "finish").touch()
        assert first.exit_code() == 0, first.text + second.text
        assert second.exit_code() == 0, first.text + second.text


@pytest.mark.parametrize("first_kind", ["ours", "torchrun"])
def test_a_job_grows_from_one_node_to_two_and_shrinks_back(port, tmp_path, first_kind):
    second_kind = {"ours": "torchrun", "torchrun": "ours"}[first_kind]
    # A torch node that was alone in its first round keeps itself as the master in later rounds, unless store sharing is
    # disabled.
    share = first_kind == "ours"
    with launch(first_kind, port, "1:2", tmp_path, hosts=True, share=share) as first:
        wait_until("start alone", lambda: len(starts(tmp_path, 2)) == 2, first)
        alone = starts(tmp_path, 2)
        with launch(second_kind, port, "1:2", tmp_path, hosts=False, share=share) as second:
            wait_until("start with two nodes", lambda: len(starts(tmp_path, 4)) >= 4, first, second)
            second.signal()
            assert second.exit_code() == 1, second.text
        wait_until("start alone again", lambda: len(starts(tmp_path, 2) - alone) >= 2, first)
        (tmp_path / "finish").touch()
        assert first.exit_code() == 0, first.text


def launch_shell(kind, port, script, *, hosts):
    return Launcher(
        kind,
        *("--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"),
        *("--rdzv-conf", f"{CONF},is_host={int(hosts)}", "--local-addr", ADDRESSES[kind], "--no-python", "sh", "-c", script),
        environment={**os.environ, "RALLYPOINT_LOG": "info"},
    )


def test_our_node_fails_when_torchrun_has_failed(port):
    """A torchrun in place of our node would continue, wait for 300 s at the exit barrier and exit with code 0."""
    with (
        launch_shell("ours", port, "exec sleep 600", hosts=True) as ours,
        launch_shell("torchrun", port, "sleep 2; exit 3", hosts=False) as torchs,
    ):
        assert torchs.exit_code() == 1, torchs.text
        assert ours.exit_code() == 1, ours.text
        # Our agent reports the node that failed, and not the worker that it stopped itself.
        culprit = f"the job was ended by another node, node 1 (127.0.0.2, pid {torchs.process.pid}), which did not report why"
        assert culprit in ours.text, ours.text
        assert "Root Cause" not in ours.text, ours.text


def test_our_finished_node_does_not_wait_for_a_torchrun_that_has_failed(port):
    with (
        launch_shell("ours", port, "exit 0", hosts=True) as ours,
        launch_shell("torchrun", port, "sleep 2; exit 3", hosts=False) as torchs,
    ):
        assert torchs.exit_code() == 1, torchs.text
        assert ours.exit_code() == 1, ours.text


@pytest.mark.parametrize("host", ["ours", "torchrun"])
def test_a_finished_torchrun_without_heartbeats_causes_no_restart(port, tmp_path, host):
    """A finished torchrun sends no heartbeats while it waits at the exit barrier, so it is dropped after 4 s."""
    script = f"echo begun; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    with (
        launch_shell("ours", port, script, hosts=host == "ours") as ours,
        launch_shell("torchrun", port, "exit 0", hosts=host != "ours") as torchs,
    ):
        wait_until("torchrun to be dropped", lambda: "was removed from the rendezvous" in ours.text, ours, torchs)
        (tmp_path / "go").touch()
        assert ours.exit_code() == 0, ours.text + torchs.text
        assert torchs.exit_code() == 0, ours.text + torchs.text
        assert ours.text.count("begun") == 1, ours.text


def test_our_finished_node_rejoins_after_the_torchrun_node_was_killed(port):
    # Torch's workers survive if their agent is killed, so this worker checks whether its parent still runs.
    script = "echo begun; while kill -0 $PPID; do sleep 0.1; done"
    with (
        launch_shell("ours", port, "echo begun", hosts=True) as ours,
        launch_shell("torchrun", port, script, hosts=False) as torchs,
    ):
        wait_until("our worker to finish", lambda: "workers of this node have finished" in ours.text, ours, torchs)
        wait_until("torchrun's worker to start", lambda: "begun" in torchs.text, ours, torchs)
        torchs.process.kill()
        wait_until("our node to rejoin", lambda: "restarting the workers: 1 node left or died" in ours.text, ours)
        with launch_shell("ours", port, "echo begun", hosts=False) as successor:
            assert successor.exit_code() == 0, ours.text + successor.text
            assert ours.exit_code() == 0, ours.text
        assert ours.text.count("begun") == 2, ours.text


NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_RANK")


@pytest.mark.parametrize("host", ["ours", "torchrun"])
def test_agents_with_different_roles_and_worker_counts_agree_on_ranks(port, tmp_path, host):
    script = "echo " + " ".join(f"${name}" for name in NAMES) + f" > {tmp_path}/$RANK.$$"
    nodes = {"ours": (3, "trainer"), "torchrun": (1, "reader")}

    def node(kind, hosts):
        workers, role = nodes[kind]
        return Launcher(
            kind,
            *("--nnodes", 2, "--nproc-per-node", workers, "--role", role),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"),
            *("--rdzv-conf", f"{CONF},is_host={int(hosts)}", "--local-addr", ADDRESSES[kind]),
            # Both launchers turn `$$` into `$`.
            *("--no-python", "sh", "-c", script.replace("$", "$$")),
        )

    other = {"ours": "torchrun", "torchrun": "ours"}[host]
    with node(host, True) as first, node(other, False) as second:
        assert first.exit_code() == 0, first.text + second.text
        assert second.exit_code() == 0, first.text + second.text
    reports = sorted(path.read_text().split() for path in tmp_path.iterdir())
    # Our node has the lower address, so its three workers have the lower ranks. ROLE_RANK counts only workers of the
    # same role.
    assert reports == [
        ["0", "4", "0", "3", "trainer", "0", "3", "0"],
        ["1", "4", "1", "3", "trainer", "1", "3", "0"],
        ["2", "4", "2", "3", "trainer", "2", "3", "0"],
        ["3", "4", "0", "1", "reader", "0", "1", "1"],
    ]


def test_our_late_node_fails_when_torchrun_does_not_publish_the_master_again(port, tmp_path):
    """A torchrun with group rank 0 publishes the master's address only in its first round."""
    addresses = {"torchrun": "127.0.0.1", "ours": "127.0.0.2"}
    conf = "join_timeout=120,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=4,read_timeout=12"

    def start(kind):
        return Launcher(
            kind,
            *("--nnodes", "1:2", "--nproc-per-node", 2, "--max-restarts", 5, "--local-addr", addresses[kind]),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"),
            *("--rdzv-conf", f"{conf},is_host={int(kind == 'torchrun')}", WORKER, tmp_path),
            environment={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHON_EXEC": os.sys.executable},
        )

    with start("torchrun") as old:
        alone = wait_until("torchrun's workers", lambda: len(s := starts(tmp_path, 2)) == 2 and s, old)
        with start("ours") as late:
            assert late.exit_code() == 1, late.text
            assert "has not published MASTER_ADDR and MASTER_PORT" in late.text
            assert "hint: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in late.text
            # If our node had trained alone, its workers would have started in a world of 2.
            assert starts(tmp_path, 2) == alone, late.text
