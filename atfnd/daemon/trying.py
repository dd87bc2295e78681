# SPDX-License-Identifier: GPL-2.0-or-later
"""The trials of the placement `auto` on the loop: reads the figures that they are judged by.

Runs as a chore; where no rule says `auto`, it reads nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from atfnd.daemon.executor import Executor
from atfnd.engine.engine import Engine
from atfnd.engine.event import UsageRead
from atfnd.engine.trials.trials import Application
from atfnd.engine.trials.usage import UsageReading
from atfnd.model import Flow
from atfnd.observe import Observer
from atfnd.observe.processes.cpu_time import cpu_time

__all__ = ["Trying"]


class Trying:
    """Of all NICs."""

    def __init__(self, engine: Engine, executor: Executor, observer: Observer) -> None:
        self._engine, self._executor, self._observer = engine, executor, observer

    def look(self) -> None:
        """Read what every application did since the last look, and act on it."""
        flows = self._engine.tried()
        self._executor.take(UsageRead(flows, self._read(flows) if flows else None))

    def pressing(self) -> bool:
        """A trial goes on, or may begin: its windows must be short, and of equal length."""
        return self._engine.memory.trials.pressing(time.monotonic_ns())

    def _read(self, flows: Mapping[Application, Sequence[Flow]]) -> UsageReading:
        """The bytes of their sockets, and the CPU time of the threads that use and that deliver
        them."""
        keys = {flow.key for each in flows.values() for flow in each}
        uses = self._observer.audit()
        threads = {flow.thread for each in flows.values() for flow in each}
        tasks = {(thread.pid, thread.tid) for thread in threads if thread is not None}
        nics = [self._engine.views[name] for name in {each.nic for each in flows}]
        tasks |= {(q.pid, q.pid) for nic in nics for q in nic.queues if q.pid is not None}
        carried = {use.key: use.bytes for use in uses if use.key in keys}
        return UsageReading(cpu_time(tasks), carried, self._observer.lost())
