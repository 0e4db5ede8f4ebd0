"""Where we mean to differ from torch's servers: what theirs does, and what ours does, side by side.

Each is listed with its reason in `docs/compatibility.md`. The first half of each test shows that torch still behaves so;
if one day it does not, the deviation may go.
"""

import pytest
import raw
from clock import DEADLINE, ms, seconds
from servers import is_reached
from stage import Background, outcome

LOST = "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes."


def test_a_compare_set_that_fails_wakes_nobody(libuv, ours):
    def get_while_another_fails_to_set(stage, timeout):
        other = stage.client()
        store, has_asked = stage.watched_client()
        store.set_timeout(timeout)
        waiting = Background(store.get, "k")
        has_asked()
        assert other.compare_set("k", "expected", "desired") == b"expected"
        assert other.check(["k"]) is False
        return waiting.result()

    assert get_while_another_fails_to_set(libuv, seconds(DEADLINE)) == b""
    assert "wait timeout after 1000ms, keys: /k" in get_while_another_fails_to_set(ours, ms(1000))


def test_a_wait_keeps_what_it_saw_of_a_key_that_is_deleted_meanwhile(libuv, ours):
    def get_what_was_deleted(stage):
        store, has_asked = stage.watched_client()
        waiting = Background(store.multi_get, ["k1", "k2"])
        has_asked()
        other = stage.client()
        other.set("k1", "first")
        other.delete_key("k1")
        other.set("k2", "second")
        return waiting.result()

    assert get_what_was_deleted(libuv) == [b"", b"second"]
    assert get_what_was_deleted(ours) == [b"first", b"second"]


def test_a_compare_set_that_creates_the_key_wakes_who_waits_for_it(legacy, ours):
    def get_while_another_sets(stage, timeout):
        other = stage.client()
        store, has_asked = stage.watched_client()
        store.set_timeout(timeout)
        waiting = Background(store.get, "k")
        has_asked()
        assert other.compare_set("k", "", "made") == b"made"
        return waiting.result()

    assert "wait timeout" in get_while_another_sets(legacy, ms(1000))
    assert get_while_another_sets(ours, seconds(DEADLINE)) == b"made"


def test_a_multi_set_is_visible_all_at_once_and_not_piece_by_piece(libuv, ours):
    def while_and_after(stage):
        frame = raw.request("multi_set", [("/a", "1"), ("/b", "2")])
        other = stage.client()
        with stage.raw() as slow:
            slow.send(frame[:-1])
            slow.settle()
            early = other.check(["a"])
            slow.send(frame[-1:])
            slow.settle()
            return early, other.multi_get(["a", "b"])

    assert while_and_after(libuv) == (True, [b"1", b"2"])
    assert while_and_after(ours) == (False, [b"1", b"2"])


def test_half_a_multi_set_that_never_ends_leaves_nothing(libuv, ours):
    def after_half(stage):
        frame = raw.request("multi_set", [("/a", "1"), ("/b", "2")])
        with stage.raw() as slow:
            slow.send(frame[:-1])
            slow.settle()
        stage.settle()
        return stage.client().num_keys()

    assert after_half(libuv) == 1
    assert after_half(ours) == 0


def test_each_of_two_waits_in_a_row_gets_its_answer(libuv, ours):
    def answers(stage):
        with stage.raw() as connection:
            connection.ask("wait", ["/first"])
            connection.ask("wait", ["/second"])
            connection.settle()
            other = stage.client()
            other.set("second", "2")
            other.set("first", "1")
            stage.settle()
            return connection.answers_before_a_ping()

    assert answers(libuv) == b"\x00"
    assert answers(ours) == b"\x00\x00"


def test_a_queue_popped_once_does_not_end_a_later_wait_for_something_else(libuv, ours):
    def get_b_while_q_is_pushed(stage, timeout):
        other = stage.client()
        store, has_asked = stage.watched_client()
        # `wait` and a pop that doesn't block are what `queue_pop` does, without keeping the interpreter's lock.
        waiting = Background(store.wait, ["q"])
        has_asked()
        other.queue_push("q", "one")
        assert waiting.result() is None
        assert store.queue_pop("q", block=False) == b"one"
        has_asked.mark()
        store.set_timeout(timeout)
        waiting = Background(store.get, "B")
        has_asked()
        other.queue_push("q", "two")
        return waiting.result()

    assert get_b_while_q_is_pushed(libuv, seconds(DEADLINE)) == b""
    assert "wait timeout after 1000ms, keys: /B" in get_b_while_q_is_pushed(ours, ms(1000))


def test_a_barrier_that_timed_out_does_not_count_when_tried_again(libuv, ours):
    def second_try_alone(stage, timeout):
        store = stage.client()
        assert "barrier timeout" in outcome(store.barrier, "bar", 2, ms(50))
        return outcome(store.barrier, "bar", 2, timeout)

    assert second_try_alone(libuv, seconds(DEADLINE)) is None
    assert "barrier timeout after 50ms, key: bar" in second_try_alone(ours, ms(50))


def test_the_dead_do_not_count_at_a_barrier(libuv, ours):
    def alone_after_a_death(stage, timeout):
        with stage.raw() as dying:
            dying.ask("barrier", "/bar", 2)
            dying.settle()
        stage.settle()
        return outcome(stage.client().barrier, "bar", 2, timeout)

    assert alone_after_a_death(libuv, seconds(DEADLINE)) is None
    assert "barrier timeout after 50ms, key: bar" in alone_after_a_death(ours, ms(50))


def test_a_barrier_can_be_used_again(libuv, ours):
    def second_round(stage, timeout):
        first, second = stage.client(), stage.client()
        waiting = Background(first.barrier, "bar", 2)
        second.barrier("bar", 2)
        assert waiting.result() is None
        alone = outcome(first.barrier, "bar", 2, timeout)
        waiting = Background(first.barrier, "bar", 2, seconds(DEADLINE))
        both = (outcome(second.barrier, "bar", 2, seconds(DEADLINE)), waiting.result())
        return alone, both

    assert second_round(libuv, seconds(DEADLINE)) == (None, (None, None))
    alone, both = second_round(ours, ms(50))
    assert "barrier timeout" in alone
    assert both == (None, None)


def test_only_arrivals_open_a_barrier(libuv, ours):
    def while_somebody_sets_its_name(stage, timeout):
        other = stage.client()
        store, has_asked = stage.watched_client()
        waiting = Background(store.barrier, "bar", 2, timeout)
        has_asked()
        other.set("bar", "open sesame")
        return waiting.result()

    assert while_somebody_sets_its_name(libuv, seconds(DEADLINE)) is None
    assert "barrier timeout" in while_somebody_sets_its_name(ours, ms(1000))


@pytest.mark.parametrize("size", [0, -1])
def test_a_barrier_for_nobody_is_refused(libuv, ours, size):
    assert outcome(libuv.client().barrier, "bar", size) is None
    assert LOST in outcome(ours.client().barrier, "bar", size)
    assert ours.client().num_keys() == 0


def test_a_barrier_leaves_nothing_behind(libuv, ours):
    def traces(stage):
        store = stage.client()
        store.barrier("bar", 1)
        return store.num_keys(), store.list_keys(), store.check(["bar"])

    assert traces(libuv) == (1, ["bar"], True)
    assert traces(ours) == (0, [], False)


@pytest.mark.parametrize("held, delta", [("9223372036854775807", 1), ("-9223372036854775808", -1), ("2", 2**63 - 1)])
def test_add_does_not_wrap_round(libuv, ours, held, delta):
    def add(stage):
        store, other = stage.client(), stage.client()
        store.set("n", held)
        return outcome(store.add, "n", delta), other.get("n")

    wrapped = (int(held) + delta + 2**63) % 2**64 - 2**63
    assert add(libuv) == (wrapped, str(wrapped).encode())
    lost, kept = add(ours)
    assert LOST in lost
    assert kept == held.encode()


def test_append_does_not_grow_a_value_past_the_limit(libuv, ours):
    def grown(stage):
        store = stage.client()
        for _ in range(3):
            store.append("k", "x" * (4 << 20))
        outcome(store.num_keys)
        return len(stage.client().get("k")) >> 20

    assert grown(libuv) == 12
    assert grown(ours) == 8


def test_a_wrong_magic_number_ends_the_connection_at_once(libuv, ours):
    def is_closed(stage, within):
        with stage.raw(validate=False) as connection:
            connection.send(b"\x00\xde\xad\xbe\xef")
            connection.settle()
            connection.socket.settimeout(within)
            try:
                return connection.socket.recv(1) == b""
            except TimeoutError:
                return False

    assert is_closed(libuv, 0.2) is False
    assert is_closed(ours, DEADLINE) is True


def test_a_request_before_validate_is_not_executed(libuv, ours):
    def executed(stage):
        with stage.raw(validate=False) as connection:
            connection.send(raw.request("set", "/k", "v"))
            connection.settle()
            try:
                connection.send(raw.request("num_keys"))
                connection.receive(8)
            except OSError:
                pass
        return stage.client().check(["k"])

    assert executed(libuv) is True
    assert executed(ours) is False


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_validate_in_two_segments_is_a_validate(libuv, ours, cut):
    def answer(stage):
        with stage.raw(validate=False) as connection:
            connection.send(raw.VALIDATE[:cut])
            connection.settle()
            try:
                connection.send(raw.VALIDATE[cut:] + raw.ping(9))
            except OSError:
                return b""
            return connection.receive(4)

    assert answer(libuv) == b""
    assert answer(ours) == raw.u32(9)


@pytest.mark.parametrize("hello", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_other_protocols_are_closed_at_once(ours, hello):
    with ours.raw(validate=False) as connection:
        connection.send(hello)
        assert connection.is_closed()


def test_a_server_on_loopback_is_not_reached_from_elsewhere(libuv, ours):
    # Another loopback address stands for every other address of this machine.
    assert is_reached("127.0.0.3", libuv.server.port) is True
    assert is_reached("127.0.0.3", ours.server.port) is False
    assert is_reached("127.0.0.1", ours.server.port) is True
