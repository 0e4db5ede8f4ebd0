"""Hostile pickles of a rendezvous state, which no pickler writes. Most are as large as our limits allow, and invalid only near
their end."""

import datetime
import pickle
import struct

from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

# The limits of our codec for states.
MAX_STATE_BYTES = 2 << 20
MAX_STATE_NODES = 10_000
MAX_STACK = 2 * MAX_STATE_NODES + 64
MAX_MARKS = 16
MAX_HOST_BYTES = 255

START, STOP, MARK, EMPTY_DICT, SET_ITEMS, BUILD = b"\x80\x05", b".", b"(", b"}", b"u", b"b"
EMPTY_TUPLE, NEW_OBJ, STACK_GLOBAL, MEMOIZE, NONE = b")", b"\x81", b"\x93", b"\x94", b"N"
UNKNOWN_OPCODE = b"\xff"


def text(content):
    data = content if isinstance(content, bytes) else content.encode()
    return b"\x8c" + bytes([len(data)]) + data if len(data) < 256 else b"X" + struct.pack("<I", len(data)) + data


def memo_get(index):
    return b"j" + struct.pack("<I", index)


NEW_STATE = text(_RendezvousState.__module__) + text("_RendezvousState") + STACK_GLOBAL + EMPTY_TUPLE + NEW_OBJ


def padded(pickled, end=UNKNOWN_OPCODE):
    """Pads the pickle with one long text to the maximum length, and appends `end`, which is invalid by default."""
    padding = MAX_STATE_BYTES - len(pickled) - len(end) - 5
    assert padding > 255, f"{-padding} bytes too many"
    return pickled + text(b"x" * padding) + end


def many_memoized_texts():
    """Returns a pickle that fills the unpickler's stack up to its limit, and nearly fills its memo."""
    texts = b"".join(text(f"{index:064}") + MEMOIZE * 6 for index in range(MAX_STACK - 1))
    return padded(START + texts)


def one_memo_entry_too_many():
    return START + text("x") + MEMOIZE * (MAX_STATE_BYTES - 6) + STOP


def one_stack_entry_too_many():
    return START + NONE * (MAX_STATE_BYTES - 3) + STOP


def deep_marks():
    return padded(START + MARK * MAX_MARKS + b"".join(text(f"{index:064}") for index in range(MAX_STACK - 1)))


def one_mark_too_many():
    return START + MARK * (MAX_STATE_BYTES - 3) + STOP


def dicts_within_dicts():
    return START + (EMPTY_DICT + MARK + text("x")) * (MAX_STATE_BYTES // 6) + STOP


def full_dicts():
    """Returns a pickle of MAX_MARKS dictionaries, each built from the maximum number of entries with the same key."""
    entries = MARK + (b"h\x00" + NONE) * MAX_STATE_NODES + SET_ITEMS
    return padded(START + text("x") + MEMOIZE + (EMPTY_DICT + entries) * MAX_MARKS)


def an_attribute_of_maximum_length():
    """Returns a state with an attribute that is unknown, as an attribute of a later torch version would be."""
    attribute = START + NEW_STATE + EMPTY_DICT + MARK + text("others")
    return padded(attribute, SET_ITEMS + BUILD + STOP)


def an_address_of_maximum_length():
    node = text(_NodeDesc.__module__) + text("_NodeDesc") + STACK_GLOBAL + EMPTY_TUPLE + NEW_OBJ
    addr = START + node + EMPTY_DICT + MARK + text("pid") + b"K\x01" + text("local_id") + b"K\x00" + text("addr")
    return padded(addr, SET_ITEMS + BUILD + STOP)


def a_text_longer_than_the_input():
    return START + b"X" + struct.pack("<I", 2**32 - 1) + b"x" * (MAX_STATE_BYTES - 7)


def one_long_text_as_every_attribute():
    """Returns a state whose attributes all refer to one text. A reference takes 5 bytes and stands for 60,000."""
    attributes = b"".join(text(f"{index:05}") + memo_get(0) for index in range(MAX_STATE_NODES))
    long_text = text(b"x" * 60_000) + MEMOIZE
    return START + long_text + NEW_STATE + EMPTY_DICT + MARK + attributes + SET_ITEMS + BUILD + STOP


def full_lists(last_heartbeat=None):
    """Returns a state whose four lists have the maximum number of nodes, all different.

    The long address of the nodes is stored once and then referenced.
    """
    now = datetime.datetime.now(datetime.timezone.utc)
    host = "x" * MAX_HOST_BYTES
    lists = [[_NodeDesc(host, pid, local_id) for pid in range(MAX_STATE_NODES)] for local_id in range(4)]
    state = _RendezvousState()
    state.participants = {node: rank for rank, node in enumerate(lists[0])}
    state.wait_list, state.redundancy_list = set(lists[1]), set(lists[2])
    state.last_heartbeats = dict.fromkeys(lists[3], now)
    state.last_heartbeats[lists[3][-1]] = last_heartbeat or now
    pickled = pickle.dumps(state, 5)
    assert len(pickled) <= MAX_STATE_BYTES, len(pickled)
    return pickled


def full_lists_with_an_invalid_heartbeat():
    """Returns a state in which only the last heartbeat is invalid, so that the codec must read everything else first."""
    return full_lists(last_heartbeat=5)


HOSTILE = (
    many_memoized_texts,
    one_memo_entry_too_many,
    one_stack_entry_too_many,
    deep_marks,
    one_mark_too_many,
    dicts_within_dicts,
    full_dicts,
    an_attribute_of_maximum_length,
    an_address_of_maximum_length,
    a_text_longer_than_the_input,
    one_long_text_as_every_attribute,
    full_lists_with_an_invalid_heartbeat,
)
