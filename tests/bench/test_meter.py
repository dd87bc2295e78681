# SPDX-License-Identifier: GPL-2.0-or-later
"""The meter against traffic whose delivery CPU is known: a veth pair whose receiver's RPS mask
names one CPU, so every packet is delivered there, no matter which process sent it.

A kernel may pass packets without running a tracing program: on the machine this was written on, for
0.2-3 ms about once a second, with no recursion miss counted (softnet_stat saw the packets, programs
on two tracepoints both did not). So the tests ask that nothing is ever counted twice or in the
wrong place, and go on until enough is counted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from atfnd.kernel.system.netns import in_netns, path_of
from atfnd.model import Protocol
from bench.meter import Meter, Reading, Totals
from tests.wait import until

V4, V6 = ("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77::2")
DELIVERY_CPU, OTHER_CPU = 0, 1
LOCAL, REMOTE = 0, 1  # columns of Totals
ENOUGH = 50
MSS = 1448


class Pair(NamedTuple):
    """Two namespaces: `peer` sends to `host`, whose device is metered."""

    peer: str
    host: str
    ifindex: int

    def meter(self, flows: int = 1024) -> Meter:
        return Meter(self.ifindex, os.stat(path_of(self.host)).st_ino, flows)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    peer, host = f"mp{os.getpid()}", f"mh{os.getpid()}"
    with contextlib.ExitStack() as stack:
        for name in (peer, host):
            run("ip", "netns", "add", name)
            stack.callback(run, "ip", "netns", "del", name)
        run(*f"ip link add p0 netns {peer} type veth peer name r0 netns {host}".split())
        for name, device, end in ((peer, "p0", 0), (host, "r0", 1)):
            run(*f"ip -n {name} addr add {V4[end]}/24 dev {device}".split())
            run(*f"ip -n {name} addr add {V6[end]}/64 dev {device} nodad".split())
            run(*f"ip -n {name} link set {device} up".split())
        run("ip", "netns", "exec", peer, "ethtool", "-K", "p0", "tso", "off", "gso", "off")
        run("ip", "netns", "exec", host, "ethtool", "-K", "r0", "gro", "on")
        mask = "/sys/class/net/r0/queues/rx-0/rps_cpus"
        run("ip", "netns", "exec", host, "sh", "-c", f"echo {1 << DELIVERY_CPU:x} > {mask}")
        index = int(run("ip", "netns", "exec", host, "cat", "/sys/class/net/r0/ifindex"))
        yield Pair(peer, host, index)


def udp(netns: str, family: int, address: str = "", port: int = 0) -> socket.socket:
    def make() -> socket.socket:
        sock = socket.socket(family, socket.SOCK_DGRAM)
        sock.settimeout(10)
        if address:
            sock.bind((address, port))
        return sock

    return in_netns(path_of(netns), make)


@pytest.mark.usefixtures("own_affinity")
@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize(
    ("family", "bound", "to", "source"),
    [
        (socket.AF_INET, V4[1], V4[1], V4[0]),
        (socket.AF_INET, "0.0.0.0", V4[1], V4[0]),
        (socket.AF_INET6, V6[1], V6[1], V6[0]),
        (socket.AF_INET6, "::", V6[1], V6[0]),
        (socket.AF_INET6, "::", V4[1], V4[0]),  # dual stack: an IPv4 packet, an IPv6 socket
    ],
)
def test_every_datagram_is_counted_where_it_was_delivered(
    pair: Pair, family: int, bound: str, to: str, source: str, connected: bool
) -> None:
    receiver = udp(pair.host, family, bound)
    sender = udp(pair.peer, socket.AF_INET6 if ":" in to else socket.AF_INET, source)
    with contextlib.closing(receiver), contextlib.closing(sender), pair.meter() as meter:
        if connected:
            address = source if family == socket.AF_INET or ":" in source else f"::ffff:{source}"
            receiver.connect((address, sender.getsockname()[1]))
        target = (to, receiver.getsockname()[1])

        def one_on(cpu: int) -> None:
            os.sched_setaffinity(0, {cpu})
            sender.sendto(b"x", target)
            receiver.recv(1)

        def enough_on(cpu: int, column: int) -> Reading:
            """What is counted while datagrams go one by one, until `column` has ENOUGH."""
            before, sent = meter.read(), itertools.count()

            def counted() -> bool:
                for _ in range(20):
                    one_on(cpu)
                    next(sent)
                return meter.totals().since(before.totals)[column] >= ENOUGH

            until(counted, f"enough datagrams are counted as {Totals._fields[column]}")
            found = meter.read().since(before)
            assert sum(found.totals[:3]) == found.totals[column] <= next(sent)
            return found

        one_on(DELIVERY_CPU)  # of a flow unknown until its first call
        assert meter.totals()[:2] == (0, 0)
        enough_on(DELIVERY_CPU, LOCAL)
        one_on(OTHER_CPU)  # delivered before the first call there
        away = enough_on(OTHER_CPU, REMOTE)
        ((key, flow),) = away.flows.items()
        assert flow[:4] == (0, away.totals.remote_segments, 0, OTHER_CPU)
        assert sum(flow[4:]) == (flow.remote_bytes if connected else 0)
        assert (key.protocol, key.local_port) == (Protocol.UDP, target[1])
        assert any(key.remote) == connected


def sink(listener: socket.socket, cpu: int, total: int) -> threading.Thread:
    def body() -> None:
        os.sched_setaffinity(0, {cpu})
        connection = listener.accept()[0]
        with connection:
            connection.sendall(b"x")  # makes the flow known before its data comes
            left = total
            while left:
                left -= len(connection.recv(min(left, 1 << 16)))

    thread = threading.Thread(target=body)
    thread.start()
    return thread


@pytest.mark.parametrize("cpu", [DELIVERY_CPU, OTHER_CPU])
def test_tcp_segments_are_those_of_the_wire_even_when_gro_merges_them(pair: Pair, cpu: int) -> None:
    total = 32 << 20
    listener = in_netns(path_of(pair.host), lambda: socket.create_server((V4[1], 0)))
    with contextlib.closing(listener), pair.meter() as meter:
        thread = sink(listener, cpu, total)
        address = listener.getsockname()
        sender = in_netns(path_of(pair.peer), lambda: socket.create_connection(address))
        with contextlib.closing(sender):
            assert sender.recv(1) == b"x"
            sender.sendall(bytes(total))
            thread.join()
        totals = meter.totals()
        segments = sum(totals[:3])
        assert segments >= total / MSS / 2
        # Handshake, ACK of "x", and a first window (RFC 6928): that send is traced when it returns.
        assert totals.unknown_segments <= 3 + 10
        assert segments > totals.skbs, "GRO merged nothing: the test proves nothing"
        assert totals.locality == (1.0 if cpu == DELIVERY_CPU else 0.0)
        assert totals.read_locality == totals.locality
        assert totals.local_bytes + totals.remote_bytes <= total
