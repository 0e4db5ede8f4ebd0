"""Torch's clients reach our server at the addresses that it listens on, and at no other address."""

import contextlib
import errno
import socket

import pytest
import torch.distributed as dist
from clock import WAIT_TIMEOUT, seconds
from servers import OurServer, is_reached


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def our_server(listen, not_reached):
    """Starts our server on a port that is free at the hosts in `not_reached`, and reserves the port at these hosts."""
    for _ in range(5):
        server = OurServer(listen)
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(server.stop)
            try:
                for host in not_reached:
                    family = socket.AF_INET6 if ":" in host else socket.AF_INET
                    cleanup.enter_context(socket.socket(family)).bind((host, server.port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            yield server
            return
    raise AssertionError(f"the port was in use at one of {not_reached} in each of 5 attempts")


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
def test_torchs_client_reaches_our_server_at_its_listen_addresses_only(listen, reached, not_reached):
    if "::1" in [*reached, *not_reached] and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with our_server(listen, not_reached) as server:
        for host in reached:
            store = dist.TCPStore(host, server.port, is_master=False, timeout=seconds(WAIT_TIMEOUT))
            store.set(host, "here")
            assert store.get(host) == b"here"
        assert store.num_keys() == len(reached)
        for host in not_reached:
            assert not is_reached(host, server.port), host
