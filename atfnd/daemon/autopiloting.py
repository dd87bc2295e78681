# SPDX-License-Identifier: GPL-2.0-or-later
"""The autopilot of reception on the loop: reads what queues received, and for how much CPU time.

Runs as a chore; where no policy says `reception: auto`, it reads nothing. Reads the counters of the
NICs' queues, /proc/stat, and schedstat of their NAPI threads and of threads that use their flows.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Iterator, Mapping

from atfnd.daemon.executor import Executor
from atfnd.daemon.session import Sessions
from atfnd.engine.autopilot import autopilot
from atfnd.engine.autopilot.queue_usage import QueueCount, QueuesReading
from atfnd.engine.engine import Engine
from atfnd.engine.event import QueuesRead
from atfnd.model import NicView, Thread
from atfnd.observe.processes.cpu_time import cpu_time

__all__ = ["Autopiloting"]


class Autopiloting:
    """Of all NICs."""

    def __init__(self, engine: Engine, executor: Executor, sessions: Sessions) -> None:
        self._engine, self._executor, self._sessions = engine, executor, sessions

    def look(self) -> None:
        """Read what every such queue received since the last look, and act on it."""
        piloted = self._engine.piloted()
        self._executor.take(QueuesRead(self._read(piloted) if piloted else None))

    def pressing(self) -> bool:
        """A trial goes on, or may begin: its windows must be short, and of equal length."""
        return autopilot.pressing(self._engine.memory, time.monotonic_ns())

    def _read(self, piloted: Mapping[str, Mapping[int, Collection[Thread]]]) -> QueuesReading:
        views = [self._engine.views[name] for name in piloted]
        tasks = {(q.pid, q.pid) for nic in views for q in nic.queues if q.pid is not None}
        of_queues = (threads for queues in piloted.values() for threads in queues.values())
        tasks |= {(thread.pid, thread.tid) for threads in of_queues for thread in threads}
        counts = {}
        for nic in views:
            for queue, count in self._counts(nic):
                if queue in piloted[nic.name]:
                    counts[nic.name, queue] = count
        return QueuesReading(cpu_time(tasks), counts)

    def _counts(self, nic: NicView) -> Iterator[tuple[int, QueueCount]]:
        """None of a NIC that has just gone."""
        cpus = {queue.index: queue.cpu for queue in nic.queues}
        try:
            stats = self._sessions[nic.name].watch.nic.stats()
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            return
        for each in stats.queues:
            yield each.index, QueueCount(cpus.get(each.index), each.packets, each.bytes)
