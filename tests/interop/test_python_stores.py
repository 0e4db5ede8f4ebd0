"""The Python stores. Each test runs with torch's class and with ours, which must behave the same. Comments explain where the two differ."""

import threading

import pytest
from clock import REPLY_TIMEOUT, WAIT_TIMEOUT, ms, seconds
from families import FAMILIES, KINDS, Stores, raises

FAMILY_AND_KIND = [(family, kind) for family in FAMILIES for kind in KINDS]
QUEUES = [(family, kind) for family, kind in FAMILY_AND_KIND if "file" not in kind]


@pytest.fixture(params=FAMILIES)
def family(request, tmp_path):
    return Stores(request.param, tmp_path)


def for_each(pairs):
    return pytest.mark.parametrize("family_and_kind", pairs, ids=lambda pair: "-".join(pair))


@pytest.fixture
def stores(family_and_kind, tmp_path):
    family, kind = family_and_kind
    stores = Stores(family, tmp_path)
    stores.kind = kind
    stores.make_store = lambda **options: stores.make(kind, **options)
    return stores


# ---- values ----


@for_each(FAMILY_AND_KIND)
def test_a_value_is_returned_as_bytes(stores):
    store, other = stores.make_store(), stores.make_store()
    for value, expected in [("text", b"text"), (b"\x00\xff", b"\x00\xff"), ("", b""), ("ünï", "ünï".encode()), (bytearray(b"x"), b"x")]:
        assert store.set("k", value) is None
        found = other.get("k")
        assert found == expected and type(found) is bytes
    store.set(b"as bytes", "v")
    assert other.get("as bytes") == b"v"
    # Torch's `set` takes no keyword arguments.
    store.set(key="named", value="v") if stores.name == "ours" else store.set("named", "v")
    assert other.get("named") == b"v"


@for_each(FAMILY_AND_KIND)
def test_unusual_keys_are_accepted(stores):
    store = stores.make_store()
    for key in ["", "/", "a/b/c", " ", "-k", "k" * 4000, "ключ", "\x00in", "new\nline"]:
        store.set(key, key)
        assert store.get(key) == key.encode()
        assert store.check([key])


@for_each(FAMILY_AND_KIND)
def test_add_stores_decimal_text(stores):
    store, other = stores.make_store(), stores.make_store()
    assert store.add("n", 1) == 1
    assert other.add("n", 41) == 42
    assert store.add("n", -50) == -8
    assert store.get("n") == b"-8"
    store.set("n", "7")
    assert store.add("n", True) == 8
    assert store.add("n", 0) == 8
    assert store.add("big", 2**63 - 1) == 2**63 - 1
    assert store.add("small", -(2**63)) == -(2**63)


@for_each(FAMILY_AND_KIND)
def test_check_requires_all_keys_and_an_empty_list_is_true(stores):
    store = stores.make_store()
    store.set("a", "1")
    assert store.check(["a"]) is True
    assert store.check(["b"]) is False
    assert store.check(["a", "b"]) is False
    store.set("b", "")
    assert store.check(["a", "b", "a"]) is True
    assert store.check(("a", "b")) is True
    assert store.check([]) is True


@for_each(FAMILY_AND_KIND)
def test_compare_set_returns_the_current_value(stores):
    store = stores.make_store()
    assert store.compare_set("k", "expected", "new") == b"expected"
    assert not store.check(["k"])
    assert store.compare_set("k", "", "first") == b"first"
    assert store.compare_set("k", "other", "second") == b"first"
    assert store.get("k") == b"first"
    assert store.compare_set("k", b"first", b"second") == b"second"
    assert store.get("k") == b"second"
    assert type(store.compare_set("k", "", "third")) is bytes
    assert store.get("k") == b"second"


@for_each(FAMILY_AND_KIND)
def test_a_deleted_key_does_not_exist(stores):
    store, other = stores.make_store(), stores.make_store()
    store.set("k", "v")
    before = store.num_keys()
    assert store.delete_key("k") is True
    assert store.num_keys() == before - 1
    assert other.check(["k"]) is False
    # A FileStore does not know whether the key existed, in either family.
    assert store.delete_key("k") is ("file" in stores.kind)
    store.add("k", 3)
    assert other.get("k") == b"3"


@for_each(FAMILY_AND_KIND)
def test_num_keys_counts_every_key_once(stores):
    store = stores.make_store()
    before = store.num_keys()
    for n in range(5):
        store.set(f"k{n}", "v")
        store.set(f"k{n}", "w")
    store.add("n", 1)
    assert store.num_keys() == before + 6


@for_each(FAMILY_AND_KIND)
def test_append_multi_set_and_multi_get_work(stores):
    store, other = stores.make_store(), stores.make_store()
    store.append("k", "po")
    store.append("k", b"tato")
    assert other.get("k") == b"potato"
    assert store.multi_set(["a", "b"], ["1", b"\xff"]) is None
    found = other.multi_get(["b", "a", "k"])
    assert found == [b"\xff", b"1", b"potato"] and type(found) is list
    assert other.multi_get([]) == []
    assert store.has_extended_api() is ("file" not in stores.kind)


# Torch's FileStore also lists its internal key `refcount/`, as `efcount/`. Our store omits it on purpose.
LISTING = [(family, kind) for family, kind in FAMILY_AND_KIND if (family, kind) != ("torch", "file")]


@for_each(LISTING)
def test_list_keys_lists_the_users_keys_without_prefix(stores):
    store = stores.make_store()
    store.set("a", "1")
    store.add("b/c", 1)
    keys = store.list_keys()
    assert sorted(keys) == ["a", "b/c"] and type(keys) is list and type(keys[0]) is str
    store.delete_key("a")
    assert store.list_keys() == ["b/c"]


# ---- waiting ----


@for_each(FAMILY_AND_KIND)
def test_wait_returns_when_all_keys_exist(stores):
    store, other = stores.make_store(), stores.make_store()
    done = []
    thread = threading.Thread(target=lambda: done.append(store.wait(["a", "b"], seconds(WAIT_TIMEOUT))))
    thread.start()
    other.set("a", "1")
    assert other.get("a") == b"1"
    assert thread.is_alive()
    other.set("b", "1")
    thread.join(WAIT_TIMEOUT)
    assert done == [None]
    store.wait(["a"])
    store.wait([])


@for_each(FAMILY_AND_KIND)
def test_get_waits_for_the_value(stores):
    store, other = stores.make_store(), stores.make_store()
    found = []
    thread = threading.Thread(target=lambda: found.append(store.get("late")))
    thread.start()
    other.set("late", "v")
    thread.join(WAIT_TIMEOUT)
    assert found == [b"v"]


def assert_timeout(stores, *parts):
    """Expects the exception of a wait that times out. Torch's FileStore raises a plain RuntimeError."""
    plain = stores.name == "torch" and "file" in stores.kind
    ours = parts if stores.name == "ours" else ()
    return raises(stores.name, "RuntimeError" if plain else "DistStoreError", "imeout", *ours)


@for_each(FAMILY_AND_KIND)
def test_a_wait_that_times_out_raises_a_store_error_and_the_store_stays_usable(stores):
    store = stores.make_store()
    store.set("there", "1")
    with assert_timeout(stores, "50", "missing"):
        store.wait(["there", "missing"], ms(50))
    store.set_timeout(ms(60))
    assert store.timeout == ms(60)
    with assert_timeout(stores, "60"):
        store.wait(["missing"])
    with assert_timeout(stores, "60"):
        store.get("missing")
    with assert_timeout(stores, "60"):
        store.multi_get(["there", "missing"])
    store.set_timeout(seconds(WAIT_TIMEOUT))
    store.set("missing", "now")
    assert store.get("missing") == b"now"
    store.wait(["missing", "there"])


@for_each([(family, kind) for family in FAMILIES for kind in ("tcp", "prefix-tcp")])
def test_a_timeout_on_a_tcp_store_has_torchs_message(stores):
    store = stores.make_store(timeout=ms(100))
    prefix = "/part/" if "prefix" in stores.kind else "/"
    with raises(stores.name, "DistStoreError", f"wait timeout after 100ms, keys: {prefix}no such key"):
        store.get("no such key")
    with raises(stores.name, "DistStoreError", f"wait timeout after 20ms, keys: {prefix}a, {prefix}b"):
        store.wait(["a", "b"], ms(20))


@for_each([(family, kind) for family in FAMILIES for kind in ("hash", "file")])
def test_a_timeout_on_a_hash_or_file_store_has_torchs_message(stores):
    store = stores.make_store()
    with assert_timeout(stores) as caught:
        store.wait(["missing"], ms(20))
    assert str(caught.value).startswith("Wait timeout")
    store.set_timeout(ms(20))
    with assert_timeout(stores) as caught:
        store.get("missing")
    message = "Wait timeout" if stores.kind == "hash" else "Timeout waiting for key: missing after 20 ms"
    assert str(caught.value).startswith(message)


@for_each([(family, kind) for family in FAMILIES for kind in ("tcp", "prefix-tcp")])
def test_a_timeout_of_zero_ends_a_wait_on_a_tcp_store_immediately(stores):
    store = stores.make_store()
    with raises(stores.name, "DistStoreError", "wait timeout after 0ms"):
        store.wait(["missing"], ms(0))
    store.set("there", "1")
    store.set_timeout(ms(0))
    with raises(stores.name, "DistStoreError", "wait timeout after"):
        store.get("missing")
    store.set_timeout(seconds(WAIT_TIMEOUT))
    assert store.get("there") == b"1"


# With a negative timeout, torch's stores wait forever.
@for_each([("ours", kind) for kind in KINDS])
def test_a_negative_timeout_expires_immediately(stores):
    store = stores.make_store()
    with assert_timeout(stores):
        store.wait(["missing"], ms(-50))
    store.set("there", "1")
    assert store.get("there") == b"1"


@for_each(FAMILY_AND_KIND)
def test_the_timeout_is_a_timedelta_rounded_down_to_milliseconds(stores):
    store = stores.make_store()
    for given, expected in [(seconds(2.5), seconds(2.5)), (ms(1), ms(1)), (1.5, seconds(1.5)), (seconds(86400 * 3), seconds(86400 * 3))]:
        assert store.set_timeout(given) is None
        assert store.timeout == expected
    store.set_timeout(seconds(0.0155))
    assert store.timeout == ms(15)
    with pytest.raises(AttributeError):
        store.timeout = seconds(1)


def test_the_default_timeout_is_five_minutes(family, tmp_path):
    module = family.module
    for store in [module.HashStore(), module.FileStore(str(tmp_path / "f")), module.TCPStore("127.0.0.1", 0, is_master=True)]:
        assert store.timeout == seconds(300)
        assert module.PrefixStore("p", store).timeout == seconds(300)


def test_a_prefix_store_shares_the_timeout_of_its_store(family):
    base = family.make("tcp")
    prefixed = family.module.PrefixStore("a", family.module.PrefixStore("b", base))
    prefixed.set_timeout(ms(70))
    assert base.timeout == prefixed.timeout == ms(70)


# ---- queues ----


@for_each(QUEUES)
def test_a_queue_returns_values_in_order(stores):
    store, other = stores.make_store(), stores.make_store()
    assert store.check(["q"]) is False and store.queue_len("q") == 0
    for item in ["one", b"\xfftwo", ""]:
        assert store.queue_push("q", item) is None
    other.wait(["q"])
    assert other.check(["q"]) is True and other.queue_len("q") == 3
    assert other.queue_pop("q") == b"one"
    assert store.queue_pop("q", block=False) == b"\xfftwo"
    assert store.queue_pop("q", True) == b""
    assert store.check(["q"]) is False and store.queue_len("q") == 0


@for_each(QUEUES)
def test_an_empty_queue_raises_queue_empty_error(stores):
    store = stores.make_store()
    with raises(stores.name, "QueueEmptyError", "empty"):
        store.queue_pop("q", block=False)
    with raises(stores.name, "DistStoreError"):
        store.queue_pop(key="q", block=False)
    store.set_timeout(ms(20))
    with raises(stores.name, "DistStoreError", "imeout"):
        store.queue_pop("q")
    store.set_timeout(seconds(WAIT_TIMEOUT))
    store.queue_push("q", "now")
    assert store.queue_pop("q") == b"now"


# Torch's `queue_pop` keeps the GIL while it waits, so the other thread could not push.
@for_each([(family, kind) for family, kind in QUEUES if family == "ours"])
def test_two_threads_exchange_values_through_queues(stores):
    store, other = stores.make_store(), stores.make_store()
    received = []

    def exchange(mine, push_to, pop_from):
        for n in range(20):
            mine.queue_push(push_to, str(n))
            received.append((pop_from, mine.queue_pop(pop_from)))

    threads = [threading.Thread(target=exchange, args=each) for each in [(store.clone(), "a", "b"), (other.clone(), "b", "a")]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_TIMEOUT)
    assert sorted(received) == sorted((queue, str(n).encode()) for queue in "ab" for n in range(20))


@for_each([(family, kind) for family in FAMILIES for kind in ("file", "prefix-file")])
def test_a_file_store_has_no_queues(stores):
    store = stores.make_store()
    for call in [lambda: store.queue_push("q", "1"), lambda: store.queue_pop("q"), lambda: store.queue_len("q")]:
        with pytest.raises(NotImplementedError):
            call()
    store.set("k", "v")
    assert store.get("k") == b"v"


# ---- clones, prefixes, barriers ----


@for_each(FAMILY_AND_KIND)
def test_a_clone_is_another_client_of_the_same_store(stores):
    store = stores.make_store()
    clone = store.clone()
    assert type(clone) is type(store) and isinstance(clone, stores.module.Store)
    clone.set("k", "v")
    assert store.get("k") == b"v"
    del store
    assert clone.add("n", 1) == 1


@for_each([(family, kind) for family in FAMILIES for kind in ("tcp", "file", "hash")])
def test_prefix_stores_nest_and_do_not_share_keys(stores):
    module, base = stores.module, stores.make_store()
    outer = module.PrefixStore("outer", base)
    inner = module.PrefixStore(prefix="inner", store=outer)
    inner.set("k", "v")
    assert outer.get("inner/k") == b"v" and base.get("outer/inner/k") == b"v"
    assert not outer.check(["k"]) and inner.check(["k"])
    assert inner.underlying_store is outer and outer.underlying_store is base
    assert inner._underlying_non_prefix_store is base
    assert module.PrefixStore("", base).check(["k"]) is False
    inner.delete_key("k")
    assert not base.check(["outer/inner/k"])
    assert inner.num_keys() == base.num_keys()


@for_each([pair for pair in FAMILY_AND_KIND if "prefix" in pair[1]])
def test_a_prefix_store_keeps_its_store_alive(stores):
    prefixed = stores.make_store()
    prefixed.set("k", "v")
    assert prefixed.get("k") == b"v"
    assert prefixed.underlying_store.get("part/k") == b"v"


# Torch's `barrier` keeps the GIL while it waits, so the other threads could not arrive.
@for_each([("ours", kind) for kind in KINDS])
def test_a_barrier_opens_when_the_last_caller_has_arrived(stores):
    arrived = []

    def arrive(name, store):
        store.barrier("meet", 3, seconds(WAIT_TIMEOUT))
        arrived.append(name)

    threads = [threading.Thread(target=arrive, args=(name, stores.make_store())) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(0.1)
    assert arrived == []
    arrive("c", stores.make_store())
    for thread in threads:
        thread.join(WAIT_TIMEOUT)
    assert sorted(arrived) == ["a", "b", "c"]


@for_each(FAMILY_AND_KIND)
def test_a_barrier_with_too_few_callers_times_out(stores):
    store = stores.make_store()
    # After the timeout, our TCPStore requests details from the server, whose reply needs a longer timeout on a busy machine.
    short = REPLY_TIMEOUT * 1000 if stores.name == "ours" and "tcp" in stores.kind else 30
    with assert_timeout(stores, str(short)):
        store.barrier("meet", 2, ms(short))
    # Torch's PrefixStore waits for 5 minutes, regardless of the timeout of its store.
    if stores.name == "ours" or "prefix" not in stores.kind:
        store.set_timeout(ms(short + 10))
        with assert_timeout(stores, str(short + 10)):
            store.barrier("meet too", 2)
        store.set_timeout(seconds(WAIT_TIMEOUT))
    store.set("k", "v")
    assert store.get("k") == b"v"


# ---- files, and both families together ----


def test_the_last_store_to_close_deletes_the_file(family, tmp_path):
    path = tmp_path / "counted"
    first, second = (family.module.FileStore(str(path), 2) for _ in range(2))
    first.set("k", "v")
    assert first.path == str(path)
    del first
    assert path.exists() and second.get("k") == b"v"
    del second
    assert not path.exists()
    permanent = family.module.FileStore(file_name=str(tmp_path / "kept"), world_size=-1)
    permanent.set("k", "v")
    del permanent
    assert family.module.FileStore(str(tmp_path / "kept")).get("k") == b"v"


def test_both_families_share_one_file(tmp_path):
    theirs, ours = (Stores(name, tmp_path).make("file") for name in FAMILIES)
    theirs.set("k", "torch")
    assert ours.get("k") == b"torch"
    assert ours.add("n", 2) + theirs.add("n", 2) == 6
    ours.set("k", "rallypoint")
    assert theirs.get("k") == b"rallypoint"


@pytest.mark.parametrize("server, client", [("torch", "ours"), ("ours", "torch")])
def test_each_familys_client_works_with_the_other_familys_server(server, client, tmp_path):
    server_store = FAMILIES[server].TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = FAMILIES[client].TCPStore("127.0.0.1", server_store.port, is_master=False, timeout=seconds(WAIT_TIMEOUT))
    store.set("k", "v")
    assert server_store.get("k") == b"v"
    assert store.add("n", 1) + server_store.add("n", 1) == 3
    assert store.compare_set("k", "v", "w") == b"w" == server_store.get("k")
    server_store.queue_push("q", "item")
    assert store.queue_pop("q") == b"item"
    assert sorted(store.list_keys()) == sorted(server_store.list_keys()) == ["k", "n"]
    with raises(client, "DistStoreError", "wait timeout after 30ms, keys: /none"):
        store.wait(["none"], ms(30))
