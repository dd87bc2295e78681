# SPDX-License-Identifier: GPL-2.0-or-later
"""Flows without an entry of the Flow-to-Core table, which most are: the sockets themselves, read
when somebody asks. Changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from atfnd.daemon.session import Sessions
from atfnd.engine.engine import Engine
from atfnd.model import Protocol, Queue, SocketFound, SocketUse, Thread
from atfnd.model.rss_hash import predicted
from atfnd.observe import Observer
from atfnd.observe.nics.watch import nic_of
from atfnd.observe.processes.threads import last_run, sees_every_thread

__all__ = ["FoundSockets"]

_FRESH_S = 0.1  # what is shown may be this old
_SHARE = 0.01  # of one core that reading all sockets may cost


class FoundSockets:
    """Keeps the sockets that were read last, for a time that the cost of reading them sets."""

    def __init__(self, engine: Engine, sessions: Sessions, observer: Observer) -> None:
        self._engine, self._sessions, self._observer = engine, sessions, observer
        self._sees_threads = sees_every_thread()
        self._read: Sequence[SocketUse] | None = None
        self._read_ns = 0

    def found(self) -> Iterator[SocketFound | None]:
        """As `serve.Source.sockets`."""
        if self._read is None:
            began_ns = time.monotonic_ns()
            self._read, self._read_ns = self._observer.inventory(), began_ns
            took_s = (time.monotonic_ns() - began_ns) / 1e9
            asyncio.get_running_loop().call_later(max(_FRESH_S, took_s / _SHARE), self._forget)
        uses, read_ns = self._read, self._read_ns
        table = self._engine.memory.table
        watches = [session.watch for session in self._sessions.values()]
        queues = {each.napi_id: each for watch in watches for each in watch.facts.queues}
        threads: dict[int, tuple[Thread, int] | None] = {}
        for use in uses:
            watch = nic_of(use, watches)
            if watch is None or use.key in table.overflowed or table.get(use.key) is not None:
                yield None
                continue
            if use.tid is not None and use.tid not in threads:
                threads[use.tid] = self._thread(use.tid)
            used_by = None if use.tid is None else threads[use.tid]
            queue = queues.get(use.napi_id)
            if use.napi_id is None:  # this observer sees no queue: where RSS should deliver it
                queue = predicted(self._sessions[watch.facts.name].view, use.key)
            yield _found(use, watch.facts.name, queue, used_by, read_ns)

    def _forget(self) -> None:
        self._read = None

    def _thread(self, tid: int) -> tuple[Thread, int] | None:
        """And the CPU that it ran on last."""
        if not self._sees_threads or (seen := last_run(tid)) is None:
            return None
        pid, thread = seen
        return Thread(tid, pid, thread.comm, None), thread.cpu


def _found(
    use: SocketUse,
    nic: str,
    queue: Queue | None,
    used_by: tuple[Thread, int] | None,
    read_ns: int,
) -> SocketFound:
    """What an unconnected UDP socket has for a CPU is SO_INCOMING_CPU."""
    thread, cpu = (None, use.app_cpu) if used_by is None else used_by
    rx_cpu = use.rx_cpu
    if use.napi_id is None:
        rx_cpu = None if queue is None else queue.cpu
    elif use.key.protocol == Protocol.UDP and not use.key.remote_port:
        rx_cpu = None
    at = None if queue is None else queue.index
    return SocketFound(use.key, use.cookie, nic, thread, cpu, at, rx_cpu, use.bytes, read_ns)
