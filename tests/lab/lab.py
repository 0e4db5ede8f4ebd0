"""Simulated hosts on one machine, with links that can delay, lose and reorder packets or be cut.

    with Lab(hosts=3) as lab:                                     # addresses 10.77.0.1, 10.77.0.2, 10.77.0.3
        lab.link(delay=0.15, jitter=0.1, loss=0.1, reorder=0.1)   # between any two hosts
        process = lab.hosts[0].start(["some", "command"])
        with lab.hosts[2].cut():
            ...

A host is a set of anonymous namespaces (network, PIDs, mounts, host name), so labs of several test processes do not
interfere. Its only interface is a TAP whose other end is a switch in user space (`switch.py`), because not every kernel
has netem. All processes of a lab exit with the process that created it, even if that process is killed: the switch and
the first process of every host (`holder.py`) exit when their socket to that process is closed, and a PID namespace ends
with its first process.

A caller that is not root gets a user namespace per host. The kernel must permit that, and the caller needs read and
write permission on /dev/net/tun.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from clock import WAIT_TIMEOUT, wait_until
from holder import address
from output_reader import OutputReader
from switch import Link

HERE = pathlib.Path(__file__).resolve().parent


@functools.cache
def missing_requirement():
    """Returns why this machine cannot run a lab, or None if it can."""
    missing = [tool for tool in ("ip", "nsenter", "unshare", "mount") if shutil.which(tool) is None]
    if missing:
        return f"the lab needs {', '.join(missing)} on the PATH (Debian: apt-get install iproute2 util-linux mount)"
    probe = subprocess.run([*unshare(), "sh", "-c", ": <>/dev/net/tun"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        return f"this machine does not permit network namespaces or access to /dev/net/tun: {probe.stderr.strip()}"
    return None


def unshare():
    """Returns the start of a command line that runs a command in new namespaces."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


class LabError(Exception):
    """A lab could not be set up."""


class Lab:
    """A switch and its hosts. If the `with` block raises an exception, the logs are printed.

    `neighbors` is "static" or "arp". With "static", hosts know each other's MAC addresses, as if routers were in
    between, so packets to a cut host are lost silently. With "arp", hosts resolve addresses, as on one segment, so
    after a few seconds a cut also causes "No route to host".

    `names` are further names of the hosts, one for each host, next to `host1`, `host2` and so on.
    """

    def __init__(self, hosts, seed=None, neighbors="static", names=()):
        self.seed = random.randrange(2**32) if seed is None else seed
        self._cleanup = contextlib.ExitStack()
        try:
            self._start(hosts, neighbors, names)
        except BaseException:
            self._cleanup.close()
            raise

    def _start(self, count, neighbors, further_names):
        self.hosts = [Host(self, number) for number in range(1, count + 1)]
        # The file can be deleted once all hosts have bind-mounted it over their /etc/hosts.
        with tempfile.NamedTemporaryFile("w", prefix="rallypoint-lab-") as names:
            os.chmod(names.name, 0o644)
            names.write("127.0.0.1 localhost\n")
            names.writelines(f"{host.address} host{host.number}\n" for host in self.hosts)
            names.writelines(f"{host.address} {name}\n" for host, name in zip(self.hosts, further_names))
            names.flush()
            for host in self.hosts:
                self._cleanup.callback(host._stop)
                host._start(count, names.name, neighbors)
            taps = [host._tap() for host in self.hosts]
        self._control, peer_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(WAIT_TIMEOUT)
        self._switch = subprocess.Popen(
            [sys.executable, "-I", HERE / "switch.py", *map(str, [self.seed, peer_end.fileno(), *taps])],
            stdin=subprocess.DEVNULL,
            pass_fds=[peer_end.fileno(), *taps],
        )
        self._cleanup.callback(self._switch.wait)
        self._cleanup.callback(self._control.close)
        peer_end.close()
        for tap in taps:
            os.close(tap)
        self.counters()

    def link(self, **quality):
        """Sets the quality of the links between any two hosts, in each direction (see `switch.Link`)."""
        self._command(hosts=[host.number for host in self.hosts], out=dataclasses.asdict(Link(**quality)))

    def split(self, hosts):
        """Drops all frames between these hosts and the others until the `with` block of the result ends."""
        numbers = [host.number for host in hosts]
        self._command(hosts=numbers, side=-1)
        cleanup = contextlib.ExitStack()
        cleanup.callback(self._command, hosts=numbers, side=0)
        return cleanup

    def counters(self):
        """Returns the numbers of forwarded, lost, cut and late frames, and the maximum lateness in seconds."""
        return self._command()

    def _command(self, **command):
        self._control.send(json.dumps(command).encode())
        return json.loads(self._control.recv(65536))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            print(self.logs())
        self._cleanup.close()

    def logs(self):
        """Returns the output of every process of every host, and the counters of the switch."""
        processes = [process for host in self.hosts for process in host.processes]
        return "\n".join([*(process.log() for process in processes), f"== switch\n{self.counters()}\n"])


class Host:
    """One host. Its processes see only the host's network and each other."""

    def __init__(self, lab, number):
        self.number = number
        self.address = address(number)
        self.processes = []
        self._lab = lab

    def _start(self, count, hosts_file, neighbors):
        self._socket, peer_end = socket.socketpair()
        self._socket.settimeout(WAIT_TIMEOUT)
        arguments = map(str, [self.number, count, peer_end.fileno(), hosts_file, neighbors])
        self._errors = self._lab._cleanup.enter_context(tempfile.TemporaryFile())
        self._holder = subprocess.Popen(
            [*unshare(), sys.executable, HERE / "holder.py", *arguments],
            stdin=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=[peer_end.fileno()],
        )
        peer_end.close()
        # Only children of `unshare` are in the new PID namespace. `unshare` itself is in the new network, host name and mount
        # namespaces.
        target = ["--target", str(self._holder.pid), f"--pid=/proc/{self._holder.pid}/ns/pid_for_children"]
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        self._enter = ["nsenter", *target, *user, "--net", "--uts", "--mount", "--"]

    def _tap(self):
        """Waits until the host is ready, and returns the file descriptor of its TAP."""
        message, taps, _, _ = socket.recv_fds(self._socket, 16, 1)
        if message != b"ready":
            self._holder.wait(WAIT_TIMEOUT)
            self._errors.seek(0)
            raise LabError(f"host {self.number} exited with {self._holder.returncode}: {self._errors.read().decode()}")
        return taps[0]

    def _stop(self):
        if hasattr(self, "_holder"):
            self._socket.close()
        for process in self.processes:
            # If a signal stopped the child of `nsenter`, `nsenter` has stopped itself, too. It must continue, because
            # the PID namespace ends only after `nsenter` has reaped its child.
            process._popen.send_signal(signal.SIGCONT)
            process.exit_code()
        if hasattr(self, "_holder"):
            self._holder.wait(WAIT_TIMEOUT)

    def start(self, command, environment=None):
        """Starts a command on this host."""
        process = Process(self, self._enter, list(map(str, command)), environment)
        self.processes.append(process)
        return process

    def run(self, command, within=WAIT_TIMEOUT):
        """Runs a command on this host and returns the completed process, with its output as text."""
        command = [*self._enter, *map(str, command)]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=within, check=False)

    def link(self, **quality):
        """Sets the quality of this host's link in both directions. The links of other hosts stay unchanged."""
        quality = dataclasses.asdict(Link(**quality))
        self._lab._command(hosts=[self.number], **{"out": quality, "in": quality})

    def cut(self):
        """Drops all frames from and to this host until `heal` is called or the `with` block of the result ends."""
        self._lab._command(hosts=[self.number], side=self.number)
        cleanup = contextlib.ExitStack()
        cleanup.callback(self.heal)
        return cleanup

    def heal(self):
        self._lab._command(hosts=[self.number], side=0)

    def power_off(self):
        """Ends the host for good, without another frame from it."""
        self.cut()
        # The first process of the host exits, and the kernel kills all others.
        self._socket.close()


class Process:
    """A process on a host, with the lines that it has written so far and the time at which each was read."""

    def __init__(self, host, enter, command, environment):
        self.host = host
        self._name = " ".join(command)
        self.started = time.monotonic()
        self.lines = []
        self._popen = subprocess.Popen(
            [*enter, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=None if environment is None else os.environ | environment,
        )
        self._output = OutputReader(self._popen, (self._popen.stdout, self._append))

    def _append(self, line):
        self.lines.append((time.monotonic(), line))

    def text(self):
        """Returns the output. Each line starts with the seconds since the start of the process."""
        return "".join(f"{when - self.started:8.3f} {line}" for when, line in list(self.lines) if line)

    def log(self):
        """Returns `text` with a heading."""
        return f"== {self.host.address}: {self._name}, exit code {self.poll()}\n{self.text()}"

    def poll(self):
        """Returns the exit code, or None while the process runs."""
        return self._popen.poll()

    def exit_code(self, within=WAIT_TIMEOUT):
        """Waits for the process to exit and for its last line. Returns the exit code."""
        return self._output.exit_code(within)

    def pid(self):
        """Returns the process id in the PID namespace of this machine."""
        # `nsenter` stays as the parent process, because only a child can be in another PID namespace.
        return wait_until("the child process of nsenter", lambda: children(self._popen.pid))[0]

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid(), signal.SIGKILL)


def parents():
    """Returns a dictionary from the id of each process on this machine to the id of its parent."""
    found = {}
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found[int(directory.name)] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def children(pid):
    return [child for child, parent in parents().items() if parent == pid]


def descendants(pid):
    """Returns all descendants of a process."""
    parent_of = parents()
    found = [pid]
    for each in found:
        found += [child for child, parent in parent_of.items() if parent == each]
    return found[1:]


def pid_in_host(pid):
    """Returns the id of a process in the PID namespace of its host."""
    [numbers] = [line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:")]
    return int(numbers.split()[-1])
