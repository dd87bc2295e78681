# SPDX-License-Identifier: GPL-2.0-or-later
"""TCP flows before data can be in flight: connects as their SYN leaves, and listening sockets."""

from __future__ import annotations

from typing import NamedTuple

from atfnd.model.flow import FlowKey, SocketGone, Thread

__all__ = ["Accepted", "Born", "Connected", "Connecting", "Forked", "Listening"]


class Connecting(NamedTuple):
    """`thread` connects, on `cpu`: both ports are known, and the SYN is not sent at `at_ns`."""

    at_ns: int
    cookie: int
    key: FlowKey
    netns: int  # inode number
    thread: Thread
    cpu: int


class Connected(NamedTuple):
    """The SYN was answered: at `at_ns` our ACK was not sent yet, without which no data comes."""

    at_ns: int
    cookie: int
    key: FlowKey
    handshake_ns: int  # since Connecting


class Listening(NamedTuple):
    """A socket listens on its port. `thread` and `cpu` are not known of one found later. `alone`:
    its process has one thread, and has not forked since it listens. `pinned`: that thread might run
    on one CPU only when it began to listen."""

    at_ns: int
    cookie: int
    key: FlowKey  # its remote end is open
    netns: int  # inode number
    thread: Thread | None = None
    cpu: int | None = None
    alone: bool = False
    pinned: bool = False


class Forked(NamedTuple):
    """A process that was alone when it began to listen has made a thread or another process: it is
    not known any more who will accept."""

    at_ns: int
    pid: int


class Accepted(NamedTuple):
    """A connection to a listener was established by an ACK that came through `napi_id`. Whatever
    came before it was no data. None: not known, or data that were sent before it are missing."""

    at_ns: int
    cookie: int
    key: FlowKey
    napi_id: int | None


Born = Connecting | Connected | Listening | Forked | Accepted | SocketGone
