"""`rallypoint store` on torch's servers: a person or a script looking into a live torch job."""

import json
import socket
import subprocess

import pytest
from clock import ANSWERED, DEADLINE
from servers import OurServer, binary

WITH_QUEUES = ["libuv", "ours"]
ABSENT, TIMED_OUT, UNREACHABLE, OTHER_HELD = 3, 4, 5, 6


def run(server, *arguments, stdin=b""):
    """(exit code, standard output)."""
    done = subprocess.run(
        [binary(), "store", "--endpoint", f"{server.host}:{server.port}", *arguments],
        input=stdin,
        capture_output=True,
        timeout=3 * DEADLINE,
    )
    assert done.returncode == 0 or done.stdout or done.stderr, "a failure says why"
    return done.returncode, done.stdout


def test_values_go_both_ways(stage):
    torchs = stage.client()
    assert run(stage.server, "set", "epoch", "17") == (0, b"")
    assert torchs.get("epoch") == b"17"
    assert run(stage.server, "set", "config", "-", stdin=b"\xff\x00raw") == (0, b"")
    assert torchs.get("config") == b"\xff\x00raw"
    assert run(stage.server, "get", "--raw", "config") == (0, b"\xff\x00raw")
    torchs.set("epoch", "18")
    assert torchs.get("epoch") == b"18"
    assert run(stage.server, "get", "epoch") == (0, b"18\n")
    code, out = run(stage.server, "--json", "get", "epoch")
    assert (code, json.loads(out)) == (0, {"key": "epoch", "value": "18"})
    assert run(stage.server, "append", "epoch", "th") == (0, b"")
    assert torchs.get("epoch") == b"18th"
    assert run(stage.server, "add", "steps", "5") == (0, b"5\n")
    assert run(stage.server, "add", "steps", "-7") == (0, b"-2\n")
    assert torchs.add("steps", 3) == 1


def test_what_is_there_is_told_and_counted(stage):
    torchs = stage.client()
    torchs.multi_set(["a", "b", "prefix/c"], ["1", "2", "3"])
    assert torchs.num_keys() == 3
    assert run(stage.server, "list") == (0, b"a\nb\nprefix/c\n")
    assert run(stage.server, "list", "prefix/") == (0, b"prefix/c\n")
    assert run(stage.server, "count") == (0, b"3\n")
    assert run(stage.server, "check", "a", "b")[0] == 0
    code, out = run(stage.server, "--json", "check", "a", "zz")
    assert (code, json.loads(out)) == (ABSENT, {"present": ["a"], "absent": ["zz"]})
    assert run(stage.server, "delete", "a", "zz") == (0, b"1\n")
    assert torchs.check(["a"]) is False
    assert run(stage.server, "delete", "a")[0] == ABSENT
    assert run(stage.server, "get", "a")[0] == ABSENT
    assert run(stage.server, "--timeout", "1s", "wait", "b", "a")[0] == TIMED_OUT
    assert run(stage.server, "--timeout", "1s", "get", "--wait", "a")[0] == TIMED_OUT
    assert run(stage.server, "wait", "b") == (0, b"")
    assert run(stage.server, "ping")[0] == 0


def test_clear_deletes_the_keys_with_a_prefix_on_every_server(stage):
    torchs = stage.client()
    torchs.multi_set(["job/a", "job/b", "other"], ["1", "2", "3"])
    assert run(stage.server, "clear", "--prefix", "job/") == (0, b"2\n")
    assert (torchs.check(["job/a"]), torchs.check(["other"])) == (False, True)
    code, out = run(stage.server, "--json", "clear", "--prefix", "")
    assert (code, json.loads(out)) == (0, {"deleted": 1})
    assert torchs.num_keys() == 0


def test_compare_and_set_tells_what_is_held(stage):
    torchs = stage.client()
    assert run(stage.server, "cas", "k", "", "one")[0] == 0
    assert torchs.get("k") == b"one"
    code, out = run(stage.server, "cas", "k", "wrong", "two")
    assert (code, out) == (OTHER_HELD, b"one\n")
    assert run(stage.server, "cas", "k", "one", "two")[0] == 0
    assert torchs.get("k") == b"two"
    assert run(stage.server, "cas", "absent", "something", "two")[0] == ABSENT
    assert torchs.check(["absent"]) is False


@pytest.mark.parametrize("stage", WITH_QUEUES, indirect=True)
def test_queues(stage):
    torchs = stage.client()
    assert run(stage.server, "push", "q", "one") == (0, b"")
    assert torchs.queue_len("q") == 1
    torchs.queue_push("q", "two")
    assert torchs.queue_len("q") == 2
    assert run(stage.server, "len", "q") == (0, b"2\n")
    assert run(stage.server, "pop", "q") == (0, b"one\n")
    assert torchs.queue_pop("q") == b"two"
    assert run(stage.server, "pop", "q")[0] == ABSENT
    assert run(stage.server, "--timeout", "1s", "pop", "--wait", "q")[0] == TIMED_OUT


def test_barriers(stage):
    assert run(stage.server, "barrier", "solo", "1")[0] == 0
    assert run(stage.server, "--timeout", f"{ANSWERED}s", "barrier", "pair", "2")[0] == TIMED_OUT


def test_a_job_that_has_ended_is_unreachable():
    server = OurServer()
    server.kill()
    with socket.socket() as held:
        # So that nobody else listens there.
        held.bind((server.host, server.port))
        assert run(server, "--timeout", "300ms", "get", "k")[0] == UNREACHABLE
