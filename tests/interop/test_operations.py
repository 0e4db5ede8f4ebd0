"""Every operation of torch's client, seen alike on torch's own server and on ours: one client, no waiting."""

import datetime

from clock import DEADLINE, ms, seconds
from stage import on_both

NUMBERS = [
    "12abc", " 7", "\t7", "\n7", "\v7", "\f7", "\r7", "  \t 7", "+5", "-3", " +7", "-0", "+0", "1.5", "0x10", "010",
    "00000000000000000000000000000012", "1e3", "1_000", "1,000", "7\0", "9223372036854775806",
    "-9223372036854775808",
]  # fmt: skip
NO_NUMBERS = [
    "", "abc", "+", "-", "+ 5", "--5", "+-7", "\0007", "\u00a07", "５", "9223372036854775808", "-9223372036854775809",
    "99999999999999999999999",
]  # fmt: skip


@on_both
def test_set_then_get_gives_the_value(stage):
    store = stage.client()
    stage.see(store.set, "k", "v")
    stage.see(store.get, "k")
    stage.see(store.set, "k", "other")
    stage.see(store.get, "k")
    stage.see(store.set, "k", "")
    stage.see(store.get, "k")


@on_both
def test_names_and_values_may_be_any_text_or_bytes(stage):
    store = stage.client()
    for key in ["", "/", "a/b", "ключ", "a\0b", "\n", "k" * 8191]:
        stage.see(store.set, key, f"value of {key[:5]}")
        stage.see(store.get, key)
        stage.see(store.check, [key])
    for value in [b"\xff\x00\xfe", bytes(range(256)), "значение", "x" * 70_000]:
        stage.see(store.set, "k", value)
        stage.see(store.get, "k")
    stage.see(store.num_keys)
    stage.see(lambda: sorted(store.list_keys()))


@on_both
def test_add_counts_from_nothing_and_keeps_decimal_text(stage):
    store = stage.client()
    for delta in [5, -7, 0, 2**40, -(2**63) + 10]:
        stage.see(store.add, "n", delta)
        stage.see(store.get, "n")
    stage.see(store.set, "n", "7")
    stage.see(store.add, "n", 1)
    stage.see(store.add, "zero", 0)
    stage.see(store.get, "zero")
    stage.see(store.add, "least", -(2**63))
    stage.see(store.add, "most", 2**63 - 1)


@on_both
def test_add_reads_as_much_of_a_number_as_there_is(stage):
    store = stage.client()
    for text in NUMBERS:
        stage.see(store.set, "n", text)
        stage.see(store.add, "n", 1)
        stage.see(store.get, "n")


@on_both
def test_add_to_what_is_no_number_ends_the_connection_and_changes_nothing(stage):
    other = stage.client()
    for text in NO_NUMBERS:
        store = stage.client()
        stage.see(store.set, "n", text)
        stage.see(store.add, "n", 1)
        stage.see(other.get, "n")


@on_both
def test_compare_set_in_every_case(stage):
    store = stage.client()
    for held in [None, "", "x", "y"]:
        for expected in ["", "x", "z"]:
            for desired in ["", "x", "new"]:
                store.delete_key("k")
                if held is not None:
                    store.set("k", held)
                stage.see(store.compare_set, "k", expected, desired)
                if stage.see(store.check, ["k"]):
                    stage.see(store.get, "k")


@on_both
def test_check_is_true_only_when_all_are_there(stage):
    store = stage.client()
    store.set("a", "1")
    store.set("b", "")
    for keys in [["a"], ["a", "b"], ["a", "zz"], ["zz", "a"], ["zz"], [], ["a"] * 100]:
        stage.see(store.check, keys)


@on_both
def test_delete_key_tells_whether_it_was_there_and_lowers_the_count(stage):
    store = stage.client()
    stage.see(store.delete_key, "k")
    store.set("k", "v")
    stage.see(store.num_keys)
    stage.see(store.delete_key, "k")
    stage.see(store.delete_key, "k")
    stage.see(store.num_keys)
    stage.see(store.check, ["k"])
    stage.see(store.wait, ["k"], ms(50))
    store.set("k", "again")
    stage.see(store.get, "k")


@on_both
def test_append_makes_and_lengthens(stage):
    store = stage.client()
    for piece in ["one", "", "two"]:
        stage.see(store.append, "k", piece)
        stage.see(store.get, "k")
    store.add("n", 1)
    store.append("n", "2")
    stage.see(store.add, "n", 1)
    stage.see(store.append, "made empty", "")
    stage.see(store.check, ["made empty"])
    stage.see(store.num_keys)


@on_both
def test_multi_set_and_multi_get_keep_the_order(stage):
    store = stage.client()
    stage.see(store.multi_set, ["a", "b", "c"], ["1", "", "three"])
    stage.see(store.multi_get, ["c", "b", "a", "c"])
    stage.see(store.multi_set, ["a", "a"], ["first", "last"])
    stage.see(store.get, "a")
    stage.see(store.multi_set, [], [])
    stage.see(store.multi_get, [])
    stage.see(store.multi_set, ["a", "b"], ["1"])
    stage.see(store.multi_get, ["a", "b"])
    stage.see(store.num_keys)


@on_both
def test_list_keys_gives_every_name_once(stage):
    store = stage.client()
    stage.see(store.list_keys)
    store.set("k", "v")
    store.add("n", 1)
    store.append("p", "x")
    store.compare_set("c", "", "y")
    store.multi_set(["m1", "m2"], ["1", "2"])
    store.set("k", "again")
    store.queue_push("q", "item")
    store.delete_key("p")
    stage.see(lambda: sorted(store.list_keys()))
    stage.see(store.num_keys)


@on_both
def test_a_name_that_is_not_text_breaks_list_keys_in_python_only(stage):
    store = stage.client()
    stage.see(store.set, b"\xff", "x")
    stage.see(store.list_keys)
    stage.see(store.get, b"\xff")
    stage.see(store.num_keys)


@on_both
def test_time_out_host_port_and_abilities_are_told(stage):
    store = stage.client(timeout=seconds(7))
    stage.note("timeout", store.timeout)
    stage.see(store.set_timeout, ms(1500))
    stage.note("timeout", store.timeout)
    stage.see(store.has_extended_api)
    stage.note("host", store.host)
    stage.note("port", store.port == stage.server.port)
    stage.note("libuv", store.libuvBackend)
    stage.note("default", stage.client(timeout=datetime.timedelta(seconds=300)).timeout)


@on_both
def test_a_clone_shares_the_store_but_not_the_connection(stage):
    store = stage.client(timeout=seconds(3))
    store.set("k", "v")
    clone = store.clone()
    stage.see(clone.get, "k")
    stage.note("timeout", clone.timeout)
    clone.set_timeout(ms(100))
    stage.note("timeout of the first", store.timeout)
    stage.see(clone.get, "missing")
    clone.set_timeout(seconds(DEADLINE))
    stage.see(store.set, "from the first", "1")
    stage.see(clone.get, "from the first")
    # One is closed by the server, the other stays.
    store.set("text", "abc")
    stage.see(store.add, "text", 1)
    stage.see(clone.get, "k")
    del store
    stage.see(clone.clone().get, "k")


@on_both
def test_a_client_that_was_made_for_the_older_server_works_too(stage):
    store = stage.client(use_libuv=False)
    stage.see(store.set, "k", "v")
    stage.see(store.get, "k")
    stage.see(store.append, "k", "w")
    stage.see(store.multi_get, ["k"])
    stage.see(store.queue_push, "q", "x")
    stage.see(store.list_keys)
