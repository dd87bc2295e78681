# SPDX-License-Identifier: GPL-2.0-or-later
"""Tells the engine how busy the CPUs are."""

from __future__ import annotations

from collections.abc import Callable

from atfnd.daemon.in_force import InForce
from atfnd.engine.event import LoadRead
from atfnd.engine.placement.load import busy_percent
from atfnd.model import CpuTime
from atfnd.observe.processes.cpu_time import cpu_time

__all__ = ["Loads"]


class Loads:
    """The load between looks. Reads /proc/stat while the policy has a rule that depends on it.
    `tell` gives it to the engine."""

    def __init__(self, in_force: InForce, tell: Callable[[LoadRead], object]) -> None:
        self._in_force, self._tell = in_force, tell
        self._before: CpuTime | None = None

    def look(self) -> None:
        """What CPUs did since the last look. OSError: /proc cannot be read."""
        if not self._in_force.policy.by_load():
            if self._before is not None:
                self._tell(LoadRead({}))
            self._before = None
            return
        now = cpu_time(())
        if self._before is not None:
            self._tell(LoadRead(busy_percent(self._before, now)))
        self._before = now
