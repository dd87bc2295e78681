# SPDX-License-Identifier: GPL-2.0-or-later
"""Few filters in a real daemon: connections come by their port's, those that waited too.

The receiver is this thread, on another CPU than where RSS delivers to.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from atfnd.model import Filter, Match, Protocol
from atfnd.nic import Nic
from tests.applications import CPUS, rss_cpu
from tests.bed import Bed, a_bed
from tests.daemons import policy
from tests.labs import HOST, PEER, Ends, a_lab, key_of, packed
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

V4 = socket.AF_INET
FLOWS, SHARE = 12, 3
PORT = Match(4, 6, None, 0, packed(HOST[V4]), 32, None, 8080)
OURS = f'interfaces: [{{ match: {{ name: "*" }}, armed: true, filters: {{ max: {SHARE} }} }}]\n'
FEW = policy(order="strict", hold_down="50ms") + OURS
LONG_S = 90.0


class Served:
    """Connections of one listener, that are there before the daemon is: its port's filter would
    move some."""

    def __init__(self, lab: Ends[Nic]) -> None:
        self.lab = lab
        listener = lab.open("host", V4, socket.SOCK_STREAM)
        listener.bind((HOST[V4], 8080))
        listener.listen(50)
        self.pairs = []
        for number in range(FLOWS):
            client = lab.open("peer", V4, socket.SOCK_STREAM)
            client.bind((PEER[V4], 6000 + number))  # by ports of the kernel's choice it is chance
            client.connect((HOST[V4], 8080))
            self.pairs.append((client, listener.accept()[0]))
        self.keys = [key_of(accepted, Protocol.TCP) for _, accepted in self.pairs]

    def asks(self) -> None:
        """A request on each."""
        for client, accepted in self.pairs:
            client.send(b"x")
            assert accepted.recv(1) == b"x"

    def held(self) -> Filter | None:
        """The filter of the port, once no other leads elsewhere. One that was written late is left
        where it is: filters are not short any more."""
        every = self.lab.nic.filters()
        of_port = next((each for each in every if each.match == PORT), None)
        queues = {each.queue for each in every}
        return of_port if len(queues) == 1 and len(every) < SHARE else None

    def shares(self) -> bool:
        """After one more request on each, the filter of the port is there, with one other at
        most."""
        self.asks()
        return self.held() is not None

    def check(self) -> None:
        """All come where that filter leads."""
        held = self.held()
        assert held is not None
        self.asks()
        for _, accepted in self.pairs:
            assert self.lab.queue_of(accepted) == held.queue
            accepted.close()


def proven(bed: Bed) -> int:
    counts = bed.daemon.status()["moves"]
    ends = [each for each in counts if (each["mechanism"], each["verdict"]) == ("hold", "proven")]
    return sum(each["count"] for each in ends)


def test_a_ports_filter_carries_connections_that_wait(tmp_path: Path) -> None:
    """There are three filters for us, and two queues on two CPUs."""
    with a_lab(queues=2, slots=64) as lab, a_bed(lab, tmp_path, "bpf", FEW) as bed:
        served = Served(lab)
        assert sum(rss_cpu(lab, key) != CPUS[1] for key in served.keys) > SHARE
        bed.start()
        os.sched_setaffinity(0, {CPUS[1]})  # not before: the daemon would not be where it can write

        def shared() -> bool:
            held = served.held() if served.shares() else None
            return held is not None and bed.cpu_of(held.queue or 0) == CPUS[1]

        until(shared, "all come by their port's filter", LONG_S)
        assert proven(bed) > 0
        served.check()
