"""Clients with a world size: the key `init/` counts them, and the master waits until all workers are counted."""

import contextlib
import errno
import socket

import pytest
import torch.distributed as dist
from clock import WAIT_TIMEOUT, seconds
from servers import OurServer
from harness import Background, Harness, on_both_servers, outcome


@on_both_servers
def test_a_client_with_a_world_size_is_counted_as_a_worker(harness):
    plain = harness.client()
    harness.call(plain.num_keys)
    workers = [harness.client(world_size=3) for _ in range(2)]
    harness.call(plain.num_keys)
    harness.call(plain.list_keys)
    harness.call(workers[0].list_keys)
    with harness.raw() as raw:
        raw.send_request("get", "init/")
        harness.record("init/", raw.receive_text())
    workers.append(harness.client(world_size=3, wait_for_workers=False))
    workers.append(harness.client(wait_for_workers=True))
    with harness.raw() as raw:
        raw.send_request("get", "init/")
        harness.record("init/ counts only clients with a world size that wait for workers", raw.receive_text())
    harness.call(plain.num_keys)


@pytest.fixture
def torch_master_on_our_server():
    """A harness for our server, and a function that creates a torch master whose own client connects to our server.

    A master's client connects to the given host, on the port that the master's server listens on. So our server listens
    on that port at one loopback address, and the master gets a socket on the same port at another loopback address.
    """
    with contextlib.ExitStack() as cleanup:

        def bind_both():
            for _ in range(20):
                server = OurServer("127.0.0.2")
                try:
                    return server, socket.create_server(("127.0.0.1", server.port))
                except OSError as error:  # the port is in use at the other address
                    server.stop()
                    if error.errno != errno.EADDRINUSE:
                        raise
            raise RuntimeError("no port is free on two loopback addresses")

        server, listener = bind_both()
        cleanup.callback(server.stop)

        def create(world_size, timeout):
            return dist.TCPStore(
                "127.0.0.2",
                server.port,
                world_size=world_size,
                is_master=True,
                timeout=timeout,
                master_listen_fd=listener.detach(),
            )

        yield Harness(server), create


def test_a_torch_master_waits_on_our_server_until_all_workers_have_joined(torch_master_on_our_server):
    harness, create = torch_master_on_our_server
    master = Background(create, 3, seconds(WAIT_TIMEOUT))
    workers = [harness.client(world_size=3) for _ in range(2)]
    assert isinstance(master.result(), dist.TCPStore)
    assert workers[0].num_keys() == 1


def test_a_torch_master_reports_how_many_workers_joined_as_on_its_own_server(torch_master_on_our_server):
    _, create = torch_master_on_our_server
    ours = Background(create, 2, seconds(1))
    theirs = outcome(dist.TCPStore, "127.0.0.1", 0, world_size=2, is_master=True, timeout=seconds(1))
    assert ours.result() == theirs
    assert "1/2 clients joined" in theirs


def test_a_torch_master_at_the_port_of_our_server_becomes_a_client_in_an_elastic_job(ours, monkeypatch):
    arguments = ("127.0.0.1", ours.server.port, 1, True, seconds(WAIT_TIMEOUT))
    assert "name: EADDRINUSE" in outcome(dist.TCPStore, *arguments)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(ours.server.port))
    store = dist.TCPStore(*arguments)
    store.set("k", "v")
    assert ours.client().get("k") == b"v"
