"""The Python stores: each test is run on torch's class and on ours, which must do the same."""

import threading

import pytest
from clock import ANSWERED, DEADLINE, ms, seconds
from families import FAMILIES, KINDS, Stores, raises

FAMILY_AND_KIND = [(family, kind) for family in FAMILIES for kind in KINDS]
QUEUES = [(family, kind) for family, kind in FAMILY_AND_KIND if "file" not in kind]


@pytest.fixture(params=FAMILIES)
def family(request, tmp_path):
    return Stores(request.param, tmp_path)


def over(pairs):
    return pytest.mark.parametrize("place", pairs, ids=lambda pair: "-".join(pair))


@pytest.fixture
def stores(place, tmp_path):
    family, kind = place
    made = Stores(family, tmp_path)
    made.kind = kind
    made.another = lambda **how: made.make(kind, **how)
    return made


# ---- values ----


@over(FAMILY_AND_KIND)
def test_what_is_set_is_read_back_as_bytes(stores):
    store, other = stores.another(), stores.another()
    for value, read in [("text", b"text"), (b"\x00\xff", b"\x00\xff"), ("", b""), ("ünï", "ünï".encode()), (bytearray(b"x"), b"x")]:
        assert store.set("k", value) is None
        found = other.get("k")
        assert found == read and type(found) is bytes
    store.set(b"as bytes", "v")
    assert other.get("as bytes") == b"v"
    store.set(key="named", value="v") if stores.name == "ours" else store.set("named", "v")
    assert other.get("named") == b"v"


@over(FAMILY_AND_KIND)
def test_odd_keys_are_keys(stores):
    store = stores.another()
    for key in ["", "/", "a/b/c", " ", "-k", "k" * 4000, "ключ", "\x00in", "new\nline"]:
        store.set(key, key)
        assert store.get(key) == key.encode()
        assert store.check([key])


@over(FAMILY_AND_KIND)
def test_add_counts_in_decimal_text(stores):
    store, other = stores.another(), stores.another()
    assert store.add("n", 1) == 1
    assert other.add("n", 41) == 42
    assert store.add("n", -50) == -8
    assert store.get("n") == b"-8"
    store.set("n", "7")
    assert store.add("n", True) == 8
    assert store.add("n", 0) == 8
    assert store.add("big", 2**63 - 1) == 2**63 - 1
    assert store.add("small", -(2**63)) == -(2**63)


@over(FAMILY_AND_KIND)
def test_check_wants_all_keys_and_none_is_all(stores):
    store = stores.another()
    store.set("a", "1")
    assert store.check(["a"]) is True
    assert store.check(["b"]) is False
    assert store.check(["a", "b"]) is False
    store.set("b", "")
    assert store.check(["a", "b", "a"]) is True
    assert store.check(("a", "b")) is True
    assert store.check([]) is True


@over(FAMILY_AND_KIND)
def test_compare_set_answers_what_is_held(stores):
    store = stores.another()
    assert store.compare_set("k", "expected", "new") == b"expected"
    assert not store.check(["k"])
    assert store.compare_set("k", "", "first") == b"first"
    assert store.compare_set("k", "other", "second") == b"first"
    assert store.get("k") == b"first"
    assert store.compare_set("k", b"first", b"second") == b"second"
    assert store.get("k") == b"second"
    assert type(store.compare_set("k", "", "third")) is bytes
    assert store.get("k") == b"second"


@over(FAMILY_AND_KIND)
def test_a_deleted_key_is_gone(stores):
    store, other = stores.another(), stores.another()
    store.set("k", "v")
    before = store.num_keys()
    assert store.delete_key("k") is True
    assert store.num_keys() == before - 1
    assert other.check(["k"]) is False
    # A file store can't tell, in either family.
    assert store.delete_key("k") is ("file" in stores.kind)
    store.add("k", 3)
    assert other.get("k") == b"3"


@over(FAMILY_AND_KIND)
def test_every_key_counts_once(stores):
    store = stores.another()
    before = store.num_keys()
    for n in range(5):
        store.set(f"k{n}", "v")
        store.set(f"k{n}", "w")
    store.add("n", 1)
    assert store.num_keys() == before + 6


@over(FAMILY_AND_KIND)
def test_append_and_the_multiple_ones(stores):
    store, other = stores.another(), stores.another()
    store.append("k", "po")
    store.append("k", b"tato")
    assert other.get("k") == b"potato"
    assert store.multi_set(["a", "b"], ["1", b"\xff"]) is None
    found = other.multi_get(["b", "a", "k"])
    assert found == [b"\xff", b"1", b"potato"] and type(found) is list
    assert other.multi_get([]) == []
    assert store.has_extended_api() is ("file" not in stores.kind)


# What torch's own FileStore lists besides (its bookkeeping, cut) is one of the differences that are on purpose.
LISTING = [(family, kind) for family, kind in FAMILY_AND_KIND if (family, kind) != ("torch", "file")]


@over(LISTING)
def test_list_keys_lists_the_users_keys_without_prefix(stores):
    store = stores.another()
    store.set("a", "1")
    store.add("b/c", 1)
    keys = store.list_keys()
    assert sorted(keys) == ["a", "b/c"] and type(keys) is list and type(keys[0]) is str
    store.delete_key("a")
    assert store.list_keys() == ["b/c"]


# ---- waiting ----


@over(FAMILY_AND_KIND)
def test_wait_returns_when_all_keys_are_there(stores):
    store, other = stores.another(), stores.another()
    done = []
    thread = threading.Thread(target=lambda: done.append(store.wait(["a", "b"], seconds(DEADLINE))))
    thread.start()
    other.set("a", "1")
    assert other.get("a") == b"1"
    assert thread.is_alive()
    other.set("b", "1")
    thread.join(DEADLINE)
    assert done == [None]
    store.wait(["a"])
    store.wait([])


@over(FAMILY_AND_KIND)
def test_get_waits_for_the_value(stores):
    store, other = stores.another(), stores.another()
    found = []
    thread = threading.Thread(target=lambda: found.append(store.get("late")))
    thread.start()
    other.set("late", "v")
    thread.join(DEADLINE)
    assert found == [b"v"]


def too_late(stores, *words):
    """What a wait raises that takes too long. Of a FileStore torch's is a plain RuntimeError."""
    plain = stores.name == "torch" and "file" in stores.kind
    ours = words if stores.name == "ours" else ()
    return raises(stores.name, "RuntimeError" if plain else "DistStoreError", "imeout", *ours)


@over(FAMILY_AND_KIND)
def test_a_wait_that_takes_too_long_is_a_store_error_and_the_store_goes_on(stores):
    store = stores.another()
    store.set("there", "1")
    with too_late(stores, "50", "missing"):
        store.wait(["there", "missing"], ms(50))
    store.set_timeout(ms(60))
    assert store.timeout == ms(60)
    with too_late(stores, "60"):
        store.wait(["missing"])
    with too_late(stores, "60"):
        store.get("missing")
    with too_late(stores, "60"):
        store.multi_get(["there", "missing"])
    store.set_timeout(seconds(DEADLINE))
    store.set("missing", "now")
    assert store.get("missing") == b"now"
    store.wait(["missing", "there"])


@over([(family, kind) for family in FAMILIES for kind in ("tcp", "prefix-tcp")])
def test_a_time_out_on_a_tcp_store_has_torchs_words(stores):
    store = stores.another(timeout=ms(100))
    prefix = "/part/" if "prefix" in stores.kind else "/"
    with raises(stores.name, "DistStoreError", f"wait timeout after 100ms, keys: {prefix}no such key"):
        store.get("no such key")
    with raises(stores.name, "DistStoreError", f"wait timeout after 20ms, keys: {prefix}a, {prefix}b"):
        store.wait(["a", "b"], ms(20))


@over([(family, kind) for family in FAMILIES for kind in ("hash", "file")])
def test_the_other_stores_have_theirs(stores):
    store = stores.another()
    with too_late(stores) as caught:
        store.wait(["missing"], ms(20))
    assert str(caught.value).startswith("Wait timeout")
    store.set_timeout(ms(20))
    with too_late(stores) as caught:
        store.get("missing")
    words = "Wait timeout" if stores.kind == "hash" else "Timeout waiting for key: missing after 20 ms"
    assert str(caught.value).startswith(words)


@over([(family, kind) for family in FAMILIES for kind in ("tcp", "prefix-tcp")])
def test_a_time_out_of_zero_ends_a_tcp_stores_wait_at_once(stores):
    store = stores.another()
    with raises(stores.name, "DistStoreError", "wait timeout after 0ms"):
        store.wait(["missing"], ms(0))
    store.set("there", "1")
    store.set_timeout(ms(0))
    with raises(stores.name, "DistStoreError", "wait timeout after"):
        store.get("missing")
    store.set_timeout(seconds(DEADLINE))
    assert store.get("there") == b"1"


# Torch's waits for ever.
@over([("ours", kind) for kind in KINDS])
def test_a_negative_time_out_is_over_already(stores):
    store = stores.another()
    with too_late(stores):
        store.wait(["missing"], ms(-50))
    store.set("there", "1")
    assert store.get("there") == b"1"


@over(FAMILY_AND_KIND)
def test_the_time_out_is_a_timedelta_of_milliseconds(stores):
    store = stores.another()
    for given, told in [(seconds(2.5), seconds(2.5)), (ms(1), ms(1)), (1.5, seconds(1.5)), (seconds(86400 * 3), seconds(86400 * 3))]:
        assert store.set_timeout(given) is None
        assert store.timeout == told
    store.set_timeout(seconds(0.0155))
    assert store.timeout == ms(15)
    with pytest.raises(AttributeError):
        store.timeout = seconds(1)


def test_a_store_waits_five_minutes_unless_told_otherwise(family, tmp_path):
    module = family.module
    for store in [module.HashStore(), module.FileStore(str(tmp_path / "f")), module.TCPStore("127.0.0.1", 0, is_master=True)]:
        assert store.timeout == seconds(300)
        assert module.PrefixStore("p", store).timeout == seconds(300)


def test_the_time_out_of_a_part_is_that_of_the_whole(family):
    whole = family.make("tcp")
    part = family.module.PrefixStore("a", family.module.PrefixStore("b", whole))
    part.set_timeout(ms(70))
    assert whole.timeout == part.timeout == ms(70)


# ---- queues ----


@over(QUEUES)
def test_queues_give_back_in_order_what_was_put_in(stores):
    store, other = stores.another(), stores.another()
    assert store.check(["q"]) is False and store.queue_len("q") == 0
    for item in ["one", b"\xfftwo", ""]:
        assert store.queue_push("q", item) is None
    other.wait(["q"])
    assert other.check(["q"]) is True and other.queue_len("q") == 3
    assert other.queue_pop("q") == b"one"
    assert store.queue_pop("q", block=False) == b"\xfftwo"
    assert store.queue_pop("q", True) == b""
    assert store.check(["q"]) is False and store.queue_len("q") == 0


@over(QUEUES)
def test_an_empty_queue_is_an_error_of_its_own(stores):
    store = stores.another()
    with raises(stores.name, "QueueEmptyError", "empty"):
        store.queue_pop("q", block=False)
    with raises(stores.name, "DistStoreError"):
        store.queue_pop(key="q", block=False)
    store.set_timeout(ms(20))
    with raises(stores.name, "DistStoreError", "imeout"):
        store.queue_pop("q")
    store.set_timeout(seconds(DEADLINE))
    store.queue_push("q", "now")
    assert store.queue_pop("q") == b"now"


# Torch's queue_pop keeps the interpreter's lock, which the other thread needs.
@over([(family, kind) for family, kind in QUEUES if family == "ours"])
def test_two_threads_talk_through_queues(stores):
    store, other = stores.another(), stores.another()
    heard = []

    def talk(mine, say, listen):
        for n in range(20):
            mine.queue_push(say, str(n))
            heard.append((listen, mine.queue_pop(listen)))

    threads = [threading.Thread(target=talk, args=each) for each in [(store.clone(), "a", "b"), (other.clone(), "b", "a")]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(heard) == sorted((queue, str(n).encode()) for queue in "ab" for n in range(20))


@over([(family, kind) for family in FAMILIES for kind in ("file", "prefix-file")])
def test_a_file_store_has_no_queues(stores):
    store = stores.another()
    for call in [lambda: store.queue_push("q", "1"), lambda: store.queue_pop("q"), lambda: store.queue_len("q")]:
        with pytest.raises(NotImplementedError):
            call()
    store.set("k", "v")
    assert store.get("k") == b"v"


# ---- clones, parts, barriers ----


@over(FAMILY_AND_KIND)
def test_a_clone_is_another_client_of_the_same_store(stores):
    store = stores.another()
    clone = store.clone()
    assert type(clone) is type(store) and isinstance(clone, stores.module.Store)
    clone.set("k", "v")
    assert store.get("k") == b"v"
    del store
    assert clone.add("n", 1) == 1


@over([(family, kind) for family in FAMILIES for kind in ("tcp", "file", "hash")])
def test_parts_nest_and_keep_apart(stores):
    module, whole = stores.module, stores.another()
    outer = module.PrefixStore("outer", whole)
    inner = module.PrefixStore(prefix="inner", store=outer)
    inner.set("k", "v")
    assert outer.get("inner/k") == b"v" and whole.get("outer/inner/k") == b"v"
    assert not outer.check(["k"]) and inner.check(["k"])
    assert inner.underlying_store is outer and outer.underlying_store is whole
    assert inner._underlying_non_prefix_store is whole
    assert module.PrefixStore("", whole).check(["k"]) is False
    inner.delete_key("k")
    assert not whole.check(["outer/inner/k"])
    assert inner.num_keys() == whole.num_keys()


@over([pair for pair in FAMILY_AND_KIND if "prefix" in pair[1]])
def test_a_part_keeps_its_store_alive(stores):
    part = stores.another()
    part.set("k", "v")
    assert part.get("k") == b"v"
    assert part.underlying_store.get("part/k") == b"v"


# Torch's keeps the interpreter's lock while it waits.
@over([("ours", kind) for kind in KINDS])
def test_a_barrier_lets_all_through_when_the_last_has_come(stores):
    came = []

    def come(name, store):
        store.barrier("meet", 3, seconds(DEADLINE))
        came.append(name)

    threads = [threading.Thread(target=come, args=(name, stores.another())) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(0.1)
    assert came == []
    come("c", stores.another())
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(came) == ["a", "b", "c"]


@over(FAMILY_AND_KIND)
def test_a_barrier_that_too_few_come_to_times_out(stores):
    store = stores.another()
    short = ANSWERED * 1000 if stores.name == "ours" and "tcp" in stores.kind else 30
    with too_late(stores, str(short)):
        store.barrier("meet", 2, ms(short))
    # A part of torch's waits for five minutes, whatever the time-out of the whole.
    if stores.name == "ours" or "prefix" not in stores.kind:
        store.set_timeout(ms(short + 10))
        with too_late(stores, str(short + 10)):
            store.barrier("meet too", 2)
        store.set_timeout(seconds(DEADLINE))
    store.set("k", "v")
    assert store.get("k") == b"v"


# ---- the file ----


def test_the_last_one_out_removes_the_file(family, tmp_path):
    path = tmp_path / "counted"
    one, two = (family.module.FileStore(str(path), 2) for _ in range(2))
    one.set("k", "v")
    assert one.path == str(path)
    del one
    assert path.exists() and two.get("k") == b"v"
    del two
    assert not path.exists()
    kept = family.module.FileStore(file_name=str(tmp_path / "kept"), world_size=-1)
    kept.set("k", "v")
    del kept
    assert family.module.FileStore(str(tmp_path / "kept")).get("k") == b"v"


def test_both_families_share_one_file(tmp_path):
    theirs, ours = (Stores(name, tmp_path).make("file") for name in FAMILIES)
    theirs.set("k", "torch")
    assert ours.get("k") == b"torch"
    assert ours.add("n", 2) + theirs.add("n", 2) == 6
    ours.set("k", "rallypoint")
    assert theirs.get("k") == b"rallypoint"


@pytest.mark.parametrize("server, client", [("torch", "ours"), ("ours", "torch")])
def test_each_familys_client_works_on_the_others_server(server, client, tmp_path):
    served = FAMILIES[server].TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = FAMILIES[client].TCPStore("127.0.0.1", served.port, is_master=False, timeout=seconds(DEADLINE))
    store.set("k", "v")
    assert served.get("k") == b"v"
    assert store.add("n", 1) + served.add("n", 1) == 3
    assert store.compare_set("k", "v", "w") == b"w" == served.get("k")
    served.queue_push("q", "item")
    assert store.queue_pop("q") == b"item"
    assert sorted(store.list_keys()) == sorted(served.list_keys()) == ["k", "n"]
    with raises(client, "DistStoreError", "wait timeout after 30ms, keys: /none"):
        store.wait(["none"], ms(30))
