# SPDX-License-Identifier: GPL-2.0-or-later
"""One flow, its sockets and threads, and its entry in the Flow-to-Core table."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from atfnd.model.reason import Why
from atfnd.model.topology import Distance

__all__ = [
    "Direction",
    "Flow",
    "FlowKey",
    "FlowState",
    "Habit",
    "Move",
    "Protocol",
    "SocketFound",
    "SocketGone",
    "SocketSeen",
    "SocketState",
    "SocketUse",
    "Thread",
    "ThreadReads",
    "endpoint",
    "network_of",
]


class Protocol(IntEnum):
    """IP protocol numbers of the transports we steer."""

    TCP = 6
    UDP = 17
    SCTP = 132


def network_of(address: bytes, prefix: int) -> bytes:
    """The address with the bits after the prefix zero."""
    after = max(len(address) * 8 - prefix, 0)
    return (int.from_bytes(address) >> after << after).to_bytes(len(address))


def endpoint(address: bytes, port: int) -> str:
    """`10.0.0.1:443`, `[2001:db8::1]:443`; `*` for an all-zero address or port 0."""
    text = "*" if not any(address) else str(ipaddress.ip_address(address))
    if ":" in text:
        text = f"[{text}]"
    return f"{text}:{port or '*'}"


class FlowKey(NamedTuple):
    """One flow in the receive direction: packets come from `remote` and go to `local`.

    An unconnected UDP socket's flow has an all-zero remote (and, bound to any, an all-zero local):
    it stands for everything that reaches that local port. That of a TCP port does, too (`listens`).
    """

    protocol: int
    local: bytes
    local_port: int
    remote: bytes
    remote_port: int

    @property
    def family(self) -> int:
        """4 or 6."""
        return 4 if len(self.local) == 4 else 6

    @property
    def listens(self) -> bool:
        """It stands for all connections to a TCP port."""
        tcp = self.protocol == Protocol.TCP and bool(self.local_port)
        return tcp and not self.remote_port

    def covers(self, other: FlowKey) -> bool:
        """Every packet of that flow, or of that port, matches a filter for this port."""
        return self.overlaps(other) and (self.local == other.local or not any(self.local))

    def overlaps(self, other: FlowKey) -> bool:
        """Some packet may match a filter for this port, and belong to that port or flow."""
        mine, its = (self.protocol, self.local_port), (other.protocol, other.local_port)
        every = not any(self.local) or not any(other.local)
        return mine == its and self.family == other.family and (every or self.local == other.local)

    def __str__(self) -> str:
        name, source = Protocol(self.protocol).name.lower(), endpoint(self.remote, self.remote_port)
        return f"{name} {endpoint(self.local, self.local_port)} <- {source}"


class Direction(Enum):
    """Which end opened a connection."""

    ACCEPTED = "accepted"  # the remote one: a listener here took it
    CONNECTED = "connected"


class Habit(Enum):
    """Where a thread runs."""

    PINNED = "pinned"  # it may run on one CPU only
    SETTLED = "settled"  # it may run on several, and stays on one
    WANDERING = "wandering"
    UNKNOWN = "unknown"  # it made too few calls, or nobody has seen them


@dataclass(frozen=True, slots=True)
class Thread:
    """The application thread a flow belongs to."""

    tid: int
    pid: int
    comm: str
    cgroup: int | None
    uid: int | None = None  # whose it is, of the whole machine


class SocketSeen(NamedTuple):
    """A qualified socket has been used on `app_cpu` for a dwell, off where we last placed it."""

    at_ns: int
    cookie: int
    key: FlowKey
    app_cpu: int
    thread: Thread | None
    napi_id: int | None
    rx_cpu: int | None
    bytes: int
    off_since_ns: int  # first use on `app_cpu` of the streak that led to this
    born_ns: int | None  # established, or first seen
    direction: Direction | None = None
    group: bool = False  # one of several UDP sockets of its address and port (SO_REUSEPORT)
    # The part of the machine that its thread stays in until a move has paid. MACHINE: it wanders.
    home: Distance = Distance.CPU
    pinned: bool | None = None  # its thread may run on one CPU only
    tunnel: str | None = None  # in which its packets come, so that the NIC sees another 5-tuple

    @property
    def wanders(self) -> bool:
        """Its thread does not stay anywhere until a move has paid."""
        return self.home is Distance.MACHINE


class SocketUse(NamedTuple):
    """Audit of one socket an observer reported before: still there, and how it is used."""

    cookie: int
    key: FlowKey
    app_cpu: int | None
    napi_id: int | None
    rx_cpu: int | None
    bytes: int
    used_ns: int | None = None  # last use; None: a change of `bytes` shows it
    tid: int | None = None  # of the thread that uses it, where that was seen


class SocketState(Enum):
    """How a flow without an entry of the Flow-to-Core table is delivered."""

    LOCAL = "local"  # on the CPU its thread runs on: there is nothing to do
    LEFT = "left"  # somewhere else, or that is not known


class SocketFound(NamedTuple):
    """A socket that receives through a NIC, and whose flow has no entry of the Flow-to-Core
    table."""

    key: FlowKey
    cookie: int
    nic: str
    thread: Thread | None
    app_cpu: int | None  # where its thread ran last
    rx_queue: int | None
    rx_cpu: int | None
    bytes: int
    read_ns: int

    @property
    def state(self) -> SocketState:
        here = self.rx_cpu is not None and self.rx_cpu == self.app_cpu
        return SocketState.LOCAL if here else SocketState.LEFT


class SocketGone(NamedTuple):
    at_ns: int
    cookie: int


class ThreadReads(NamedTuple):
    """A thread was the first to read an accepted connection, on `cpu`. At most two threads of a
    port are reported in a second."""

    at_ns: int
    key: FlowKey
    napi_id: int | None
    thread: Thread
    cpu: int | None = None


class FlowState(Enum):
    """Where a flow of the Flow-to-Core table stands."""

    WANTED = "wanted"  # to be steered, and is not (see reason)
    OBSERVED = "observed"  # the interface is not armed: shown, not changed
    STEERED = "steered"  # a filter is in the NIC
    OVERFLOW = "overflow"  # table or NIC full: delivered by RSS
    MANUAL = "manual"  # another program changed its filter or entry: left alone until resumed
    RSS = "rss"  # its entry of the indirection table points to its core
    SHARED = "shared"  # its entry serves busier flows, on another core
    PORT = "port"  # its port's filter leads it to its owner's queue
    RFS = "rfs"  # the kernel hands its packets on to its core, after the NIC's


class Move(NamedTuple):
    """How a move of a flow from one queue to another ended (reference/ordering.md)."""

    mechanism: str  # what kept its packets in order
    verdict: str
    why: Why
    late_packets: int  # that others overtook
    took_ns: int


class Flow(NamedTuple):
    """One entry of the Flow-to-Core table (paper, section 3.3)."""

    key: FlowKey
    cookie: int
    nic: str
    state: FlowState
    app_cpu: int
    thread: Thread | None
    target_queue: int | None
    target_cpu: int | None
    location: int | None
    rx_queue: int | None  # observed
    rx_cpu: int | None  # observed
    bytes: int
    used_ns: int  # last time it was seen in use
    moved_ns: int  # last time its filter changed, 0 for never
    rule_name: str  # of the policy's rule that steers it; empty for one of an earlier run
    why: Why
    move: Move | None = None  # how the last one ended
    born_ns: int | None = None  # established, or first seen
    direction: Direction | None = None
    fell_back: Why | None = None  # why it is not placed as its policy asks, and where instead
    left: Why | None = None  # why no filter is written for it: RSS delivers it
    listener: Thread | None = None  # of a port's entry: whose filter it is
    home: Distance = Distance.CPU  # the part of the machine that its thread stays in
    pinned: bool | None = None  # as `SocketSeen.pinned`
    home_ns: int = 0  # since when it has been so, as far as was reported

    @property
    def habit(self) -> Habit:
        """Where its thread runs, as far as the observer has reported."""
        if self.pinned is None:
            return Habit.UNKNOWN
        if self.pinned:
            return Habit.PINNED
        return Habit.SETTLED if self.home is Distance.CPU else Habit.WANDERING
