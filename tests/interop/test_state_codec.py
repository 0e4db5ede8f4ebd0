"""Real torch reads rendezvous states that our codec writes, and our codec reads states that torch writes.

Our codec runs in the program `state_codec`.
"""

import base64
import binascii
import functools
import hashlib
import itertools
import os
import pathlib
import pickle
import pickletools
import random
import shutil
import subprocess
import sys
import textwrap
import warnings
from datetime import datetime, timedelta, timezone

import pytest

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

from torch.distributed import HashStore
from servers import driver
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousSettings,
    RendezvousTimeout,
    _BackendRendezvousStateHolder,
    _NodeDesc,
    _RendezvousState,
)

T0 = datetime(2026, 11, 15, 17, 43, 1, 123456, tzinfo=timezone.utc)
FIELDS = list(vars(_RendezvousState()))


def run_codec(inputs, *args):
    """Passes each input to our codec. Returns a list per input, which starts with "ok" or "error"."""
    lines = "".join(data.hex() + "\n" for data in inputs)
    completed = subprocess.run([driver("state_codec"), *args], input=lines, capture_output=True, text=True, timeout=100, check=True)
    replies = [line.split("\t") for line in completed.stdout.splitlines()]
    assert len(replies) == len(inputs)
    return replies


def text(state):
    """Formats a state as our codec prints it."""

    def time(moment):
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def listed(entries):
        return "{" + ", ".join(entries) + "}"

    fields = {
        "round": state.round,
        "complete": str(state.complete).lower(),
        "deadline": "None" if state.deadline is None else f"Some({time(state.deadline)})",
        "closed": str(state.closed).lower(),
        "participants": listed(f"{node}: {rank}" for node, rank in sorted(state.participants.items())),
        "wait_list": listed(str(node) for node in sorted(state.wait_list)),
        "redundancy_list": listed(str(node) for node in sorted(state.redundancy_list)),
        "last_heartbeats": listed(f"{node}: {time(beat)}" for node, beat in sorted(state.last_heartbeats.items())),
        "extra": "{}",
    }
    return "State { " + ", ".join(f"{name}: {value}" for name, value in fields.items()) + " }"


def node(index, addr=None):
    return _NodeDesc(addr or f"node-{index:05}.cluster.example", 1000 + 37 * index, index % 3)


def beat(index):
    return T0 + timedelta(microseconds=index * 1_000_003)


def make_state(participants=(), wait_list=(), redundancy_list=(), **others):
    state = _RendezvousState()
    state.participants = {node: rank for rank, node in enumerate(participants)}
    state.wait_list = set(wait_list)
    state.redundancy_list = set(redundancy_list)
    all_nodes = [*participants, *wait_list, *redundancy_list]
    state.last_heartbeats = {node: beat(index) for index, node in enumerate(all_nodes)}
    for name, value in others.items():
        setattr(state, name, value)
    return state


def assert_round_trip(states, dumps=pickle.dumps, printed=text):
    """Asserts that our codec reads torch's states, and that torch reads what our codec writes."""
    for state, reply in zip(states, run_codec([dumps(state) for state in states]), strict=True):
        assert reply[0] == "ok", reply
        assert printed is None or reply[1] == printed(state)
        loaded = pickle.loads(bytes.fromhex(reply[2]))
        assert type(loaded) is _RendezvousState
        assert vars(loaded) == vars(state)
        assert list(vars(loaded)) == FIELDS
        times = [*loaded.last_heartbeats.values(), *([loaded.deadline] if loaded.deadline else [])]
        assert all(time.tzinfo is timezone.utc for time in times)


def every_combination():
    nodes = [node(index) for index in range(6)]
    lists = [nodes[0:2], nodes[2:4], nodes[4:6]]
    for round, complete, closed, deadline in itertools.product(
        [0, 1, 255, 256, 65_536, 2**31, 2**62], [False, True], [False, True], [None, T0 + timedelta(seconds=30)]
    ):
        for sizes in itertools.product(range(3), repeat=3):
            participants, waiting, spare = (nodes_in_list[:size] for nodes_in_list, size in zip(lists, sizes))
            yield make_state(participants, waiting, spare, round=round, complete=complete, closed=closed, deadline=deadline)


def test_states_with_every_combination_of_fields_round_trip():
    states = list(every_combination())
    assert len(states) == 7 * 2 * 2 * 2 * 27
    assert_round_trip(states)


@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 5000])
def test_states_with_many_nodes_round_trip(count):
    nodes = [node(index) for index in range(count)]
    in_any_order = random.Random(count).sample(nodes, count)
    one_third = count // 3
    assert_round_trip([
        make_state(nodes),
        make_state(in_any_order),
        make_state(wait_list=nodes),
        make_state(redundancy_list=in_any_order),
        make_state(in_any_order[:one_third], in_any_order[one_third : 2 * one_third], in_any_order[2 * one_third :]),
    ])


def test_nodes_with_any_address_pid_and_local_id_round_trip():
    numbers = [0, 1, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**40, 2**63 - 1, -1, -(2**31), -(2**31) - 1, -(2**63)]
    nodes = {_NodeDesc("h", pid, local_id) for pid in numbers for local_id in numbers}
    addresses = ["", "h", "10.0.0.10", "10.0.0.9", "fe80::1%eth0", "höst", "\uffff", "\U0010ffff", "x" * 255]
    nodes |= {_NodeDesc(address, 1, 0) for address in addresses}
    # The printed forms are not compared, because the two sides escape characters differently.
    assert_round_trip([make_state(sorted(nodes)), make_state(wait_list=nodes)], printed=None)


def test_times_of_every_kind_round_trip():
    times = [
        datetime.min.replace(tzinfo=timezone.utc),
        datetime.max.replace(tzinfo=timezone.utc),
        datetime(1970, 1, 1, tzinfo=timezone.utc),
        datetime(2000, 2, 29, 23, 59, 59, 999_999, tzinfo=timezone.utc),
        T0.replace(fold=1),
    ]
    # The printed forms are not compared, because Python prints years without leading zeros.
    assert_round_trip([make_state(deadline=time) for time in times], printed=None)


def test_other_pickle_protocols_and_picklers_are_decoded():
    states = [make_state(), make_state([node(0), node(1)], [node(2)], [node(3)], deadline=T0), make_state([node(i) for i in range(1001)])]
    assert_round_trip(states, lambda state: pickle.dumps(state, 4))
    assert_round_trip(states, lambda state: pickle.dumps(state, 5))
    assert_round_trip(states, pickle._dumps)
    assert_round_trip(states, lambda state: pickletools.optimize(pickle.dumps(state)))


def test_a_datetime_shared_by_several_fields_is_decoded():
    state = make_state([node(0), node(1)], deadline=T0)
    state.last_heartbeats = dict.fromkeys(state.participants, state.deadline)
    assert_round_trip([state])


def test_our_encoding_is_no_longer_than_torchs():
    counts = [*range(8), 63, 600, 999, 1000, 1001, 2000, 3000]
    states = []
    for count in counts:
        nodes = [node(index) for index in range(count)]
        states.append(make_state(nodes, round=count, deadline=T0))
        states.append(make_state(nodes, [node(9, "waiting")]))
    written = [pickle.dumps(state, 4) for state in states]
    for state, encoded, reply in zip(states, written, run_codec(written), strict=True):
        assert len(bytes.fromhex(reply[2])) <= len(encoded), f"{len(state.participants)} nodes"


def test_attributes_of_a_later_torch_are_preserved():
    state = make_state([node(0)])
    state.generation, state.leader, state.note, state.ready, state.since = 2**40, None, "höher", True, beat(5)
    [reply] = run_codec([pickle.dumps(state)])
    assert vars(pickle.loads(bytes.fromhex(reply[2]))) == vars(state)
    state.others = [1, 2]
    [reply] = run_codec([pickle.dumps(state)])
    assert reply[0] == "error"


def test_torchs_state_holder_and_our_codec_read_each_other():
    store = HashStore()
    backend = C10dRendezvousBackend(store, "run")
    settings = RendezvousSettings("run", 1, 10, RendezvousTimeout(), timedelta(days=3650), 3)
    state = make_state([node(0), node(1)], [node(2)], [node(3)], round=7, complete=True)
    now = datetime.now(timezone.utc)
    state.last_heartbeats = dict.fromkeys(state.last_heartbeats, now)
    [reply] = run_codec([pickle.dumps(state)])
    store.set("torch.rendezvous.run", base64.b64encode(bytes.fromhex(reply[2])).decode())

    holder = _BackendRendezvousStateHolder(backend, settings)
    holder.sync()
    assert vars(holder.state) == vars(state)

    holder.state.wait_list.add(node(4))
    holder.mark_dirty()
    assert holder.sync() is True
    [cell] = run_codec([store.get("torch.rendezvous.run")], "cell")
    [reply] = run_codec([bytes.fromhex(cell[1])])
    state.wait_list.add(node(4))
    assert reply[1] == text(state)


class Hostile:
    """An object that runs code when it is unpickled."""

    ran = False

    def __reduce__(self):
        return exec, ("__import__('test_state_codec').Hostile.ran = True",)


def test_our_codec_refuses_a_pickle_that_runs_code_in_torch():
    state = make_state([node(0)])
    state.round = Hostile()
    hostile = [pickle.dumps(Hostile()), pickle.dumps(state), pickle.dumps(Hostile(), 0), pickle.dumps(Hostile(), 2)]
    sys.modules.setdefault("test_state_codec", sys.modules[__name__])
    replies = run_codec(hostile)
    assert all(reply[0] == "error" for reply in replies), replies
    assert replies[0][1].startswith("unknown class builtins.exec at byte ")

    store = HashStore()
    backend = C10dRendezvousBackend(store, "run")
    store.set("torch.rendezvous.run", base64.b64encode(hostile[0]).decode())
    settings = RendezvousSettings("run", 1, 10, RendezvousTimeout(), timedelta(seconds=5), 3)
    Hostile.ran = False
    with pytest.raises(AttributeError):
        _BackendRendezvousStateHolder(backend, settings).sync()
    assert Hostile.ran, "torch's state holder did not execute the pickled code"


def test_our_codec_refuses_values_that_torch_2_6_or_later_does_not_write():
    naive, other_zone, missing = make_state(), make_state(), make_state()
    naive.deadline = T0.replace(tzinfo=None)
    other_zone.deadline = T0.astimezone(timezone(timedelta(hours=2)))
    del missing.closed
    replies = run_codec([pickle.dumps(value) for value in (naive, other_zone, missing, 5, {}, vars(make_state()), node(0))])
    assert [reply[0] for reply in replies] == ["error"] * 7
    assert "written by an agent of torch older than 2.6" in replies[0][1]
    assert "a zone other than UTC" in replies[1][1]
    assert "without closed" in replies[2][1]


def test_base64_is_decoded_as_in_python():
    rng = random.Random(64)
    values = [b"", b"Y2FuaW1hZGFt", b"!!!", b"Zg==Zg==", b"====", b"Zm9v\r\nYmFy\r\n"]
    for alphabet in (b"AQgw+/=", b"Ag=! \n\xff", bytes(range(256))):
        values += [bytes(rng.choices(alphabet, k=rng.randrange(14))) for _ in range(3000)]
    whole = base64.b64encode(rng.randbytes(1000))
    for _ in range(1000):
        at = rng.randrange(len(whole))
        values.append(whole[:at] + rng.choice([b"", b"=", b"==", b"\n", b"-"]) + whole[at + rng.randrange(3) :])
    for value, reply in zip(values, run_codec(values, "cell"), strict=True):
        try:
            expected = ["ok", base64.b64decode(value).hex()]
        except binascii.Error:
            expected = ["error"]
        assert reply[: len(expected)] == expected, value


# This script unpickles and pickles states in a Python without torch. It defines classes with the names and attributes of
# torch's classes.
REPICKLE_SCRIPT = """
    import dataclasses, pickle, sys, types
    from datetime import datetime, timedelta, timezone

    name = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules[".".join(parts[:end])] = types.ModuleType(".".join(parts[:end]))

    @dataclasses.dataclass(eq=True, order=True, frozen=True)
    class _NodeDesc:
        addr: str
        pid: int
        local_id: int

    class _RendezvousState:
        pass

    for it in (_NodeDesc, _RendezvousState):
        it.__module__ = name
        setattr(sys.modules[name], it.__name__, it)
    # Each line is unpickled and pickled again by this Python.
    for line in sys.stdin:
        print(pickle.dumps(pickle.loads(bytes.fromhex(line))).hex())
"""


def is_python(path, minor):
    """Returns whether the program is Python 3.`minor`. A shim of pyenv on the PATH may run another version."""
    try:
        completed = subprocess.run(
            [path, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, timeout=100
        )
    except OSError:
        return False
    return completed.stdout.split() == ["3", str(minor)]


@functools.cache
def python(minor):
    """Returns the path of a Python 3.`minor` from the PATH, pyenv or uv, or None if there is none."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv")
    candidates = [shutil.which(f"python3.{minor}"), *sorted(map(str, pyenv.glob(f"versions/3.{minor}.*/bin/python3")))]
    if uv := shutil.which("uv"):
        command = [uv, "python", "find", "--offline", "--no-python-downloads", f"3.{minor}"]
        candidates.append(subprocess.run(command, capture_output=True, text=True, timeout=100).stdout.strip())
    return next((path for path in candidates if path and is_python(path, minor)), None)


def state_with_a_waiting_node(count):
    return make_state([node(index) for index in range(count)], [node(9, "waiting")], deadline=T0)


@pytest.mark.parametrize("minor", range(9, 15))
def test_other_pythons_and_our_codec_read_each_other(minor):
    if python(minor) is None:
        pytest.skip(f"no python3.{minor} on the PATH, nor with pyenv or uv")
    states = [state_with_a_waiting_node(count) for count in (0, 1, 2, 600, 999, 1000, 1001, 2000)]
    ours = [bytes.fromhex(reply[2]) for reply in run_codec([pickle.dumps(state) for state in states])]
    completed = subprocess.run(
        [python(minor), "-c", textwrap.dedent(REPICKLE_SCRIPT)],
        input="".join(data.hex() + "\n" for data in ours),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    theirs = [bytes.fromhex(line) for line in completed.stdout.splitlines()]
    for state, data, reply in zip(states, ours, run_codec(theirs), strict=True):
        assert reply[:2] == ["ok", text(state)]
        assert bytes.fromhex(reply[2]) == data


# For each number of participants: the SHA-256 of `state_with_a_waiting_node`, pickled by CPython 3.14.2. The pickles were
# written by REPICKLE_SCRIPT in Pyodide 314.0.7.
WRITTEN_BY_3_14 = {
    0: "fdab67b28a5ac604e275d2a4c21458702bdf9caa6b9ce38348ff73cb3148943d",
    1: "9f4887f1d33f04be136224666ff164fc0ebf2f61fd8d99341c8eb4c1df0fac1f",
    2: "53d78fe9dd1246af65c98c44662c411ed1776d457d394b105355d46a58f61db0",
    999: "0c9e5acc696f879a08616193cb42724d8a213b090b1616aefbb056f69a384e29",
    1000: "8f82b1dc098e83b531c5ec64658a66c17a0b694ab32669728fe876717637e12d",
    1001: "5d877fbf7feea763c98f3a4d79de7fbc662b3811b3c23b55e7bb9dc5f9e77099",
    2000: "bcf6bcdbefd78cf8896569dadd6f635746da73608c3654569604b489e34a2dc5",
}


def test_our_codec_reads_what_python_3_14_wrote():
    states = [state_with_a_waiting_node(count) for count in WRITTEN_BY_3_14]
    # The Python that runs this test writes the same bytes as Python 3.14, so hashes are enough.
    theirs = [pickle.dumps(state, 5) for state in states]
    assert [hashlib.sha256(data).hexdigest() for data in theirs] == list(WRITTEN_BY_3_14.values())
    for state, reply in zip(states, run_codec(theirs), strict=True):
        assert reply[:2] == ["ok", text(state)]
