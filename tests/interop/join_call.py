"""A call that waits for others, on a thread of its own, while the test goes on."""

import queue
import threading

JOIN_TIMEOUT = 60
"""Seconds to get into a round; all wait for all."""


class JoinCall:
    """One call of `next_rendezvous`, or of what is in its place."""

    def __init__(self, call):
        self._result = queue.Queue()
        threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def _run(self, call):
        try:
            self._result.put(call())
        except BaseException as error:  # noqa: BLE001  the thread that asks for it gets it
            self._result.put(error)

    def is_waiting(self):
        return self._result.empty()

    def result(self, within=JOIN_TIMEOUT):
        """What the call returned, or raises what it raised; once."""
        result = self._result.get(timeout=within)
        if isinstance(result, BaseException):
            raise result
        return result
