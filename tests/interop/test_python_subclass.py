"""Stores written in Python, derived from `Store` or from one of the others. Torch's base and ours in turn."""

import gc
import weakref

import pytest
from clock import DEADLINE, ms, seconds
from families import FAMILIES


@pytest.fixture(params=FAMILIES)
def module(request):
    return FAMILIES[request.param]


def dict_store(module):
    """A store of the least that one must have."""

    class DictStore(module.Store):
        def __init__(self):
            super().__init__()
            self.held = {}

        def set(self, key, value):
            assert type(key) is str and type(value) is bytes
            self.held[key] = value

        def get(self, key):
            return self.held[key]

        def add(self, key, amount):
            self.held[key] = str(int(self.held.get(key, 0)) + amount).encode()
            return int(self.held[key])

        def check(self, keys):
            return all(key in self.held for key in keys)

        def compare_set(self, key, expected, desired):
            assert type(expected) is bytes and type(desired) is bytes
            if self.held.get(key, b"") == expected:
                self.held[key] = desired
            return self.held.get(key, expected)

        def wait(self, keys, timeout=None):
            if not self.check(keys):
                raise TimeoutError(f"{keys} within {timeout}")

        def delete_key(self, key):
            return self.held.pop(key, None) is not None

        def num_keys(self):
            return len(self.held)

        deleteKey, getNumKeys = delete_key, num_keys

        def clone(self):
            return self

    return DictStore()


def test_a_part_calls_the_store_that_is_written_in_python(module):
    below = dict_store(module)
    store = module.PrefixStore("p", below)
    store.set("k", "v")
    assert below.held == {"p/k": b"v"}
    assert store.get("k") == b"v"
    assert store.add("n", 3) == 3 and store.add("n", 4) == 7
    assert store.check(["k", "n"]) is True and store.check(["x"]) is False
    assert store.compare_set("k", "v", "w") == b"w"
    assert store.compare_set("k", "v", "x") == b"w"
    assert store.num_keys() == 2
    assert store.delete_key("k") is True and store.delete_key("k") is False
    store.wait(["n"])
    store.wait(["n"], ms(5))
    assert store.underlying_store is below


def test_what_it_does_not_define_falls_back_on_what_it_does(module):
    # Held here, because torch does not hold on to what is below.
    below = dict_store(module)
    for store in [module.PrefixStore("p", below), dict_store(module)]:
        assert store.has_extended_api() is False
        store.append("k", "po")
        store.append("k", b"tato")
        assert store.get("k") == b"potato"
        store.multi_set(["a", "b"], ["1", b"2"])
        assert store.multi_get(["b", "a", "k"]) == [b"2", b"1", b"potato"]
        store.barrier("b", 1, seconds(1))


def test_what_it_defines_is_called(module):
    class Telling(module.Store):
        def __init__(self):
            self.told = []
            super().__init__()

        def append(self, key, value):
            self.told.append(("append", key, value))

        def multi_get(self, keys):
            self.told.append(("multi_get", keys))
            return [b"x"] * len(keys)

        def multi_set(self, keys, values):
            self.told.append(("multi_set", keys, values))

        def has_extended_api(self):
            return True

    below = Telling()
    store = module.PrefixStore("p", below)
    assert store.has_extended_api() is True
    store.append("k", "v")
    assert store.multi_get(["a", "b"]) == [b"x", b"x"]
    store.multi_set(["a", "b"], ["1", b"2"])
    assert below.told == [
        ("append", "p/k", b"v"),
        ("multi_get", ["p/a", "p/b"]),
        ("multi_set", ["p/a", "p/b"], [b"1", b"2"]),
    ]


def test_what_nobody_defines_is_not_implemented(module):
    class Empty(module.Store):
        pass

    empty = Empty()
    for store in [empty, module.PrefixStore("p", empty)]:
        assert store.has_extended_api() is False
        for call in [
            lambda: store.append("k", "v"),
            lambda: store.multi_get(["a", "b"]),
            lambda: store.multi_set(["a", "b"], [b"v", b"v"]),
            lambda: store.set("k", "v"),
            lambda: store.get("k"),
            lambda: store.compare_set("k", "a", "b"),
        ]:
            with pytest.raises(RuntimeError, match="Not implemented."):
                call()
        for call in [lambda: store.add("k", 1), lambda: store.check(["k"]), lambda: store.wait(["k"]), lambda: store.num_keys()]:
            with pytest.raises(RuntimeError):
                call()
        for call in [lambda: store.queue_push("q", "v"), lambda: store.queue_len("q"), lambda: store.list_keys()]:
            with pytest.raises(NotImplementedError):
                call()


def test_a_circle_through_a_part_is_collected(module):
    class Holding(module.HashStore):
        pass

    store = Holding()
    store.part = module.PrefixStore("p", store)
    store.part.set("k", "v")
    gone = weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None


def test_a_part_that_is_still_used_keeps_its_store(module):
    class Holding(module.HashStore):
        pass

    store = Holding()
    store.part = module.PrefixStore("p", store)
    above = module.PrefixStore("q", store.part)
    del store
    gc.collect()
    above.set("k", "v")
    assert above.get("k") == b"v"


def test_what_it_raises_comes_out_as_it_was(module):
    class Failing(module.Store):
        def get(self, key):
            raise LookupError(f"nothing at {key}", 7)

        def set(self, key, value):
            raise KeyboardInterrupt

    failing = Failing()
    store = module.PrefixStore("p", module.PrefixStore("q", failing))
    with pytest.raises(LookupError) as caught:
        store.get("k")
    assert caught.value.args == ("nothing at q/p/k", 7)
    with pytest.raises(KeyboardInterrupt):
        store.set("k", "v")


def test_it_has_a_time_out_like_every_store(module):
    below = dict_store(module)
    assert below.timeout == seconds(300)
    below.set_timeout(seconds(2))
    assert below.timeout == seconds(2)
    assert module.PrefixStore("p", below).timeout == seconds(2)


def test_what_derives_from_a_store_that_works_may_change_it(module):
    class Shouting(module.HashStore):
        def set(self, key, value):
            super().set(key, value.upper() if isinstance(value, str) else bytes(value).upper())

    store = Shouting()
    store.set("k", "quiet")
    assert store.get("k") == b"QUIET"
    assert isinstance(store, module.HashStore) and isinstance(store, module.Store)


def test_a_part_of_one_that_derives_calls_what_was_changed():
    rallypoint = FAMILIES["ours"]

    class Shouting(rallypoint.HashStore):
        def set(self, key, value):
            super().set(key, value.upper())

    store = rallypoint.PrefixStore("p", Shouting())
    store.set("k", "quiet")
    assert store.get("k") == b"QUIET"


def test_one_may_have_arguments_of_its_own(module):
    class Named(module.TCPStore):
        def __init__(self, name, *, port=0):
            super().__init__("127.0.0.1", port, is_master=True, timeout=seconds(DEADLINE))
            self.name = name

    store = Named("n", port=0)
    store.set("k", "v")
    assert store.name == "n" and store.get("k") == b"v" and store.port


def test_one_that_was_not_initialised_says_so(module):
    class Forgetful(module.HashStore):
        def __init__(self):
            pass

    with pytest.raises(TypeError, match="__init__"):
        Forgetful().set("k", "v")


def test_one_of_torchs_stores_may_be_below_a_part_of_ours():
    dist, rallypoint = FAMILIES["torch"], FAMILIES["ours"]
    below = dist.HashStore()
    store = rallypoint.PrefixStore("p", below)
    store.set("k", "v")
    assert below.get("p/k") == b"v" and store.get("k") == b"v"
    assert store.add("n", 2) == 2 and store.delete_key("n") is True
    store.append("k", "w")
    assert store.multi_get(["k"]) == [b"vw"]
    assert store.has_extended_api() is True
    with pytest.raises(dist.DistStoreError):
        store.wait(["none"], ms(10))


def test_where_to_meet_can_be_told_through_one_that_can_only_set_and_get():
    from rallypoint.elastic.rendezvous.api import RendezvousStoreInfo

    class Least(FAMILIES["ours"].Store):
        def __init__(self):
            super().__init__()
            self.held = {}

        def set(self, key, value):
            self.held[key] = value

        def get(self, key):
            return self.held[key]

    store = Least()
    assert RendezvousStoreInfo.build(0, store, "host", 5) == RendezvousStoreInfo("host", 5)
