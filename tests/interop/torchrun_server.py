"""Torchrun many times for one import of torch: reads what to run from standard input, a line of JSON each, and forks. What runs
in the fork is torchrun's own main, as its console script calls it.

A request names the arguments, environment and folder of a run, and the files for its output, its process id and, at the end, its exit
code.
"""

import json
import os
import signal
import sys

from torch.distributed.run import main


def write(path, text):
    """Whoever waits for the file must find all of it."""
    with open(f"{path}.part", "w") as file:
        file.write(str(text))
    os.rename(f"{path}.part", path)


def supervise(request):
    """Forks once more and waits; returns in the process that is to be torchrun."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        return
    write(request["pid"], pid)
    _, status = os.waitpid(pid, 0)
    write(request["code"], os.waitstatus_to_exitcode(status))
    os._exit(0)


def serve():
    """Returns in each process that is to be torchrun, with what it is to run."""
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
    os.chdir(request["folder"])
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
