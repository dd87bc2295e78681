# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast time goes: simulated seconds per second of CPU, on one core, by what happens in them.

The daemon looks as often as it does in service. What comes before the measured seconds, and the
checks of the end, are not counted.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from atfnd.daemon.chores import Pace
from tests.simulation import service
from tests.simulation.run import Run, run
from tests.simulation.schedule import Plan, Step
from tests.simulation.world import BEGIN_NS

__all__ = ["WORKLOADS", "Workload", "measured"]

SECOND_NS = 1_000_000_000
UNTIL_MEASURED = 10  # seconds: its flows have got their filters


class Workload(NamedTuple):
    """What happens in a simulated second. `policy`: the number of its policy (policies.py)."""

    name: str
    policy: int
    wanders: bool  # threads wake on another CPU by themselves, each as often as was drawn for it
    seconds: int


WORKLOADS = (
    Workload("settled: one thread moves a second", 8, False, 200),
    Workload("wandering: threads move 700 times a second", 8, True, 50),
    Workload("wandering, and four filters for all flows", 1, True, 50),
)


class _Timed(Run):
    def __init__(self, plan: Plan, run_dir: Path) -> None:
        super().__init__(plan, run_dir)
        self.laps: list[float] = []  # CPU seconds

    def _lap(self) -> None:
        self.laps.append(time.process_time())


def measured(workload: Workload, flows: int) -> float:
    """Simulated seconds per second of CPU."""
    last = UNTIL_MEASURED + workload.seconds
    steps = [Step(BEGIN_NS + 1_000_000, "begin")]
    for at in range(1, last + 1):
        if at in (UNTIL_MEASURED, last):
            steps.append(Step(BEGIN_NS + at * SECOND_NS, "lap"))
        steps.append(Step(BEGIN_NS + at * SECOND_NS, "migrate", (at * 7, at)))
    plan = Plan(
        workload.policy, ("hns3",), 2 * flows, True, flows, False, tuple(steps), True,
        wanders=workload.wanders,
    )  # fmt: skip
    with mock.patch.object(service, "PACE", Pace()):
        there = run(plan, _Timed)
    assert isinstance(there, _Timed)
    began_s, ended_s = there.laps
    return workload.seconds / (ended_s - began_s)
