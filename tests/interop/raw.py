"""Raw frames of the store protocol, for requests that torch's client never sends."""

import socket
import struct

from clock import WAIT_TIMEOUT

MAGIC = 0x3C85F7CE
OPS = (
    "validate set compare_set get add check wait num_keys delete_key append multi_get multi_set cancel_wait ping "
    "queue_push queue_pop queue_len list_keys barrier"
).split()


def u32(number):
    return struct.pack("<I", number)


def u64(number):
    return struct.pack("<Q", number & (2**64 - 1))


def text(data):
    data = data.encode() if isinstance(data, str) else data
    return u64(len(data)) + data


def request(op, *operands):
    """Encodes a request. Strings and bytes are prefixed with their length, lists with their count. Integers take 64 bits."""
    frame = bytes([OPS.index(op)])
    for operand in operands:
        if isinstance(operand, int):
            frame += u64(operand)
        elif isinstance(operand, list):
            frame += u64(len(operand)) + b"".join(
                text(item) if not isinstance(item, tuple) else text(item[0]) + text(item[1]) for item in operand
            )
        else:
            frame += text(operand)
    return frame


VALIDATE = bytes([OPS.index("validate")]) + u32(MAGIC)


def ping(nonce):
    return bytes([OPS.index("ping")]) + u32(nonce)


class RawConnection:
    """A connection that sends and receives raw bytes. It sends keys unchanged; torch's client prefixes them with a slash."""

    def __init__(self, server, validate=True):
        self.server = server
        self.socket = socket.create_connection((server.host, server.port), timeout=WAIT_TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if validate:
            self.send(VALIDATE + ping(7))
            assert self.receive(4) == u32(7)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def send_request(self, op, *operands):
        self.send(request(op, *operands))

    def settle(self):
        """Waits until the server has processed everything that was sent to it."""
        wait_until_settled(self.server)

    def receive(self, count):
        """Receives `count` bytes, or fewer if the server closes the connection first."""
        data = b""
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except ConnectionResetError:
                break
            if not more:
                break
            data += more
        return data

    def receive_text(self):
        return self.receive(struct.unpack("<Q", self.receive(8))[0])

    def receive_number(self):
        return struct.unpack("<q", self.receive(8))[0]

    def replies_before_ping(self):
        """Sends a PING, and returns the bytes that arrive before its reply."""
        nonce = b"\xfe\xed\xfa\xce"
        self.send(bytes([OPS.index("ping")]) + nonce)
        data = b""
        while not data.endswith(nonce):
            more = self.receive(1)
            if not more:
                return data + b"<closed>"
            data += more
        return data[: -len(nonce)]

    def is_closed(self):
        """Waits until the server closes the connection, and returns True. Fails if the server sends anything."""
        received = self.receive(64)
        assert received == b"", f"instead of closing the connection, the server sent {received!r}"
        return True


def wait_until_settled(server):
    """Waits until the server has processed everything that any client has sent to it so far.

    The server serves ready connections in turn. Once a later connection has received two replies, every connection that
    was ready before has had its turn.
    """
    with RawConnection(server) as later:
        for nonce in range(2):
            later.send(ping(nonce))
            assert later.receive(4) == u32(nonce)
