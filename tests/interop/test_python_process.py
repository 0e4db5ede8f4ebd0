"""The Python stores with threads, signals, forks and pickle."""

import copy
import os
import pathlib
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from clock import WAIT_TIMEOUT, delayed_since, run_delays, wait_until
from families import FAMILIES, Stores

HERE = pathlib.Path(__file__).parent
KINDS = ["tcp", "file", "hash", "prefix-tcp"]


def is_asleep(process):
    return pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_ctrl_c_ends_every_call_that_waits(tmp_path, port):
    silent = socket.create_server(("127.0.0.1", 0))
    command = [sys.executable, HERE / "interrupted_calls.py", str(silent.getsockname()[1]), str(port), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    delays = {}
    try:
        for line in process.stdout:
            if line == "done\n":
                break
            word, _, name = line.strip().partition(" ")
            assert word == "in", line
            wait_until("the call to wait", lambda: is_asleep(process))
            os.kill(process.pid, signal.SIGUSR1)
            sent, before = time.monotonic(), run_delays(process.pid)
            process.send_signal(signal.SIGINT)
            word, _, at = process.stdout.readline().strip().partition(" ")
            assert word == "interrupted", f"{name}: {word}"
            delays.setdefault(name, []).append(float(at) - sent - delayed_since(before, process.pid))
        assert process.wait(WAIT_TIMEOUT) == 0
    finally:
        process.kill()
        process.wait()
        silent.close()
    assert len(delays) == 18
    assert {name: times for name, times in delays.items() if max(times) > 0.1} == {}


@pytest.mark.parametrize("kind", KINDS)
def test_other_threads_run_while_a_call_waits(kind, tmp_path):
    stores = Stores("ours", tmp_path)
    calls = {
        "get": (lambda store, key: store.get(key), lambda store, key: store.set(key, "")),
        "wait": (lambda store, key: store.wait([key]), lambda store, key: store.set(key, "")),
        "multi_get": (lambda store, key: store.multi_get([key, key]), lambda store, key: store.set(key, "")),
        "barrier": (lambda store, key: store.barrier(key, 2), lambda store, key: store.barrier(key, 2)),
    }
    if kind != "file":
        calls["queue_pop"] = (lambda store, key: store.queue_pop(key), lambda store, key: store.queue_push(key, ""))
    for name, (wait, end) in calls.items():
        store = stores.make(kind)
        waiting = threading.Thread(target=wait, args=(store, name))
        waiting.start()
        # If the call kept the GIL, this thread would not run before the call's timeout.
        for _ in range(100):
            waiting.join(0.001)
            assert waiting.is_alive(), name
        end(store, name)
        waiting.join(WAIT_TIMEOUT)
        assert not waiting.is_alive(), name


@pytest.mark.parametrize("kind", KINDS)
def test_many_threads_can_use_one_store(kind, tmp_path):
    stores = Stores("ours", tmp_path)
    store = stores.make(kind)
    failures = []

    def use(number):
        try:
            for n in range(50):
                store.add("sum", 1)
                store.set(f"{number}/{n}", str(n))
                assert store.get(f"{number}/{n}") == str(n).encode()
            store.wait([f"{other}/49" for other in range(8)])
        except BaseException as error:
            failures.append(error)

    waiting = threading.Thread(target=lambda: store.get("the end"))
    waiting.start()
    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_TIMEOUT * 3)
    assert failures == [] and store.add("sum", 0) == 400
    # The waiting thread did not delay the other threads, and is woken when its key is set.
    assert waiting.is_alive()
    store.set("the end", "")
    waiting.join(WAIT_TIMEOUT)
    assert not waiting.is_alive()


def run(script, *arguments):
    """Runs a script in a new process and returns the lines that it prints.

    Scripts that fork need a process without torch and without the threads of the tests.
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout.splitlines()


FORK = """
    import os, sys, threading, time, gc
    from datetime import timedelta
    import rallypoint

    LONG = timedelta(seconds=30)
    server = rallypoint.TCPStore("127.0.0.1", 0, is_master=True, timeout=LONG)
    client = rallypoint.TCPStore("127.0.0.1", server.port, timeout=LONG)
    part = rallypoint.PrefixStore("p", client)
    file = rallypoint.FileStore(sys.argv[1] + "/store", 1)
    hashed = rallypoint.HashStore()
    for store in (server, part, file, hashed):
        store.set("k", "v")
    # Threads that use connections and wait while the process forks.
    waiting = [threading.Thread(target=store.get, args=("late",), daemon=True) for store in (server, client, part, file, hashed)]
    for thread in waiting:
        thread.start()
    child = os.fork()
    if child == 0:
        for store in (server, client, part, file):
            assert store.get("k") == b"v", store
            store.add("children", 1)
            # `part` has the timeout of `client`, which this loop has already changed.
            assert store.timeout == {part: timedelta(seconds=20), file: timedelta(seconds=300)}.get(store, LONG)
            store.set_timeout(timedelta(seconds=20))
            assert store.timeout == timedelta(seconds=20)
            assert store.clone().get("k") == b"v"
            repr(store)
        for call in (lambda: hashed.get("k"), lambda: hashed.set("k", "w"), lambda: rallypoint.PrefixStore("p", hashed).barrier("b", 1)):
            try:
                call()
                raise SystemExit("a HashStore worked in a forked child")
            except ValueError as error:
                assert "forked" in str(error), error
        if os.fork() == 0:
            assert client.get("k") == b"v"
            client.set("grandchild", "was here")
            os._exit(0)
        assert os.wait()[1] == 0
        del server, client, part, file, hashed, store
        gc.collect()
        print("child done")
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    # The child has closed nothing that the parent uses.
    for store in (server, part, file, hashed):
        assert store.get("k") == b"v"
    assert client.get("grandchild") == b"was here"
    assert (server.add("children", 0), part.add("children", 0), file.add("children", 0)) == (2, 1, 1)
    for store in (server, part, file, hashed):
        store.set("late", "now")
    for thread in waiting:
        thread.join(30)
    assert not any(thread.is_alive() for thread in waiting)
    del store, thread, waiting, file
    gc.collect()
    assert not os.path.exists(sys.argv[1] + "/store")
    print("parent done")
"""


def test_a_forked_child_has_connections_of_its_own(tmp_path):
    assert run(FORK, tmp_path) == ["child done", "parent done"]


def test_processes_of_multiprocessing_use_the_store_they_were_forked_with():
    script = """
        import multiprocessing, rallypoint
        store = rallypoint.TCPStore("127.0.0.1", 0, is_master=True)
        store.set("k", "v")
        def work(rank):
            store.set(f"rank{rank}", store.get("k"))
            store.barrier("all", 4)
        fork = multiprocessing.get_context("fork")
        workers = [fork.Process(target=work, args=(rank,)) for rank in range(4)]
        for worker in workers: worker.start()
        for worker in workers: worker.join()
        print([worker.exitcode for worker in workers], store.multi_get([f"rank{rank}" for rank in range(4)]))
    """
    assert run(script) == ["[0, 0, 0, 0] [b'v', b'v', b'v', b'v']"]


def test_a_child_forked_while_threads_create_multi_tenant_stores_can_create_its_own():
    script = """
import os, sys, threading
import rallypoint
from datetime import timedelta

def share():
    while True:
        first = rallypoint.TCPStore("127.0.0.1", 0, is_master=True, multi_tenant=True)
        rallypoint.TCPStore("127.0.0.1", first.port, is_master=True, multi_tenant=True).add("x", 1)

for _ in range(3):
    threading.Thread(target=share, daemon=True).start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        mine = rallypoint.TCPStore("127.0.0.1", 0, is_master=True, multi_tenant=True, timeout=timedelta(seconds=60))
        again = rallypoint.TCPStore("127.0.0.1", mine.port, is_master=True, multi_tenant=True, timeout=timedelta(seconds=60))
        os._exit(0 if mine.add("x", 1) + again.add("x", 1) == 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=120)


def test_a_child_forked_while_a_thread_imports_a_module_can_use_it():
    # A fork waits until imports of the package have completed. Otherwise the child would wait forever for an import that
    # only a thread of its parent can complete.
    script = """
        import os, sys, threading
        import rallypoint

        begun, go_on = threading.Event(), threading.Event()

        def slow(frame, *_):
            if frame.f_code.co_filename.endswith("_exceptions.py"):
                begun.set()
                go_on.wait()

        def use():
            sys.settrace(slow)
            rallypoint.DistError

        threading.Thread(target=use).start()
        begun.wait()
        threading.Timer(0.2, go_on.set).start()
        child = os.fork()
        if child == 0:
            os._exit(0 if issubclass(rallypoint.DistError, Exception) else 1)
        print(os.waitpid(child, 0)[1])
    """
    assert run(script) == ["0"]


def test_a_forked_child_raises_a_network_error_when_its_parents_server_has_stopped():
    script = """
        import os, rallypoint
        from datetime import timedelta
        server = rallypoint.TCPStore("127.0.0.1", 0, is_master=True)
        client = rallypoint.TCPStore("127.0.0.1", server.port, timeout=timedelta(seconds=1))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(reader, 1)
            try:
                client.get("k")
                os._exit(1)
            except rallypoint.DistNetworkError as error:
                print(type(error).__name__, flush=True)
                os._exit(0)
        del server
        os.write(writer, b"x")
        assert os.waitpid(child, 0)[1] == 0
    """
    assert run(script) == ["DistNetworkError"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["tcp", "file", "hash", "prefix-hash"])
def test_a_store_can_not_be_pickled_or_copied(family, kind, tmp_path):
    stores = Stores(family, tmp_path)
    store = stores.make(kind)
    for operation in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="pickle"):
            operation(store)
    store.set("k", "v")
    assert store.get("k") == b"v"


EXCEPTIONS = ["DistError", "DistBackendError", "DistNetworkError", "DistStoreError", "QueueEmptyError"]


def test_our_exceptions_have_torchs_names_and_base_classes():
    dist, rallypoint = FAMILIES["torch"], FAMILIES["ours"]

    def bases(module, name):
        return [base.__name__.removeprefix("Dist") for base in getattr(module, name).__mro__ if issubclass(base, RuntimeError)]

    for name in EXCEPTIONS:
        assert bases(rallypoint, name) == bases(dist, name)


def test_our_exceptions_derive_from_torchs_if_torch_is_loaded_and_never_load_torch():
    script = """
        import pickle, sys
        import rallypoint
        store = rallypoint.HashStore()
        def error():
            try:
                store.queue_pop("q", block=False)
            except rallypoint.DistStoreError as error:
                return error
        before = error()
        assert type(before) is rallypoint.QueueEmptyError
        assert not [name for name in sys.modules if name == "torch" or name.startswith("torch.")]
        import torch.distributed as dist
        after = error()
        assert isinstance(after, dist.QueueEmptyError) and isinstance(after, rallypoint.QueueEmptyError)
        assert type(after).__name__ == "QueueEmptyError" and str(after) == str(before)
        again = pickle.loads(pickle.dumps(after))
        assert type(again) is rallypoint.QueueEmptyError and again.args == after.args
        print("both")
    """
    assert run(script) == ["both"]


def test_a_program_can_exit_while_its_threads_wait():
    script = """
        import threading, rallypoint
        server = rallypoint.TCPStore("127.0.0.1", 0, is_master=True)
        hashed = rallypoint.HashStore()
        for store in (server, hashed, rallypoint.PrefixStore("p", server)):
            threading.Thread(target=store.get, args=("never",), daemon=True).start()
        print("over")
    """
    assert run(script) == ["over"]


def test_a_program_can_exit_while_its_threads_call_a_store_written_in_python():
    script = """
        import threading, time, rallypoint

        class Slow(rallypoint.Store):
            def get(self, key):
                time.sleep(0.001)
                return b"v"

            def set(self, key, value):
                time.sleep(0.001)

        store = rallypoint.PrefixStore("p", Slow())
        turns = threading.Semaphore(0)

        def use():
            try:
                while True:
                    store.get("k")
                    store.set("k", "v")
                    turns.release()
            except RuntimeError:
                pass

        for _ in range(8):
            threading.Thread(target=use, daemon=True).start()
        for _ in range(20):
            turns.acquire()
        print("over")
    """
    for _ in range(5):
        assert run(script) == ["over"]
