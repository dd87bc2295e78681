# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps what decisions know of the CPUs' load up to date."""

from __future__ import annotations

from atfnd.engine.placement.load import quarters
from atfnd.engine.table.memory import Memory
from atfnd.model import CpuTime
from atfnd.observe.processes.cpu_time import cpu_time

__all__ = ["Loads"]


class Loads:
    """The load between looks. Reads /proc/stat while the policy has a placement that may choose."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._before: CpuTime | None = None

    def look(self) -> None:
        """What CPUs did since the last look. OSError: /proc cannot be read."""
        if not self._memory.in_force.elsewhere:
            self._before, self._memory.busy = None, {}
            return
        now = cpu_time(())
        if self._before is not None:
            self._memory.busy = quarters(self._before, now)
        self._before = now
