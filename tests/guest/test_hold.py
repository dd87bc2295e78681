# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC whose NAPIs have threads, on a kernel that does not tell so by netlink: its queues are
confined, and a flow is moved by hold, past RSS's queue too.

An emulated CPU may be stopped by its host for milliseconds, between a frame's classification and
its interrupt as well: no T_pipe is true here (docs/internals/ordering.md, H1). So sender,
interrupts and mover share one CPU: when the mover runs, the sender is not in the middle of a frame.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.kernel.interrupts.irq import set_affinity
from atfnd.model import Actuator, Match, Protocol
from atfnd.move.verdict import Mechanism, Mode, Verdict
from atfnd.nic import Nic
from bench.traffic.sequence import sequence, stalled
from tests.guest.simlab import NAME, a_simlab, ethtool, interrupts, sh
from tests.labs import Ends, key_of
from tests.move.moving import ANOTHER_AT_ONCE, Flow
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

SO_INCOMING_CPU = 49  # asm-generic/socket.h
SHARED, A, B, R = range(4)  # CPUs
SLOW = replace(ANOTHER_AT_ONCE, hold_max_ns=300_000_000)  # as all is that is emulated
RATE_PPS = 2_000
STALL_MS, PERIOD_MS = 8.0, 27.3  # not in step with the 10 ms of `until`
MOVES = 50
MOVES_THROUGH_RSS = 15


@contextmanager
def threaded(**parameters: object) -> Iterator[Ends[Nic]]:
    with a_simlab(queues=3, location="explicit", **parameters) as made:
        Path(f"/sys/class/net/{NAME}/threaded").write_text("1")
        yield made


@pytest.fixture
def lab() -> Iterator[Ends[Nic]]:
    """Filters are replaced in place, as ixgbe's are."""
    with threaded(drvname="ixgbe") as made:
        yield made


@pytest.fixture
def flow(lab: Ends[Nic], tmp_path: Path) -> Iterator[Flow]:
    with a_flow(lab, tmp_path) as made:
        yield made


@contextmanager
def a_flow(lab: Ends[Nic], path: Path) -> Iterator[Flow]:
    """Between queue 0 on CPU A and queue 1 on CPU B; queue 2 is on CPU R."""
    for queue, cpu in zip(lab.nic.queues(), (A, B, R), strict=True):
        assert queue.irq is not None
        set_affinity(queue.irq, {SHARED})
        lab.nic.set_queue_cpu(queue.index, cpu)
    os.sched_setaffinity(0, {SHARED})
    with ExitStack() as undo:
        yield Flow(lab, path, SLOW, undo)


def seats(nic: Nic) -> list[tuple[set[int], int]]:
    pids = [queue.pid or 0 for queue in nic.queues()]
    return [(os.sched_getaffinity(pid), os.sched_getscheduler(pid)) for pid in pids]


def test_a_thread_is_moved_and_its_interrupt_is_not(lab: Ends[Nic]) -> None:
    """Its name stays that of the interface when it was made."""
    sender, receiver = lab.udp_pair(socket.AF_INET, 4001, 5001)
    location = lab.nic.insert(Match.of(key_of(receiver, Protocol.UDP)), 2)
    queue = lab.nic.queues()[2]
    assert queue.irq is not None
    comm = Path(f"/proc/{queue.pid}/comm").read_text().strip()
    assert (queue.threaded, comm) == (True, f"napi/{NAME}-{queue.napi_id}")
    set_affinity(queue.irq, {SHARED})
    sh("ip", "link", "set", NAME, "name", "renamed")
    try:
        for cpu in (3, 1):
            lab.nic.set_queue_cpu(2, cpu)
            before = interrupts(queue.irq)
            sender.send(b"x")
            assert receiver.recv(1) == b"x"
            assert receiver.getsockopt(socket.SOL_SOCKET, SO_INCOMING_CPU) == cpu
            assert lab.nic.queues()[2] == replace(queue, cpu=cpu)
            after = interrupts(queue.irq)
            assert [c for c in range(4) if after[c] > before[c]] == [SHARED]
    finally:
        sh("ip", "link", "set", "renamed", "name", NAME)
        lab.nic.delete(location)


def strict_moves(flow: Flow, moves: int, rss: frozenset[int] = frozenset()) -> None:
    """Until so many are proven, and no datagram of these was late; nothing is left of the holds."""
    nic = flow.nic.nic
    before, ours = seats(nic), os.sched_getscheduler(0)

    def enough() -> bool:
        flow.move(Mode.STRICT, rss)
        return flow.count(Verdict.PROVEN) >= moves

    with sequence(flow.sender, flow.receiver, RATE_PPS) as running:
        with stalled(A, STALL_MS, PERIOD_MS):
            until(enough, f"{moves} moves are proven", 60)
        tally = running.finish()
    assert tally.received > moves
    late = {flow.ended[move].verdict for move in flow.late(tally)}
    assert late <= {Verdict.UNPROVEN, Verdict.VIOLATED}  # a hold that others cut short
    held = [each for each in flow.ended if each.verdict is not Verdict.DEFERRED]
    assert {each.mechanism for each in held} == {Mechanism.HOLD}
    assert not any(flow.actuator.in_force(queue.index) for queue in nic.queues())
    assert (seats(nic), os.sched_getscheduler(0)) == (before, ours)
    assert os.sched_getaffinity(0) == {SHARED}


def test_no_proven_move_reorders(flow: Flow) -> None:
    strict_moves(flow, MOVES)


def test_no_proven_move_through_rss_reorders(tmp_path: Path) -> None:
    """A changed filter is deleted and added; packets between the two come by queue 2. Both its ring
    and the new one are quiesced."""
    with threaded(drvname="mlx5_core", overwrite="gap", gap_us=300) as lab:
        ethtool("-X", NAME, "weight", 0, 0, 1)
        with a_flow(lab, tmp_path) as flow:
            assert flow.moves.device.port.actuator is Actuator.LONG_GAP
            before = lab.nic.stats().queues[2].packets or 0
            strict_moves(flow, MOVES_THROUGH_RSS, frozenset({2}))
            assert (lab.nic.stats().queues[2].packets or 0) > before


def test_moves_that_wait_for_nothing_reorder(flow: Flow) -> None:
    """On the same bed: else the test above would prove nothing."""

    def enough() -> bool:
        flow.move(Mode.IMMEDIATE)
        return flow.count(Verdict.VIOLATED) >= 1

    with sequence(flow.sender, flow.receiver, RATE_PPS) as running:
        with stalled(A, STALL_MS, PERIOD_MS):
            until(enough, "a move reordered the flow", 60)
        tally = running.finish()
    assert flow.late(tally)
