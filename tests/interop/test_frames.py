"""Our server replies like torch's server to frames that torch's client sends rarely or never."""

import raw
from harness import on_both_servers


def replies(harness, *requests):
    """Sends the requests with one call of `send`, and returns the bytes of all replies."""
    with harness.raw() as connection:
        connection.send(b"".join(requests))
        return connection.replies_before_ping()


@on_both_servers
def test_empty_lists_empty_keys_and_arbitrary_bytes_get_torchs_replies(harness):
    request = raw.request
    for name, frames in {
        "wait for no keys": [request("wait", [])],
        "check of no keys": [request("check", [])],
        "multi_get of no keys": [request("multi_get", [])],
        "multi_set of no keys": [request("multi_set", [])],
        "cancel without a wait": [request("cancel_wait")],
        "empty key": [request("set", "", "v"), request("get", "")],
        "bytes that are not UTF-8": [request("set", b"\x00\xff\n", b"\xff\x00"), request("get", b"\x00\xff\n")],
        "empty value": [request("set", "k", ""), request("get", "k"), request("check", ["k"])],
        "get of an absent key": [request("get", "absent")],
        "multi_get with an absent key": [
            request("set", "a", "A"),
            request("multi_get", ["a", "absent", "a"]),
        ],
        "pop of an absent queue": [request("queue_pop", "absent")],
        "delete of an absent key": [request("delete_key", "absent")],
        "the same key twice": [request("multi_set", [("t", "1"), ("t", "2")]), request("multi_get", ["t", "t"])],
        "barrier of one client": [request("barrier", "solo", 1)],
        "wait for a present key": [request("set", "w", "1"), request("wait", ["w", "w"])],
    }.items():
        harness.record(name, replies(harness, *frames))


@on_both_servers
def test_a_hundred_requests_in_one_segment_are_answered_in_order(harness):
    frames = [raw.request("add", "n", number) for number in range(100)]
    harness.record("sums", replies(harness, *frames))
    frames = [raw.request("set", f"k{number}", str(number)) + raw.request("get", f"k{number}") for number in range(100)]
    harness.record("values", replies(harness, *frames))


@on_both_servers
def test_a_request_that_arrives_byte_by_byte_gets_one_reply(harness):
    for frame in [
        raw.request("set", "key", "value"),
        raw.request("add", "n", 5),
        raw.request("compare_set", "cas", "", "new"),
        raw.request("check", ["key", "n"]),
        raw.request("multi_get", ["key", "n"]),
        raw.request("queue_push", "q", "item"),
        raw.request("queue_pop", "q"),
    ]:
        with harness.raw() as connection:
            for byte in frame:
                connection.send(bytes([byte]))
            harness.record(frame, connection.replies_before_ping())


@on_both_servers
def test_unknown_operation_codes_close_the_connection(harness):
    for code in [0x13, 0x14, 0x7F, 0xFF]:
        with harness.raw() as connection:
            connection.send(bytes([code]))
            harness.record(code, connection.is_closed())
    with harness.raw() as connection:
        connection.send(raw.VALIDATE)
        harness.record("a second VALIDATE", connection.is_closed())


@on_both_servers
def test_lengths_beyond_the_limits_close_the_connection_before_their_bytes_arrive(harness):
    store = harness.client()
    for count in [8193, 2**31, 2**62, 2**64 - 1]:
        with harness.raw() as connection:
            connection.send(bytes([raw.OPS.index("get")]) + raw.u64(count))
            harness.record(f"a key of {count} bytes", connection.is_closed())
    for count in [8 * 2**20 + 1, 2**31, 2**62, 2**64 - 1]:
        with harness.raw() as connection:
            connection.send(bytes([raw.OPS.index("set")]) + raw.text("k") + raw.u64(count))
            harness.record(f"a value of {count} bytes", connection.is_closed())
    for op in ["check", "wait", "multi_get", "multi_set"]:
        for count in [131_073, 2**25, 2**63, 2**64 - 1]:
            with harness.raw() as connection:
                connection.send(bytes([raw.OPS.index(op)]) + raw.u64(count))
                harness.record(f"{op} of {count} keys", connection.is_closed())
    harness.call(store.num_keys)


@on_both_servers
def test_a_request_cut_off_by_the_end_of_the_connection_changes_nothing(harness):
    frame = raw.request("set", "/k", "value")
    for cut in range(1, len(frame)):
        with harness.raw() as connection:
            connection.send(frame[:cut])
    harness.settle()
    harness.call(harness.client().num_keys)


@on_both_servers
def test_requests_before_a_half_close_are_answered(harness):
    import socket

    with harness.raw() as connection:
        connection.send(raw.request("set", "k", "v") + raw.request("get", "k"))
        connection.socket.shutdown(socket.SHUT_WR)
        harness.record("reply", connection.receive_text())
        harness.record("closed after the reply", connection.is_closed())
    with harness.raw() as connection:
        connection.send_request("wait", ["absent"])
        connection.socket.shutdown(socket.SHUT_WR)
        harness.record("closed while waiting", connection.is_closed())
