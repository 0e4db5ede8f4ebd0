"""An Ethernet switch in user space whose links can delay, lose and reorder frames or be cut while it runs.

    python switch.py SEED CONTROL_FD TAP_FD...

The first TAP belongs to host 1, the second to host 2, and so on. The last byte of a MAC address is the number of its
host (`mac`), so the switch need not learn addresses. One thread reads frames, keeps them in a heap ordered by due time,
and writes them when they are due. The switch exits when the other end of the control socket is closed.

The control socket carries one JSON object per datagram: `{"hosts": [1, 2], "out": {...}, "in": {...}, "side": 1}`
changes the links of these hosts. `out` and `in` have the fields of `Link`, which get their defaults if absent. Frames
are forwarded only between hosts of the same side, and all hosts start on side 0. If `out`, `in` or `side` itself is
absent, that setting stays unchanged. `{}` changes nothing. The reply has the counters since the start.
"""

import contextlib
import dataclasses
import heapq
import json
import os
import random
import selectors
import socket
import sys
import time

FRAMES_PER_READ = 64
"""Maximum number of frames read from one host before the next host."""

LATE_SECONDS = 0.02
"""A frame that is written more than this time after its due time counts as late."""


def mac(number):
    """Returns the MAC address of a host."""
    return f"02:00:00:00:00:{number:02x}"


@dataclasses.dataclass
class Link:
    """The quality of one direction of one host's link."""

    delay: float = 0.0
    """Average delay of a frame, in seconds."""
    jitter: float = 0.0
    """Each frame takes between `delay - jitter` (at least 0) and `delay + jitter` seconds, so jitter reorders frames."""
    loss: float = 0.0
    """Fraction of frames that are lost."""
    reorder: float = 0.0
    """Fraction of frames that are delayed by another `reorder_by` seconds, so that later frames overtake them."""
    reorder_by: float = 0.05

    def transit(self, rng):
        """Returns a random delay for a frame, in seconds, or None if the frame is lost."""
        if self.loss and rng.random() < self.loss:
            return None
        seconds = self.delay
        if self.jitter:
            seconds = max(0.0, seconds + rng.uniform(-self.jitter, self.jitter))
        if self.reorder and rng.random() < self.reorder:
            seconds += self.reorder_by
        return seconds


class Port:
    """The switch's end of one host's link."""

    def __init__(self, tap):
        self.tap = tap
        self.outgoing = Link()
        self.incoming = Link()
        self.side = 0


class Switch:
    def __init__(self, seed, control, taps):
        self._rng = random.Random(seed)
        self._control = control
        self._ports = {number: Port(tap) for number, tap in enumerate(taps, 1)}
        self._due = []
        self._sequence = 0
        self._counters = {"forwarded": 0, "lost": 0, "cut": 0, "late": 0, "latest": 0.0}
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        for number, tap in enumerate(taps, 1):
            os.set_blocking(tap, False)
            self._selector.register(tap, selectors.EVENT_READ, number)

    def run(self):
        while True:
            timeout = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            for key, _ in self._selector.select(timeout):
                if key.data is None:
                    if not self._handle_command():
                        return
                else:
                    self._receive(key.data)
            self._deliver()

    def _handle_command(self):
        """Handles one command. Returns False if the lab has closed the control socket."""
        data = self._control.recv(65536)
        if not data:
            return False
        command = json.loads(data)
        for number in command.get("hosts", []):
            port = self._ports[number]
            port.side = command.get("side", port.side)
            if "out" in command:
                port.outgoing = Link(**command["out"])
            if "in" in command:
                port.incoming = Link(**command["in"])
        self._control.send(json.dumps(self._counters).encode())
        return True

    def _receive(self, source):
        port = self._ports[source]
        for _ in range(FRAMES_PER_READ):
            try:
                frame = os.read(port.tap, 65536)
            except BlockingIOError:
                return
            except OSError:
                # The host has exited, and its interface was deleted.
                self._selector.unregister(port.tap)
                return
            broadcast = frame[0] & 1
            for target in self._ports if broadcast else [frame[5]]:
                if target != source and target in self._ports:
                    self._forward(source, target, frame)

    def _forward(self, source, target, frame):
        if self._count_if_cut(source, target):
            return
        transits = [self._ports[source].outgoing.transit(self._rng), self._ports[target].incoming.transit(self._rng)]
        if None in transits:
            self._counters["lost"] += 1
            return
        # Frames with equal due times keep their order.
        self._sequence += 1
        heapq.heappush(self._due, (time.monotonic() + sum(transits), self._sequence, source, target, frame))

    def _count_if_cut(self, source, target):
        """Returns whether the hosts are on different sides, and counts the frame if so."""
        cut = self._ports[source].side != self._ports[target].side
        self._counters["cut"] += cut
        return cut

    def _deliver(self):
        while self._due and self._due[0][0] <= (now := time.monotonic()):
            due, _, source, target, frame = heapq.heappop(self._due)
            if self._count_if_cut(source, target):
                continue
            try:
                os.write(self._ports[target].tap, frame)
            except OSError:
                # The interface is down or deleted, or its queue is full. A switch drops such frames.
                self._counters["lost"] += 1
                continue
            self._counters["forwarded"] += 1
            self._counters["late"] += now - due > LATE_SECONDS
            self._counters["latest"] = max(self._counters["latest"], now - due)


if __name__ == "__main__":
    seed, control, *taps = map(int, sys.argv[1:])
    # A higher priority keeps the links on time on a busy machine. Only root may set it.
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    Switch(seed, socket.socket(fileno=control), taps).run()
