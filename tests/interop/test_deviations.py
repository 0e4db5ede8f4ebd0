"""Deviations: cases in which our server differs from torch's on purpose.

`docs/compatibility.md` lists each deviation with its reason. Most tests also assert how torch's server behaves. If such an
assertion fails, torch has changed, and the deviation may no longer exist.
"""

import pytest
import raw
from clock import WAIT_TIMEOUT, ms, seconds
from servers import is_reached
from harness import Background, outcome

CONNECTION_LOST = "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes."


def test_a_failed_compare_set_wakes_no_waiter(libuv, ours):
    def get_during_failed_compare_set(harness, timeout):
        other = harness.client()
        store, wait_for_request = harness.watched_client()
        store.set_timeout(timeout)
        waiting = Background(store.get, "k")
        wait_for_request()
        assert other.compare_set("k", "expected", "desired") == b"expected"
        assert other.check(["k"]) is False
        return waiting.result()

    assert get_during_failed_compare_set(libuv, seconds(WAIT_TIMEOUT)) == b""
    assert "wait timeout after 1000ms, keys: /k" in get_during_failed_compare_set(ours, ms(1000))


def test_a_multi_get_returns_the_value_of_a_key_that_was_deleted_while_it_waited(libuv, ours):
    def get_deleted_key(harness):
        store, wait_for_request = harness.watched_client()
        waiting = Background(store.multi_get, ["k1", "k2"])
        wait_for_request()
        other = harness.client()
        other.set("k1", "first")
        other.delete_key("k1")
        other.set("k2", "second")
        return waiting.result()

    assert get_deleted_key(libuv) == [b"", b"second"]
    assert get_deleted_key(ours) == [b"first", b"second"]


def test_a_compare_set_that_creates_a_key_wakes_its_waiter(legacy, ours):
    def get_during_compare_set(harness, timeout):
        other = harness.client()
        store, wait_for_request = harness.watched_client()
        store.set_timeout(timeout)
        waiting = Background(store.get, "k")
        wait_for_request()
        assert other.compare_set("k", "", "made") == b"made"
        return waiting.result()

    assert "wait timeout" in get_during_compare_set(legacy, ms(1000))
    assert get_during_compare_set(ours, seconds(WAIT_TIMEOUT)) == b"made"


def test_a_multi_set_is_atomic(libuv, ours):
    def visibility_during_and_after(harness):
        frame = raw.request("multi_set", [("/a", "1"), ("/b", "2")])
        other = harness.client()
        with harness.raw() as slow:
            slow.send(frame[:-1])
            slow.settle()
            is_visible_early = other.check(["a"])
            slow.send(frame[-1:])
            slow.settle()
            return is_visible_early, other.multi_get(["a", "b"])

    assert visibility_during_and_after(libuv) == (True, [b"1", b"2"])
    assert visibility_during_and_after(ours) == (False, [b"1", b"2"])


def test_an_incomplete_multi_set_stores_nothing(libuv, ours):
    def num_keys_after_incomplete_frame(harness):
        frame = raw.request("multi_set", [("/a", "1"), ("/b", "2")])
        with harness.raw() as slow:
            slow.send(frame[:-1])
            slow.settle()
        harness.settle()
        return harness.client().num_keys()

    assert num_keys_after_incomplete_frame(libuv) == 1
    assert num_keys_after_incomplete_frame(ours) == 0


def test_two_pipelined_waits_each_get_a_reply(libuv, ours):
    def replies(harness):
        with harness.raw() as connection:
            connection.send_request("wait", ["/first"])
            connection.send_request("wait", ["/second"])
            connection.settle()
            other = harness.client()
            other.set("second", "2")
            other.set("first", "1")
            harness.settle()
            return connection.replies_before_ping()

    assert replies(libuv) == b"\x00"
    assert replies(ours) == b"\x00\x00"


def test_a_push_to_a_popped_queue_does_not_wake_a_wait_for_another_key(libuv, ours):
    def get_b_while_q_is_pushed(harness, timeout):
        other = harness.client()
        store, wait_for_request = harness.watched_client()
        # The test calls `wait` and then a non-blocking pop. A blocking `queue_pop` would send the same requests, but it keeps
        # the GIL while it waits.
        waiting = Background(store.wait, ["q"])
        wait_for_request()
        other.queue_push("q", "one")
        assert waiting.result() is None
        assert store.queue_pop("q", block=False) == b"one"
        wait_for_request.mark()
        store.set_timeout(timeout)
        waiting = Background(store.get, "B")
        wait_for_request()
        other.queue_push("q", "two")
        return waiting.result()

    assert get_b_while_q_is_pushed(libuv, seconds(WAIT_TIMEOUT)) == b""
    assert "wait timeout after 1000ms, keys: /B" in get_b_while_q_is_pushed(ours, ms(1000))


def test_a_barrier_arrival_that_timed_out_is_not_counted(libuv, ours):
    def retry_alone(harness, timeout):
        store = harness.client()
        assert "barrier timeout" in outcome(store.barrier, "bar", 2, ms(50))
        return outcome(store.barrier, "bar", 2, timeout)

    assert retry_alone(libuv, seconds(WAIT_TIMEOUT)) is None
    assert "barrier timeout after 50ms, key: bar" in retry_alone(ours, ms(50))


def test_a_barrier_does_not_count_clients_that_disconnected(libuv, ours):
    def barrier_after_a_disconnect(harness, timeout):
        with harness.raw() as dying:
            dying.send_request("barrier", "/bar", 2)
            dying.settle()
        harness.settle()
        return outcome(harness.client().barrier, "bar", 2, timeout)

    assert barrier_after_a_disconnect(libuv, seconds(WAIT_TIMEOUT)) is None
    assert "barrier timeout after 50ms, key: bar" in barrier_after_a_disconnect(ours, ms(50))


def test_a_barrier_can_be_reused(libuv, ours):
    def second_round(harness, timeout):
        first, second = harness.client(), harness.client()
        waiting = Background(first.barrier, "bar", 2)
        second.barrier("bar", 2)
        assert waiting.result() is None
        alone = outcome(first.barrier, "bar", 2, timeout)
        waiting = Background(first.barrier, "bar", 2, seconds(WAIT_TIMEOUT))
        both = (outcome(second.barrier, "bar", 2, seconds(WAIT_TIMEOUT)), waiting.result())
        return alone, both

    assert second_round(libuv, seconds(WAIT_TIMEOUT)) == (None, (None, None))
    alone, both = second_round(ours, ms(50))
    assert "barrier timeout" in alone
    assert both == (None, None)


def test_setting_a_key_with_the_name_of_a_barrier_does_not_open_the_barrier(libuv, ours):
    def barrier_while_its_name_is_set(harness, timeout):
        other = harness.client()
        store, wait_for_request = harness.watched_client()
        waiting = Background(store.barrier, "bar", 2, timeout)
        wait_for_request()
        other.set("bar", "open sesame")
        return waiting.result()

    assert barrier_while_its_name_is_set(libuv, seconds(WAIT_TIMEOUT)) is None
    assert "barrier timeout" in barrier_while_its_name_is_set(ours, ms(1000))


@pytest.mark.parametrize("size", [0, -1])
def test_a_barrier_of_fewer_than_one_client_is_refused(libuv, ours, size):
    assert outcome(libuv.client().barrier, "bar", size) is None
    assert CONNECTION_LOST in outcome(ours.client().barrier, "bar", size)
    assert ours.client().num_keys() == 0


def test_a_barrier_leaves_no_key(libuv, ours):
    def remaining_keys(harness):
        store = harness.client()
        store.barrier("bar", 1)
        return store.num_keys(), store.list_keys(), store.check(["bar"])

    assert remaining_keys(libuv) == (1, ["bar"], True)
    assert remaining_keys(ours) == (0, [], False)


@pytest.mark.parametrize("value, delta", [("9223372036854775807", 1), ("-9223372036854775808", -1), ("2", 2**63 - 1)])
def test_add_refuses_to_overflow(libuv, ours, value, delta):
    def add(harness):
        store, other = harness.client(), harness.client()
        store.set("n", value)
        return outcome(store.add, "n", delta), other.get("n")

    wrapped = (int(value) + delta + 2**63) % 2**64 - 2**63
    assert add(libuv) == (wrapped, str(wrapped).encode())
    failure, current = add(ours)
    assert CONNECTION_LOST in failure
    assert current == value.encode()


def test_append_refuses_to_exceed_the_value_limit(libuv, ours):
    def appended_mib(harness):
        store = harness.client()
        for _ in range(3):
            store.append("k", "x" * (4 << 20))
        outcome(store.num_keys)
        return len(harness.client().get("k")) >> 20

    assert appended_mib(libuv) == 12
    assert appended_mib(ours) == 8


def test_a_wrong_magic_number_closes_the_connection_immediately(libuv, ours):
    def is_closed(harness, within):
        with harness.raw(validate=False) as connection:
            connection.send(b"\x00\xde\xad\xbe\xef")
            connection.settle()
            connection.socket.settimeout(within)
            try:
                return connection.socket.recv(1) == b""
            except TimeoutError:
                return False

    assert is_closed(libuv, 0.2) is False
    assert is_closed(ours, WAIT_TIMEOUT) is True


def test_a_request_before_validate_is_not_executed(libuv, ours):
    def is_executed(harness):
        with harness.raw(validate=False) as connection:
            connection.send(raw.request("set", "/k", "v"))
            connection.settle()
            try:
                connection.send(raw.request("num_keys"))
                connection.receive(8)
            except OSError:
                pass
        return harness.client().check(["k"])

    assert is_executed(libuv) is True
    assert is_executed(ours) is False


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_validate_split_into_two_segments_is_accepted(libuv, ours, cut):
    def reply(harness):
        with harness.raw(validate=False) as connection:
            connection.send(raw.VALIDATE[:cut])
            connection.settle()
            try:
                connection.send(raw.VALIDATE[cut:] + raw.ping(9))
            except OSError:
                return b""
            return connection.receive(4)

    assert reply(libuv) == b""
    assert reply(ours) == raw.u32(9)


@pytest.mark.parametrize("hello", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_a_connection_with_another_protocol_is_closed_immediately(ours, hello):
    with ours.raw(validate=False) as connection:
        connection.send(hello)
        assert connection.is_closed()


def test_a_server_on_one_loopback_address_is_unreachable_at_another(libuv, ours):
    # 127.0.0.3 stands for any address of this machine other than the one that the server was given.
    assert is_reached("127.0.0.3", libuv.server.port) is True
    assert is_reached("127.0.0.3", ours.server.port) is False
    assert is_reached("127.0.0.1", ours.server.port) is True
