"""The lab itself: the effect of link settings on packets, and cleanup."""

import os
import pathlib
import statistics
import subprocess
import sys
import time

import pytest
from clock import wait_until
from lab import Lab

ECHO = """
import socket
echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
echo.bind(("", 7))
print("ready", flush=True)
while True:
    data, peer = echo.recvfrom(2048)
    echo.sendto(data, peer)
"""

PING = """
import socket, sys, time
address, count, interval, grace = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
ping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ping.connect((address, 7))
sent = []
def receive(deadline):
    while (remaining := deadline - time.monotonic()) > 0:
        ping.settimeout(remaining)
        try:
            number = int(ping.recv(2048))
        except TimeoutError:
            return
        print(number, time.monotonic() - sent[number])
for number in range(count):
    sent.append(time.monotonic())
    ping.send(str(number).encode())
    receive(sent[number] + interval)
receive(time.monotonic() + grace)
"""

SINK = """
import socket, sys, threading, time
listener = socket.create_server(("", 9))
print("ready", flush=True)
connection, _ = listener.accept()
total = 0
while data := connection.recv(1 << 20):
    total += len(data)
connection.sendall(str(total).encode())
"""

SEND = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 9))
connection.sendall(bytes(int(sys.argv[2])))
connection.shutdown(socket.SHUT_WR)
print(connection.recv(100).decode())
"""


@pytest.fixture
def pair():
    with Lab(hosts=2, seed=1) as lab:
        yield lab


def python(source, *arguments):
    return [sys.executable, "-I", "-S", "-c", source, *arguments]


def start_server(host, source):
    process = host.start(python(source))
    wait_until("the server", lambda: "ready" in process.text())


def pings(lab, count=200, interval=0.005, grace=1.0):
    """Sends pings from host 2 to host 1. Returns number and round-trip time of each reply, in order of arrival."""
    if not lab.hosts[0].processes:
        start_server(lab.hosts[0], ECHO)
    completed = lab.hosts[1].run(python(PING, lab.hosts[0].address, count, interval, grace), 60)
    assert completed.returncode == 0, completed.stderr
    rows = [line.split() for line in completed.stdout.splitlines()]
    return [(int(number), float(seconds)) for number, seconds in rows]


def test_a_link_without_settings_loses_no_packet_and_keeps_the_order_with_little_delay(pair):
    answers = pings(pair)
    assert [number for number, _ in answers] == list(range(200))
    assert statistics.median(seconds for _, seconds in answers) < 0.01


def test_delay_and_jitter_apply_to_both_directions_and_reorder_packets(pair):
    pair.link(delay=0.15, jitter=0.1)
    answers = pings(pair)
    times = [seconds for _, seconds in answers]
    assert len(times) == 200
    assert 0.1 <= min(times) < max(times) < 0.55, (min(times), max(times))
    assert 0.28 < statistics.mean(times) < 0.35, statistics.mean(times)
    numbers = [number for number, _ in answers]
    assert numbers != sorted(numbers)


def test_loss_applies_to_each_direction(pair):
    pair.link(loss=0.1)
    # 81 % of the pings get a reply, because 90 % of the packets arrive in each direction.
    # Five standard deviations of 1000 pings are 6 %.
    assert 750 < len(pings(pair, count=1000, interval=0.001)) < 870


def test_reordering_delays_only_the_reordered_frames(pair):
    pair.link(reorder=0.1)
    answers = pings(pair)
    numbers = [number for number, _ in answers]
    assert sorted(numbers) == list(range(200))
    assert numbers != sorted(numbers)
    assert statistics.median(seconds for _, seconds in answers) < 0.01


def test_settings_of_one_hosts_link_apply_to_both_directions(pair):
    pair.hosts[0].link(loss=1.0)
    assert not pings(pair, count=20, grace=0.1)
    pair.hosts[0].link()
    assert len(pings(pair, count=20)) == 20


def test_a_cut_host_reaches_no_other_host_until_it_is_healed(pair):
    with pair.hosts[1].cut():
        assert not pings(pair, count=20, grace=0.1)
    assert len(pings(pair, count=20)) == 20
    pair.hosts[0].cut()
    assert not pings(pair, count=20, grace=0.1)
    pair.hosts[0].heal()
    assert len(pings(pair, count=20)) == 20


def test_the_hosts_of_each_side_of_a_split_reach_only_each_other():
    with Lab(hosts=4) as lab:
        first, second, third, fourth = lab.hosts
        for host in (first, third):
            start_server(host, ECHO)

        def reaches(source, target):
            return source.run(python(PING, target.address, 5, 0.005, 0.1)).stdout.count("\n") == 5

        with lab.split([first, second]):
            assert reaches(second, first) and reaches(fourth, third)
            assert not reaches(fourth, first) and not reaches(second, third)
        assert reaches(fourth, first) and reaches(second, third)


def test_a_host_without_power_sends_no_more_frames_and_its_processes_end(pair):
    source = """
import socket
listener = socket.create_server(("", 9))
print("ready", flush=True)
connection, _ = listener.accept()
print("accepted", flush=True)
connection.recv(1)
"""
    start_server(pair.hosts[0], source)
    client = f"""
import socket
connection = socket.create_connection(({pair.hosts[0].address!r}, 9))
connection.settimeout(1)
try:
    print("received", connection.recv(1), flush=True)
except TimeoutError:
    print("silent", flush=True)
"""
    process = pair.hosts[1].start(python(client))
    [server] = pair.hosts[0].processes
    wait_until("the connection", lambda: "accepted" in server.text())
    pair.hosts[0].power_off()
    assert server.exit_code() != 0
    process.exit_code()
    assert "silent" in process.text(), process.text()


def test_hosts_that_use_arp_reach_each_other_and_get_no_route_to_a_cut_host():
    with Lab(hosts=2, neighbors="arp") as lab:
        assert len(pings(lab, count=20)) == 20
        lab.hosts[1].run(["ip", "neighbor", "flush", "all"])
        lab.hosts[0].cut()
        completed = lab.hosts[1].run(python(SEND, lab.hosts[0].address, 1))
        assert "No route to host" in completed.stderr


def test_the_switch_forwards_over_5000_frames_per_second(pair):
    start_server(pair.hosts[0], SINK)
    size = 50_000_000
    begin = time.monotonic()
    completed = pair.hosts[1].run(python(SEND, pair.hosts[0].address, size), 60)
    seconds = time.monotonic() - begin
    assert completed.stdout.strip() == str(size), completed
    counters = pair.counters()
    print(counters, seconds)
    assert counters["forwarded"] / seconds > 5000, counters


def test_hosts_have_names_and_processes_of_their_own(pair):
    names = [host.run(["cat", "/proc/sys/kernel/hostname"]).stdout.strip() for host in pair.hosts]
    assert names == ["host1", "host2"]
    assert pair.hosts[0].run(["kill", "-0", str(os.getpid())]).returncode != 0
    assert pair.hosts[0].run(["getent", "hosts", "host2"]).stdout.split() == ["10.77.0.2", "host2"]


def test_a_lab_whose_process_is_killed_leaves_no_process(tmp_path):
    source = """
import sys, time
sys.path[:0] = sys.argv[1:]
from lab import Lab
lab = Lab(hosts=2)
for host in lab.hosts:
    host.start(["setsid", "sh", "-c", "sleep 1000 & exec sleep 1000"])
    print(host._holder.pid, host.processes[0].pid())
print(lab._switch.pid, flush=True)
time.sleep(1000)
"""
    here = pathlib.Path(__file__).resolve().parent
    command = [sys.executable, "-c", source, here, here.parent / "interop"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        pids = [int(pid) for _ in range(3) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(pids) == 5
    wait_until("all processes to exit", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
