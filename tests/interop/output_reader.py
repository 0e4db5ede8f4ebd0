"""Reads the output of a process while it runs, so that the process never blocks on a full pipe."""

import threading


class OutputReader:
    """Threads that pass each line of a process's streams to a callback, and an empty string at the end of each stream."""

    def __init__(self, process, *streams):
        """Starts a thread for each of `streams`, which are pairs of a stream and a callback."""
        self._process = process
        self._threads = [threading.Thread(target=self._read, args=each, daemon=True) for each in streams]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(stream, take):
        for line in stream:
            take(line)
        take("")

    def exit_code(self, within):
        """Waits for the process to exit and for all lines to be passed on. Returns the exit code."""
        code = self._process.wait(within)
        for thread in self._threads:
            thread.join(within)
        return code
