"""Every operation of torch's client has the same result on torch's own server and on ours.

`test_waiting.py` tests the operations that wait.
"""

import datetime

from clock import WAIT_TIMEOUT, ms, seconds
from harness import on_both_servers

INTEGERS = [
    "12abc", " 7", "\t7", "\n7", "\v7", "\f7", "\r7", "  \t 7", "+5", "-3", " +7", "-0", "+0", "1.5", "0x10", "010",
    "00000000000000000000000000000012", "1e3", "1_000", "1,000", "7\0", "9223372036854775806",
    "-9223372036854775808",
]  # fmt: skip
NOT_INTEGERS = [
    "", "abc", "+", "-", "+ 5", "--5", "+-7", "\0007", "\u00a07", "５", "9223372036854775808", "-9223372036854775809",
    "99999999999999999999999",
]  # fmt: skip


@on_both_servers
def test_get_returns_the_value_that_was_set(harness):
    store = harness.client()
    harness.call(store.set, "k", "v")
    harness.call(store.get, "k")
    harness.call(store.set, "k", "other")
    harness.call(store.get, "k")
    harness.call(store.set, "k", "")
    harness.call(store.get, "k")


@on_both_servers
def test_keys_may_be_any_text_and_values_any_bytes(harness):
    store = harness.client()
    for key in ["", "/", "a/b", "ключ", "a\0b", "\n", "k" * 8191]:
        harness.call(store.set, key, f"value of {key[:5]}")
        harness.call(store.get, key)
        harness.call(store.check, [key])
    for value in [b"\xff\x00\xfe", bytes(range(256)), "значение", "x" * 70_000]:
        harness.call(store.set, "k", value)
        harness.call(store.get, "k")
    harness.call(store.num_keys)
    harness.call(lambda: sorted(store.list_keys()))


@on_both_servers
def test_add_counts_from_zero_and_stores_decimal_text(harness):
    store = harness.client()
    for delta in [5, -7, 0, 2**40, -(2**63) + 10]:
        harness.call(store.add, "n", delta)
        harness.call(store.get, "n")
    harness.call(store.set, "n", "7")
    harness.call(store.add, "n", 1)
    harness.call(store.add, "zero", 0)
    harness.call(store.get, "zero")
    harness.call(store.add, "least", -(2**63))
    harness.call(store.add, "most", 2**63 - 1)


@on_both_servers
def test_add_parses_the_leading_integer_of_a_value(harness):
    store = harness.client()
    for text in INTEGERS:
        harness.call(store.set, "n", text)
        harness.call(store.add, "n", 1)
        harness.call(store.get, "n")


@on_both_servers
def test_add_to_a_value_that_is_not_an_integer_closes_the_connection_and_changes_nothing(harness):
    other = harness.client()
    for text in NOT_INTEGERS:
        store = harness.client()
        harness.call(store.set, "n", text)
        harness.call(store.add, "n", 1)
        harness.call(other.get, "n")


@on_both_servers
def test_compare_set_has_the_same_result_in_every_case(harness):
    store = harness.client()
    for value in [None, "", "x", "y"]:
        for expected in ["", "x", "z"]:
            for desired in ["", "x", "new"]:
                store.delete_key("k")
                if value is not None:
                    store.set("k", value)
                harness.call(store.compare_set, "k", expected, desired)
                if harness.call(store.check, ["k"]):
                    harness.call(store.get, "k")


@on_both_servers
def test_check_is_true_only_if_all_keys_exist(harness):
    store = harness.client()
    store.set("a", "1")
    store.set("b", "")
    for keys in [["a"], ["a", "b"], ["a", "zz"], ["zz", "a"], ["zz"], [], ["a"] * 100]:
        harness.call(store.check, keys)


@on_both_servers
def test_delete_key_returns_whether_the_key_existed_and_lowers_the_count(harness):
    store = harness.client()
    harness.call(store.delete_key, "k")
    store.set("k", "v")
    harness.call(store.num_keys)
    harness.call(store.delete_key, "k")
    harness.call(store.delete_key, "k")
    harness.call(store.num_keys)
    harness.call(store.check, ["k"])
    harness.call(store.wait, ["k"], ms(50))
    store.set("k", "again")
    harness.call(store.get, "k")


@on_both_servers
def test_append_creates_and_extends_a_value(harness):
    store = harness.client()
    for piece in ["one", "", "two"]:
        harness.call(store.append, "k", piece)
        harness.call(store.get, "k")
    store.add("n", 1)
    store.append("n", "2")
    harness.call(store.add, "n", 1)
    harness.call(store.append, "made empty", "")
    harness.call(store.check, ["made empty"])
    harness.call(store.num_keys)


@on_both_servers
def test_multi_set_and_multi_get_keep_the_order(harness):
    store = harness.client()
    harness.call(store.multi_set, ["a", "b", "c"], ["1", "", "three"])
    harness.call(store.multi_get, ["c", "b", "a", "c"])
    harness.call(store.multi_set, ["a", "a"], ["first", "last"])
    harness.call(store.get, "a")
    harness.call(store.multi_set, [], [])
    harness.call(store.multi_get, [])
    harness.call(store.multi_set, ["a", "b"], ["1"])
    harness.call(store.multi_get, ["a", "b"])
    harness.call(store.num_keys)


@on_both_servers
def test_list_keys_returns_every_key_once(harness):
    store = harness.client()
    harness.call(store.list_keys)
    store.set("k", "v")
    store.add("n", 1)
    store.append("p", "x")
    store.compare_set("c", "", "y")
    store.multi_set(["m1", "m2"], ["1", "2"])
    store.set("k", "again")
    store.queue_push("q", "item")
    store.delete_key("p")
    harness.call(lambda: sorted(store.list_keys()))
    harness.call(store.num_keys)


@on_both_servers
def test_a_key_that_is_not_utf8_breaks_only_list_keys_in_python(harness):
    store = harness.client()
    harness.call(store.set, b"\xff", "x")
    harness.call(store.list_keys)
    harness.call(store.get, b"\xff")
    harness.call(store.num_keys)


@on_both_servers
def test_a_client_reports_timeout_host_port_and_extended_api(harness):
    store = harness.client(timeout=seconds(7))
    harness.record("timeout", store.timeout)
    harness.call(store.set_timeout, ms(1500))
    harness.record("timeout", store.timeout)
    harness.call(store.has_extended_api)
    harness.record("host", store.host)
    harness.record("port", store.port == harness.server.port)
    harness.record("libuv", store.libuvBackend)
    harness.record("timeout of 300 s", harness.client(timeout=datetime.timedelta(seconds=300)).timeout)


@on_both_servers
def test_a_clone_shares_the_store_but_not_the_connection(harness):
    store = harness.client(timeout=seconds(3))
    store.set("k", "v")
    clone = store.clone()
    harness.call(clone.get, "k")
    harness.record("timeout", clone.timeout)
    clone.set_timeout(ms(100))
    harness.record("timeout of the original", store.timeout)
    harness.call(clone.get, "missing")
    clone.set_timeout(seconds(WAIT_TIMEOUT))
    harness.call(store.set, "from the original", "1")
    harness.call(clone.get, "from the original")
    # An ADD on text makes the server close the original's connection. The clone's connection stays open.
    store.set("text", "abc")
    harness.call(store.add, "text", 1)
    harness.call(clone.get, "k")
    del store
    harness.call(clone.clone().get, "k")


@on_both_servers
def test_a_client_created_with_use_libuv_false_works(harness):
    store = harness.client(use_libuv=False)
    harness.call(store.set, "k", "v")
    harness.call(store.get, "k")
    harness.call(store.append, "k", "w")
    harness.call(store.multi_get, ["k"])
    harness.call(store.queue_push, "q", "x")
    harness.call(store.list_keys)
