# SPDX-License-Identifier: GPL-2.0-or-later
"""The trials of `auto`, a placement or a reception, on the loop: reads the figures that they are
judged by.

Runs as a chore; where no policy says `auto`, it reads nothing. Else /proc/stat, schedstat of NAPI
threads and of threads that use the flows, the bytes of their sockets, the counters of queues.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Iterator, Mapping

from atfnd.daemon.executor import Executor
from atfnd.daemon.session import Sessions
from atfnd.engine.engine import Engine
from atfnd.engine.event import UsageRead
from atfnd.engine.trials.usage import QueueCount, UsageReading
from atfnd.model import Flow, NicView, Thread
from atfnd.observe import Observer
from atfnd.observe.processes.cpu_time import cpu_time

__all__ = ["Trying"]


class Trying:
    """Of all NICs."""

    def __init__(
        self, engine: Engine, executor: Executor, sessions: Sessions, observer: Observer
    ) -> None:
        self._engine, self._executor = engine, executor
        self._sessions, self._observer = sessions, observer

    def look(self) -> None:
        """Read what applications and queues did since the last look, and act on it."""
        flows, queues = self._engine.tried(), self._engine.tried_queues()
        reading = None
        if flows or queues:
            reading = self._read([flow for each in flows.values() for flow in each], queues)
        self._executor.take(UsageRead(flows, reading))

    def pressing(self) -> bool:
        """A trial goes on, or may begin: its windows must be short, and of equal length."""
        now_ns = time.monotonic_ns()
        return any(
            nic.trials.pressing(now_ns) or nic.reception.auto.pressing(now_ns)
            for nic in self._engine.memory.nics.values()
        )

    def _read(
        self, flows: Collection[Flow], queues: Mapping[str, Mapping[int, Collection[Thread]]]
    ) -> UsageReading:
        """The bytes of these flows' sockets, the counters of these queues, and the CPU time of the
        threads that use and that deliver them."""
        threads = {flow.thread for flow in flows if flow.thread is not None}
        threads |= {thread for nic in queues.values() for each in nic.values() for thread in each}
        tasks = {(thread.pid, thread.tid) for thread in threads}
        nics = [self._engine.views[name] for name in {*(flow.nic for flow in flows), *queues}]
        tasks |= {(q.pid, q.pid) for nic in nics for q in nic.queues if q.pid is not None}
        keys = {flow.key for flow in flows}
        uses = self._observer.audit() if flows else ()
        carried = {use.key: use.bytes for use in uses if use.key in keys}
        counts = {
            (nic.name, queue): count
            for nic in nics
            for queue, count in (self._counts(nic) if nic.name in queues else ())
            if queue in queues[nic.name]
        }
        return UsageReading(cpu_time(tasks), carried, self._observer.lost(), counts)

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
