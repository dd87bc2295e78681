# SPDX-License-Identifier: GPL-2.0-or-later
"""Admission: how many clients there may be at once, and to which user they belong.

A client that finds no room is answered 503 and disconnected before anything of it is read. Some
room is reserved for root: clients that only read can never keep out one that may stop us
(`disarm`).
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys

from aiohttp import web

__all__ = ["Door", "uid_of"]

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
