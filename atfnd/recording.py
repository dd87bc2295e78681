# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon sees, told to who records it. Costs nothing while nobody does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

from atfnd.decide.newborn import Newborn
from atfnd.model import (
    Born,
    Connecting,
    Direction,
    Flow,
    FlowKey,
    Listening,
    Process,
    Protocol,
    SocketGone,
    SocketSeen,
    SocketUse,
    Thread,
    ThreadReads,
)
from atfnd.observe.nics import NicWatch, nic_of
from atfnd.observe.ports import ListenedPorts
from atfnd.observe.process import Processes
from atfnd.published import Published
from atfnd.replay.recording import (
    FORMAT,
    Audited,
    Births,
    End,
    Gone,
    Heard,
    Line,
    Listeners,
    LookAt,
    Looked,
    Machine,
    Seen,
    Socket,
    line_of,
)

__all__ = ["Recorder"]

_BEAT_S = 2.0
_WAITING = 10_000  # lines a reader may be behind
_A_LINE = 100  # sockets: 2 ms of the loop

ReceivedBy = Callable[[Connecting | Listening], Sequence[NicWatch]]


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

    def __init__(self, shown: Published, newborn: Newborn) -> None:
        self._shown, self._newborn = shown, newborn
        self._sockets: dict[tuple[int, FlowKey], int | None] = {}  # as told: the NAPI of each
        self._readers: set[_Reader] = set()
        self._stood: object = None  # the NICs, when the machine was last told
        self._processes, self._ports = Processes(command=True), ListenedPorts()

    def active(self) -> bool:
        """Somebody records."""
        return bool(self._readers)

    async def lines(self, seconds: float, most: int) -> AsyncGenerator[str, None]:
        """A recording, line by line: what is known at the start, then what is seen. Now and then
        "": so that it is looked whether anybody still reads."""
        loop, reader = asyncio.get_running_loop(), _Reader()
        end_s, count = loop.time() + seconds, 0
        self._readers.add(reader)
        try:
            for line in self._known():
                yield line_of(line)
            while count < most and (left_s := end_s - loop.time()) > 0:
                try:
                    text = await asyncio.wait_for(reader.queue.get(), min(left_s, _BEAT_S))
                except TimeoutError:
                    yield ""
                    continue
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

    def heard(self, events: Sequence[Born], received_by: ReceivedBy) -> None:
        """What was told of births, read at once."""
        if self._readers and events:
            heard = tuple(self._heard(event, received_by) for event in events)
            self._tell(Births(time.monotonic_ns(), heard))

    def reads(self, event: ThreadReads, nic: str) -> None:
        """A thread was the first to read a connection that came in through this NIC."""
        if self._readers:
            self._tell(Births(event.at_ns, (Heard(event, {nic: None}),)))

    def found(self) -> None:
        """Every listener was looked for."""
        if self._readers:
            self._tell(self._listeners())

    def looked(self, at: LookAt | None, uses: Sequence[SocketUse]) -> None:
        """Every connected socket was looked at, to decide about rules for many flows."""
        if not self._readers:
            return
        before, self._sockets = self._sockets, _napi_ids(uses)
        came = [use for use in uses if before.get((use.cookie, use.key), -1) != use.napi_id]
        for line in self._looks(at, came, tuple(before.keys() - self._sockets.keys())):
            self._tell(line)

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
        yield self._listeners()
        sockets = self._shown.observer.inventory()
        if len(self._readers) > 1:
            self.looked(None, sockets)  # the others know of those before
        self._sockets = _napi_ids(sockets)
        yield from self._looks(None, sockets, ())

    def _machine(self) -> Machine:
        self._stood = self._stands()
        views = tuple(watch.view for watch in self._shown.watches.values())
        return Machine(time.monotonic_ns(), views, self._shown.topology(), FORMAT)

    def _listeners(self) -> Listeners:
        found = {
            nic: tuple(event for sockets in known.sockets.values() for event in sockets.values())
            for nic, known in self._newborn.listeners.items()
        }
        return Listeners(time.monotonic_ns(), found)

    def _looks(
        self, at: LookAt | None, came: Sequence[SocketUse], gone: tuple[tuple[int, FlowKey], ...]
    ) -> Iterator[Looked]:
        """The last of these is the look; those before have the sockets that it has no room for."""
        now_ns, rest = time.monotonic_ns(), came
        while len(rest) > _A_LINE:
            yield Looked(now_ns, None, tuple(map(self._socket, rest[:_A_LINE])))
            rest = rest[_A_LINE:]
        yield Looked(now_ns, at, tuple(map(self._socket, rest)), gone)

    def _socket(self, use: SocketUse) -> Socket:
        watch = nic_of(use, self._shown.watches.values())
        name = None if watch is None else watch.view.name
        rss = None if watch is None else _rss_queue(watch, use.key)
        return Socket(use.cookie, use.key, use.napi_id, name, rss)

    def _heard(self, event: Born, received_by: ReceivedBy) -> Heard:
        if not isinstance(event, Connecting | Listening):
            return Heard(event)
        nics = {watch.view.name: _rss_queue(watch, event.key) for watch in received_by(event)}
        return Heard(event, nics, self._process(event.thread))

    def _process(self, thread: Thread | None) -> Process:
        return Process() if thread is None else self._processes.of(thread.pid, time.monotonic_ns())

    def _seen(self, watch: NicWatch, event: SocketSeen, at_ns: int) -> Seen:
        """With what another policy may ask of its process, and which end opened it."""
        process, now_ns = self._process(event.thread), time.monotonic_ns()
        if event.direction is None and event.key.protocol == Protocol.TCP:
            netns, born_ns = watch.nic.netns, event.born_ns
            listened = self._ports.serves(netns, event.key, now_ns, born_ns)
            event = event._replace(direction=Direction.ACCEPTED if listened else None)
        return Seen(at_ns, watch.view.name, event, _rss_queue(watch, event.key), process)

    def _stands(self) -> object:
        """What makes a NIC another one. Not the CPUs of its queues: we move those ourselves."""
        return {name: _stands(watch) for name, watch in self._shown.watches.items()}


def _stands(watch: NicWatch) -> object:
    view = watch.view
    return watch.lives, view.caps, view.means, view.theirs, view.foreign


def _napi_ids(uses: Sequence[SocketUse]) -> dict[tuple[int, FlowKey], int | None]:
    return {(use.cookie, use.key): use.napi_id for use in uses}


def _rss_queue(watch: NicWatch, key: FlowKey) -> int | None:
    rss = watch.predicted(key) if key.remote_port else None
    return None if rss is None else rss.index


def _as_seen(flow: Flow, watch: NicWatch, now_ns: int) -> SocketSeen:
    queues = watch.view.queues
    napi_id = next((q.napi_id for q in queues if q.index == flow.rx_queue), None)
    tunnel = watch.tunnel_of(flow.key)
    return SocketSeen(
        now_ns, flow.cookie, flow.key, flow.app_cpu, flow.thread, napi_id, flow.rx_cpu,
        flow.bytes, flow.used_ns, flow.born_ns, flow.direction,
        group=flow.left is not None and tunnel is None, tunnel=tunnel,
    )  # fmt: skip
