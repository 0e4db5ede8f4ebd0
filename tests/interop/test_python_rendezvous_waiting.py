"""Nodes that wait in a rendezvous: other threads run, Ctrl-C ends the wait, and a forked child cannot use the handlers of
its parent.

Most tests run a script in a new process.
"""

import gc
import http.server
import os
import pathlib
import pickle
import subprocess
import sys
import textwrap
import threading

import pytest
from libraries import OURS, Node, new_run_id
from clock import wait_until
from servers import OurServer

HERE = pathlib.Path(__file__).parent
PROCESS_TIMEOUT = 60
"""Seconds to wait for a script to exit."""


def run_script(script, *arguments):
    """Runs a script, which must exit with success, and returns the words that it prints."""
    completed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(COMMON) + textwrap.dedent(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PROCESS_TIMEOUT,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.split()


COMMON = """
    import os, pickle, signal, sys, threading, time, traceback
    from datetime import timedelta

    import rallypoint
    from clock import delayed_since, run_delays
    from rallypoint.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from rallypoint.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousBackend, RendezvousTimeout

    def new_handler(store, backend=None, nodes=2):
        backend = backend or C10dRendezvousBackend(store, "job")
        return DynamicRendezvousHandler.from_backend("job", store, backend, nodes, nodes, local_addr="127.0.0.1")

    def seconds_to_interrupt(call):
        '''Interrupts a call with SIGINT. Returns the seconds until the call has raised KeyboardInterrupt.

        Does not count the time in which this process waited for a processor.
        '''
        sent = []
        def send():
            # The pause need not be exact: the signal must end the call whether or not the call waits already.
            time.sleep(0.3)
            sent.extend([time.monotonic(), run_delays("self")])
            os.kill(os.getpid(), signal.SIGINT)
        try:
            threading.Thread(target=send).start()
            call()
        except KeyboardInterrupt:
            return time.monotonic() - sent[0] - delayed_since(sent[1], "self")
        raise SystemExit("the call was not interrupted")
"""


def assert_within_100_ms(times):
    """Asserts that each of the times is below 100 ms."""
    times = [float(each) for each in times]
    assert times and max(times) < 0.1, times


@pytest.fixture
def server():
    server = OurServer()
    yield server
    if not server.killed:
        server.stop()


def test_ctrl_c_ends_a_wait_and_the_node_leaves_and_can_rejoin(server):
    assert_within_100_ms(
        run_script(
            """
            store = rallypoint.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
            handler = new_handler(store)
            for _ in range(5):
                print(seconds_to_interrupt(handler.next_rendezvous))
            """,
            server.port,
        )
    )
    with Node(OURS, server, "job", (1, 1)) as node:
        # The node has left the rendezvous, although its process exited right after the interrupted call.
        state = wait_until("the state of the rendezvous", lambda: node.state())
        assert not state.participants
        assert node.start().joined().world_size == 1


def test_ctrl_c_ends_a_wait_on_a_server_that_does_not_answer(server):
    assert_within_100_ms(
        run_script(
            """
            store = rallypoint.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
            handlers = [new_handler(store) for _ in range(3)]
            os.kill(int(sys.argv[2]), signal.SIGSTOP)
            try:
                for handler in handlers:
                    for call in (handler.next_rendezvous, handler.num_nodes_waiting, handler.set_closed):
                        print(seconds_to_interrupt(call))
            finally:
                os.kill(int(sys.argv[2]), signal.SIGCONT)
            """,
            server.port,
            server.process.pid,
        )
    )


def test_ctrl_c_ends_a_wait_in_a_backend_written_in_python():
    assert_within_100_ms(
        run_script(
            """
            class Slow(RendezvousBackend):
                name = "slow"
                def get_state(self):
                    threading.Event().wait(3600)
                def set_state(self, state, token=None):
                    raise AssertionError("set_state must not be called")

            for _ in range(3):
                print(seconds_to_interrupt(new_handler(rallypoint.HashStore(), Slow()).next_rendezvous), flush=True)
            os._exit(0)
            """
        )
    )


def test_ctrl_c_ends_a_wait_in_a_store_written_in_python():
    """`next_rendezvous` continues if a wait on the store fails, and raises KeyboardInterrupt if the wait is interrupted."""
    assert_within_100_ms(
        run_script(
            """
            class PollingStore(rallypoint.Store):
                def __init__(self):
                    super().__init__()
                    self.store = rallypoint.HashStore()
                def wait(self, keys, timeout=timedelta(seconds=300)):
                    end = time.monotonic() + timeout.total_seconds()
                    while not self.store.check(keys):
                        if time.monotonic() > end:
                            raise rallypoint.DistStoreError("timeout")
                        time.sleep(0.01)
            for name in ("set", "get", "add", "check", "compare_set", "delete_key", "num_keys"):
                setattr(PollingStore, name, lambda self, *given, name=name: getattr(self.store, name)(*given))

            handler = new_handler(PollingStore())
            for _ in range(5):
                print(seconds_to_interrupt(handler.next_rendezvous))
            """
        )
    )


def test_ctrl_c_ends_a_static_rendezvous_which_can_be_retried():
    assert_within_100_ms(
        run_script(
            """
            from rallypoint.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
            from rallypoint.elastic.utils.distributed import get_free_port
            handler = StaticTCPRendezvous("127.0.0.1", get_free_port(), 0, 2, "job", 600)
            for _ in range(3):
                print(seconds_to_interrupt(handler.next_rendezvous))
            """
        )
    )


@pytest.mark.parametrize("call", ["barrier(store, 9, 'gate')", "synchronize(store, b'x', 0, 2, 'sync/')"])
def test_ctrl_c_ends_a_barrier_or_synchronize(server, call):
    assert_within_100_ms(
        run_script(
            f"""
            from rallypoint.elastic.utils.store import barrier, synchronize
            store = rallypoint.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
            for _ in range(3):
                print(seconds_to_interrupt(lambda: {call}))
            """,
            server.port,
        )
    )


def test_a_node_that_was_interrupted_while_joining_is_not_in_the_round(server):
    """If the call raised KeyboardInterrupt, the node is in no round, regardless of when the signal arrived."""
    outcomes = run_script(
        """
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        store = rallypoint.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
        for delay in range(12):
            job = f"job-{delay}"
            handler = DynamicRendezvousHandler.from_backend(job, store, C10dRendezvousBackend(store, job), 1, 1, local_addr="127.0.0.1")
            returned = []
            # A signal that arrives just after the call has returned raises KeyboardInterrupt on the same line as a signal
            # that ends the call. The profiler tells the two apart: the interpreter reports a return before it checks for
            # signals, so the call itself raised the exception only if no return was reported.
            def profile(frame, event, function):
                if event == "c_return" and function.__name__ == "next_rendezvous":
                    returned.append(True)
            try:
                signal.setitimer(signal.ITIMER_REAL, (delay + 1) / 1000)
                sys.setprofile(profile)
                handler.next_rendezvous()
                # Sleep briefly in a loop: a signal that arrives just before an endless wait would not end that wait.
                while True:
                    time.sleep(0.01)
            except KeyboardInterrupt as interrupt:
                sys.setprofile(None)
                frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(interrupt.__traceback__)]
                # If the signal arrived while `profile` ran, the call may have returned, so it is not counted as raised.
                print("returned" if returned or "profile" in frames else "raised")
        """,
        server.port,
    )
    assert len(outcomes) == 12
    for delay, outcome in enumerate(outcomes):
        backend = OURS.c10d.C10dRendezvousBackend(OURS.client(server), f"job-{delay}")
        current = backend.get_state()
        assert outcome == "returned" or current is None or not pickle.loads(current[0]).participants, f"{delay} ms"


def test_an_exception_of_a_signal_handler_is_raised_by_the_call():
    assert run_script(
        """
        class Terminated(Exception):
            pass

        def terminate(*_):
            raise Terminated

        signal.signal(signal.SIGTERM, terminate)
        try:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
            new_handler(rallypoint.HashStore()).next_rendezvous()
        except Terminated:
            print("terminated")
        """
    ) == ["terminated"]


def test_a_signal_handler_that_returns_does_not_end_the_call():
    assert run_script(
        """
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
        store = rallypoint.HashStore()
        handler = new_handler(store)
        other = new_handler(store)
        def join_later():
            os.kill(os.getpid(), signal.SIGUSR1)
            while not seen:
                time.sleep(0.01)
            other.next_rendezvous()
        thread = threading.Thread(target=join_later)
        thread.start()
        print(handler.next_rendezvous().world_size, len(seen))
        thread.join()
        """
    ) == ["2", "1"]


def test_other_threads_run_while_a_node_waits():
    assert run_script(
        """
        store = rallypoint.HashStore()
        first, second = new_handler(store), new_handler(store)
        ranks = []
        thread = threading.Thread(target=lambda: ranks.append(first.next_rendezvous().rank))
        thread.start()
        ranks.append(second.next_rendezvous().rank)
        thread.join()
        print(*sorted(ranks))
        """
    ) == ["0", "1"]


def test_a_forked_child_raises_a_runtime_error_and_can_exit(server):
    assert run_script(
        """
        store = rallypoint.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
        handler = new_handler(store, nodes=1)
        handler.next_rendezvous()
        child = os.fork()
        if child == 0:
            failures = 0
            for call in (handler.next_rendezvous, handler.is_closed, handler.num_nodes_waiting, handler.set_closed):
                try:
                    call()
                except RuntimeError as error:
                    failures += "forked" in str(error)
            # Neither deleting the handler nor exiting waits for the parent's threads.
            del handler
            sys.exit(failures)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), handler.is_closed())
        """,
        server.port,
    ) == ["4", "False"]


def test_a_forked_child_can_create_its_own_handler(server):
    assert run_script(
        """
        store = rallypoint.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
        handler = new_handler(store)
        child = os.fork()
        if child == 0:
            sys.exit(10 + new_handler(store).next_rendezvous().world_size)
        print(handler.next_rendezvous().world_size)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        server.port,
    ) == ["2", "12"]


@pytest.mark.parametrize("backend", ["rust", "python"])
def test_running_heartbeats_do_not_keep_the_process_alive(backend):
    assert run_script(
        """
        class Memory(RendezvousBackend):
            name = "memory"
            def __init__(self):
                self.lock, self.current = threading.Lock(), None
            def get_state(self):
                with self.lock:
                    return self.current
            def set_state(self, state, token=None):
                with self.lock:
                    has_set = token is (self.current and self.current[1])
                    if has_set:
                        self.current = (state, object())
                    return (*self.current, has_set)

        store = rallypoint.HashStore()
        backend = Memory() if sys.argv[1] == "python" else C10dRendezvousBackend(store, "job")
        handlers = [
            DynamicRendezvousHandler.from_backend("job", store, backend, 3, 3, local_addr="h", keep_alive_interval=1)
            for _ in range(3)
        ]
        threads = [threading.Thread(target=handler.next_rendezvous) for handler in handlers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        before = backend.get_state()[0]
        while backend.get_state()[0] == before:
            time.sleep(0.01)
        print("renewed")
        """,
        backend,
    ) == ["renewed"]


UNREACHABLE = """
    import logging
    from rallypoint.elastic.rendezvous import RendezvousParameters
    from rallypoint.elastic.rendezvous.registry import get_rendezvous_handler

    backend, host, port = sys.argv[1:]

    class PrintAndInterrupt(logging.Handler):
        def emit(self, record):
            print(record.getMessage())
            # The call is still waiting. End it.
            signal.raise_signal(signal.SIGINT)

    logging.getLogger("rallypoint").addHandler(PrintAndInterrupt())
    logging.getLogger("rallypoint").setLevel(logging.INFO)
    config = {"rank": 1, "timeout": 500} if backend == "static" else {"is_host": False, "read_timeout": 500}

    def join():
        parameters = RendezvousParameters(backend, f"{host}:{port}", "job", 2, 2, **config)
        get_rendezvous_handler(parameters).next_rendezvous()
"""


@pytest.mark.parametrize("backend", ["c10d", "static"])
@pytest.mark.parametrize(
    ("host", "reason", "hint"),
    [
        ("127.0.0.1", "connection refused (nothing listens there)", "check that the node or server that hosts the store is up"),
        ("no-such-host.invalid", "could not resolve host", "check the spelling of the host name"),
    ],
)
def test_the_reason_for_an_unreachable_store_is_logged_while_a_handler_waits(port, backend, host, reason, hint):
    script = """
        try:
            join()
        except KeyboardInterrupt:
            pass
        """
    output = " ".join(run_script(textwrap.dedent(UNREACHABLE) + textwrap.dedent(script), backend, host, port))
    peer = "rank 0" if backend == "static" else "the store"
    assert f"no reply yet from {peer} at {host}:{port}: {reason}" in output, output
    assert f"hint: {hint}" in output, output


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_an_http_server_at_the_endpoint_is_reported_immediately_with_a_hint(backend):
    """Python's HTTP server treats our handshake as an HTTP/0.9 request, so its reply has no status line."""
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        script = """
            try:
                join()
            except Exception as error:
                print(error.__cause__ or error)
            """
        script = textwrap.dedent(UNREACHABLE) + textwrap.dedent(script)
        output = " ".join(run_script(script, backend, "127.0.0.1", server.server_port))
        server.shutdown()
    assert "answered like an HTTP server: not a c10d store server hint: another program has that port" in output, output


def test_a_deleted_handler_stops_its_heartbeats():
    store = OURS.dist.HashStore()
    node = Node(OURS, None, new_run_id(), (1, 1), store=store, keep_alive_interval=1)
    node.start().joined()

    def name(task):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                return file.read().strip()
        except FileNotFoundError:
            return ""

    def heartbeat_threads():
        return sum(name(task) == "rdzv-keep-alive" for task in os.listdir("/proc/self/task"))

    # A new thread has its name only after it has started to run.
    before = wait_until("the heartbeat thread", heartbeat_threads)
    node.handler = None
    gc.collect()
    wait_until("the heartbeat thread to end", lambda: heartbeat_threads() < before)


def test_importing_has_no_side_effects_and_loads_no_torch():
    assert run_script(
        """
        import atexit
        before = threading.active_count(), atexit._ncallbacks()
        import rallypoint.elastic.rendezvous, rallypoint.elastic.utils.store, rallypoint.elastic.utils.distributed
        import rallypoint.elastic.rendezvous.static_tcp_rendezvous, rallypoint.elastic.torchrun
        import rallypoint.elastic.rendezvous.native_rendezvous
        print((threading.active_count(), atexit._ncallbacks()) == before, "torch" in sys.modules)
        """
    ) == ["True", "False"]
