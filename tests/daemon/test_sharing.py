# SPDX-License-Identifier: GPL-2.0-or-later
"""Few filters in a real daemon: flows come by one rule, those that waited too, and none is late.

The receiver is this thread, on another CPU than where RSS delivers to.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atfnd.model import FlowKey, Match, Protocol
from atfnd.nic import Nic
from tests.applications import CPUS, rss_cpu
from tests.bed import Bed, a_bed
from tests.daemons import policy
from tests.labs import HOST, PEER, Ends, Lab, a_lab, key_of, packed
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

V4 = socket.AF_INET
FLOWS, SHARE = 12, 3
OURS = f'interfaces: [{{ match: {{ name: "*" }}, armed: true, filters: {{ max: {SHARE} }} }}]\n'
LONG_S = 90.0


@contextmanager
def a_small_share(folder: Path) -> Iterator[tuple[Bed, Lab]]:
    """Two queues on two CPUs, and three filters for us."""
    with a_lab(queues=2, slots=64) as lab:
        config = policy(order="strict", hold_down="50ms") + OURS
        with a_bed(lab, folder, "bpf", config) as bed:
            yield bed, lab


class Numbered:
    """Datagrams of a peer's port to many sockets, each flow's numbered."""

    def __init__(self, lab: Ends[Nic], port: int) -> None:
        self.lab, self.sender = lab, lab.open("peer", V4, socket.SOCK_DGRAM)
        self.sender.bind((PEER[V4], port))
        self.receivers = [self._receiver(port, 7000 + number) for number in range(FLOWS)]
        self.last = dict.fromkeys(self.receivers, 0)
        self.sent = 0
        self.late: list[tuple[FlowKey, int, int]] = []

    def _receiver(self, port: int, here: int) -> socket.socket:
        made = self.lab.open("host", V4, socket.SOCK_DGRAM)
        made.bind((HOST[V4], here))
        made.connect((PEER[V4], port))
        made.setblocking(False)
        return made

    @property
    def keys(self) -> list[FlowKey]:
        return [key_of(each, Protocol.UDP) for each in self.receivers]

    def pump(self) -> int:
        """One more datagram to each; what is there by now is received. How many were sent."""
        self.sent += 1
        for each in self.receivers:
            self.sender.sendto(self.sent.to_bytes(8, "big"), each.getsockname())
        for each in self.receivers:
            self._receive(each)
        return self.sent

    def _receive(self, receiver: socket.socket) -> None:
        while True:
            try:
                number = int.from_bytes(receiver.recv(8), "big")
            except BlockingIOError:
                return
            if number < self.last[receiver]:
                self.late.append((key_of(receiver, Protocol.UDP), number, self.last[receiver]))
            self.last[receiver] = max(number, self.last[receiver])


def shares(bed: Bed, lab: Lab, match: Match, keys: list[FlowKey]) -> bool:
    """The NIC holds this rule and no other, to the queue on our CPU."""
    rules = lab.nic.filters()
    if [rule.match for rule in rules] != [match] or rules[0].queue is None:
        return False
    return bed.cpu_of(rules[0].queue) == CPUS[1]


def proven(bed: Bed) -> int:
    counts = bed.daemon.status()["moves"]
    ends = [each for each in counts if (each["mechanism"], each["verdict"]) == ("hold", "proven")]
    return sum(each["count"] for each in ends)


def test_udp_flows_of_one_remote_port_share_a_filter(tmp_path: Path) -> None:
    with a_small_share(tmp_path) as (bed, lab):
        flows = Numbered(lab, 6000)
        elsewhere = [key for key in flows.keys if rss_cpu(lab, key) != CPUS[1]]
        assert len(elsewhere) > SHARE
        bed.start()
        os.sched_setaffinity(0, {CPUS[1]})  # not before: the daemon would not be where it can write
        match = Match(4, 17, packed(PEER[V4]), 32, packed(HOST[V4]), 32, 6000, None)

        def shared() -> bool:
            flows.pump()
            return shares(bed, lab, match, flows.keys)

        until(shared, "all come by one rule", LONG_S)
        before = flows.sent
        until(lambda: flows.pump() > before + 200, "they go on")
        assert flows.late == []
        assert proven(bed) > 0
        [rule] = lab.nic.filters()
        for receiver in flows.receivers:
            assert lab.queue_of(receiver) == rule.queue
        rows = [bed.daemon.flow(key) for key in elsewhere]
        assert {row["state"] for row in rows if row} == {"port"}
        wide = FlowKey(Protocol.UDP, packed(HOST[V4]), 0, packed(PEER[V4]), 6000, 32)
        assert str(wide) in bed.daemon.ctl("explain", str(elsewhere[0])).stdout


def test_a_ports_rule_carries_connections_that_wait(tmp_path: Path) -> None:
    """They were there before us: some would be moved by it."""
    with a_small_share(tmp_path) as (bed, lab):
        listener = lab.open("host", V4, socket.SOCK_STREAM)
        listener.bind((HOST[V4], 8080))
        listener.listen(50)
        pairs = []
        for number in range(FLOWS):
            client = lab.open("peer", V4, socket.SOCK_STREAM)
            client.bind((PEER[V4], 6000 + number))  # by ports of the kernel's choice it is chance
            client.connect((HOST[V4], 8080))
            pairs.append((client, listener.accept()[0]))
        keys = [key_of(accepted, Protocol.TCP) for _, accepted in pairs]
        elsewhere = [key for key in keys if rss_cpu(lab, key) != CPUS[1]]
        assert len(elsewhere) > SHARE
        bed.start()
        os.sched_setaffinity(0, {CPUS[1]})  # not before: the daemon would not be where it can write
        match = Match(4, 6, None, 0, packed(HOST[V4]), 32, None, 8080)

        def shared() -> bool:
            for client, accepted in pairs:
                client.send(b"x")
                assert accepted.recv(1) == b"x"
            return shares(bed, lab, match, keys)

        until(shared, "all come by their port's rule", LONG_S)
        assert proven(bed) > 0
        [rule] = lab.nic.filters()
        for client, accepted in pairs:
            client.send(b"x")
            assert accepted.recv(1) == b"x"
            assert lab.queue_of(accepted) == rule.queue
            accepted.close()
