"""Arguments of the Python stores. Our stores accept the types that torch accepts. Invalid calls raise torch's exceptions and
leave the store unchanged."""

import collections
import datetime
import decimal
import fractions
import pathlib

import pytest
from clock import WAIT_TIMEOUT, seconds
from families import FAMILIES, Stores

# Each call is made on one of torch's stores and on one of ours.
INVALID_CALLS = {
    "set without a value": lambda store: store.set("k"),
    "set of a number": lambda store: store.set("k", 1),
    "set of None": lambda store: store.set("k", None),
    "set of a list": lambda store: store.set("k", [1, 2]),
    "set of a lone surrogate": lambda store: store.set("k", "\ud800"),
    "a key that is a number": lambda store: store.set(1, "v"),
    "a key that is None": lambda store: store.get(None),
    "a key with a lone surrogate": lambda store: store.get("\udfff"),
    "get without a key": lambda store: store.get(),
    "get of two keys": lambda store: store.get("a", "b"),
    "add of text": lambda store: store.add("k", "1"),
    "add of a float": lambda store: store.add("k", 1.5),
    "add of None": lambda store: store.add("k", None),
    "add of a number that is too large": lambda store: store.add("k", 2**63),
    "add of a number that is too small": lambda store: store.add("k", -(2**63) - 1),
    "check of text": lambda store: store.check("abc"),
    "check of bytes": lambda store: store.check(b"abc"),
    "check of a number": lambda store: store.check(3),
    "check of numbers": lambda store: store.check([1]),
    "check of None": lambda store: store.check(None),
    "wait for text": lambda store: store.wait("abc"),
    "wait without keys": lambda store: store.wait(),
    "wait with a timeout that is a number": lambda store: store.wait(["k"], 1),
    "wait with a timeout that is text": lambda store: store.wait(["k"], "1"),
    "a timeout that is a number": lambda store: store.set_timeout(1),
    "a timeout that is None": lambda store: store.set_timeout(None),
    "a timeout that is a datetime": lambda store: store.set_timeout(datetime.datetime.now()),
    "compare_set with too few arguments": lambda store: store.compare_set("k", "a"),
    "compare_set with numbers": lambda store: store.compare_set("k", 1, 2),
    "delete_key of a list": lambda store: store.delete_key(["a", "b"]),
    "append of a number": lambda store: store.append("k", 5),
    "multi_get of text": lambda store: store.multi_get("abc"),
    "multi_set of text": lambda store: store.multi_set("ab", "cd"),
    "multi_set of numbers": lambda store: store.multi_set(["a"], [1]),
    "queue_push of None": lambda store: store.queue_push("q", None),
    "queue_pop without a key": lambda store: store.queue_pop(block=False),
    "num_keys with an argument": lambda store: store.num_keys(1),
    "an unknown keyword": lambda store: store.get(keys="k"),
    "a barrier whose size is text": lambda store: store.barrier("b", "2"),
    "a barrier without a size": lambda store: store.barrier("b"),
    "an unknown method": lambda store: store.nothing(),
}


def exception_of(call, *arguments):
    with pytest.raises(Exception) as caught:
        call(*arguments)
    return caught.value


@pytest.mark.parametrize("kind", ["tcp", "file", "hash", "prefix-hash"])
def test_an_invalid_call_raises_torchs_exception_and_changes_nothing(kind, tmp_path):
    families = [Stores(family, tmp_path / family) for family in FAMILIES]
    for stores in families:
        stores.directory.mkdir()
    theirs, ours = (stores.make(kind) for stores in families)
    for store in (theirs, ours):
        store.set("k", "before")
    before = ours.num_keys()
    different = []
    for case, call in INVALID_CALLS.items():
        expected, found = exception_of(call, theirs), exception_of(call, ours)
        if not isinstance(found, type(expected)) or not str(found):
            different.append(f"{case}: torch {expected!r}, ours {found!r}")
    assert different == []
    assert ours.get("k") == b"before" and ours.num_keys() == before and ours.timeout == seconds(WAIT_TIMEOUT)
    assert ours.add("n", 1) == 1


INVALID_CONSTRUCTIONS = {
    "no arguments": lambda module, path: module.TCPStore(),
    "no port": lambda module, path: module.TCPStore("localhost"),
    "a port that is text": lambda module, path: module.TCPStore("localhost", "0", is_master=True),
    "a port too large": lambda module, path: module.TCPStore("localhost", 65536, is_master=True),
    "a negative port": lambda module, path: module.TCPStore("localhost", -1, is_master=True),
    "a host that is a number": lambda module, path: module.TCPStore(1, 0, is_master=True),
    "a host that is None": lambda module, path: module.TCPStore(None, 0, is_master=True),
    "a world size that is text": lambda module, path: module.TCPStore("localhost", 0, "2", True),
    "a world size of zero": lambda module, path: module.TCPStore("localhost", 0, 0, True),
    "an is_master that is a number": lambda module, path: module.TCPStore("localhost", 0, 1, 1),
    "an is_master that is None": lambda module, path: module.TCPStore("localhost", 0, 1, None),
    "a timeout that is a number": lambda module, path: module.TCPStore("localhost", 0, 1, True, 30),
    "a timeout that is None": lambda module, path: module.TCPStore("localhost", 0, 1, True, timeout=None),
    "an unknown keyword": lambda module, path: module.TCPStore("localhost", 0, is_server=True),
    "an argument twice": lambda module, path: module.TCPStore("localhost", 0, host_name="x"),
    "a file name that is a number": lambda module, path: module.FileStore(1),
    "a file name that is None": lambda module, path: module.FileStore(None),
    "no file name": lambda module, path: module.FileStore(),
    "a FileStore whose world size is text": lambda module, path: module.FileStore(path, "2"),
    "a HashStore with an argument": lambda module, path: module.HashStore(1),
    "a PrefixStore of None": lambda module, path: module.PrefixStore("p", None),
    "a PrefixStore of text": lambda module, path: module.PrefixStore("p", "store"),
    "a PrefixStore without a prefix": lambda module, path: module.PrefixStore(module.HashStore()),
    "a PrefixStore whose prefix is a number": lambda module, path: module.PrefixStore(1, module.HashStore()),
    "a base Store with an argument": lambda module, path: module.Store(1),
}


@pytest.mark.parametrize("case", INVALID_CONSTRUCTIONS)
def test_an_invalid_constructor_call_raises_torchs_exception(case, tmp_path):
    construct = INVALID_CONSTRUCTIONS[case]
    expected, found = (exception_of(construct, module, str(tmp_path / "store")) for module in FAMILIES.values())
    assert isinstance(found, type(expected)), f"torch {expected!r}, ours {found!r}"
    assert str(found)
    assert not (tmp_path / "store").exists()


def test_an_object_with_index_is_accepted_as_an_integer_and_an_integer_as_a_boolean():
    class Seven:
        def __index__(self):
            return 7

    for module in FAMILIES.values():
        store = module.HashStore()
        assert store.add("n", Seven()) == 7
        store.queue_push("q", "item")
        assert store.queue_pop("q", 0) == b"item"
        server = module.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=1, multi_tenant=0)
        assert server.port


class Sequence:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return ["a"][index]


class Iterable:
    def __iter__(self):
        return iter(["a"])


ACCEPTED_LISTS = {
    "a list": lambda: ["a"],
    "a tuple": lambda: ("a",),
    "a set": lambda: {"a"},
    "a frozen set": lambda: frozenset("a"),
    "a generator": lambda: (key for key in "a"),
    "a dictionary's keys": lambda: {"a": 0}.keys(),
    "a dictionary's values": lambda: {0: "a"}.values(),
    "a map": lambda: map(str, ["a"]),
    "a deque": lambda: collections.deque("a"),
    "a class with __len__ and __getitem__": Sequence,
}
REFUSED_LISTS = {
    "a dictionary": lambda: {"a": 0},
    "an iterator": lambda: iter(["a"]),
    "a dictionary's items": lambda: {"a": 0}.items(),
    "a class with __iter__": Iterable,
    "a range": lambda: range(1),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_list_of_keys_may_be_of_the_types_that_torch_accepts(family):
    store = FAMILIES[family].HashStore()
    store.multi_set(("a", "b"), (b"1", "2"))
    assert store.multi_get(("b", "a")) == [b"2", b"1"]
    assert [case for case, keys in ACCEPTED_LISTS.items() if store.check(keys()) is not True] == []
    for keys in REFUSED_LISTS.values():
        with pytest.raises(TypeError):
            store.check(keys())


@pytest.mark.parametrize("family", FAMILIES)
def test_integers_and_booleans_may_be_of_the_types_that_torch_accepts(family):
    class Three:
        def __int__(self):
            return 3

    store = FAMILIES[family].HashStore()
    assert [store.add(f"n{n}", n) for n in (True, decimal.Decimal(2), fractions.Fraction(5))] == [1, 2, 5]
    assert store.add("n", Three()) == 3
    for block in (None, 0.0, False, 1):
        store.queue_push("q", "v")
        assert store.queue_pop("q", block) == b"v"
    for block in ("x", [], {}):
        with pytest.raises(TypeError):
            store.queue_pop("q", block)


def test_keys_and_values_beyond_the_limits_are_refused_locally():
    rallypoint = FAMILIES["ours"]
    server = rallypoint.TCPStore("127.0.0.1", 0, is_master=True)
    for call in [lambda: server.set("k", bytes(9 << 20)), lambda: server.set("k" * 9000, "v")]:
        with pytest.raises(rallypoint.DistStoreError, match="limit"):
            call()
    assert server.num_keys() == 0


def test_multi_set_with_fewer_values_than_keys_stores_nothing():
    store = FAMILIES["ours"].HashStore()
    with pytest.raises(FAMILIES["torch"].DistStoreError, match="same size .2 keys and 1 value."):
        store.multi_set(["a", "b"], ["1"])
    assert store.num_keys() == 0


@pytest.mark.parametrize("kind", ["tcp", "file", "hash"])
def test_adding_to_a_value_that_is_not_an_integer_raises_torchs_exception_and_shows_the_value(kind, tmp_path):
    stores_by_family, families = {}, {family: Stores(family, tmp_path / family) for family in FAMILIES}
    for family, stores in families.items():
        stores.directory.mkdir()
        stores_by_family[family] = stores.make(kind)
        stores_by_family[family].set("k", "word")
    expected, found = (exception_of(lambda store: store.add("k", 1), store) for store in stores_by_family.values())
    assert isinstance(found, type(expected)) and isinstance(expected, (ValueError, RuntimeError))
    assert "cannot add 1 to k: its value is" in str(found) and "word" in str(found)
    assert stores_by_family["ours"].get("k") == b"word"


def test_a_barrier_of_fewer_than_one_caller_is_refused():
    store = FAMILIES["ours"].HashStore()
    for size in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            store.barrier("b", size)


def test_a_file_name_may_be_a_path_object(tmp_path):
    store = FAMILIES["ours"].FileStore(pathlib.Path(tmp_path) / "store")
    store.set("k", "v")
    assert store.path == str(tmp_path / "store")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_name_may_be_bytes(family, tmp_path):
    path = bytes(tmp_path / "store")
    store = FAMILIES[family].FileStore(path, 1)
    store.set("k", "v")
    assert pathlib.Path(path.decode()).exists() and store.path == path.decode()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("timeout", [datetime.timedelta.max, datetime.timedelta(days=200_000_000)])
def test_the_longest_timedelta_is_accepted_as_a_timeout(family, timeout, tmp_path):
    store = Stores(family, tmp_path).make("hash")
    store.set_timeout(timeout)
    store.set("k", "v")
    store.wait(["k"], timeout)
    assert store.get("k") == b"v"


def test_a_path_that_is_a_directory_raises_a_store_error(tmp_path):
    with pytest.raises(FAMILIES["torch"].DistStoreError):
        FAMILIES["torch"].FileStore(str(tmp_path)).set("k", "v")
    with pytest.raises(FAMILIES["torch"].DistStoreError, match=str(tmp_path)):
        FAMILIES["ours"].FileStore(str(tmp_path))


@pytest.mark.parametrize("module", FAMILIES.values(), ids=FAMILIES)
def test_a_file_descriptor_that_is_not_open_is_refused(module):
    for number in (-1, 10**6):
        with pytest.raises(FAMILIES["torch"].DistNetworkError, match=f"Failed to open existing socket. socket: {number}"):
            module.TCPStore("127.0.0.1", 0, is_master=True, master_listen_fd=number)


def test_a_file_descriptor_that_is_not_a_socket_is_refused_and_left_open():
    with open(__file__) as plain:
        with pytest.raises(FAMILIES["ours"].DistNetworkError, match="is not a bound TCP socket"):
            FAMILIES["ours"].TCPStore("127.0.0.1", 0, is_master=True, master_listen_fd=plain.fileno())
        assert plain.readline()
