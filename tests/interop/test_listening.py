"""Torch's clients reach our server at every kind of address it is asked to listen on, and at no other."""

import socket

import pytest
import torch.distributed as dist
from clock import DEADLINE, seconds
from servers import OurServer


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def is_reached(host, port):
    try:
        socket.create_connection((host, port), timeout=DEADLINE).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize(
    "listen, reached, not_reached",
    [
        ("127.0.0.1", ["127.0.0.1", "localhost"], ["127.0.0.3", "::1"]),
        ("127.0.0.3", ["127.0.0.3"], ["127.0.0.1", "::1"]),
        ("0.0.0.0", ["127.0.0.1", "127.0.0.3"], ["::1"]),
        ("[::1]", ["::1"], ["127.0.0.1"]),
        ("", ["127.0.0.1", "127.0.0.3", "::1"], []),
    ],
)
def test_torchs_client_connects_wherever_we_listen_and_nowhere_else(listen, reached, not_reached):
    if "::1" in [*reached, *not_reached] and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    server = OurServer(listen)
    try:
        for host in reached:
            store = dist.TCPStore(host, server.port, is_master=False, timeout=seconds(DEADLINE))
            store.set(host, "here")
            assert store.get(host) == b"here"
        assert store.num_keys() == len(reached)
        for host in not_reached:
            assert not is_reached(host, server.port), host
    finally:
        server.stop()
