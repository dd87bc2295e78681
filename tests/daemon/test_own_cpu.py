# SPDX-License-Identifier: GPL-2.0-or-later
"""The CPU time of this process and its children, as the engine hears of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from atfnd.daemon import cpu_times
from atfnd.engine.event import CpuSpent

BUSY_NS = 30_000_000
BURN = f"import time\nwhile time.process_time_ns() < {BUSY_NS}: pass"


def burn() -> None:
    until_ns = time.process_time_ns() + BUSY_NS
    while time.process_time_ns() < until_ns:
        pass


def test_our_own_time_and_that_of_our_children_count() -> None:
    before_ns = cpu_times.spent_ns()
    burn()
    ours_ns = cpu_times.spent_ns()
    assert ours_ns - before_ns >= BUSY_NS
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert cpu_times.spent_ns() - ours_ns >= BUSY_NS


class Enough(Exception):
    """It was heard often enough."""


def test_the_engine_hears_of_it_at_once_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_times, "_EVERY_S", 0.0)
    told: list[CpuSpent] = []

    def tell(event: CpuSpent) -> None:
        told.append(event)
        if len(told) == 2:
            raise Enough
        burn()

    with pytest.raises(Enough):
        asyncio.run(cpu_times.keep(tell))
    assert told[1].spent_ns - told[0].spent_ns >= BUSY_NS
