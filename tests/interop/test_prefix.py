"""Torch's PrefixStore on torch's own server and on ours."""

import torch.distributed as dist
from clock import ms
from harness import on_both_servers
from torch.distributed.elastic.utils.store import store_timeout


@on_both_servers
def test_a_prefix_store_does_every_operation_under_its_prefix(harness):
    plain = harness.client()
    store = dist.PrefixStore("pre", harness.client())
    harness.call(store.set, "k", "v")
    harness.call(store.get, "k")
    harness.call(plain.get, "pre/k")
    harness.call(store.add, "n", 5)
    harness.call(store.compare_set, "c", "", "x")
    harness.call(store.compare_set, "c", "y", "z")
    harness.call(store.append, "k", "w")
    harness.call(store.multi_set, ["a", "b"], ["1", "2"])
    harness.call(store.multi_get, ["b", "a"])
    harness.call(store.check, ["k", "n"])
    harness.call(store.check, ["pre/k"])
    harness.call(store.queue_push, "q", "item")
    harness.settle()
    harness.call(plain.queue_len, "pre/q")
    harness.call(store.queue_pop, "q")
    harness.call(store.queue_pop, "q", block=False)
    with store_timeout(store, 0.1):
        harness.call(store.queue_pop, "q")
    harness.call(store.delete_key, "k")
    harness.call(store.delete_key, "k")
    with store_timeout(store, 0.1):
        harness.call(store.get, "k")
    harness.call(store.wait, ["n", "k"], ms(50))
    plain.set("elsewhere", "1")
    plain.set("prefix-like", "1")
    harness.settle()
    harness.call(lambda: sorted(store.list_keys()))
    harness.call(store.num_keys)
    harness.call(store.has_extended_api)
    harness.record("timeout", store.timeout)


@on_both_servers
def test_prefixes_can_be_nested_and_clones_keep_them(harness):
    plain = harness.client()
    inner = dist.PrefixStore("in", plain)
    outer = dist.PrefixStore("out", inner)
    outer.set("k", "v")
    harness.call(plain.list_keys)
    harness.call(inner.list_keys)
    harness.call(outer.list_keys)
    harness.call(outer.clone().get, "k")
    harness.call(outer.underlying_store.get, "out/k")
    harness.call(dist.PrefixStore("", plain).list_keys)
    harness.call(dist.PrefixStore("in/out", plain).get, "k")
