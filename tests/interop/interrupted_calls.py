"""A program of `test_python_process.py`. It makes calls that wait for minutes, and the test interrupts each call.

    interrupted_calls.py SILENT_PORT CLOSED_PORT FOLDER

The server on SILENT_PORT never replies, and no process listens on CLOSED_PORT.

Before each call, the program prints the name of the call. After a KeyboardInterrupt, it prints the time of the monotonic
clock, which the test compares with its own.
"""

import signal
import sys
import time
from datetime import timedelta

import rallypoint

SILENT_PORT, CLOSED_PORT, FOLDER = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
LONG_TIMEOUT = timedelta(minutes=5)

server = rallypoint.TCPStore("127.0.0.1", 0, is_master=True, timeout=LONG_TIMEOUT)
tcp = rallypoint.TCPStore("127.0.0.1", server.port, timeout=LONG_TIMEOUT)
file = rallypoint.FileStore(f"{FOLDER}/store")
hash_store = rallypoint.HashStore()
prefixed = rallypoint.PrefixStore("p", tcp)


class Slow(rallypoint.Store):
    def get(self, key):
        return tcp.get(key)


# Each barrier has a new key, because a store that counts arrivals in a key still counts the interrupted call.
CALLS = {
    "tcp get": lambda: tcp.get("never"),
    "tcp wait": lambda: tcp.wait(["never"], LONG_TIMEOUT),
    "hash wait without timeout": lambda: hash_store.wait(["never"], timedelta(0)),
    "tcp multi_get": lambda: tcp.multi_get(["never", "ever"]),
    "tcp queue_pop": lambda: tcp.queue_pop("never"),
    "tcp barrier": lambda: tcp.barrier(f"{time.monotonic()}", 2),
    "file get": lambda: file.get("never"),
    "file wait": lambda: file.wait(["never"]),
    "file barrier": lambda: file.barrier(f"{time.monotonic()}", 2),
    "hash get": lambda: hash_store.get("never"),
    "hash queue_pop": lambda: hash_store.queue_pop("never"),
    "hash barrier": lambda: hash_store.barrier(f"{time.monotonic()}", 2),
    "prefix get": lambda: prefixed.get("never"),
    "prefix barrier": lambda: prefixed.barrier(f"{time.monotonic()}", 2),
    "python get": lambda: rallypoint.PrefixStore("p", Slow()).get("never"),
    "connecting to a closed port": lambda: rallypoint.TCPStore("127.0.0.1", CLOSED_PORT, timeout=LONG_TIMEOUT),
    "connecting to a silent server": lambda: rallypoint.TCPStore("127.0.0.1", SILENT_PORT, timeout=LONG_TIMEOUT),
    "waiting for workers": lambda: rallypoint.TCPStore("127.0.0.1", 0, 2, True, timeout=LONG_TIMEOUT),
}

# A signal handler that returns without an exception must not interrupt a call.
signal.signal(signal.SIGUSR1, lambda *_: None)
for name, call in CALLS.items():
    for _ in range(3):
        try:
            print("in", name, flush=True)
            call()
            print("returned", flush=True)
        except KeyboardInterrupt:
            print("interrupted", time.monotonic(), flush=True)
# All stores are still usable after the interrupts.
for store in (tcp, file, hash_store, prefixed):
    store.set("k", "v")
    assert store.get("k") == b"v"
assert server.add("n", 1) == 1
print("done", flush=True)
