"""Runs torchrun many times with one import of torch: one run for each request, which is a line of JSON on standard input.

For each request, the server forks a supervisor, which forks the process that becomes torchrun. That process calls
torchrun's own `main`, as the console script does. A request has the arguments, the environment and the working directory
of a run, and the paths of files for its output, its process id and its exit code.
"""

import json
import os
import signal
import sys

from torch.distributed.run import main


def write(path, text):
    """Writes a file atomically, so that a reader that waits for the file never reads only a part of it."""
    with open(f"{path}.part", "w") as file:
        file.write(str(text))
    os.rename(f"{path}.part", path)


def supervise(request):
    """Forks the process that becomes torchrun, and returns in that process.

    The parent writes the process id, waits, writes the exit code, and exits.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        return
    write(request["pid"], pid)
    _, status = os.waitpid(pid, 0)
    write(request["code"], os.waitstatus_to_exitcode(status))
    os._exit(0)


def serve():
    """Forks a supervisor for each request. Returns only in processes that become torchrun, each with its request."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if os.fork() == 0:
            supervise(request)
            return request
    sys.exit(0)


if __name__ == "__main__":
    request = serve()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["stdout"], os.O_WRONLY | os.O_CREAT),
        (2, request["stderr"], os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["torchrun", *request["arguments"]]
    sys.exit(main())
