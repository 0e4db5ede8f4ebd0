"""The first process of a lab host: configures the host's network, passes its TAP to the lab, and keeps the namespaces
open.

    python holder.py HOST_NUMBER NUMBER_OF_HOSTS SOCKET_FD HOSTS_FILE NEIGHBORS

It runs as PID 1 of the host's PID namespace. It exits when the other end of the socket is closed, which also happens
when the lab's process dies. The kernel then kills every other process of the host.
"""

import contextlib
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys

from switch import mac

TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000


def address(number):
    """Returns the IPv4 address of a host."""
    return f"10.77.0.{number}"


def run(*command, **options):
    subprocess.run(command, check=True, **options)


def tap(name):
    """Creates a TAP interface and returns the file descriptor of its other end."""
    # Without `vnet_hdr`, the kernel computes every checksum and segments every packet before it writes a frame.
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def main():
    number, count, lab, hosts_file, neighbors = sys.argv[1:]
    number, count, lab = int(number), int(count), socket.socket(fileno=int(lab))
    socket.sethostname(f"host{number}")
    run("mount", "--bind", hosts_file, "/etc/hosts")
    with contextlib.suppress(OSError), open("/proc/sys/net/ipv6/conf/all/disable_ipv6", "w") as setting:
        setting.write("1")
    device = tap("eth0")
    lines = [
        "link set lo up",
        f"link set eth0 address {mac(number)} up",
        f"address add {address(number)}/24 dev eth0",
    ]
    if neighbors == "static":
        others = (other for other in range(1, count + 1) if other != number)
        lines += [f"neighbor replace {address(other)} lladdr {mac(other)} dev eth0 nud permanent" for other in others]
    run("ip", "-batch", "-", input="\n".join(lines), text=True)
    # Orphans become children of this process. The kernel reaps them if SIGCHLD is ignored.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    socket.send_fds(lab, [b"ready"], [device])
    os.close(device)
    lab.recv(1)


if __name__ == "__main__":
    main()
