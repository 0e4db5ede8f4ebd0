"""What a process writes, read while it runs, so that it never waits for the test."""

import threading


class OutputReader:
    """Threads that hand over the lines of a process's streams, and after the last of each an empty one."""

    def __init__(self, process, *streams):
        """Each of the streams comes with what takes its lines."""
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
        """The exit code, once all that was written has been handed over."""
        code = self._process.wait(within)
        for thread in self._threads:
            thread.join(within)
        return code
