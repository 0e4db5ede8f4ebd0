"""Frames that torch's client sends rarely or never, answered with torch's bytes."""

import raw
from stage import on_both


def answer(stage, *requests):
    """What the server says to these requests in a row, and no more."""
    with stage.raw() as connection:
        connection.send(b"".join(requests))
        return connection.answers_before_a_ping()


@on_both
def test_lists_of_nothing_empty_names_and_odd_bytes(stage):
    request = raw.request
    for name, frames in {
        "wait for nothing": [request("wait", [])],
        "check of nothing": [request("check", [])],
        "multi_get of nothing": [request("multi_get", [])],
        "multi_set of nothing": [request("multi_set", [])],
        "cancel without a wait": [request("cancel_wait")],
        "empty name": [request("set", "", "v"), request("get", "")],
        "odd bytes": [request("set", b"\x00\xff\n", b"\xff\x00"), request("get", b"\x00\xff\n")],
        "empty value": [request("set", "k", ""), request("get", "k"), request("check", ["k"])],
        "get of what is absent": [request("get", "absent")],
        "multi_get of what is absent": [
            request("set", "a", "A"),
            request("multi_get", ["a", "absent", "a"]),
        ],
        "pop of what is absent": [request("queue_pop", "absent")],
        "delete of what is absent": [request("delete_key", "absent")],
        "the same key twice": [request("multi_set", [("t", "1"), ("t", "2")]), request("multi_get", ["t", "t"])],
        "a barrier for one": [request("barrier", "solo", 1)],
        "a wait for what is there": [request("set", "w", "1"), request("wait", ["w", "w"])],
    }.items():
        stage.note(name, answer(stage, *frames))


@on_both
def test_a_hundred_requests_in_one_segment_are_answered_in_order(stage):
    frames = [raw.request("add", "n", number) for number in range(100)]
    stage.note("sums", answer(stage, *frames))
    frames = [raw.request("set", f"k{number}", str(number)) + raw.request("get", f"k{number}") for number in range(100)]
    stage.note("values", answer(stage, *frames))


@on_both
def test_one_request_in_many_segments_is_one_request(stage):
    for frame in [
        raw.request("set", "key", "value"),
        raw.request("add", "n", 5),
        raw.request("compare_set", "cas", "", "new"),
        raw.request("check", ["key", "n"]),
        raw.request("multi_get", ["key", "n"]),
        raw.request("queue_push", "q", "item"),
        raw.request("queue_pop", "q"),
    ]:
        with stage.raw() as connection:
            for byte in frame:
                connection.send(bytes([byte]))
            stage.note(frame, connection.answers_before_a_ping())


@on_both
def test_codes_nobody_has_end_the_connection(stage):
    for code in [0x13, 0x14, 0x7F, 0xFF]:
        with stage.raw() as connection:
            connection.send(bytes([code]))
            stage.note(code, connection.is_closed())
    with stage.raw() as connection:
        connection.send(raw.VALIDATE)
        stage.note("a second VALIDATE", connection.is_closed())


@on_both
def test_lengths_beyond_the_limits_end_the_connection_before_their_bytes_come(stage):
    store = stage.client()
    for count in [8193, 2**31, 2**62, 2**64 - 1]:
        with stage.raw() as connection:
            connection.send(bytes([raw.OPS.index("get")]) + raw.u64(count))
            stage.note(f"a name of {count}", connection.is_closed())
    for count in [8 * 2**20 + 1, 2**31, 2**62, 2**64 - 1]:
        with stage.raw() as connection:
            connection.send(bytes([raw.OPS.index("set")]) + raw.text("k") + raw.u64(count))
            stage.note(f"a value of {count}", connection.is_closed())
    for op in ["check", "wait", "multi_get", "multi_set"]:
        for count in [131_073, 2**25, 2**63, 2**64 - 1]:
            with stage.raw() as connection:
                connection.send(bytes([raw.OPS.index(op)]) + raw.u64(count))
                stage.note(f"{op} of {count}", connection.is_closed())
    stage.see(store.num_keys)


@on_both
def test_half_a_request_and_then_the_end_changes_nothing(stage):
    frame = raw.request("set", "/k", "value")
    for cut in range(1, len(frame)):
        with stage.raw() as connection:
            connection.send(frame[:cut])
    stage.settle()
    stage.see(stage.client().num_keys)


@on_both
def test_requests_before_a_half_close_are_answered(stage):
    import socket

    with stage.raw() as connection:
        connection.send(raw.request("set", "k", "v") + raw.request("get", "k"))
        connection.socket.shutdown(socket.SHUT_WR)
        stage.note("answer", connection.receive_text())
        stage.note("then", connection.is_closed())
    with stage.raw() as connection:
        connection.ask("wait", ["absent"])
        connection.socket.shutdown(socket.SHUT_WR)
        stage.note("a waiter", connection.is_closed())
