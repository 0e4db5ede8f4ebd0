"""Features that only TCPStore has: servers, ports, world sizes, sockets. Tests run with torch's class and with ours."""

import os
import re
import socket
import threading

import pytest
from clock import WAIT_TIMEOUT, ms, seconds
from families import FAMILIES, raises


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def module(family):
    return FAMILIES[family]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def test_a_server_on_port_0_reports_its_port_and_host(module):
    server = module.TCPStore("127.0.0.1", 0, is_master=True)
    assert server.host == "127.0.0.1" and 0 < server.port < 65536
    client = module.TCPStore(host_name="localhost", port=server.port, world_size=None, is_master=False, timeout=seconds(WAIT_TIMEOUT))
    assert client.host == "localhost" and client.port == server.port
    client.set("k", "v")
    assert server.get("k") == b"v"
    with pytest.raises(AttributeError):
        server.port = 1


def test_positional_arguments_have_torchs_order(module):
    server = module.TCPStore("127.0.0.1", 0, None, True, seconds(7), False, False, None, True)
    assert server.timeout == seconds(7)
    client = module.TCPStore("127.0.0.1", server.port, None, False, seconds(8), False, False, None, False)
    assert client.timeout == seconds(8)
    assert (server.libuvBackend, client.libuvBackend) == (True, False)


def test_a_port_in_use_raises_a_network_error_with_torchs_message(family, module):
    first = module.TCPStore("localhost", 0, 1, True)
    parts = ["The server socket has failed to listen on any local network address", str(first.port), "EADDRINUSE", "address already in use"]
    with raises(family, "DistNetworkError", *parts) as caught:
        module.TCPStore("localhost", first.port, 1, True)
    assert str(caught.value).startswith("The server socket has failed to listen on any local ")
    first.set("k", "v")
    assert first.get("k") == b"v"


def test_a_server_whose_host_does_not_resolve_raises_a_network_error_at_the_timeout(family, module):
    with raises(family, "DistNetworkError", "timed out after 500ms while trying to connect to (no-such-host.invalid, "):
        module.TCPStore("no-such-host.invalid", 0, is_master=True, timeout=ms(500))


def test_a_server_can_be_given_the_name_of_this_machine(module):
    server = module.TCPStore(socket.gethostname(), 0, is_master=True, wait_for_workers=False, timeout=seconds(WAIT_TIMEOUT))
    client = module.TCPStore("localhost", server.port, is_master=False, wait_for_workers=False, timeout=seconds(WAIT_TIMEOUT))
    client.set("k", "v")
    assert server.get("k") == b"v"


def test_a_client_sends_validate_and_ping_at_connect_and_nothing_more(module):
    # The thread below is a server that replies only to the handshake (these two requests) and then closes the connection.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        received = []

        def serve():
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(WAIT_TIMEOUT)
                # Torch sends the two requests separately.
                with connection.makefile("rb") as stream:
                    received.append(stream.read(10))
                connection.sendall(received[0][6:])
                created.wait(WAIT_TIMEOUT)
                connection.setblocking(False)
                try:
                    received.append(connection.recv(1))
                except BlockingIOError:
                    received.append("nothing")

        created = threading.Event()
        serving = threading.Thread(target=serve)
        serving.start()
        port = listening.getsockname()[1]
        store = module.TCPStore("127.0.0.1", port, 2, is_master=False, timeout=seconds(WAIT_TIMEOUT), wait_for_workers=False)
        created.set()
        serving.join()
        # The nonce is arbitrary.
        assert (received[0][:6], len(received[0]), received[1]) == (b"\x00\xce\xf7\x85\x3c\x0d", 10, "nothing")
        del store


def test_a_worker_uses_the_server_of_its_agent(module, monkeypatch):
    agent_store = module.TCPStore("localhost", 0, 1, True, wait_for_workers=False)
    agent_store.set("k", "v")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "1")
    monkeypatch.setenv("MASTER_PORT", str(agent_store.port))
    worker_store = module.TCPStore("localhost", agent_store.port, 1, is_master=True)
    assert worker_store.port == agent_store.port and worker_store.get("k") == b"v"


def test_multi_tenant_stores_of_one_process_share_a_server(module):
    port = free_port()
    first = module.TCPStore("localhost", port, 1, True, multi_tenant=True)
    second = module.TCPStore("localhost", port, 1, True, multi_tenant=True)
    first.set("k", "v")
    assert second.get("k") == b"v"
    del first
    assert second.add("n", 1) == 1


def test_the_server_stops_when_its_store_is_deleted(family, module):
    server = module.TCPStore("127.0.0.1", 0, is_master=True)
    port = server.port
    del server
    again = module.TCPStore("127.0.0.1", port, is_master=True)
    assert again.port == port


def test_a_clone_of_the_servers_store_is_connected_to_the_server(module):
    server = module.TCPStore("127.0.0.1", 0, is_master=True)
    server.set("k", "v")
    clone = server.clone()
    assert (clone.host, clone.port) == (server.host, server.port)
    assert clone.get("k") == b"v"


def test_the_master_waits_for_all_workers(module):
    port = free_port()
    created = {}

    def create(name, **options):
        created[name] = module.TCPStore("127.0.0.1", port, 3, timeout=seconds(WAIT_TIMEOUT), **options)

    master = threading.Thread(target=create, args=("master",), kwargs={"is_master": True})
    master.start()
    create("first")
    master.join(0.1)
    assert master.is_alive() and "master" not in created
    create("second")
    master.join(WAIT_TIMEOUT)
    created["first"].set("k", "v")
    assert created["master"].get("k") == b"v"
    # The workers are counted under a key that list_keys omits.
    assert created["master"].num_keys() == 2 and created["master"].list_keys() == ["k"]


def test_a_master_without_all_workers_reports_how_many_joined(family, module):
    with raises(family, "DistStoreError") as caught:
        module.TCPStore("localhost", 0, 2, True, timeout=seconds(1))
    assert re.match(r"Timed out after \d+ seconds waiting for clients. 1/2 clients joined.", str(caught.value))
    module.TCPStore("localhost", 0, 2, True, timeout=seconds(1), wait_for_workers=False)


def test_a_missing_or_negative_world_size_counts_no_workers(module):
    for world_size in (None, -1):
        server = module.TCPStore("127.0.0.1", 0, world_size, True)
        assert server.num_keys() == 0
    assert module.TCPStore("127.0.0.1", 0, 1, True).num_keys() == 1


def test_a_world_size_of_0_is_refused(family, module):
    with raises(family, "ValueError", "TCPStore world size cannot be 0"):
        module.TCPStore("localhost", 0, world_size=0, is_master=True)


def test_a_client_waits_for_its_server(module):
    port = free_port()
    found = []
    thread = threading.Thread(target=lambda: found.append(module.TCPStore("127.0.0.1", port, timeout=seconds(WAIT_TIMEOUT)).get("k")))
    thread.start()
    server = module.TCPStore("127.0.0.1", port, is_master=True)
    server.set("k", "v")
    thread.join(WAIT_TIMEOUT)
    assert found == [b"v"]


def test_a_client_without_a_server_raises_a_network_error(family, module, port):
    with raises(family, "DistNetworkError", "client socket has timed out after 300ms", f"127.0.0.1, {port}"):
        module.TCPStore("127.0.0.1", port, timeout=ms(300))


def test_a_host_that_does_not_resolve_raises_a_network_error(family, module):
    with raises(family, "DistNetworkError", "client socket has timed out after", "no-such-host.invalid"):
        module.TCPStore("no-such-host.invalid", 29500, timeout=seconds(1))


@pytest.mark.parametrize("is_listening", [False, True])
def test_the_server_takes_ownership_of_a_bound_socket(module, is_listening):
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    host, port = bound.getsockname()
    if is_listening:
        bound.listen()
    number = bound.detach()
    server = module.TCPStore(host, port, 1, is_master=True, master_listen_fd=number)
    assert server.port == port
    client = module.TCPStore(host, port, timeout=seconds(WAIT_TIMEOUT))
    client.set("k", "v")
    assert server.get("k") == b"v"
    del server, client
    with pytest.raises(OSError):
        os.fstat(number)


def test_a_lost_server_raises_a_network_error(family, module):
    server = module.TCPStore("127.0.0.1", 0, is_master=True)
    client = module.TCPStore("127.0.0.1", server.port, timeout=seconds(1))
    client.set("k", "v")
    assert client.get("k") == b"v"
    del server
    with raises(family, "DistNetworkError"):
        client.get("k")
    with raises(family, "DistError"):
        client.add("n", 1)


REPR_PATTERN = r"TCPStore\(client=TCPClient\(SocketImpl\(fd=\d+, addr=\[?\S+\]?:\d+, remote=\[?\S+\]?:\d+\)\), server=(.*)\)"


def test_repr_shows_the_connection_and_the_server(module):
    server = module.TCPStore("localhost", 0, is_master=True)
    found = re.fullmatch(REPR_PATTERN, repr(server))
    assert found and found[1] == f"TCPServer(port={server.port})", repr(server)
    client = module.TCPStore("localhost", server.port)
    found = re.fullmatch(REPR_PATTERN, repr(client))
    assert found and found[1] == "<nullptr>", repr(client)
    # Torch's class sometimes prints invalid addresses.
    assert module is not FAMILIES["ours"] or str(server.port) in repr(client), repr(client)


@pytest.mark.parametrize("server, client", [("torch", "ours"), ("ours", "torch")])
def test_workers_of_both_families_are_counted_together(server, client):
    port = free_port()
    created = []
    serve = lambda: created.append(FAMILIES[server].TCPStore("127.0.0.1", port, 2, True, timeout=seconds(WAIT_TIMEOUT)))
    master = threading.Thread(target=serve)
    master.start()
    FAMILIES[client].TCPStore("127.0.0.1", port, 2, timeout=seconds(WAIT_TIMEOUT))
    master.join(WAIT_TIMEOUT)
    assert created[0].num_keys() == 1
