# SPDX-License-Identifier: GPL-2.0-or-later
"""Tells a client that records what the daemon sees. Costs nothing while no client does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager

from atfnd.daemon.session import NicSession, Sessions
from atfnd.engine.engine import Engine
from atfnd.engine.handshake.handshake import listeners
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
from atfnd.model.reason import Code
from atfnd.model.rss_hash import rss_index
from atfnd.observe import Observer
from atfnd.observe.machine.topology import CpuWatch
from atfnd.observe.nics.watch import NicWatch, nic_of
from atfnd.observe.processes.process import Processes
from atfnd.observe.sockets.listening import ListenedPorts
from atfnd.replay.recording import (
    FORMAT,
    Audited,
    Line,
    Looked,
    RecordedBirth,
    RecordedBirths,
    RecordedClose,
    RecordedListeners,
    RecordedMachine,
    RecordedSocket,
    RecordingEnd,
    Socket,
    line_of,
)

__all__ = ["Recorder"]

_BEAT_S = 2.0
_WAITING = 10_000  # a reader may be this many lines behind
_A_LINE = 100  # sockets: 2 ms of the loop

ReceivedBy = Callable[[Connecting | Listening], Sequence[NicWatch]]


class _Reader:
    """A client that records: lines wait for it, and those that find no room are counted."""

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

    def __init__(
        self, engine: Engine, sessions: Sessions, observer: Observer, cpus: CpuWatch
    ) -> None:
        self._engine, self._sessions = engine, sessions
        self._observer, self._cpus = observer, cpus
        self._asked = 0  # recordings that are being made, or about to be
        self._sockets: dict[tuple[int, FlowKey], int | None] = {}  # the NAPI of each
        self._readers: set[_Reader] = set()
        self._stood: object = None  # the NICs when the machine was last described
        self._processes, self._ports = Processes(command=True), ListenedPorts()

    def active(self) -> bool:
        """A recording is being made."""
        return bool(self._readers)

    def asked(self) -> bool:
        """A recording is being made, or is about to be."""
        return self._asked > 0

    @contextmanager
    def asking(self) -> Iterator[None]:
        """In this block a recording is wanted."""
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1

    async def lines(self, seconds: float, most: int) -> AsyncGenerator[str, None]:
        """A recording, line by line: first what is known at the start, then what is seen. From time
        to time "", so that the server notices when the client has gone."""
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
            yield line_of(RecordingEnd(time.monotonic_ns(), reader.lost))
        finally:
            self._readers.discard(reader)

    def seen(self, watch: NicWatch, event: SocketSeen, now_ns: int) -> None:
        """A socket was observed on a NIC of ours, and it is its turn."""
        if self._readers:
            self._tell(self._seen(watch, event, now_ns))

    def gone(self, event: SocketGone) -> None:
        """A socket has ended."""
        if self._readers:
            self._tell(RecordedClose(event.at_ns, event.cookie))

    def audited(self, uses: Sequence[SocketUse]) -> None:
        """The sockets that were reported, looked at again; NICs that have changed come first."""
        if self._readers:
            if self._stands() != self._stood:
                self._tell(self._machine())
            self._tell(Audited(time.monotonic_ns(), tuple(uses)))

    def heard(self, events: Sequence[Born], received_by: ReceivedBy) -> None:
        """The birth events of one read."""
        if self._readers and events:
            heard = tuple(self._heard(event, received_by) for event in events)
            self._tell(RecordedBirths(time.monotonic_ns(), heard))

    def reads(self, event: ThreadReads, nic: str) -> None:
        """A thread was the first to read a connection that came in through this NIC."""
        if self._readers:
            self._tell(RecordedBirths(event.at_ns, (RecordedBirth(event, {nic: None}),)))

    def found(self) -> None:
        """Every listener was looked for."""
        if self._readers:
            self._tell(self._listeners())

    def looked(self, uses: Sequence[SocketUse], *, ports: bool = True) -> None:
        """Every connected socket was looked at; `ports`: to decide about the filters of ports."""
        if not self._readers:
            return
        before, self._sockets = self._sockets, _napi_ids(uses)
        came = [use for use in uses if before.get((use.cookie, use.key), -1) != use.napi_id]
        for line in self._looks(ports, came, tuple(before.keys() - self._sockets.keys())):
            self._tell(line)

    def _tell(self, line: Line) -> None:
        text = line_of(line)
        for reader in self._readers:
            reader.tell(text)

    def _known(self) -> Iterator[Line]:
        """The machine and the flows of the table, as if they were seen just now."""
        yield self._machine()
        now_ns, memory = time.monotonic_ns(), self._engine.memory
        for flow in [*memory.table, *memory.table.overflowed.values()]:
            if flow.nic in self._sessions and not flow.key.listens:
                watch = self._sessions[flow.nic].watch
                yield self._seen(watch, _as_seen(flow, watch, now_ns), now_ns)
        yield self._listeners()
        sockets = self._observer.inventory()
        if len(self._readers) > 1:
            self.looked(sockets, ports=False)  # the others know of those before
        self._sockets = _napi_ids(sockets)
        yield from self._looks(False, sockets, ())

    def _machine(self) -> RecordedMachine:
        self._stood = self._stands()
        views = tuple(session.view for session in self._sessions.values())
        return RecordedMachine(time.monotonic_ns(), views, self._cpus.read(), FORMAT)

    def _listeners(self) -> RecordedListeners:
        found = {
            nic: tuple(event for sockets in known.sockets.values() for event in sockets.values())
            for nic, known in listeners(self._engine.memory).items()
        }
        return RecordedListeners(time.monotonic_ns(), found)

    def _looks(
        self, ports: bool, came: Sequence[SocketUse], gone: tuple[tuple[int, FlowKey], ...]
    ) -> Iterator[Looked]:
        """The last of these is the look; the earlier ones hold the sockets that it has no room
        for."""
        now_ns, rest = time.monotonic_ns(), came
        while len(rest) > _A_LINE:
            yield Looked(now_ns, came=tuple(map(self._socket, rest[:_A_LINE])))
            rest = rest[_A_LINE:]
        yield Looked(now_ns, ports, tuple(map(self._socket, rest)), gone)

    def _socket(self, use: SocketUse) -> Socket:
        watch = nic_of(use, [session.watch for session in self._sessions.values()])
        name = None if watch is None else watch.facts.name
        rss = None if name is None else self._rss_queue(name, use.key)
        return Socket(use.cookie, use.key, use.napi_id, name, rss)

    def _heard(self, event: Born, received_by: ReceivedBy) -> RecordedBirth:
        if not isinstance(event, Connecting | Listening):
            return RecordedBirth(event)
        names = [watch.facts.name for watch in received_by(event)]
        nics = {name: self._rss_queue(name, event.key) for name in names}
        return RecordedBirth(event, nics, self._process(event.thread))

    def _process(self, thread: Thread | None) -> Process:
        return Process() if thread is None else self._processes.of(thread.pid, time.monotonic_ns())

    def _seen(self, watch: NicWatch, event: SocketSeen, at_ns: int) -> RecordedSocket:
        """With what another policy may ask about its process, and which end opened it."""
        process, now_ns = self._process(event.thread), time.monotonic_ns()
        if event.direction is None and event.key.protocol == Protocol.TCP:
            netns, born_ns = watch.nic.netns, event.born_ns
            listened = self._ports.serves(netns, event.key, now_ns, born_ns)
            event = event._replace(direction=Direction.ACCEPTED if listened else None)
        rss = self._rss_queue(watch.facts.name, event.key)
        return RecordedSocket(at_ns, watch.facts.name, event, rss, process)

    def _rss_queue(self, nic: str, key: FlowKey) -> int | None:
        return rss_index(self._sessions[nic].view, key)

    def _stands(self) -> object:
        """What makes a NIC a different one. Not the CPUs of its queues: we move those ourselves."""
        return {name: _stands(session) for name, session in self._sessions.items()}


def _stands(session: NicSession) -> object:
    view = session.view
    return session.watch.lives, view.caps, view.method, view.theirs, view.foreign


def _napi_ids(uses: Sequence[SocketUse]) -> dict[tuple[int, FlowKey], int | None]:
    return {(use.cookie, use.key): use.napi_id for use in uses}


def _as_seen(flow: Flow, watch: NicWatch, now_ns: int) -> SocketSeen:
    queues = watch.facts.queues
    napi_id = next((q.napi_id for q in queues if q.index == flow.rx_queue), None)
    tunnel = watch.tunnel_of(flow.key)
    return SocketSeen(
        now_ns, flow.cookie, flow.key, flow.app_cpu, flow.thread, napi_id, flow.rx_cpu,
        flow.bytes, flow.used_ns, flow.born_ns, flow.direction,
        group=flow.left is not None and flow.left.code is Code.LEFT_GROUP, home=flow.home,
        pinned=flow.pinned,
        tunnel=tunnel,
    )  # fmt: skip
