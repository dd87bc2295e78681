# SPDX-License-Identifier: GPL-2.0-or-later
"""RFS of a queue under numbered datagrams: switched on and off, and left for another queue, without
one that comes late. Changes net.core.rps_sock_flow_entries."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from atfnd.kernel.interrupts.packet_steering import FLOW_ENTRIES
from atfnd.model import Action, Match, Outcome, Protocol
from atfnd.observe.machine.busy import handoffs
from atfnd.observe.sockets.transit import Passage, Transit
from atfnd.program import rfs
from bench.traffic.sequence import sequence
from tests.labs import Lab, key_of
from tests.move.holding import PIPE_NS, hold_of
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

SO_COOKIE = 57  # asm-generic/socket.h
RATE_PPS = 20_000
LIMIT_NS = 10**9
SWITCHES, MOVES = 200, 100
NOT_NOW = errno.EAGAIN, errno.ETIMEDOUT  # others have its CPU


class Flow:
    """One flow of numbered datagrams, by a filter to queue A, and queue B beside it."""

    def __init__(self, lab: Lab, transit: Transit) -> None:
        self.nic, self.transit = lab.nic, transit
        self.sender, self.receiver = lab.udp_pair(socket.AF_INET, 4000, 5000)
        self.match = Match.of(key_of(self.receiver, Protocol.UDP))
        raw = self.receiver.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8)
        self.cookie = int.from_bytes(raw, sys.byteorder)
        self.a, self.b = self.nic.queues()[:2]
        self.location = self.nic.insert(self.match, self.a.index)
        for queue in (self.a, self.b):
            transit.watch(queue.napi_id or 0, queue.pid)
        transit.begin(self.cookie, 1, self.a.napi_id or 0, self.b.napi_id or 0)

    def seen(self) -> Passage:
        seen = self.transit.read(self.cookie)
        assert seen is not None
        return seen

    def comes_by(self, packets: str) -> None:
        before = getattr(self.seen(), packets)
        until(lambda: getattr(self.seen(), packets) > before + 20, "packets come")

    def switched(self, value: str) -> bool:
        """False: others had the CPU of its queue."""
        action = Action.of_setting("r0", f"rps-flow-cnt:{self.a.index}", value)

        def write() -> Outcome:
            self.nic.write_setting(action.setting or "", value)
            return Outcome(action, time.monotonic_ns(), 0, None, "as planned")

        outcome = rfs.switch(action, self.transit, self.a, write)
        assert outcome.errno in (0, *NOT_NOW), outcome
        assert outcome.errno or outcome.left == "as planned"
        return not outcome.errno


@pytest.fixture
def flow(lab: Lab) -> Iterator[Flow]:
    entries = lab.nic.setting(FLOW_ENTRIES)
    assert entries is not None
    with closing(Transit()) as transit:
        transit.start()
        lab.nic.write_setting(FLOW_ENTRIES, "1024")
        try:
            yield Flow(lab, transit)
        finally:
            lab.nic.write_setting(FLOW_ENTRIES, entries)


def test_rfs_is_switched_on_and_off_without_a_late_packet(flow: Flow) -> None:
    done = 0
    assert flow.a.cpu is not None
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {flow.a.cpu})  # and its reader's
    before = handoffs() or 0
    with sequence(flow.sender, flow.receiver, RATE_PPS) as running:
        value = "256"
        while done < SWITCHES:
            flow.comes_by("a_packets")
            if flow.switched(value):
                done, value = done + 1, "0" if value == "256" else "256"
        tally = running.finish()
    assert tally.received > 0
    assert tally.late_ns == []
    assert (handoffs() or 0) > before  # RFS has handed packets on


def test_a_flow_leaves_a_queue_with_rfs_without_a_late_packet(flow: Flow) -> None:
    moved = 0
    assert flow.transit.know_backlogs()
    flow.nic.write_setting(f"rps-flow-cnt:{flow.a.index}", "256")
    with sequence(flow.sender, flow.receiver, RATE_PPS) as running:
        while moved < MOVES:
            flow.comes_by("a_packets")
            hold = hold_of(flow.transit, [flow.a], flow.b, LIMIT_NS)
            flow.nic.insert(flow.match, flow.b.index, flow.location)
            hold.settle(time.monotonic_ns() + PIPE_NS, hands_on=True)
            assert hold.settled(time.monotonic_ns() + LIMIT_NS)
            held = hold.release()
            assert held.unbroken
            assert held.marked_ns is not None
            assert held.proofs[0].at_ns <= held.marked_ns <= held.released_ns
            moved += 1
            flow.comes_by("b_packets")
            assert flow.seen().late_packets == 0
            hold = hold_of(flow.transit, [flow.b], flow.a, LIMIT_NS)  # and back, as any other
            flow.nic.insert(flow.match, flow.a.index, flow.location)
            hold.settle(time.monotonic_ns() + PIPE_NS)
            assert hold.settled(time.monotonic_ns() + LIMIT_NS)
            assert hold.release().unbroken
            flow.transit.end(flow.cookie)
            flow.transit.begin(flow.cookie, moved, flow.a.napi_id or 0, flow.b.napi_id or 0)
        tally = running.finish()
    assert tally.received > 0
    assert tally.late_ns == []
