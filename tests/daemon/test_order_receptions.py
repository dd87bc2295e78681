# SPDX-License-Identifier: GPL-2.0-or-later
"""Strict order while queues are received in another way than by interrupt: flows are placed and
follow, under a stall that makes unprotected moves reorder, and nothing is late."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from atfnd.model.reception import TIMEOUT
from bench.traffic.sequence import stalled
from tests.applications import CPUS
from tests.bed import a_bed
from tests.daemon.test_order import (
    BUSY_MS,
    LONG_S,
    numbered,
    only_broken_holds_are_late,
    reported,
)
from tests.daemons import policy
from tests.labs import a_lab
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

MOVES = 6
RECEPTIONS = {
    "deferred": "{deferred: {timeout: 200us, polls: 10}}",
    "suspended": "{suspended: {timeout: 100us, polls: 10}}",
    "dedicated": "{dedicated: {pause: 100us, idle_after: 100ms}}",
}


@pytest.mark.parametrize("mode", RECEPTIONS)
def test_nothing_is_late_and_timeouts_come_back(mode: str, tmp_path: Path) -> None:
    config = policy(order="strict", hold_down="50ms")
    config += f"interfaces: [{{ match: {{ name: '*' }}, reception: {RECEPTIONS[mode]} }}]\n"
    with a_lab(queues=2) as lab, a_bed(lab, tmp_path, "bpf", config) as bed, ExitStack() as flows:
        bed.start()

        def timeouts() -> set[str | None]:
            return {lab.nic.setting(f"{TIMEOUT}:{queue}") for queue in range(2)}

        until(lambda: "0" not in timeouts(), "both queues are polled by a timer")
        asked = timeouts()
        flows.enter_context(stalled(CPUS[0], BUSY_MS, 7.3))
        owner = flows.enter_context(numbered(bed, lab, CPUS[0]))
        owner.on(CPUS[1])
        until(owner.arrives, "its thread owns the queue on its CPU", LONG_S)
        guest = flows.enter_context(numbered(bed, lab, CPUS[0]))
        guest.on(CPUS[1])
        until(guest.arrives, "it is placed beside the owner", LONG_S)
        for move in range(MOVES):
            guest.migrates()
            until(guest.arrives, f"it is moved, {move}", LONG_S)
        until(lambda: reported(bed, "hold", "proven") > 0, "a move was proven", LONG_S)
        late = sum(len(flow.running.finish().late_ns) for flow in (owner, guest))
        only_broken_holds_are_late(bed, late)
        until(lambda: timeouts() == asked, "what was borrowed is back")
        rows = bed.daemon.get("/v1/nics")["nics"][0]
        assert rows["manual"] == []
