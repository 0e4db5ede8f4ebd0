"""The command `rallypoint store`, which inspects the store of a running job, on torch's servers and on ours."""

import json
import socket
import subprocess

import pytest
from clock import REPLY_TIMEOUT, WAIT_TIMEOUT
from servers import OurServer, binary

WITH_QUEUES = ["libuv", "ours"]
# Exit codes of `rallypoint store`.
ABSENT, TIMED_OUT, UNREACHABLE, OTHER_VALUE = 3, 4, 5, 6


def run(server, *arguments, stdin=b""):
    """Runs `rallypoint store` and returns its exit code and standard output."""
    done = subprocess.run(
        [binary(), "store", "--endpoint", f"{server.host}:{server.port}", *arguments],
        input=stdin,
        capture_output=True,
        timeout=3 * WAIT_TIMEOUT,
    )
    assert done.returncode == 0 or done.stdout or done.stderr, "a failure must print a reason"
    return done.returncode, done.stdout


def test_values_pass_between_the_command_and_torchs_client(harness):
    torch_client = harness.client()
    assert run(harness.server, "set", "epoch", "17") == (0, b"")
    assert torch_client.get("epoch") == b"17"
    assert run(harness.server, "set", "config", "-", stdin=b"\xff\x00raw") == (0, b"")
    assert torch_client.get("config") == b"\xff\x00raw"
    assert run(harness.server, "get", "--raw", "config") == (0, b"\xff\x00raw")
    torch_client.set("epoch", "18")
    assert torch_client.get("epoch") == b"18"
    assert run(harness.server, "get", "epoch") == (0, b"18\n")
    code, out = run(harness.server, "--json", "get", "epoch")
    assert (code, json.loads(out)) == (0, {"key": "epoch", "value": "18"})
    assert run(harness.server, "append", "epoch", "th") == (0, b"")
    assert torch_client.get("epoch") == b"18th"
    assert run(harness.server, "add", "steps", "5") == (0, b"5\n")
    assert run(harness.server, "add", "steps", "-7") == (0, b"-2\n")
    assert torch_client.add("steps", 3) == 1


def test_list_count_check_and_delete_report_the_stored_keys(harness):
    torch_client = harness.client()
    torch_client.multi_set(["a", "b", "prefix/c"], ["1", "2", "3"])
    assert torch_client.num_keys() == 3
    assert run(harness.server, "list") == (0, b"a\nb\nprefix/c\n")
    assert run(harness.server, "list", "prefix/") == (0, b"prefix/c\n")
    assert run(harness.server, "count") == (0, b"3\n")
    assert run(harness.server, "check", "a", "b")[0] == 0
    code, out = run(harness.server, "--json", "check", "a", "zz")
    assert (code, json.loads(out)) == (ABSENT, {"present": ["a"], "absent": ["zz"]})
    assert run(harness.server, "delete", "a", "zz") == (0, b"1\n")
    assert torch_client.check(["a"]) is False
    assert run(harness.server, "delete", "a")[0] == ABSENT
    assert run(harness.server, "get", "a")[0] == ABSENT
    assert run(harness.server, "--timeout", "1s", "wait", "b", "a")[0] == TIMED_OUT
    assert run(harness.server, "--timeout", "1s", "get", "--wait", "a")[0] == TIMED_OUT
    assert run(harness.server, "wait", "b") == (0, b"")
    assert run(harness.server, "ping")[0] == 0


def test_clear_deletes_the_keys_with_a_prefix_on_every_server(harness):
    torch_client = harness.client()
    torch_client.multi_set(["job/a", "job/b", "other"], ["1", "2", "3"])
    assert run(harness.server, "clear", "--prefix", "job/") == (0, b"2\n")
    assert (torch_client.check(["job/a"]), torch_client.check(["other"])) == (False, True)
    code, out = run(harness.server, "--json", "clear", "--prefix", "")
    assert (code, json.loads(out)) == (0, {"deleted": 1})
    assert torch_client.num_keys() == 0


def test_cas_prints_the_current_value_when_it_fails(harness):
    torch_client = harness.client()
    assert run(harness.server, "cas", "k", "", "one")[0] == 0
    assert torch_client.get("k") == b"one"
    code, out = run(harness.server, "cas", "k", "wrong", "two")
    assert (code, out) == (OTHER_VALUE, b"one\n")
    assert run(harness.server, "cas", "k", "one", "two")[0] == 0
    assert torch_client.get("k") == b"two"
    assert run(harness.server, "cas", "absent", "something", "two")[0] == ABSENT
    assert torch_client.check(["absent"]) is False


@pytest.mark.parametrize("harness", WITH_QUEUES, indirect=True)
def test_the_command_and_torchs_client_share_queues(harness):
    torch_client = harness.client()
    assert run(harness.server, "push", "q", "one") == (0, b"")
    assert torch_client.queue_len("q") == 1
    torch_client.queue_push("q", "two")
    assert torch_client.queue_len("q") == 2
    assert run(harness.server, "len", "q") == (0, b"2\n")
    assert run(harness.server, "pop", "q") == (0, b"one\n")
    assert torch_client.queue_pop("q") == b"two"
    assert run(harness.server, "pop", "q")[0] == ABSENT
    assert run(harness.server, "--timeout", "1s", "pop", "--wait", "q")[0] == TIMED_OUT


def test_a_barrier_opens_or_times_out(harness):
    assert run(harness.server, "barrier", "solo", "1")[0] == 0
    assert run(harness.server, "--timeout", f"{REPLY_TIMEOUT}s", "barrier", "pair", "2")[0] == TIMED_OUT


def test_a_server_that_was_killed_is_reported_as_unreachable():
    server = OurServer()
    server.kill()
    with socket.socket() as bound:
        # The bound socket keeps the port reserved, so that no other process listens on it.
        bound.bind((server.host, server.port))
        assert run(server, "--timeout", "300ms", "get", "k")[0] == UNREACHABLE
