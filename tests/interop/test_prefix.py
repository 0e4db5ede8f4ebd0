"""PrefixStore of torch over a client on our server."""

import torch.distributed as dist
from clock import ms
from stage import on_both
from torch.distributed.elastic.utils.store import store_timeout


@on_both
def test_a_prefix_store_does_every_operation_under_its_prefix(stage):
    plain = stage.client()
    store = dist.PrefixStore("pre", stage.client())
    stage.see(store.set, "k", "v")
    stage.see(store.get, "k")
    stage.see(plain.get, "pre/k")
    stage.see(store.add, "n", 5)
    stage.see(store.compare_set, "c", "", "x")
    stage.see(store.compare_set, "c", "y", "z")
    stage.see(store.append, "k", "w")
    stage.see(store.multi_set, ["a", "b"], ["1", "2"])
    stage.see(store.multi_get, ["b", "a"])
    stage.see(store.check, ["k", "n"])
    stage.see(store.check, ["pre/k"])
    stage.see(store.queue_push, "q", "item")
    stage.settle()
    stage.see(plain.queue_len, "pre/q")
    stage.see(store.queue_pop, "q")
    stage.see(store.queue_pop, "q", block=False)
    with store_timeout(store, 0.1):
        stage.see(store.queue_pop, "q")
    stage.see(store.delete_key, "k")
    stage.see(store.delete_key, "k")
    with store_timeout(store, 0.1):
        stage.see(store.get, "k")
    stage.see(store.wait, ["n", "k"], ms(50))
    plain.set("elsewhere", "1")
    plain.set("prefix-like", "1")
    stage.settle()
    stage.see(lambda: sorted(store.list_keys()))
    stage.see(store.num_keys)
    stage.see(store.has_extended_api)
    stage.note("timeout", store.timeout)


@on_both
def test_nested_prefixes_nest_and_clones_keep_them(stage):
    plain = stage.client()
    inner = dist.PrefixStore("in", plain)
    outer = dist.PrefixStore("out", inner)
    outer.set("k", "v")
    stage.see(plain.list_keys)
    stage.see(inner.list_keys)
    stage.see(outer.list_keys)
    stage.see(outer.clone().get, "k")
    stage.see(outer.underlying_store.get, "out/k")
    stage.see(dist.PrefixStore("", plain).list_keys)
    stage.see(dist.PrefixStore("in/out", plain).get, "k")
