# SPDX-License-Identifier: GPL-2.0-or-later
"""The machine of the moves that drives the kernel: a real flow on the lab NIC."""

from __future__ import annotations

import errno
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.move.event import HoldLost
from atfnd.move.timer import Times
from atfnd.move.verdict import Mechanism, Mode, Verdict
from atfnd.nic.lab.device import HOST_LINK
from bench.traffic.sequence import sequence
from tests.labs import Lab
from tests.move.holding import patiently
from tests.move.moving import ANOTHER_AT_ONCE, Flow
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

RATE_PPS = 20_000
Make = Callable[[Times], Flow]


@pytest.fixture
def moving(lab: Lab, tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as undo:
        yield lambda times: Flow(lab, tmp_path, times, undo)


def test_a_bounded_move_waits_for_a_gap(moving: Make) -> None:
    # A sender that has to wait for its CPU leaves gaps, too, but none of a second.
    times = replace(ANOTHER_AT_ONCE, timer_max_ns=1_000_000_000, arm_ns=1_500_000_000)
    flow = moving(times)
    port = flow.moves.device.port
    slow = tuple(ring._replace(service_pps=100.0) for ring in port.rings)
    flow.moves.device = flow.moves.device._replace(port=port._replace(rings=slow, holds_max=0))
    with sequence(flow.sender, flow.receiver, RATE_PPS) as running:
        busy = flow.move(Mode.BOUNDED)
        running.finish()
    assert (busy.mechanism, busy.verdict) == (Mechanism.GAP, Verdict.DEFERRED)
    assert "never idle" in str(busy.why)
    assert flow.old == 0
    flow.want(Mode.BOUNDED)
    until(lambda: flow.look() or flow.old == 1, "its gap")
    flow.sender.send(b"x" * 48)
    until(flow.look, "the move has ended")
    assert (flow.ended[-1].mechanism, flow.ended[-1].verdict) == (Mechanism.GAP, Verdict.VERIFIED)


def test_a_queue_that_came_up_again_is_another(lab: Lab, moving: Make) -> None:
    flow = moving(ANOTHER_AT_ONCE)
    confined = [queue.cpu or 0 for queue in flow.nic.facts.queues]
    for state in ("down", "up"):
        host = f"{lab.name}-host"
        subprocess.run(["ip", "-n", host, "link", "set", HOST_LINK, state], check=True)
    for index, cpu in enumerate(confined):
        lab.nic.set_queue_cpu(index, cpu)
    assert flow.move(Mode.STRICT).verdict is Verdict.DEFERRED  # nobody has looked yet
    flow.nic.refresh()
    until(lambda: flow.move(Mode.STRICT).verdict is Verdict.QUIET, "a move without packets")
    flow.sender.send(b"x")
    assert flow.receiver.recv(1) == b"x"
    assert lab.queue_of(flow.receiver) == flow.old == 1


def test_what_cannot_be_held_is_refused_and_nothing_quiesced(moving: Make) -> None:
    flow = moving(ANOTHER_AT_ONCE)
    until_ns = time.monotonic_ns() + 10 * 10**9

    def refused(queue: int, *drains: int) -> int | None:
        with pytest.raises(OSError, match=r"queue|polls") as refusal:
            flow.actuator.hold(queue, until_ns, frozenset(drains))
        return refusal.value.errno

    assert refused(1) == refused(1, *range(2, 18)) == errno.EOPNOTSUPP
    assert refused(9, 0) == refused(1, 9) == refused(1, 0, 9) == errno.ENODEV
    assert refused(1, 0, 3) == errno.EDEADLK  # 3 is polled where 1 is
    patiently(lambda: flow.actuator.hold(1, until_ns, frozenset({0})))
    assert refused(2, 0) == errno.EBUSY
    assert flow.actuator.in_force(1)
    assert not flow.actuator.in_force(2)
    assert flow.actuator.release(1)
    assert not flow.actuator.release(1)
    flow.actuator.rest()
    assert refused(1, 0) == errno.ENOTCONN


def test_a_hold_that_runs_out_says_so_and_was_broken(moving: Make) -> None:
    flow = moving(ANOTHER_AT_ONCE)
    until_ns = time.monotonic_ns() + 50_000_000
    patiently(lambda: flow.actuator.hold(1, until_ns, frozenset({0})))
    flow.actuator.drain_evidence(0, until_ns + 10**9, False)  # which is too late
    reported = [*flow.actuator.evidence(until_ns), *flow.actuator.evidence(until_ns + 10**9)]
    assert [each for each in reported if isinstance(each, HoldLost)] == [
        HoldLost(1, "it ended at its limit")
    ]
    assert not flow.actuator.release(1)
