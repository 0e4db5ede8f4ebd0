"""Runs calls that wait for other nodes. Each call has its own thread."""

import queue
import threading

JOIN_TIMEOUT = 60
"""Seconds to wait for a node to join a round."""


class JoinCall:
    """A running call of `next_rendezvous` or of a similar function, on its own thread."""

    def __init__(self, call):
        self._result = queue.Queue()
        threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def _run(self, call):
        try:
            self._result.put(call())
        except BaseException as error:  # noqa: BLE001  `result` raises it
            self._result.put(error)

    def is_waiting(self):
        return self._result.empty()

    def result(self, within=JOIN_TIMEOUT):
        """Waits for the call and returns its result, or raises its exception. Can be called once."""
        result = self._result.get(timeout=within)
        if isinstance(result, BaseException):
            raise result
        return result
