# SPDX-License-Identifier: GPL-2.0-or-later
"""Strict order while queues with real interrupts are received in another way, on a kernel that can
have each: a queue follows its thread while a CPU stalls, and nothing is late.

Sender and daemon share a CPU that has no queue: when a move is made, the sender is not in the
middle of a frame (tests/guest/test_hold.py says why). Two CPUs of the guest have queues: each may
be polled without end.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from atfnd.model.reception import BUSY_THREAD, THREAD, TIMEOUT
from bench.traffic.sequence import stalled
from tests.applications import CPUS
from tests.bed import a_bed
from tests.daemon.test_order import numbered, only_broken_holds_are_late, reported
from tests.daemons import policy
from tests.guest.simlab import a_simlab
from tests.wait import until

GUEST = ["--kernel", "newest", "--nic", "every"]
pytestmark = pytest.mark.usefixtures("own_affinity")

SHARED, *QUEUED = CPUS[:3]
ASIDE = CPUS[-1]  # the test itself
RATE_PPS = 500
STALL_MS, PERIOD_MS = 8.0, 27.3
MOVES = 4
LONG_S, SELDOM_S = 60.0, 0.5
RECEPTIONS = {
    "busy": ("busy", THREAD, BUSY_THREAD),
    "deferred": ("{deferred: {timeout: 200us, polls: 10}}", TIMEOUT, "200000"),
    "suspended": ("{suspended: {timeout: 100us, polls: 10}}", TIMEOUT, "100000"),
    "dedicated": ("{dedicated: {pause: 100us, idle_after: 100ms}}", TIMEOUT, "100000"),
}


@pytest.mark.parametrize("mode", RECEPTIONS)
def test_a_queue_follows_and_nothing_is_late(mode: str, tmp_path: Path) -> None:
    """The flow has its filter before its queue is received so, and before strict order is asked
    for: emulated CPUs leave hardly one instant for a hold."""
    reception, kind, value = RECEPTIONS[mode]
    with (
        a_simlab(queues=2, table=64, location="explicit", drvname="ixgbe") as lab,
        ExitStack() as stack,
    ):

        def values() -> set[str | None]:
            return {lab.nic.setting(f"{kind}:{queue}") for queue in range(len(QUEUED))}

        for index, cpu in enumerate(QUEUED):
            lab.nic.set_queue_cpu(index, cpu)
        lab.nic.probe()  # which switches there are is found by trying one
        before = values()
        os.sched_setaffinity(0, {SHARED})
        first = policy(order="immediate", hold_down="50ms")
        bed = stack.enter_context(a_bed(lab, tmp_path, "bpf", first))
        bed.start()
        here, there = QUEUED
        flow = stack.enter_context(numbered(bed, lab, here, RATE_PPS))
        os.sched_setaffinity(0, {ASIDE})
        flow.on(there)
        until(flow.arrives, "it is placed", LONG_S, SELDOM_S)
        until(
            lambda: bed.daemon.status()["moves"], "that move is seen to its end", LONG_S, SELDOM_S
        )
        early, seq = len(flow.running.so_far().late_ns), bed.daemon.events()[-1]["seq"]
        asked = f"interfaces: [{{ match: {{ name: '*' }}, reception: {reception} }}]\n"
        bed.daemon.config.write_text(policy(order="strict", hold_down="50ms") + asked)
        assert bed.daemon.process is not None
        bed.daemon.process.send_signal(signal.SIGHUP)
        until(lambda: values() == {value}, "both queues are received so", LONG_S, SELDOM_S)
        stack.enter_context(stalled(there, STALL_MS, PERIOD_MS))
        for move in range(MOVES):
            flow.migrates()
            until(flow.arrives, f"its queue follows, {move}", LONG_S, SELDOM_S)
        tally = flow.running.finish()
        only_broken_holds_are_late(bed, len(tally.late_ns), early, seq)
        assert tally.received > 0
        assert reported(bed, "follow", "proven") > MOVES // 2, bed.daemon.status()["moves"]
        until(lambda: values() == {value}, "what was borrowed is back", LONG_S, SELDOM_S)
        assert bed.daemon.get("/v1/nics")["nics"][0]["manual"] == []
        assert bed.daemon.ctl("restore", lab.nic.name).returncode == 0
        assert values() == before
