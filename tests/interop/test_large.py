"""Large values, long names and many keys."""

import pytest
from clock import ms
from stage import on_both

MIB = 1 << 20
# Which of these it is depends on how far the client was when the server closed.
LOST = "Connection reset by peer|Broken pipe|got 0 bytes"


@on_both
def test_a_value_of_eight_mebibytes_comes_back_whole(stage):
    store = stage.client()
    value = bytes(range(256)) * (8 * MIB // 256)
    store.set("k", value)
    stage.note("whole", store.get("k") == value)
    stage.note("compare_set", store.compare_set("k", value, "small") == b"small")
    store.append("k", value[: 8 * MIB - 5])
    stage.note("appended", len(store.get("k")) == 8 * MIB)
    store.queue_push("q", value)
    stage.note("queued", store.queue_pop("q") == value)
    store.multi_set(["a", "b"], [value, "x"])
    stage.note("many", store.multi_get(["b", "a", "a"]) == [b"x", value, value])


@pytest.mark.parametrize("operation", ["set", "compare_set", "append", "multi_set", "queue_push"])
def test_a_value_one_byte_longer_is_refused_and_nothing_is_stored(ours, libuv, operation):
    value = "x" * (8 * MIB + 1)
    calls = {
        "set": lambda store: store.set("k", value),
        "compare_set": lambda store: store.compare_set("k", "", value),
        "append": lambda store: store.append("k", value),
        "multi_set": lambda store: store.multi_set(["other", "k"], ["1", value]),
        "queue_push": lambda store: store.queue_push("k", value),
    }
    for stage in (libuv, ours):
        store = stage.client()
        # Whether the call itself notices is up to the moment the connection ends.
        with pytest.raises(RuntimeError, match=LOST):
            calls[operation](store)
            store.num_keys()
            store.num_keys()
        other = stage.client()
        assert other.check(["k"]) is False
    # All or nothing, where torch's leaves the first pair.
    assert ours.client().num_keys() == 0


@on_both
def test_a_name_of_eight_kibibytes_works_and_a_longer_one_ends_the_connection(stage):
    store = stage.client()
    longest = "k" * (8192 - len("/"))
    stage.see(store.set, longest, "v")
    stage.see(store.get, longest)
    with pytest.raises(RuntimeError, match=LOST):
        store.set(longest + "k", "v")  # it may or may not notice
        store.num_keys()
        store.num_keys()
    stage.see(stage.client().num_keys)


@on_both
def test_ten_thousand_keys_in_one_request(stage):
    store = stage.client()
    keys = [f"key {number}" for number in range(10_000)]
    store.multi_set(keys, [str(number) for number in range(10_000)])
    stage.see(store.num_keys)
    stage.note("values", store.multi_get(keys) == [str(number).encode() for number in range(10_000)])
    stage.see(lambda: store.check(keys))
    stage.see(lambda: store.check([*keys, "one more"]))
    stage.see(lambda: len(store.list_keys()))
    stage.note("keys", sorted(store.list_keys()) == sorted(keys))
    # A wait for many that are there and one that is not.
    with pytest.raises(RuntimeError, match="wait timeout after 50ms") as error:
        store.wait([*keys, "one more"], ms(50))
    stage.note("message", str(error.value))


@on_both
def test_as_many_keys_as_one_request_may_have_and_one_more(stage):
    store = stage.client()
    stage.see(lambda: store.check(["k"] * 131_072))
    with pytest.raises(RuntimeError, match=LOST):
        store.check(["k"] * 131_073)
    stage.see(stage.client().num_keys)
