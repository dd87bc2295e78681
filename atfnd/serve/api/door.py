# SPDX-License-Identifier: GPL-2.0-or-later
"""Admission: how many connections are taken in a second, how many clients there may be at once, to
which user they belong, and how fast a user may ask.

One connection is taken in each round of the loop. A client that connects again and again waits in
the kernel, and costs us nothing; a user that asks more waits, and nobody else does.

A client that finds no room is answered 503 and disconnected before anything of it is read. Some
room is reserved for root: clients that only read can never keep out one that may stop us
(`disarm`).
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from atfnd.serve.api.answers import SPENT_S

__all__ = ["Accepting", "Door", "UserPace", "uid_of"]

CLIENTS = 32  # connections at once
ROOT_CLIENTS = 16  # more, for root's processes
RETRY_S = 1
REFUSED, REFUSED_S = 64, 1.0  # refused clients that may still be reading the answer


def uid_of(transport: asyncio.BaseTransport | None) -> int | None:
    """The user whose process connected: struct ucred (unix(7), SO_PEERCRED), as it was then. None:
    the connection has ended."""
    peer = None if transport is None else transport.get_extra_info("socket")
    if peer is None:
        return None
    said = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(said[4:8], sys.byteorder)


class Door:
    """Makes the protocol of each connection."""

    def __init__(self, server: web.Server, most: int | None = None) -> None:
        """`most`: connections at once, and no additional ones for root."""
        self._server = server
        self._most = most
        self._refused: set[_Visitor] = set()

    def __call__(self) -> asyncio.Protocol:
        return _Visitor(self)

    def enter(self, visitor: _Visitor, transport: asyncio.Transport) -> None:
        """Let it in, or answer why not."""
        most = self._most
        if most is None:
            most = CLIENTS + (ROOT_CLIENTS if uid_of(transport) == 0 else 0)
        if len(self._server.connections) < most:
            handler = self._server()
            transport.set_protocol(handler)
            handler.connection_made(transport)
            return
        transport.write(_full())
        if len(self._refused) < REFUSED:
            self._refused.add(visitor)
            asyncio.get_running_loop().call_later(REFUSED_S, transport.close)
        else:
            transport.close()

    def left(self, visitor: _Visitor) -> None:
        """The client has gone."""
        self._refused.discard(visitor)


class _Visitor(asyncio.Protocol):
    """A connection until its user is known, or, once it was refused, until it ends. To close it
    before its request has arrived would break the client's writing instead of answering it."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._door.enter(self, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.left(self)


def _full() -> bytes:
    body = json.dumps({"error": "too many clients at once", "hint": "close some, or try again"})
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Retry-After: {RETRY_S}\r\nContent-Length: {len(body) + 1}\r\nConnection: close\r\n\r\n"
    )
    return f"{head}{body}\n".encode()


BACKLOG = 100
AT_ONCE = 64  # connections, after a rest
NO_ROOM_S = 1.0  # out of descriptors or memory: wait before the next try


class Accepting:
    """Listens until `close`, which leaves the socket open. `every_s`: between two connections, on
    average; 0: no limit."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        every_s: float,
    ) -> None:
        self._listener, self._protocol, self._every_s = listener, protocol, every_s
        self._loop = asyncio.get_running_loop()
        self._begun: set[asyncio.Task[object]] = set()
        self._paid_s = -math.inf  # until then, the connections taken are paid for
        self._waiting: asyncio.TimerHandle | None = None
        listener.listen(BACKLOG)
        self._loop.add_reader(listener.fileno(), self._take)

    def close(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        if self._waiting is not None:
            self._waiting.cancel()
        for each in self._begun:
            each.cancel()

    def _take(self) -> None:
        try:
            taken, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as refusal:
            context = {"message": "no connections are accepted for a while", "exception": refusal}
            self._loop.call_exception_handler(context)
            self._rest(NO_ROOM_S)
            return
        taken.setblocking(False)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._protocol, taken))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        self._pay()

    def _pay(self) -> None:
        """A leaky bucket: connections beyond AT_ONCE wait for their time."""
        now_s = self._loop.time()
        rested_s = now_s - (AT_ONCE - 1) * self._every_s
        self._paid_s = max(self._paid_s, rested_s) + self._every_s
        if self._paid_s > now_s:
            self._rest(self._paid_s - now_s)

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._waiting = self._loop.call_later(seconds, self._again)

    def _again(self) -> None:
        self._waiting = None
        self._loop.add_reader(self._listener.fileno(), self._take)


EVERY_S = 0.02  # between two requests of a user, on average
REQUESTS_AT_ONCE = 64  # of a user, after a rest
REST = 5.0  # times the time that a long answer took of the loop


class UserPace:
    """Each request of a user pays EVERY_S, and REST for what its answer took. One that is not paid
    for waits, on whichever connection. root's do not: it could stop us anyway."""

    def __init__(self) -> None:
        self._paid_s: dict[int, float] = {}  # by uid: until when its requests are paid for

    @asynccontextmanager
    async def __call__(self, request: web.BaseRequest) -> AsyncIterator[None]:
        uid = uid_of(request.transport)
        if uid is None or uid == 0:
            yield
            return
        await asyncio.sleep(self._pay(uid, EVERY_S) - time.monotonic())
        try:
            yield
        finally:
            self._pay(uid, REST * request.get(SPENT_S, 0.0))

    def _pay(self, uid: int, price_s: float) -> float:
        """Until when it has paid for now."""
        rested_s = time.monotonic() - REQUESTS_AT_ONCE * EVERY_S
        self._paid_s = {each: at_s for each, at_s in self._paid_s.items() if at_s > rested_s}
        self._paid_s[uid] = max(self._paid_s.get(uid, -math.inf), rested_s) + price_s
        return self._paid_s[uid]
