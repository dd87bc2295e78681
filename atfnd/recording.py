# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon sees, told to who records it. Costs nothing while nobody does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence

from atfnd.model import Direction, Flow, Process, Protocol, SocketGone, SocketSeen, SocketUse
from atfnd.observe.nics import NicWatch
from atfnd.observe.ports import ListenedPorts
from atfnd.observe.process import Processes
from atfnd.published import Published
from atfnd.replay.recording import Audited, End, Gone, Line, Machine, Seen, line_of

__all__ = ["Recorder"]

_WAITING = 10_000  # lines a reader may be behind


class _Reader:
    """Who records: lines wait for him, and those that find no room are counted."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str] = asyncio.Queue(_WAITING)
        self.lost = 0

    def tell(self, text: str) -> None:
        if self.queue.full():
            self.lost += 1
        else:
            self.queue.put_nowait(text)


class Recorder:
    """Of one daemon."""

    def __init__(self, shown: Published) -> None:
        self._shown = shown
        self._readers: set[_Reader] = set()
        self._stood: object = None  # the NICs, when the machine was last told
        self._processes, self._ports = Processes(command=True), ListenedPorts()

    async def lines(self, seconds: float, most: int) -> AsyncGenerator[str, None]:
        """A recording, line by line: what is known at the start, then what is seen."""
        loop, reader = asyncio.get_running_loop(), _Reader()
        end_s, count = loop.time() + seconds, 0
        self._readers.add(reader)
        try:
            for line in self._known():
                yield line_of(line)
            while count < most and (left_s := end_s - loop.time()) > 0:
                try:
                    text = await asyncio.wait_for(reader.queue.get(), left_s)
                except TimeoutError:
                    break
                count += 1
                yield text
            yield line_of(End(time.monotonic_ns(), reader.lost))
        finally:
            self._readers.discard(reader)

    def seen(self, watch: NicWatch, event: SocketSeen) -> None:
        """A socket was observed on a NIC of ours."""
        if self._readers:
            self._tell(self._seen(watch, event, event.at_ns))

    def gone(self, event: SocketGone) -> None:
        """A socket has ended."""
        if self._readers:
            self._tell(Gone(event.at_ns, event.cookie))

    def audited(self, uses: Sequence[SocketUse]) -> None:
        """The sockets that were reported, looked at again; NICs that are otherwise come first."""
        if self._readers:
            if self._stands() != self._stood:
                self._tell(self._machine())
            self._tell(Audited(time.monotonic_ns(), tuple(uses)))

    def _tell(self, line: Line) -> None:
        text = line_of(line)
        for reader in self._readers:
            reader.tell(text)

    def _known(self) -> Iterator[Line]:
        """The machine and the flows of the table, as if they were seen just now."""
        yield self._machine()
        watches = self._shown.watches
        now_ns = time.monotonic_ns()
        for flow in list(self._shown.flows()):
            if flow is not None and flow.nic in watches and not flow.key.wide:
                watch = watches[flow.nic]
                yield self._seen(watch, _as_seen(flow, watch, now_ns), now_ns)

    def _machine(self) -> Machine:
        self._stood = self._stands()
        views = tuple(watch.view for watch in self._shown.watches.values())
        return Machine(time.monotonic_ns(), views, self._shown.topology())

    def _seen(self, watch: NicWatch, event: SocketSeen, at_ns: int) -> Seen:
        """With what another policy may ask of its process, and which end opened it."""
        now_ns, thread = time.monotonic_ns(), event.thread
        rss = watch.predicted(event.key) if event.key.remote_port else None
        process = Process() if thread is None else self._processes.of(thread.pid, now_ns)
        if event.direction is None and event.key.protocol == Protocol.TCP:
            netns, born_ns = watch.nic.netns, event.born_ns
            listened = self._ports.serves(netns, event.key, now_ns, born_ns)
            event = event._replace(direction=Direction.ACCEPTED if listened else None)
        return Seen(at_ns, watch.view.name, event, rss.index if rss else None, process)

    def _stands(self) -> object:
        """What makes a NIC another one. Not the CPUs of its queues: we move those ourselves."""
        return {name: watch.lives for name, watch in self._shown.watches.items()}


def _as_seen(flow: Flow, watch: NicWatch, now_ns: int) -> SocketSeen:
    queues = watch.view.queues
    napi_id = next((q.napi_id for q in queues if q.index == flow.rx_queue), None)
    return SocketSeen(
        now_ns, flow.cookie, flow.key, flow.app_cpu, flow.thread, napi_id, flow.rx_cpu,
        flow.bytes, flow.used_ns, flow.born_ns, flow.direction,
    )  # fmt: skip
