"""States that nobody's pickler writes: well-formed far into the stream, and as large as the limits of ours let them be."""

import datetime
import pickle
import struct

from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

# The limits of ours.
STATE_BYTES = 2 << 20
STATE_NODES = 10_000
STACK = 2 * STATE_NODES + 64
MARKS = 16
HOST = 255

START, STOP, MARK, EMPTY_DICT, SET_ITEMS, BUILD = b"\x80\x05", b".", b"(", b"}", b"u", b"b"
EMPTY_TUPLE, NEW_OBJ, STACK_GLOBAL, MEMOIZE, NONE = b")", b"\x81", b"\x93", b"\x94", b"N"
UNKNOWN_OPCODE = b"\xff"


def text(content):
    data = content if isinstance(content, bytes) else content.encode()
    return b"\x8c" + bytes([len(data)]) + data if len(data) < 256 else b"X" + struct.pack("<I", len(data)) + data


def recalled(index):
    return b"j" + struct.pack("<I", index)


NEW_STATE = text(_RendezvousState.__module__) + text("_RendezvousState") + STACK_GLOBAL + EMPTY_TUPLE + NEW_OBJ


def filled(pickled, end=UNKNOWN_OPCODE):
    """As long as a state may be, by one long text, before what is wrong with it."""
    room = STATE_BYTES - len(pickled) - len(end) - 5
    assert room > 255, f"{-room} bytes too many"
    return pickled + text(b"x" * room) + end


def many_texts_put_aside():
    """The stack is full, and the memo nearly."""
    put_aside = b"".join(text(f"{index:064}") + MEMOIZE * 6 for index in range(STACK - 1))
    return filled(START + put_aside)


def one_too_many_put_aside():
    return START + text("x") + MEMOIZE * (STATE_BYTES - 6) + STOP


def one_too_many_on_the_stack():
    return START + NONE * (STATE_BYTES - 3) + STOP


def deep_marks():
    return filled(START + MARK * MARKS + b"".join(text(f"{index:064}") for index in range(STACK - 1)))


def one_mark_too_many():
    return START + MARK * (STATE_BYTES - 3) + STOP


def dicts_within_dicts():
    return START + (EMPTY_DICT + MARK + text("x")) * (STATE_BYTES // 6) + STOP


def full_dicts():
    """As many as may be open, as full as may be, of one text."""
    entries = MARK + (b"h\x00" + NONE) * STATE_NODES + SET_ITEMS
    return filled(START + text("x") + MEMOIZE + (EMPTY_DICT + entries) * MARKS)


def a_text_of_all_the_length():
    """As an attribute that a later torch may have."""
    attribute = START + NEW_STATE + EMPTY_DICT + MARK + text("others")
    return filled(attribute, SET_ITEMS + BUILD + STOP)


def an_address_of_all_the_length():
    node = text(_NodeDesc.__module__) + text("_NodeDesc") + STACK_GLOBAL + EMPTY_TUPLE + NEW_OBJ
    addr = START + node + EMPTY_DICT + MARK + text("pid") + b"K\x01" + text("local_id") + b"K\x00" + text("addr")
    return filled(addr, SET_ITEMS + BUILD + STOP)


def a_text_longer_than_all_there_is():
    return START + b"X" + struct.pack("<I", 2**32 - 1) + b"x" * (STATE_BYTES - 7)


def one_long_text_as_every_attribute():
    """A reference takes five bytes, and stands for sixty thousand."""
    attributes = b"".join(text(f"{index:05}") + recalled(0) for index in range(STATE_NODES))
    long = text(b"x" * 60_000) + MEMOIZE
    return START + long + NEW_STATE + EMPTY_DICT + MARK + attributes + SET_ITEMS + BUILD + STOP


def four_lists(last_beat=None):
    """Each of as many nodes as may be, all different, whose long address is there once and else referred to."""
    now = datetime.datetime.now(datetime.timezone.utc)
    host = "x" * HOST
    lists = [[_NodeDesc(host, pid, which) for pid in range(STATE_NODES)] for which in range(4)]
    state = _RendezvousState()
    state.participants = {node: rank for rank, node in enumerate(lists[0])}
    state.wait_list, state.redundancy_list = set(lists[1]), set(lists[2])
    state.last_heartbeats = dict.fromkeys(lists[3], now)
    state.last_heartbeats[lists[3][-1]] = last_beat or now
    pickled = pickle.dumps(state, 5)
    assert len(pickled) <= STATE_BYTES, len(pickled)
    return pickled


def four_full_lists():
    """Only the last thing in them is wrong, and that is seen when all else has been read."""
    return four_lists(last_beat=5)


HOSTILE = (
    many_texts_put_aside,
    one_too_many_put_aside,
    one_too_many_on_the_stack,
    deep_marks,
    one_mark_too_many,
    dicts_within_dicts,
    full_dicts,
    a_text_of_all_the_length,
    an_address_of_all_the_length,
    a_text_longer_than_all_there_is,
    one_long_text_as_every_attribute,
    four_full_lists,
)
