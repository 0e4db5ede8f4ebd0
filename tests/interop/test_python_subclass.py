"""Stores written in Python, derived from `Store` or from another store class.

Tests that take `module` run with torch's classes and with ours.
"""

import gc
import weakref

import pytest
from clock import WAIT_TIMEOUT, ms, seconds
from families import FAMILIES


@pytest.fixture(params=FAMILIES)
def module(request):
    return FAMILIES[request.param]


def dict_store(module):
    """Returns a store written in Python that defines only the methods without a fallback in `Store`."""

    class DictStore(module.Store):
        def __init__(self):
            super().__init__()
            self.values = {}

        def set(self, key, value):
            assert type(key) is str and type(value) is bytes
            self.values[key] = value

        def get(self, key):
            return self.values[key]

        def add(self, key, amount):
            self.values[key] = str(int(self.values.get(key, 0)) + amount).encode()
            return int(self.values[key])

        def check(self, keys):
            return all(key in self.values for key in keys)

        def compare_set(self, key, expected, desired):
            assert type(expected) is bytes and type(desired) is bytes
            if self.values.get(key, b"") == expected:
                self.values[key] = desired
            return self.values.get(key, expected)

        def wait(self, keys, timeout=None):
            if not self.check(keys):
                raise TimeoutError(f"{keys} within {timeout}")

        def delete_key(self, key):
            return self.values.pop(key, None) is not None

        def num_keys(self):
            return len(self.values)

        deleteKey, getNumKeys = delete_key, num_keys

        def clone(self):
            return self

    return DictStore()


def test_a_prefix_store_calls_the_methods_of_a_store_written_in_python(module):
    inner = dict_store(module)
    store = module.PrefixStore("p", inner)
    store.set("k", "v")
    assert inner.values == {"p/k": b"v"}
    assert store.get("k") == b"v"
    assert store.add("n", 3) == 3 and store.add("n", 4) == 7
    assert store.check(["k", "n"]) is True and store.check(["x"]) is False
    assert store.compare_set("k", "v", "w") == b"w"
    assert store.compare_set("k", "v", "x") == b"w"
    assert store.num_keys() == 2
    assert store.delete_key("k") is True and store.delete_key("k") is False
    store.wait(["n"])
    store.wait(["n"], ms(5))
    assert store.underlying_store is inner


def test_undefined_methods_fall_back_on_defined_ones(module):
    # This reference is needed, because torch's PrefixStore does not keep a store written in Python alive.
    inner = dict_store(module)
    for store in [module.PrefixStore("p", inner), dict_store(module)]:
        assert store.has_extended_api() is False
        store.append("k", "po")
        store.append("k", b"tato")
        assert store.get("k") == b"potato"
        store.multi_set(["a", "b"], ["1", b"2"])
        assert store.multi_get(["b", "a", "k"]) == [b"2", b"1", b"potato"]
        store.barrier("b", 1, seconds(1))


def test_defined_methods_are_called_instead_of_fallbacks(module):
    class RecordingStore(module.Store):
        def __init__(self):
            self.calls = []
            super().__init__()

        def append(self, key, value):
            self.calls.append(("append", key, value))

        def multi_get(self, keys):
            self.calls.append(("multi_get", keys))
            return [b"x"] * len(keys)

        def multi_set(self, keys, values):
            self.calls.append(("multi_set", keys, values))

        def has_extended_api(self):
            return True

    inner = RecordingStore()
    store = module.PrefixStore("p", inner)
    assert store.has_extended_api() is True
    store.append("k", "v")
    assert store.multi_get(["a", "b"]) == [b"x", b"x"]
    store.multi_set(["a", "b"], ["1", b"2"])
    assert inner.calls == [
        ("append", "p/k", b"v"),
        ("multi_get", ["p/a", "p/b"]),
        ("multi_set", ["p/a", "p/b"], [b"1", b"2"]),
    ]


def test_every_operation_of_an_empty_subclass_raises(module):
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


def test_a_reference_cycle_through_a_prefix_store_is_collected(module):
    class StoreWithPrefix(module.HashStore):
        pass

    store = StoreWithPrefix()
    store.prefixed = module.PrefixStore("p", store)
    store.prefixed.set("k", "v")
    reference = weakref.ref(store)
    del store
    gc.collect()
    assert reference() is None


def test_a_prefix_store_in_use_keeps_its_store_alive(module):
    class StoreWithPrefix(module.HashStore):
        pass

    store = StoreWithPrefix()
    store.prefixed = module.PrefixStore("p", store)
    outer = module.PrefixStore("q", store.prefixed)
    del store
    gc.collect()
    outer.set("k", "v")
    assert outer.get("k") == b"v"


def test_exceptions_of_a_store_written_in_python_pass_through_unchanged(module):
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


def test_a_store_written_in_python_has_a_timeout(module):
    inner = dict_store(module)
    assert inner.timeout == seconds(300)
    inner.set_timeout(seconds(2))
    assert inner.timeout == seconds(2)
    assert module.PrefixStore("p", inner).timeout == seconds(2)


def test_a_subclass_of_a_built_in_store_can_override_methods(module):
    class UppercaseStore(module.HashStore):
        def set(self, key, value):
            super().set(key, value.upper() if isinstance(value, str) else bytes(value).upper())

    store = UppercaseStore()
    store.set("k", "quiet")
    assert store.get("k") == b"QUIET"
    assert isinstance(store, module.HashStore) and isinstance(store, module.Store)


def test_a_prefix_store_calls_the_overridden_methods_of_a_subclass():
    rallypoint = FAMILIES["ours"]

    class UppercaseStore(rallypoint.HashStore):
        def set(self, key, value):
            super().set(key, value.upper())

    store = rallypoint.PrefixStore("p", UppercaseStore())
    store.set("k", "quiet")
    assert store.get("k") == b"QUIET"


def test_a_subclass_can_have_other_constructor_arguments(module):
    class NamedStore(module.TCPStore):
        def __init__(self, name, *, port=0):
            super().__init__("127.0.0.1", port, is_master=True, timeout=seconds(WAIT_TIMEOUT))
            self.name = name

    store = NamedStore("n", port=0)
    store.set("k", "v")
    assert store.name == "n" and store.get("k") == b"v" and store.port


def test_a_store_whose_init_does_not_call_super_raises_a_type_error(module):
    class WithoutSuperInit(module.HashStore):
        def __init__(self):
            pass

    with pytest.raises(TypeError, match="__init__"):
        WithoutSuperInit().set("k", "v")


def test_our_prefix_store_can_wrap_torchs_store():
    dist, rallypoint = FAMILIES["torch"], FAMILIES["ours"]
    inner = dist.HashStore()
    store = rallypoint.PrefixStore("p", inner)
    store.set("k", "v")
    assert inner.get("p/k") == b"v" and store.get("k") == b"v"
    assert store.add("n", 2) == 2 and store.delete_key("n") is True
    store.append("k", "w")
    assert store.multi_get(["k"]) == [b"vw"]
    assert store.has_extended_api() is True
    with pytest.raises(dist.DistStoreError):
        store.wait(["none"], ms(10))


def test_rendezvous_store_info_works_with_a_store_that_has_only_set_and_get():
    from rallypoint.elastic.rendezvous.api import RendezvousStoreInfo

    class MinimalStore(FAMILIES["ours"].Store):
        def __init__(self):
            super().__init__()
            self.values = {}

        def set(self, key, value):
            self.values[key] = value

        def get(self, key):
            return self.values[key]

    store = MinimalStore()
    assert RendezvousStoreInfo.build(0, store, "host", 5) == RendezvousStoreInfo("host", 5)
