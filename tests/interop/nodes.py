"""Nodes of a rendezvous. Torch's nodes are handlers in this process, and our nodes are `rallypoint join` processes."""

import json
import queue
import signal
import subprocess
from datetime import timedelta

import torch.distributed as dist
from clock import WAIT_TIMEOUT
from join_call import JOIN_TIMEOUT, JoinCall
from output_reader import OutputReader
from servers import binary
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler


class Round:
    """A node's view of a round, in the same form for torch's nodes and ours.

    As in torch's rendezvous API, `rank` is the node's group rank and `world_size` is the number of nodes.
    """

    def __init__(self, number, rank, world_size, master):
        self.number, self.rank, self.world_size, self.master = number, rank, world_size, master

    def __repr__(self):
        return f"round {self.number}: {self.rank} of {self.world_size}, {self.master}"


class CountingBackend(C10dRendezvousBackend):
    """A backend that counts its compare-and-sets."""

    writes = 0

    def set_state(self, *arguments):
        self.writes += 1
        return super().set_state(*arguments)


class TorchNode:
    """Torch's DynamicRendezvousHandler with its own client of `server`, or with a FileStore if `server` is a path."""

    def __init__(self, server, run_id, nodes, addr="127.0.0.1", read_timeout=JOIN_TIMEOUT, **config):
        if isinstance(server, str):
            self.store = dist.FileStore(server)
        else:
            self.store = dist.TCPStore(
                server.host, server.port, is_master=False, timeout=timedelta(seconds=read_timeout), wait_for_workers=False
            )
        self.backend = CountingBackend(self.store, run_id)
        config = {"join_timeout": JOIN_TIMEOUT, **config}
        parameters = RendezvousParameters("c10d", str(server), run_id, *nodes, local_addr=addr, **config)
        self.handler = create_handler(self.store, self.backend, parameters)

    def start(self):
        """Calls `next_rendezvous` on another thread. `joined` waits for the result."""
        self._joining = JoinCall(self._join)
        return self

    def _join(self):
        info = self.handler.next_rendezvous()
        store_info = info.bootstrap_store_info
        number = self.handler._state_holder.state.round
        return Round(number, info.rank, info.world_size, (store_info.master_addr, store_info.master_port))

    def joined(self, within=JOIN_TIMEOUT):
        return self._joining.result(within)

    def num_waiting(self):
        return self.handler.num_nodes_waiting()

    def close(self):
        self.handler.shutdown()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Without this call, the thread that sends heartbeats would outlive the test.
        self.handler._stop_heartbeats()


class OurNode:
    """A `rallypoint join` process."""

    def __init__(self, server, run_id, nodes, addr="127.0.0.1", command=(), backend="c10d", **config):
        endpoint = server if isinstance(server, str) else f"{server.host}:{server.port}"
        config = {"join_timeout": JOIN_TIMEOUT, **config}
        if backend == "c10d":
            config = {"is_host": 0, **config}
        else:
            del config["join_timeout"]
        self.process = subprocess.Popen(
            [
                *(binary(), "join", "--rdzv-backend", backend, "--rdzv-endpoint", endpoint, "--rdzv-id", run_id),
                *("--nnodes", "{}:{}".format(*nodes), *(("--local-addr", addr) if addr else ())),
                *("--rdzv-conf", ",".join(f"{key}={value}" for key, value in config.items())),
                *(("--", *command) if command else ()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines = queue.Queue()
        self.log = []
        self._output = OutputReader(
            self.process, (self.process.stdout, self._lines.put), (self.process.stderr, self.log.append)
        )

    def start(self):
        return self

    def line(self, within=JOIN_TIMEOUT):
        """Returns the next line of standard output, or an empty string at its end."""
        try:
            return self._lines.get(timeout=within)
        except queue.Empty:
            raise TimeoutError("".join(self.log)) from None

    def joined(self, within=JOIN_TIMEOUT):
        line = self.line(within)
        assert line, f"`rallypoint join` exited with {self.exit_code()}: {''.join(self.log)}"
        info = json.loads(line)
        return Round(info["round"], info["rank"], info["world_size"], (info["master_addr"], info["master_port"]))

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def exit_code(self, within=WAIT_TIMEOUT):
        """Waits for the process to exit and returns its exit code. `log` is complete then."""
        return self._output.exit_code(within)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def assert_agree(rounds, masters=True):
    """Asserts that all nodes are in the same round, have the group ranks 0 to N - 1, and, if `masters`, the same master address."""
    assert sorted(info.rank for info in rounds) == list(range(len(rounds))), rounds
    assert {info.world_size for info in rounds} == {len(rounds)}, rounds
    assert len({info.number for info in rounds}) == 1, rounds
    if masters:
        assert len({info.master for info in rounds}) == 1, rounds
