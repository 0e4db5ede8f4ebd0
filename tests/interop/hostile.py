"""Hostile pickles of rendezvous states. Most have the maximum length of a state. Many are invalid only near their end, so that our
codec reads nearly everything before it refuses them."""

import datetime
import pickle
import struct

from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

# The default limits of our codec for states.
MAX_STATE_BYTES = 2 << 20
MAX_STATE_NODES = 10_000
MAX_HOST_BYTES = 255

# Nearly fills the stack of our codec, which has room for two items per node and 1024 more. A mark is an item, too.
STACK_ITEMS = 2 * MAX_STATE_NODES + 64

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
    """Pads the pickle with one long text to the maximum length, and appends `end`, which by default is an unknown opcode."""
    padding = MAX_STATE_BYTES - len(pickled) - len(end) - 5
    assert padding > 255, f"only {padding} bytes are left for the padding"
    return pickled + text(b"x" * padding) + end


def many_memoized_texts():
    """Returns a pickle that nearly fills the stack and the memo of our codec."""
    texts = b"".join(text(f"{index:064}") + MEMOIZE * 6 for index in range(STACK_ITEMS - 1))
    return padded(START + texts)


def too_many_memo_entries():
    return START + text("x") + MEMOIZE * (MAX_STATE_BYTES - 6) + STOP


def too_many_stack_items():
    return START + NONE * (MAX_STATE_BYTES - 3) + STOP


def many_texts_above_marks():
    return padded(START + MARK * 16 + b"".join(text(f"{index:064}") for index in range(STACK_ITEMS - 1)))


def too_many_marks():
    return START + MARK * (MAX_STATE_BYTES - 3) + STOP


def dicts_within_dicts():
    return START + (EMPTY_DICT + MARK + text("x")) * (MAX_STATE_BYTES // 6) + STOP


def full_dicts():
    """Returns a pickle of 16 dictionaries, each built from the maximum number of entries with the same key."""
    entries = MARK + (b"h\x00" + NONE) * MAX_STATE_NODES + SET_ITEMS
    return padded(START + text("x") + MEMOIZE + (EMPTY_DICT + entries) * 16)


def an_attribute_that_fills_the_state():
    """Returns a state with a long unknown attribute. Our codec accepts short ones, which later torch versions may add."""
    attribute = START + NEW_STATE + EMPTY_DICT + MARK + text("others")
    return padded(attribute, SET_ITEMS + BUILD + STOP)


def an_address_that_fills_the_state():
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
    too_many_memo_entries,
    too_many_stack_items,
    many_texts_above_marks,
    too_many_marks,
    dicts_within_dicts,
    full_dicts,
    an_attribute_that_fills_the_state,
    an_address_that_fills_the_state,
    a_text_longer_than_the_input,
    one_long_text_as_every_attribute,
    full_lists_with_an_invalid_heartbeat,
)
